"""Digests of results that must be equal on every machine: index, matrix, and negatives for combinations of options.

``python tests/test_digests.py`` computes the digests again and writes tests/digests.json. If a commit changes
tests/digests.json, its message must state which digests change and why.
"""

import contextlib
import hashlib
import json
from itertools import product
from pathlib import Path

import pytest

STORED = Path(__file__).with_name("digests.json")
TOKENIZERS = ("unicode", "whitespace", "treebank")
FORMS = [("unicode", "keep"), ("unicode", "plain"), ("whitespace", "keep"), ("whitespace", "plain")]
FORMS += [("treebank", "plain")]
OPTIONS = [*product(("tfidf", "random"), ("radius", "random"), ("negative", "positive"), (0.3, 0.7), (50, "5%"))]
ROWS = 2000


def sha256(data):
    return hashlib.sha256(data).hexdigest()[:32]


def index_digests(rows, folder):
    """Yields the name and digest of each index and matrix. An index stores its corpus path, so the path is relative."""
    from cse.tfidf.build import build_index

    (folder / "corpus.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    for tokenizer in TOKENIZERS:
        with contextlib.chdir(folder):
            build_index(["corpus.txt"], tokenizer, words={"tokenizer": tokenizer})
        for name in ("index.safetensors", "matrix.npz"):
            yield f"{tokenizer}/{name}", sha256((folder / tokenizer / name).read_bytes())


def negative_digests(rows, folder):
    """Yields a name and the digest of the negatives of all ``OPTIONS``, for each tokenizer and surface."""
    from cse import TfidfIndex

    for tokenizer, surface in FORMS:
        index, made = TfidfIndex.open(folder / tokenizer), []
        for values in OPTIONS:
            options = dict(zip(("replace_which", "replace_with", "mode", "beta", "radius"), values, strict=True))
            made += index.augment(rows[:ROWS], surface=surface, seed=3, **options)
        yield f"{tokenizer} {surface}", sha256("\n".join(made).encode())


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
