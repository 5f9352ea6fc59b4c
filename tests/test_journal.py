"""Files that are written atomically, journals of interrupted jobs, and embeddings whose blocks they list."""

import errno

import numpy as np
import pytest

from cse import Encoder
from cse.data.corpus import Corpus
from cse.encoder import vector_files
from cse.encoder.vector_files import encode_to_file
from cse.io import Journal, write_atomically
from random_texts import some_texts


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def journal(path, key, *records):
    """The records of a journal with this key, after more have been added."""
    opened = Journal(path, key, "taken")
    found = list(opened.records)
    for record in records:
        opened.add(record)
    opened.close()
    return found


def test_records_after_a_changed_line_and_those_of_another_key_are_dropped(tmp_path):
    path = tmp_path / "journal"
    assert journal(path, {"model": 1}, "a", "b", "c") == []
    lines = path.read_bytes().splitlines(keepends=True)
    assert journal(path, {"model": 1}) == ["a", "b", "c"]
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b'"b"', b'"x"'), lines[3]]))
    assert journal(path, {"model": 1}) == ["a"]
    assert journal(path, {"model": 2}) == []
    path.write_bytes(b"".join(lines)[:-3])  # killed while it wrote the last line
    assert journal(path, {"model": 1}) == ["a", "b"]


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :]


def test_blocks_of_an_interrupted_file_are_used_if_they_are_as_they_were_written(tmp_path, glove, monkeypatch):
    monkeypatch.setattr(vector_files, "BLOCK", 10)
    encoder, corpus, path = Encoder(glove), Corpus.from_texts(some_texts(40)), tmp_path / "v.npy"
    golden = np.array(encoder.encode(corpus.take(range(40))))
    calls = []

    class Interrupted:
        embedding_dim = encoder.embedding_dim

        def encode(self, texts, **settings):
            if len(calls) == 3:
                raise KeyboardInterrupt
            calls.append(len(texts))
            return encoder.encode(texts, **settings)

    with pytest.raises(KeyboardInterrupt):
        encode_to_file(Interrupted(), corpus, path, {"model": 1})
    part, listed = tmp_path / "v.npy.part", tmp_path / "v.npy.part.json"
    vectors, lines = part.read_bytes(), listed.read_bytes()
    second = vectors.index(golden[10:20].tobytes())
    last = lines.rindex(b"\n", 0, -1)
    for model, content, records, resumed in (
        (1, vectors, lines, 30),
        (2, vectors, lines, 0),
        (1, flipped(vectors, 9), lines, 0),  # in the header
        (1, flipped(vectors, second + 5), lines, 10),
        (1, vectors[: second + 5], lines, 10),
        (1, b"", lines, 0),
        (1, vectors, lines[:-3], 20),  # killed while it wrote the last line
        (1, vectors, flipped(lines, last + 3), 20),
        (1, vectors, flipped(lines, 40), 0),  # in the key
        (1, vectors, b"", 0),
    ):
        part.write_bytes(content)
        listed.write_bytes(records)
        assert encode_to_file(encoder, corpus, path, {"model": model}).resumed == resumed
        assert (np.load(path) == golden).all()
        assert [each.name for each in tmp_path.iterdir()] == ["v.npy"]
