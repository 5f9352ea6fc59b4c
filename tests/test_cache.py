"""The cache: rows and token ids of large corpora in memory-mapped files."""

import gc
import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cse import train
from cse.data import readers
from cse.data.corpus import Corpus, hold_out
from cse.training.batches.prepared import Prefetcher
from cse.training.callbacks import Callback
from cse.training.setup import prepare


@pytest.fixture
def recorder():
    """A callback that keeps the arguments of each call of on_progress in ``progress``."""
    callback = Callback()
    callback.progress = []
    callback.on_progress = lambda *seen: callback.progress.append(seen)
    return callback


@pytest.fixture(autouse=True)
def everything_is_mapped(monkeypatch):
    monkeypatch.setattr("cse.data.cache.IN_MEMORY_BYTES", 0)


def test_cached_rows_equal_rows_in_memory(sample, tmp_path, recorder):
    path, cache = tmp_path / "corpus.txt", tmp_path / "cache"
    path.write_bytes(sample.read_bytes() + b"a cat\n\na dog\na cat\n  \nA  Cat\n")
    plain = Corpus.read([str(path)])
    stored = Corpus.open([str(path)], cache=str(cache), progress=recorder.on_progress)
    size = path.stat().st_size
    assert recorder.progress[-1] == ("reading the corpus", size, size, "bytes")
    recorder.progress.clear()
    left = cache / ".cse-rows-0123.lock"  # as left by a process that is killed before it removes its lock
    left.touch()
    again = Corpus.open([str(path)], cache=str(cache), progress=recorder.on_progress)
    assert not recorder.progress
    assert not left.exists()
    assert stored.files == plain.files == again.files
    rows = np.arange(len(plain))
    assert stored.take(rows) == plain.take(rows)
    assert (stored.word_counts() == plain.word_counts()).all()
    assert (stored.hashes() == plain.hashes()).all()
    assert stored.repeats() == plain.repeats() == again.repeats() == 2
    splits = [hold_out(each, 3, wanted=True) for each in (plain, stored)]
    assert (splits[0].train == splits[1].train).all()
    assert (splits[0].held_out == splits[1].held_out).all()


def test_a_small_file_with_many_rows_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr("cse.data.cache.IN_MEMORY_BYTES", 10_000)
    path, table = tmp_path / "blank.txt.GZ", tmp_path / "same.parquet"
    path.write_bytes(gzip.compress(b"\n" * 100_000))
    pq.write_table(pa.table({"text": ["some text"] * 100_000}), table)
    assert path.stat().st_size < 2000 > table.stat().st_size
    for file, text in ((path, ""), (table, "some text")):
        files = readers.resolve(file, "text" if file == table else None)
        corpus = Corpus.open(files, cache=str(tmp_path / "cache"))
        assert corpus.folder is not None
        assert (len(corpus), corpus.take([99_999])) == (100_000, [text])


def test_a_file_that_was_replaced_with_its_size_and_time_kept_is_read_again(tmp_path):
    path, cache = tmp_path / "corpus.txt", tmp_path / "cache"
    path.write_text("a red fox\n" * 9, encoding="utf8")
    stamp = path.stat()
    assert Corpus.open([str(path)], cache=str(cache)).take([0]) == ["a red fox"]
    path.write_text("a sly fox\n" * 9, encoding="utf8")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert Corpus.open([str(path)], cache=str(cache)).take([0]) == ["a sly fox"]
    os.utime(path, (1, 1))  # a copy of the same content needs no further entry
    Corpus.open([str(path)], cache=str(cache))
    assert len(list(cache.glob("rows-*"))) == 2


def test_an_entry_that_was_not_opened_for_30_days_is_removed_when_another_is_written(tmp_path):
    cache = tmp_path / "cache"

    def opened(name):
        (tmp_path / name).write_text(f"{name}\n", encoding="utf8")
        return Corpus.open([str(tmp_path / name)], cache=str(cache))

    held = opened("held")
    opened("old")
    opened("recent")
    old = [path for path in cache.iterdir() if (path / "rows.txt").read_text() != "recent"]
    (cache / f"tokens-{'0a' * 12}").mkdir()  # damaged
    (cache / "mine").mkdir()
    gc.collect()
    for path in (*old, cache / f"tokens-{'0a' * 12}", cache / "mine"):
        os.utime(path, (1, 1))
    opened("new")
    assert sorted((path / "rows.txt").read_text() for path in cache.glob("rows-*")) == ["held", "new", "recent"]
    assert held.take([0]) == ["held"]
    assert not list(cache.glob("tokens-*"))
    assert (cache / "mine").is_dir()
    os.utime(held.folder, (1, 1))
    opened("held")  # opening it counts
    del held
    gc.collect()
    opened("newer")
    assert "held" in [(path / "rows.txt").read_text() for path in cache.glob("rows-*")]


@pytest.mark.parametrize("name", ["rows.txt", "ends.u64", "hashes.u64", "words.u32", "meta.json"])
def test_an_entry_with_a_changed_truncated_or_missing_file_is_written_again(sample, tmp_path, name):
    expected = Corpus.open([str(sample)], cache=str(tmp_path))
    rows = np.arange(len(expected))
    texts, words, hashes = expected.take(rows), expected.word_counts().copy(), expected.hashes().copy()
    (path,) = tmp_path.glob(f"rows-*/{name}")
    written = path.read_bytes()
    # In ends.u64, the first of these changes adds 2**62 to the end of the first row.
    first = written[:7] + bytes([written[7] ^ 64]) + written[8:]
    middle = written[: len(written) // 2] + b"\xff" + written[len(written) // 2 + 1 :]
    for content in (first, middle, written[: len(written) // 2], b"{}", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        again = Corpus.open([str(sample)], cache=str(tmp_path))
        assert again.take(rows) == texts
        assert (again.word_counts() == words).all()
        assert (again.hashes() == hashes).all()


@pytest.fixture
def mapped(run_config, sample_rows, tmp_path):
    """The configuration of a run of one epoch whose corpus is memory-mapped from the cache."""
    (tmp_path / "corpus.txt").write_text("".join(f"{row}\n" for row in sample_rows[:200]))
    values = {"batch_size": 16, "max_steps": None, "epochs": 1, "eval_every": 0, "tfidf": None}
    return run_config.replace(corpus=tmp_path / "corpus.txt", cache=str(tmp_path / "cache"), **values)


def prepared(run, stored):
    batches = Prefetcher(run.batches, run.state.encoder.tokenizer, run.settings.data.max_length, stored)
    return [batches.prepare(number).tokens for number in range(run.batches.order.per_epoch)]


@pytest.mark.parametrize("positive", ["dropout", "crop", "spans"])
def test_cached_token_ids_equal_those_of_the_tokenizer(mapped, recorder, positive):
    config = mapped.replace(positive=positive, max_length=12)
    run = prepare(config, progress=recorder.on_progress)
    if positive == "spans":  # anchors and positives are new texts in each epoch, so no token ids are cached
        assert run.tokens == {}
        return
    assert recorder.progress[-1] == ("token ids", 200, 200, "sentences")
    (path,) = Path(mapped.cache).glob("tokens-*/ids.u16")
    ids = bytearray(path.read_bytes())
    expected, cached = prepared(run, None), prepared(run, run.tokens)
    path.unlink()
    path.write_bytes(ids[:20] + b"\xff\xff" + ids[22:])  # an id outside the vocabulary: the ids are written again
    for found in (cached, prepared(run, prepare(config).tokens)):
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                assert one[name].keys() == other[name].keys()
                assert all(torch.equal(one[name][key], other[name][key]) for key in one[name])


def test_token_ids_are_written_once_and_only_by_runs_of_at_least_one_epoch(mapped, recorder):
    assert prepare(mapped.replace(max_steps=2), progress=recorder.on_progress).tokens == {}
    first = train(mapped, recorder)
    count = len(recorder.progress)
    assert count
    assert prepare(mapped.replace(max_steps=2), progress=recorder.on_progress).tokens  # from the cache
    second = train(mapped, recorder)
    assert len(recorder.progress) == count
    assert first.after == second.after
    prepare(mapped.replace(max_length=9), progress=recorder.on_progress)
    assert len(recorder.progress) > count


def test_token_ids_of_labelled_columns_are_cached(mapped, tmp_path):
    lines = ["anchor,positive,negative", *(f"the cat number {i},a cat {i},a dog {i}" for i in range(40))]
    table = tmp_path / "pairs.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf8")
    run = prepare(mapped.replace(corpus=(), pairs=table))
    assert set(run.tokens) == {0, 1, 2}
    texts = run.batches[0].blocks["hard_negative"].texts
    ids = prepared(run, run.tokens)[0]["hard_negative"]["input_ids"]
    expected = run.state.encoder.tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    assert torch.equal(ids, expected)


def test_padding_to_a_fixed_length_does_not_change_embeddings(mapped, tmp_path, monkeypatch):
    """On CUDA, all batches of a compiled model are padded to the same length, which must not change the embeddings."""
    (tmp_path / "corpus.txt").write_text("".join(f"the cat number {i} sat\n" for i in range(40)), encoding="utf8")
    run = prepare(mapped)
    shorter = prepared(run, None)[0]["anchor"]
    assert shorter["input_ids"].shape[1] < 32
    monkeypatch.setattr("cse.training.batches.tokens.fixed_length", lambda device, compiled, longest: longest)
    encoder = run.state.encoder.eval()
    for stored in (run.tokens, None):
        fixed = prepared(run, stored)[0]["anchor"]
        assert fixed["input_ids"].shape[1] == 32
        assert torch.allclose(encoder.embed(fixed), encoder.embed(shorter), atol=1e-6)
