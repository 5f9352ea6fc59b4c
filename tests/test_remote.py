"""Corpora and pairs at addresses of other file systems, read by fsspec."""

import sys
from itertools import pairwise

import pytest

from cse import InputError, TfidfIndex, TrainConfig, train
from cse.data import readers

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def remote(monkeypatch, tmp_path, short_rows):
    monkeypatch.setenv("CSE_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    for number in range(2):
        rows = short_rows[100 * number : 100 * number + 100]
        files.pipe(f"/texts/{number}.txt", "".join(f"{row}\n" for row in rows).encode())
    quoted = [row.replace('"', "'") for row in short_rows[:40]]
    files.pipe(
        "/texts/pairs.csv", b"anchor,positive\n" + "".join(f'"{a}","{b}"\n' for a, b in pairwise(quoted)).encode()
    )
    yield files
    files.rm("/texts", recursive=True)


def test_an_index_of_addresses_equals_that_of_local_files(remote, short_rows):
    index = TfidfIndex.build("memory://texts/*.txt")
    assert index.info.rows == 200
    assert index.df.tolist() == TfidfIndex.from_texts(short_rows[:200]).df.tolist()


def test_a_file_is_copied_again_if_it_changes(remote, tmp_path):
    (first,) = readers.expand("memory://texts/0.txt")
    assert readers.expand("memory://texts/0.txt") == [first]
    remote.pipe("/texts/0.txt", b"another text\n")
    (second,) = readers.expand("memory://texts/0.txt")
    assert second != first
    assert TfidfIndex.build("memory://texts/0.txt").info.rows == 1


@pytest.mark.parametrize("given", [{"corpus": ("memory://texts/0.txt",)}, {"pairs": ("memory://texts/pairs.csv",)}])
def test_a_run_reads_a_corpus_and_pairs_at_addresses(remote, tiny_bert, tmp_path, given):
    config = TrainConfig(model=str(tiny_bert), max_steps=1, batch_size=8, output=str(tmp_path), device="cpu", **given)
    assert train(config).steps == 1


def test_addresses_that_cannot_be_read_are_refused_in_one_sentence(remote, monkeypatch):
    for address in ("memory://texts/none.txt", "memory://none/*.txt", "nowhere://a.txt"):
        with pytest.raises(InputError, match=r"^\S+: cannot be read \(.*\); check the address"):
            readers.expand(address)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InputError, match="needs fsspec; pip install fsspec"):
        readers.expand("memory://texts/0.txt")
