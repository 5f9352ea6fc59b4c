"""Digests of results that must be equal on every machine: index, matrix, and negatives for combinations of options.

``python tests/test_digests.py`` computes the digests again and writes tests/digests.json. If a commit changes
tests/digests.json, its message must state which digests change and why.
"""

import hashlib
import json
from itertools import product
from pathlib import Path

import pytest

STORED = Path(__file__).with_name("digests.json")
TOKENIZERS = ("unicode", "whitespace", "treebank")
FORMS = [("unicode", "keep"), ("unicode", "plain"), ("whitespace", "keep"), ("whitespace", "plain")]
FORMS += [("treebank", "plain")]
OPTIONS = list(
    product(FORMS, ("tfidf", "random"), ("radius", "random"), ("negative", "positive"), (0.3, 0.7), (50, "5%"))
)
ROWS = 2000


def sha256(data):
    return hashlib.sha256(data).hexdigest()[:32]


def index_digests(rows, folder):
    """Yields the name and digest of each index and matrix. An index stores its corpus path, so the path is relative."""
    import os

    from cse.tfidf.build import build_index

    (folder / "corpus.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    before = os.getcwd()
    os.chdir(folder)
    try:
        for tokenizer in TOKENIZERS:
            build_index(["corpus.txt"], tokenizer, words={"tokenizer": tokenizer})
            for name in ("index.safetensors", "matrix.npz"):
                yield f"{tokenizer}/{name}", sha256((folder / tokenizer / name).read_bytes())
    finally:
        os.chdir(before)


def negative_digests(rows, folder):
    from cse import TfidfIndex

    indexes = {tokenizer: TfidfIndex.open(folder / tokenizer) for tokenizer in TOKENIZERS}
    for (tokenizer, surface), which, using, mode, beta, radius in OPTIONS:
        negatives = indexes[tokenizer].augment(
            rows[:ROWS], surface=surface, replace_which=which, replace_with=using, mode=mode, beta=beta, radius=radius,
            seed=3,
        )  # fmt: skip
        name = f"{tokenizer} {surface}, which {which}, with {using}, {mode}, beta {beta}, radius {radius}"
        yield name, sha256("\n".join(negatives).encode())


def digests(rows, folder):
    return {**dict(index_digests(rows, folder)), **dict(negative_digests(rows, folder))}


@pytest.fixture(scope="module")
def found(sample_rows, tmp_path_factory):
    return digests(sample_rows, tmp_path_factory.mktemp("digests"))


@pytest.mark.parametrize("name", json.loads(STORED.read_text()) if STORED.exists() else ["none stored"])
def test_each_result_has_its_stored_digest(found, name):
    assert found[name] == json.loads(STORED.read_text())[name]


if __name__ == "__main__":
    import tempfile
    from importlib.resources import files

    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").split("\n")[:-1]
    with tempfile.TemporaryDirectory() as place:
        STORED.write_text(json.dumps(digests(sample, Path(place)), indent=1) + "\n", encoding="utf8")
