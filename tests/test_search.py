"""Tests of SearchIndex, `cse search` and `cse mine`: exact results, interrupted builds, passages, int8, BM25."""

import json
import math
import mmap
import os
import re
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from commands import refuses
from cse import Encoder, InputError, SearchIndex, io
from cse.encoder.passages import Cutter, windows
from cse.search import bm25
from cse.search import index as searching
from cse.search import storage as writing
from cse.search.bm25 import Bm25, Terms, terms_for
from cse.search.fusion import Fusion
from cse.search.mining import QueryRows
from cse.search.pool import Pool
from cse.search.storage import Rows, scaled
from cse.ties import TIE
from random_texts import some_texts
from test_cli import ran, refused

unit = partial(scaled, settings={"similarity": "cosine"})
PLAIN = Fusion(language="none", bm25_tokenizer="unicode")


@pytest.fixture(scope="module")
def encoder(glove):
    return Encoder(glove)


def test_search_results_equal_brute_force(tmp_path, encoder):
    texts = some_texts(500)
    texts[17], texts[30] = "", "  "
    ids = [f"id-{row}" for row in range(500)]
    queries = [texts[3], "word1 word2", "word5", ""]
    index = SearchIndex.build(encoder, texts, tmp_path / "index", ids=ids)
    vectors, given = (unit(encoder.encode(each)).astype(np.float64) for each in (texts, queries))
    filled = [row for row in range(500) if texts[row].strip()]
    opened = SearchIndex.open(tmp_path / "index")  # loads the encoder by its name, which the index stores
    for each in (index, opened):
        found = each.search(queries, 7)
        for scores, hits in zip(given[:3] @ vectors.T, found[:3], strict=True):
            best = sorted(filled, key=lambda row: -scores[row])[:7]
            assert [hit.row for hit in hits] == best
            assert [hit.id for hit in hits] == [ids[row] for row in best]
            assert [hit.text for hit in hits] == [texts[row] for row in best]
            assert np.allclose([hit.score for hit in hits], scores[best], atol=1e-6)
        assert found[3] == []
        assert len(each) == 500
        assert len(each.rows) == 498
    stored = content(tmp_path / "index")
    assert (stored["text"], stored["id"]) == (texts, ids)
    assert cuts(stored)[0] == [[(0, len(text))] if text.strip() else [] for text in texts]


def names(rows):
    """Returns an id for each row, which tells repeated rows apart."""
    return [f"{row}.{list(rows[:at]).count(row)}" for at, row in enumerate(rows)]


class Counted:
    """An encoder that counts the texts it encodes; once they are at least ``least``, calls raise KeyboardInterrupt."""

    def __init__(self, encoder, least=math.inf):
        self._encoder, self.left, self.texts = encoder, least, 0

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, texts, **arguments):
        if self.texts >= self.left:
            raise KeyboardInterrupt
        self.texts += len(texts)
        return self._encoder.encode(texts, **arguments)

    encode_query = encode_document = encode


def content(folder):
    """Reads ids, texts, hashes, and passages with their vectors from an index with pyarrow alone."""
    return pa.ipc.open_file(folder / "rows.arrow").read_all().to_pydict()


def cuts(found):
    """Returns the places of the passages of each row, and the vectors of all passages."""
    places = [[(each["start"], each["end"]) for each in parts] for parts in found["passages"]]
    return places, np.array([each["vector"] for parts in found["passages"] for each in parts])


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("ids", [None, [f"d{row}" for row in range(300)]])
def test_an_interrupted_build_can_be_completed(tmp_path, monkeypatch, encoder, ids):
    monkeypatch.setattr(searching, "BLOCK", 64)
    texts = some_texts(300)
    SearchIndex.build(encoder, texts, tmp_path / "whole", ids=ids, passages=8)
    with pytest.raises(KeyboardInterrupt):
        SearchIndex.build(Counted(encoder, 300), texts, tmp_path / "index", ids=ids, passages=8)
    done = sum(len(Rows(path).hashes) for path in (tmp_path / "index").glob("encoded-*"))
    assert 0 < done < 300
    refuses("interrupted; run the same command again", SearchIndex.open, tmp_path / "index", encoder)
    for name in (".cse-core-a.tmp", f"encoded-{'0' * 16}.arrow"):  # of a killed process
        (tmp_path / "index" / name).write_bytes(b"torn")
    counted = Counted(encoder)
    index = SearchIndex.build(counted, texts, tmp_path / "index", ids=ids)
    assert counted.texts == (index.rows >= done).sum()
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_added_rows_are_found_and_an_interrupted_update_changes_nothing(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(searching, "BLOCK", 64)
    texts = some_texts(200)
    SearchIndex.build(encoder, texts[:100], tmp_path / "index").prepare(PLAIN)
    before = files(tmp_path / "index")
    with pytest.raises(KeyboardInterrupt):
        SearchIndex.build(Counted(encoder, 20), texts, tmp_path / "index")
    after = files(tmp_path / "index")
    (part,) = after.keys() - before.keys()
    assert part.startswith("encoded-")
    assert after == before | {part: after[part]}
    counted = Counted(encoder)
    index = SearchIndex.build(counted, texts, tmp_path / "index")
    assert counted.texts == 100 - 64
    whole = SearchIndex.build(encoder, texts)
    queries = [texts[150], texts[3]]
    for hybrid in (False, True):
        assert index.search(queries, 5, hybrid=hybrid) == whole.search(queries, 5, hybrid=hybrid)
        assert SearchIndex.open(tmp_path / "index").search(queries, 5) == whole.search(queries, 5)


def test_an_index_built_with_another_corpus_model_or_setting_is_refused(tmp_path, encoder, tiny_bert):
    texts, folder = some_texts(20), tmp_path / "index"
    other = Encoder(shutil.copytree(tiny_bert, tmp_path / "model"), device="cpu")
    SearchIndex.build(encoder, texts, folder, passages=8)
    cases = [
        ((other, texts), {}, f"folder {folder} holds vectors of {encoder.given[0]}; -o names another"),
        ((encoder, ["", "another", "corpus"]), {}, "contains other texts, and none of this corpus"),
        ((encoder, texts), {"passages": 9}, "was built with --passages 8"),
        ((encoder, texts), {"ids": [str(row) for row in range(20)]}, "the rows of this index have no ids"),
    ]
    for arguments, settings, message in cases:
        refuses(f"{message}.* --rebuild", SearchIndex.build, *arguments, folder, **settings)
    with io.locked(folder):
        refuses("another process is writing to this in", SearchIndex.build, encoder, texts[1:], folder)
    refuses("holds vectors of glove:", SearchIndex.open, folder, other)
    assert len(SearchIndex.build(other, texts[:10], folder, rebuild=True)) == 10
    (tmp_path / "model").rename(tmp_path / "moved")
    moved, changed = (Encoder(tmp_path / "moved", pooler=pooler, device="cpu") for pooler in (None, "cls"))
    assert SearchIndex.open(folder, moved).texts([2]) == texts[2:3]
    refuses(f"holds vectors of {tmp_path / 'model'}; -o names another", SearchIndex.open, folder, changed)
    SearchIndex.build(moved, texts, tmp_path / "moving")
    message = r"holds vectors of a former version of .*moved; -o names another"
    refuses(message, SearchIndex.open, tmp_path / "moving", changed)


def test_an_encoder_that_was_changed_in_memory_is_another_one(tmp_path, tiny_bert, cse_here):
    texts, folder, encoder = some_texts(20), tmp_path / "index", Encoder(tiny_bert, device="cpu")
    SearchIndex.build(encoder, texts, folder)
    limit, encoder.max_seq_length = encoder.max_seq_length, 4
    message = f"folder {folder} holds vectors of {tiny_bert}; -o names another"
    refuses(message, SearchIndex.build, encoder, texts, folder)
    encoder.max_seq_length = limit
    assert not encoder.changed
    assert SearchIndex.build(encoder, texts, folder).changes.encoded == 0
    assert not encoder.bfloat16().float().changed
    with torch.no_grad():
        next(encoder.parameters()).mul_(0.5)
    assert encoder.changed
    refuses(message, SearchIndex.build, encoder, texts, folder)
    made = SearchIndex.build(encoder, texts, tmp_path / "other")
    np.testing.assert_allclose(np.concatenate(made.vectors), unit(encoder.encode(texts)), atol=1e-6)
    assert len(SearchIndex.open(tmp_path / "other", encoder)) == 20
    message = "other: was built with an encoder that was not in files; save it"
    refuses(message, SearchIndex.open, tmp_path / "other")
    refused(cse_here("search", "other", "--query", "a", cwd=tmp_path), message)
    encoder.save(str(tmp_path / "saved"))
    saved = Encoder(tmp_path / "saved", device="cpu")
    refuses("vectors of another encoder in memory; -o", SearchIndex.open, tmp_path / "other", saved)


def changed(data, *more):
    """Yields the bytes with one of them changed, at positions in all parts and at further ones."""
    places = {*range(min(len(data), 40)), *np.linspace(0, len(data) - 1, 25).astype(int).tolist(), *more}
    for place in sorted(places):
        yield data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_changed_byte_in_any_file_of_an_index_is_refused(tmp_path, monkeypatch, encoder, cse):
    monkeypatch.setattr(writing, "BATCH", 40)
    monkeypatch.setattr(writing, "CHECKED", 4096)
    folder, texts = tmp_path / "index", some_texts(100)
    index = SearchIndex.build(encoder, texts, folder, ids=[f"id-{row}" for row in range(100)], passages=8)
    words, path = index._words(PLAIN), folder / "rows.arrow"
    assert len(index.vectors) > 2
    data = path.read_bytes()
    first = data.index(index.vectors[0][0].tobytes())
    for damaged in [*changed(data, first, data.rfind(writing.CHECK) + len(writing.CHECK)), data[:-100], b""]:
        path.write_bytes(damaged)
        assert "\n" not in refuses("--rebuild", SearchIndex.open, folder, encoder)
    path.write_bytes(data)
    (bm25,) = folder.glob("bm25-*")
    for part in bm25.iterdir():
        whole = part.read_bytes()
        for damaged in changed(whole):
            part.write_bytes(damaged)
            with pytest.raises(InputError, match=r"bm25.*: cannot be read .*; remove the folder to build it again"):
                SearchIndex.open(folder, encoder).prepare(PLAIN)
        part.write_bytes(whole)
    assert (SearchIndex.open(folder, encoder)._words(PLAIN).scores(texts[0]) == words.scores(texts[0])).all()
    path.write_bytes(data[:first] + bytes([data[first] ^ 1]) + data[first + 1 :])
    refused(cse("search", folder, "--query", "word1"), f"{path}: is damaged; build the index again with --rebuild")
    # A damaged vector does not get a new checksum.
    refuses("is damaged", SearchIndex.build, encoder, texts[1:], folder, ids=[f"id-{row}" for row in range(99)])
    path.unlink()
    refuses("no index there", SearchIndex.open, folder, encoder)


@pytest.mark.parametrize("settings", [{}, {"passages": 8}])
def test_an_update_encodes_new_texts_only_and_equals_a_new_index(tmp_path, monkeypatch, encoder, settings):
    monkeypatch.setattr(searching, "BLOCK", 16)
    monkeypatch.setattr(writing, "BATCH", 64)
    draw = np.random.default_rng(1)
    pool = list(dict.fromkeys([*some_texts(900, most=30), "", " "]))
    rows = draw.permutation(len(pool))[:200].tolist()
    SearchIndex.build(encoder, [pool[row] for row in rows], tmp_path / "index", ids=names(rows), **settings)
    for step in range(12):
        before, earlier = list(rows), content(tmp_path / "index")
        if step % 4 == 0:  # a change, a removal and an insertion
            rows[int(draw.integers(len(rows)))] = int(draw.integers(len(pool)))
            del rows[int(draw.integers(len(rows)))]
            rows.insert(int(draw.integers(len(rows))), int(draw.integers(len(pool))))
        elif step % 4 == 1:  # a block is moved
            rows = rows[:30] + rows[90:] + rows[30:90]
        elif step % 4 == 2:  # rows at the end
            rows += draw.integers(len(pool), size=25).tolist()
        else:
            rows = [row for row in rows if draw.random() < 0.9]
        texts = [pool[row] for row in rows]
        counted = Counted(encoder)
        index = SearchIndex.build(counted, texts, tmp_path / "index", ids=names(rows))
        new = [row for row in rows if row not in before]
        assert (index.changes.kept, index.changes.encoded) == (len(rows) - len(new), len(new))
        assert index.changes.dropped == (Counter(before) - Counter(rows)).total()
        if "passages" not in settings:
            assert counted.texts == len({row for row in new if pool[row].strip()})
        SearchIndex.build(encoder, texts, tmp_path / "new", ids=names(rows), rebuild=True, **settings)
        ours, theirs = content(tmp_path / "index"), content(tmp_path / "new")
        for name in ("id", "text", "hash"):
            assert ours[name] == theirs[name]
        assert cuts(ours)[0] == cuts(theirs)[0]
        np.testing.assert_allclose(cuts(ours)[1], cuts(theirs)[1], atol=1e-6)
        kept = dict(zip(earlier["text"], earlier["passages"], strict=True))
        for text, parts in zip(ours["text"], ours["passages"], strict=True):
            assert kept.get(text, parts) == parts  # kept vectors are bit-identical
        assert [each.name for each in (tmp_path / "index").iterdir()] == ["rows.arrow"]
        both = (index, SearchIndex.open(tmp_path / "new", encoder))
        found = [[hit.id for hits in each.search(["word1 word2", texts[7]], 9) for hit in hits] for each in both]
        assert found[0] == found[1]


def test_equal_texts_are_tied_in_row_order_in_any_division_of_the_vectors(monkeypatch, encoder):
    texts = some_texts(300)
    for row in range(5, 300, 7):
        texts[row] = texts[2]
    same = [2, *range(5, 300, 7)]
    for size, products in ((1 << 16, 1 << 21), (1 << 16, 1000), (50, 1000), (1, 1 << 21)):
        monkeypatch.setattr(writing, "BATCH", size)
        monkeypatch.setattr(searching, "PRODUCTS", products)
        index = SearchIndex.build(encoder, texts)
        for queries in ([texts[2]], [texts[2], *texts[10:90]]):  # several are multiplied together
            for hybrid in (False, True):
                hits = index.search(queries, 20, hybrid=hybrid)[0]
                assert [hit.row for hit in hits] == same[:20]
                assert len({hit.score for hit in hits}) == 1


@pytest.mark.parametrize(("size", "products"), [(1 << 16, 1 << 21), (1 << 16, 90), (37, 1 << 21), (37, 90)])
@pytest.mark.parametrize("passages", [None, 8])
def test_a_search_in_blocks_equals_brute_force_for_any_number_of_queries(
    monkeypatch, encoder, passages, size, products
):
    """A row is ranked by its best passage, which is the text of the hit."""
    monkeypatch.setattr(writing, "BATCH", size)
    monkeypatch.setattr(searching, "PRODUCTS", products)
    monkeypatch.setattr(searching, "QUERIES", 5)
    texts = [*some_texts(200, most=40), "", "word1"]
    index = SearchIndex.build(encoder, texts, passages=passages)
    assert (len(index.vectors) == 1) == (size > 1000)
    vectors = np.concatenate(index.vectors).astype(np.float64)
    spans = Cutter(encoder, passages)(texts) if passages else [[(0, len(text))] if text else [] for text in texts]
    parts = [texts[row][start:end] for row, places in enumerate(spans) for start, end in places]
    assert index.rows.tolist() == [row for row, places in enumerate(spans) for _ in places]
    np.testing.assert_allclose(vectors, unit(encoder.encode(parts)), atol=1e-6)
    queries = ["word1 word2", *texts[:12]]
    for k in (1, 9, 300):
        for query, hits in zip(queries, index.search(queries, k), strict=True):
            products = np.einsum("ij,j->i", vectors, unit(encoder.encode([query]))[0].astype(np.float64))
            scores = np.full(len(texts), -np.inf)
            np.maximum.at(scores, index.rows, products)
            best = np.lexsort((np.arange(len(texts)), -scores))[: min(k, 201)]
            assert [hit.row for hit in hits] == best.tolist()
            np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=1e-6)
            found = [max(np.flatnonzero(index.rows == row), key=products.__getitem__) for row in best]
            assert [hit.text for hit in hits] == [parts[place] for place in found]


def test_a_query_without_a_known_word_finds_the_first_rows_and_compares_none(monkeypatch, encoder):
    texts = ["", *some_texts(40)]
    index = SearchIndex.build(encoder, texts)
    expected = index.search(["word1"], 5)
    encode = encoder.encode_query
    monkeypatch.setattr(
        encoder, "encode_query", lambda texts, **given: encode(texts) * [[text != "?"] for text in texts]
    )
    assert index.search(["word1"], 5) == expected
    for queries in (["?"], ["?", "word1", "?"]):
        found = dict(zip(queries, index.search(queries, 5), strict=True))
        assert found.get("word1", expected[0]) == expected[0]
        assert [(hit.row, hit.score) for hit in found["?"]] == [(row, 0.0) for row in range(1, 6)]
    monkeypatch.setattr(SearchIndex, "_nearest", None)
    assert len(index.search(["?"], 100)[0]) == 40


def test_a_build_has_a_limited_number_of_open_files(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(searching, "BLOCK", 8)
    monkeypatch.setattr(searching, "PARTS", 3)
    written, write = [], searching.write
    monkeypatch.setattr(
        searching, "write", lambda path, *given, **more: written.append(path) or write(path, *given, **more)
    )
    texts = some_texts(60)
    index = SearchIndex.build(encoder, texts, tmp_path / "index")
    assert [path.name.startswith("encoded") for path in written] == [True, True, True, False]
    np.testing.assert_allclose(index.vectors[0], unit(encoder.encode(texts)), atol=1e-6)


def test_an_index_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch, encoder):
    SearchIndex.build(encoder, some_texts(20), tmp_path / "index")

    def refuse(path, *given):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionError):
        writing.opened(tmp_path / "index")


def test_several_threads_may_search_and_build_bm25_once(tmp_path, monkeypatch, encoder):
    texts = list(dict.fromkeys(some_texts(300)))[:200]
    index = SearchIndex.build(encoder, texts, tmp_path / "index")
    expected = [SearchIndex.build(encoder, texts).search(texts, 5, hybrid=hybrid) for hybrid in (False, True)]
    built, build = [], Bm25.build
    monkeypatch.setattr(Bm25, "build", lambda *given: built.append(1) or build(*given))
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(index.search, texts, 5, hybrid=number % 2 == 1) for number in range(8)]
        for number, each in enumerate(found):
            assert each.result() == expected[number % 2]
    assert len(built) == 1


def test_an_index_that_cannot_be_changed_can_be_searched_if_the_corpus_is_the_same(tmp_path, monkeypatch, encoder):
    texts = some_texts(60)
    SearchIndex.build(encoder, texts, tmp_path / "index")
    expected = SearchIndex.build(encoder, texts).search(texts[:3], 5, hybrid=True)

    def refuse(*given, **named):
        raise PermissionError(13, "Permission denied", str(given[0]))

    for module, name in ((os, "replace"), (os, "unlink"), (os, "rename"), (os, "rmdir"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(bm25, "fresh_folder", refuse)
    before = files(tmp_path / "index")
    for index in (SearchIndex.build(encoder, texts, tmp_path / "index"), SearchIndex.open(tmp_path / "index", encoder)):
        for _ in range(2):
            assert index.search(texts[:3], 5, hybrid=True) == expected
    assert files(tmp_path / "index") == before
    with pytest.raises(PermissionError):
        SearchIndex.build(encoder, texts[1:], tmp_path / "index")


@pytest.mark.parametrize(
    ("passages", "fusion"),
    [(8, Fusion()), (None, Fusion(0.2)), (8, Fusion(1.0, language="english")), (None, Fusion(0.0))],
)
def test_scores_of_vectors_and_bm25_are_pooled(passages, fusion, encoder):
    texts = [*some_texts(200), "", "the word7 word8", "word3 " * 30]
    index = SearchIndex.build(encoder, texts, passages=passages)
    vectors = np.concatenate(index.vectors).astype(np.float64)
    rows = np.unique(index.rows)
    words = Bm25.build(texts, terms=terms_for(texts, fusion.language, fusion.stop_words, fusion.bm25_tokenizer))
    weight = index._weight(fusion)

    def standardised(scores):
        return (scores - scores.mean()) / scores.std() if scores.std() else 0 * scores

    for text in ("word7 word8 the word9", "xyzzy"):
        places = vectors @ unit(encoder.encode([text]))[0].astype(np.float64)
        dense = np.array([places[index.rows == row].max() for row in rows])
        # the docstring of cse.search.pool.Pool
        opinions = [1.5 * standardised(dense), 0.5 * standardised(words.scores(text)[rows].astype(np.float64))]
        first, second = (np.exp(opinion) / np.exp(opinion).sum() for opinion in opinions)
        scores = np.log(((1 - weight) * first**0.3 + weight * second**0.3) ** (1 / 0.3))
        order = np.lexsort((rows, -scores))[:9]
        hits = index.search([text], 9, hybrid=fusion)[0]
        assert [hit.score for hit in hits] == pytest.approx(scores[order], abs=2e-3)
        for hit in hits:  # each row has its own score
            assert hit.score == pytest.approx(scores[np.searchsorted(rows, hit.row)], abs=2e-3)
    assert index.search([""], 3, hybrid=fusion) == [[]]


def test_bm25_is_built_when_first_needed_and_named_after_the_texts(tmp_path, encoder):
    index, query = SearchIndex.build(encoder, some_texts(300), tmp_path / "index"), "word7 word8 word9"
    generation = Rows(tmp_path / "index" / "rows.arrow").generation
    made = lambda: {path.name: path.stat().st_ino for path in (tmp_path / "index").glob("bm25-*")}  # noqa: E731
    assert not made()
    found = index.search([query], 6, hybrid=PLAIN)[0]
    before = made()
    assert list(before) == [f"bm25-{generation}-unicode-none-none"]
    assert SearchIndex.open(tmp_path / "index").search([query], 6, hybrid=PLAIN)[0] == found
    assert made() == before  # not built again
    index.search([query], 6, hybrid=Fusion(language="english"))
    assert made().keys() == {*before, f"bm25-{generation}-unicode-english-english"}
    index = SearchIndex.build(encoder, [*some_texts(300), query], tmp_path / "index")
    assert index.search([query], 6, hybrid=PLAIN)[0][0].row == 300
    assert not made().keys() & before.keys()


def test_passages_do_not_exceed_the_token_limit(tiny_bert, sample_rows):
    encoder = Encoder(tiny_bert, device="cpu")
    text = " ".join(sample_rows[:40])
    for given, limit in ((None, 62), (20, 20)):
        (spans,) = Cutter(encoder, given)([text])
        passages = [text[start:end] for start, end in spans]
        tokens = [*map(len, encoder.tokenizer(passages, add_special_tokens=False)["input_ids"])]
        assert max(tokens) <= limit
        assert np.mean(tokens[:-1]) > 0.7 * limit
    refuses(r"--passages must be .* at most 62, .* got 63", Cutter, encoder, 63)


def test_passages_are_advised_if_the_model_reads_less_than_half_of_the_texts(tiny_bert, sample_rows):
    encoder = Encoder(tiny_bert, device="cpu")
    long = [" ".join(sample_rows[start : start + 20]) for start in range(0, 100, 20)]
    tokens = [len(encoder.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in long]
    share = np.mean([min(1, 62 / count) for count in tokens])
    index = SearchIndex.build(encoder, long)
    assert index._weight(Fusion()) == 0.8
    assert [each for each in index.warnings if "--passages" in each] == [
        f"the model reads only the first 62 tokens of a row, on average {share:.0%} of it; to search all of it, build "
        "the index with --passages 16, or max for fewer vectors"
    ]
    few_long = [*sample_rows[:40], " ".join(sample_rows[:300])]  # most of the tokens, but only one of the rows
    assert SearchIndex.build(encoder, [*long, *[""] * 20])._weight(Fusion()) == 0.8
    for texts, passages in ((long, "max"), (sample_rows[:20], None), (few_long, None)):
        index = SearchIndex.build(encoder, texts, passages=passages)
        assert not any("--passages" in each for each in index.warnings)
        assert (index._read[0] < 0.5) == (texts is long)
        readable = texts is not long and index._readability.good
        assert index._weight(Fusion()) == (0.5 if readable else 0.8)


def test_invalid_arguments_of_search_index_are_refused(encoder):
    build, texts = partial(SearchIndex.build, encoder), ["word1"] * 3
    for k in (0, -1, True, 1.5, None):
        refuses("k: ", build(texts).search, ["word1"], k)
    for passages in (0, -3, "many", True, 1.5):
        refuses("--passages", build, texts, passages=passages)
    refuses("2 were given for 3 rows", build, texts, ids=["a", "b"])
    refuses("ids: row 2 has no id; each row needs one", build, texts, ids=["1.0", "", "3.0"])
    refuses("ids: '30' is the id of several rows; make the ids uniq", build, texts, ids=[30, "30", "3"])
    refuses("at least one sentence", build, ["", " "])
    refuses("rebuild: must be True or False", build, texts, rebuild="no")


def test_the_error_for_missing_bm25s_names_the_extra(monkeypatch, encoder):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    search = SearchIndex.build(encoder, ["word1"]).search
    refuses(r"needs bm25s and PyStemmer, .*pip install 'cse\[search\]'", search, ["word1"], hybrid=True)


@pytest.fixture
def corpus(tmp_path, glove):
    """A folder with word vectors (v.txt), a table of texts (c.csv), queries (q.txt) and blank lines (blank.txt).

    The lines of another corpus (c.txt) end with a blank row and a repeated one.
    """
    shutil.copy(glove.removeprefix("glove:"), tmp_path / "v.txt")
    rows = [f"n{row},{text}\n" for row, text in enumerate(some_texts(50))]
    (tmp_path / "c.csv").write_text("name,text\n" + "".join(rows), encoding="utf8")
    (tmp_path / "c.txt").write_text("\n".join([*some_texts(60), "", some_texts(60)[4]]) + "\n", encoding="utf8")
    (tmp_path / "q.txt").write_text("word1 word2\n\nword3\n", encoding="utf8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf8")
    return tmp_path


@pytest.fixture
def answered(corpus, cse):
    """A function that runs `cse search --json` in the folder of the corpus, or in another, and returns its answer."""

    def run(*arguments, cwd=corpus, **settings):
        return json.loads(ran(cse("search", *arguments, "--json", cwd=cwd, **settings)))

    return run


def test_cse_search_builds_the_index_once_and_answers_queries(corpus, cse, answered):
    given = ("--column", "text", "--id", "name")
    texts = some_texts(50)
    first = ran(cse("search", "glove:v.txt", "c.csv", *given, "--query", texts[7], "--top", "2", cwd=corpus))
    lines = first.splitlines()
    assert lines[0] == texts[7]
    assert lines[1].split() == ["cosine", "id", "text"]
    assert lines[2].split() == ["1", "1.0000", "n7", *texts[7].split()]
    assert len(lines) == 5
    stamp = (corpus / "search" / "rows.arrow").stat().st_mtime_ns
    value = answered("glove:v.txt", "--queries", "q.txt", "--query", texts[9])
    assert [each["query"] for each in value["queries"]] == [texts[9], "word1 word2", "", "word3"]  # in order
    assert value["queries"][0]["hits"][0] | {"score": 1} == {"row": 9, "id": "n9", "score": 1, "text": texts[9]}
    assert [len(each["hits"]) for each in value["queries"]] == [10, 10, 0, 10]
    assert value["rows"] == 50
    assert (corpus / "search" / "rows.arrow").stat().st_mtime_ns == stamp
    hybrid = answered("glove:v.txt", "--queries", "-", "--hybrid", stdin="word1\n")
    assert hybrid["queries"][0]["hits"][0]["score"] < 0  # a logarithm


def test_the_folder_of_an_index_stands_for_the_model_that_built_it(corpus, cse_here, answered, glove):
    flags = ("--column", "text", "--prompt", "word1 word2 ", "--dims", "5", "-o", "made", "--query", "word3")
    (queries,) = answered("glove:v.txt", "c.csv", *flags)["queries"]
    index = SearchIndex.build(Encoder(glove, prompt="word1 word2 ", dims=5), some_texts(50))
    for each in (index, SearchIndex.open(corpus / "made")):
        assert [hit.row for hit in each.search(["word3"])[0]] == [hit["row"] for hit in queries["hits"]]
    (corpus / "other").mkdir()
    for arguments in (("made",), ("-o", "made"), ("made", "-o", "made"), ("../made",)):
        cwd = corpus / "other" if "../made" in arguments else corpus
        assert answered(*arguments, "--query", "word3", cwd=cwd)["queries"] == [queries]
    for arguments, message in [
        (("made", "-o", "other"), "-o other: made is an index too"),
        ((), "search: no index there; make one with 'cse search MODEL CORPUS -o search'"),
        (("made", "--dims", "6"), "made: was built with --dims 5"),
        (("glove:v.txt", "-o", "made"), "made: was built with --prompt 'word1 word2 '"),
    ]:
        refused(cse_here("search", *arguments, "--query", "word3", cwd=corpus), message)
    (corpus / "v.txt").rename(corpus / "w.txt")
    done = cse_here("search", "../made", "--query", "word3", cwd=corpus / "other")
    refused(done, f"../made: was built with glove:{corpus / 'v.txt'} ", "no such file")
    refuses(r"made: .*v.txt: .*; the index was built with this model", SearchIndex.open, corpus / "made")


def test_cse_search_updates_the_index_of_a_changed_corpus(corpus, cse_here):
    lines = (corpus / "c.csv").read_text(encoding="utf8").splitlines(keepends=True)
    command = ("search", "glove:v.txt", "c.csv", "--column", "text", "--id", "name", "--query", "word3 word9")
    for _ in range(2):
        assert "rows kept" not in cse_here(*command, cwd=corpus).stderr
    (corpus / "c.csv").write_text("".join([*lines[:5], "new,word3 word9\n", *lines[8:]]), encoding="utf8")
    done = cse_here("search", "search", *command[2:], "--json", cwd=corpus)
    assert "search: 47 rows kept, 1 encoded, 3 dropped\n" in done.stderr
    value = json.loads(done.stdout)
    assert value["changes"] == {"kept": 47, "encoded": 1, "dropped": 3}
    assert value["queries"][0]["hits"][0]["id"] == "new"
    (corpus / "c.csv").write_text("name,text\n1,another text\n", encoding="utf8")
    refused(cse_here(*command, cwd=corpus), "search: contains other texts, and none of this corpus", "--rebuild")


def test_search_refuses_invalid_arguments(corpus, cse_here):
    for flags, *phrases in (
        ("c.csv", "name the column"),
        ("c.csv --column text --id key", "--id key", "name, text"),
        ("q.txt --queries blank.txt", "--queries blank.txt holds no query"),
        ("q.txt --query-column a", "--query-column"),
        ("q.txt --passages 3", "--passages must be at least 8", "got 3"),
        ("--rebuild", "CORPUS"),
        ("q.txt -o c.csv", "c.csv: file exists"),
        ("q.txt -o .", "holds files that are not"),
        ("q.txt --bm25-weight 1", "--bm25-weight has no effect without --hybrid"),
        ("q.txt --hybrid --bm25-weight 2", "--bm25-weight must be <= 1, got 2.0"),
    ):
        refused(cse_here("search", "glove:v.txt", *flags.split(), "--top", "1", cwd=corpus), *phrases)


@pytest.mark.slow
def test_search_reads_queries_from_a_terminal(corpus, glove):
    pty = pytest.importorskip("pty")
    SearchIndex.build(Encoder(glove), some_texts(50), corpus / "search")
    pid, terminal = pty.fork()
    if pid == 0:  # the child runs the command in the terminal
        os.chdir(corpus)
        code = "import sys; sys.argv = ['cse', 'search', 'glove:v.txt', '--top', '2']; from cse.cli import main; main()"
        os.execv(sys.executable, [sys.executable, "-c", code])
    seen = b""

    def until(mark):
        nonlocal seen
        end = time.monotonic() + 60
        while mark not in seen and time.monotonic() < end:
            seen += os.read(terminal, 4096)
        assert mark in seen
        seen = seen.partition(mark)[2]

    until(b"query: ")
    os.write(terminal, some_texts(50)[7].encode() + b"\n")
    until(b"1.0000")
    until(b"query: ")
    os.write(terminal, b"\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_search_answers_each_line_of_standard_input_until_one_is_not_utf8(corpus, cse, answered, glove):
    index = SearchIndex.build(Encoder(glove), some_texts(50), corpus / "search")
    queries = ["word1 word2", "", "word3\x1b[31m", some_texts(50)[7]]
    lines = "".join(f"{query}\n" for query in queries)
    expected = index.search(queries, 3)
    done = ran(cse("search", "--top", "3", "--json", cwd=corpus, stdin=lines))
    found = [json.loads(line) for line in done.splitlines()]
    assert [each["query"] for each in found] == queries
    assert [[hit["row"] for hit in each["hits"]] for each in found] == [[hit.row for hit in hits] for hits in expected]
    assert found[1]["hits"] == []
    shown = cse("search", "search", "--top", "3", cwd=corpus, stdin=lines).stdout.split("\n\n")
    assert [block.split("\n")[0] for block in shown[:1]] == queries[:1]
    assert "\x1b" not in "".join(shown)
    head, *rows = shown[0].split("\n")[1:]
    assert head.split() == ["cosine", "row", "text"]
    assert [line.split()[2] for line in rows] == [str(hit.row + 1) for hit in expected[0]]
    done = cse("search", cwd=corpus, stdin=b"word1\n\xff\n", text=False)
    assert done.returncode == 2
    assert b"standard input, line 2: is not UTF-8" in done.stderr
    assert done.stdout.startswith(b"word1\n")
    again = cse("search", "--encoding-errors", "replace", "--json", cwd=corpus, stdin=b"word1 \xff\n", text=False)
    assert json.loads(again.stdout)["query"] == "word1 \ufffd"
    assert answered("search", stdin="")["queries"] == []
    assert cse("search", "search", cwd=corpus, stdin="").stdout == ""
    assert cse("search", "glove:v.txt", "c.csv", "--column", "text", "-o", "o", cwd=corpus, stdin=lines).stdout == ""


def test_an_index_of_another_version_is_refused_and_replaced_by_a_rebuild(tmp_path, encoder, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(writing, "VERSION", 3)
        SearchIndex.build(encoder, ["word1"], tmp_path)
    with pytest.raises(InputError, match="was built by another version of cse; build the index again with --rebuild"):
        SearchIndex.open(tmp_path, encoder)
    SearchIndex.build(encoder, ["word1"], tmp_path, rebuild=True)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.arrow"]


def forged(path, table, **settings):
    """Writes an index file with these settings and a right checksum, as anybody can; the schema is the table's."""
    known = json.loads(table.schema.metadata[b"cse"])
    about = {"cse": json.dumps({**known, **settings, "checksum": writing.NO_CHECK})}
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema.with_metadata(about)) as writer:
        writer.write_table(table)
    sign(path)


def sign(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        at = data.rfind(writing.CHECK) + len(writing.CHECK)
        data[at : at + 32] = writing.NO_CHECK.encode()
        place, value = writing.checksum(data)
        data[place : place + len(value)] = value


def offsets_of(array):
    return np.frombuffer(array.buffers()[1], "<i8" if pa.types.is_large_string(array.type) else "<i4")[: len(array) + 1]


@pytest.mark.parametrize("column", ["text", "id", "passages"])
def test_an_index_with_offsets_out_of_range_and_a_right_checksum_is_refused(tmp_path, encoder, column):
    texts, path = some_texts(40), tmp_path / "rows.arrow"
    SearchIndex.build(encoder, texts, tmp_path, ids=[f"id-{row}" for row in range(40)])
    whole = path.read_bytes()
    # A copy: the arrays of a file that is mapped into memory would change with the file.
    array = pa.ipc.open_file(pa.BufferReader(whole)).read_all().column(column).chunk(0)
    offsets = offsets_of(array)
    at = whole.index(offsets.tobytes())
    for row, value in product((0, 20, 40), (1 << 30, -8, int(offsets[-1]) + 500, 0, int(offsets[-1]))):
        if offsets[row] != value:
            changed = offsets.copy()
            changed[row] = value
            path.write_bytes(whole[:at] + changed.tobytes() + whole[at + changed.nbytes :])
            sign(path)
            if (np.diff(changed) >= 0).all() and changed[0] >= 0 and changed[-1] <= offsets[-1]:
                continue  # other texts, but within the file
            refuses("is damaged", SearchIndex.open, tmp_path, encoder)


def test_settings_and_columns_of_another_index_are_refused_in_one_sentence(tmp_path, encoder):
    SearchIndex.build(encoder, some_texts(20), tmp_path, ids=[f"id-{row}" for row in range(20)])
    path = tmp_path / "rows.arrow"
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    for name, values in {
        "model": (None, 3, []), "pooler": (0, []), "prompt": (1.5, {}), "dims": ("x", 2.5, True), "digest": (None, 1),
        "precision": (None, 8), "width": (None, -1, 0, 7, "x", 10**30), "similarity": (None, 1), "passages": ("x", 1.5),
    }.items():  # fmt: skip
        for value in values:
            forged(path, table, **{name: value})
            refuses(f"{name}: must be|is damaged", SearchIndex.open, tmp_path, encoder)
    passages = table.column("passages").combine_chunks()
    vectors = passages.values.field("vector")
    nothing = pa.nulls(len(table))
    values = vectors.flatten().to_numpy().copy()
    values[5] = np.nan
    lost = pa.StructArray.from_arrays(
        [
            *(passages.values.field(name) for name in ("start", "end")),
            pa.FixedSizeListArray.from_arrays(pa.array(values), vectors.type.list_size),
        ],
        names=["start", "end", "vector"],
    )
    for number, (name, column) in enumerate(
        [
            ("id", nothing.cast(pa.large_string())),
            ("text", nothing.cast(pa.large_string())),
            ("text", table.column("text").cast(pa.string())),
            ("text", table.column("text").cast(pa.large_binary())),
            ("hash", nothing.cast(pa.uint64())),
            ("hash", table.column("hash").cast(pa.string())),
            ("passages", nothing.cast(passages.type)),
            ("passages", pa.ListArray.from_arrays(passages.offsets, lost)),
            ("passages", pa.ListArray.from_arrays(passages.offsets, vectors)),
        ]
    ):
        place = table.column_names.index(name)
        forged(path, table.set_column(place, name, column))
        message = refuses("is damaged", SearchIndex.open, tmp_path, encoder)
        assert "\n" not in message, number
    for name in table.column_names[1:]:
        forged(path, table.drop_columns([name]))
        refuses("is damaged", SearchIndex.open, tmp_path, encoder)
    forged(path, table.append_column("more", table.column("hash")))
    refuses("is damaged", SearchIndex.open, tmp_path, encoder)
    forged(path, table)
    assert len(SearchIndex.open(tmp_path, encoder)) == 20


def test_readers_keep_the_rows_that_they_opened_while_the_index_is_updated(tmp_path, encoder):
    texts = some_texts(80)
    SearchIndex.build(encoder, texts, tmp_path / "index")
    reader = SearchIndex.open(tmp_path / "index", encoder)
    hits = SearchIndex.build(encoder, texts).search(texts[:5], 9)
    SearchIndex.build(encoder, texts[40:], tmp_path / "index")
    assert len(list((tmp_path / "index").glob("*.arrow"))) == 1
    assert reader.search(texts[:5], 9) == hits
    assert len(SearchIndex.open(tmp_path / "index", encoder)) == 40
    assert reader.search([texts[3]], 5, hybrid=True)[0][0].text == texts[3]
    assert SearchIndex.open(tmp_path / "index", encoder).search([texts[43]], 5, hybrid=True)[0][0].row == 3


def test_a_lower_bound_of_a_pooled_score_holds_for_every_change_of_the_products():
    draw = np.random.default_rng(4)
    dense, words = draw.standard_normal(400), draw.exponential(size=400)
    for weight in (0.0, 0.3, 1.0):
        pool = Pool(dense, words, weight)
        for error in (1e-6, 0.1):
            for change in (error, -error, *draw.uniform(-error, error, 5)):
                least = np.array([pool.lowered(value, error) for value in pool(dense)])
                assert (pool(dense + change) >= least * (1 - 1e-12)).all()


def ended_at(step, work):
    """Calls a function in a forked process, which ends at its ``step``-th change of a folder without cleaning up."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 9
    try:
        calls = count(1)

        def ending(function):
            return lambda *given, **named: os._exit(3) if next(calls) == step else function(*given, **named)

        changes = [(os, name) for name in ("fsync", "replace", "rename", "unlink", "mkdir", "rmdir")]
        for module, name in (*changes, (Path, "unlink"), (Path, "mkdir"), (Path, "rmdir"), (shutil, "rmtree")):
            setattr(module, name, ending(getattr(module, name)))
        work()
        code = 0
    finally:
        os._exit(code)


@pytest.mark.slow
def test_an_update_that_is_killed_at_any_step_leaves_the_old_or_the_new_index(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(searching, "BLOCK", 16)
    texts = some_texts(120)
    old, new = texts[:70], [*texts[:20], *texts[25:60], *texts[80:]]
    SearchIndex.build(encoder, old, tmp_path / "old").prepare(PLAIN)
    seen = set()
    for step in range(1, 100):
        folder = shutil.copytree(tmp_path / "old", tmp_path / f"index{step}")
        code = ended_at(step, lambda folder=folder: SearchIndex.build(encoder, new, folder))
        assert code in (0, 3)
        found = SearchIndex.open(folder, encoder)
        assert found.texts(range(len(found))) in (old, new)
        seen.add(len(found))
        counted = Counted(encoder)
        SearchIndex.build(counted, new, folder)
        assert counted.texts <= 40
        if step == 1:
            shutil.copytree(folder, tmp_path / "new")
        assert files(folder) == files(tmp_path / "new")
        assert not list(folder.glob("bm25*"))
        if code == 0:
            break
    assert step > 10
    assert seen == {len(old), len(new)}


def is_passage(text, whole, most):
    """Whether a text is at most ``most`` words in a row of another."""
    words = text.split()
    return 0 < len(words) <= most and f" {' '.join(words)} " in f" {' '.join(whole.split())} "


@pytest.mark.parametrize("count", [3, 101])
def test_rows_made_from_queries_take_positives_and_negatives_at_their_ranks(glove, count):
    texts = [*some_texts(300), "  ", " ".join(f"word{number}" for number in range(80))]
    index = SearchIndex.build(Encoder(glove), texts)
    queries = [" ".join(text.split()[:3]) for text in texts[:20]]
    assert len({*queries}) == 20
    rows = QueryRows(count, (6, 9), 2, words=5, seed=3)(index, queries)
    assert len(rows) == count
    ranked = dict(zip(queries, index.search(queries, 9, hybrid=Fusion()), strict=True))
    asked = [row for row in rows if row[0] in ranked]
    others = [row for row in rows if row[0] not in ranked]
    assert len(asked) == count // 2
    numbers = [sum(anchor == query for anchor, _, _ in asked) for query in queries]
    assert max(numbers) - min(numbers) <= 1
    used = set()
    for query, positive, negative in asked:
        hits = ranked[query]
        used |= {rank for rank, hit in enumerate(hits, 1) if is_passage(negative, hit.text, 5)}
        assert any(is_passage(positive, hit.text, 5) for hit in hits[:2])
        assert any(is_passage(negative, hit.text, 5) for hit in hits[5:])
    assert used >= {6, 7, 8, 9} or count < 60
    for anchor, positive, negative in others:
        assert any(is_passage(anchor, text, 24) and is_passage(positive, text, 24) for text in texts)
        assert any(is_passage(negative, text, 24) for text in texts)
    assert QueryRows(count, (6, 9), 2, words=5, seed=3)(index, queries) == rows
    assert QueryRows(count, (6, 9), 2, words=5, seed=4)(index, queries) != rows


def test_invalid_arguments_and_files_are_refused(corpus, cse_here):
    (corpus / "three.csv").write_text("a,b,c\n1,2,3\n", encoding="utf8")
    for flags, phrase in (
        ("-o d.tsv --queries c.txt", "the name must end in .csv or .jsonl"),
        ("-o no/d.csv --queries c.txt", "its folder does not exist"),
        *((f"-o t.csv --queries c.txt --ranks {each}", "must be FIRST-LAST") for each in ("5", "0-5", "7-3", "1..5")),
        ("-o t.csv --queries three.csv --query-column x", "has no column 'x'"),
        ("-o t.csv --queries c.txt --ranks 3-9", "--ranks must begin after rank 3, the last of the positives, got 3"),
        ("-o t.csv --queries c.txt --ranks 99-100", "--ranks 99-100: the corpus has only 60 different rows"),
        ("-o t.csv --queries blank.txt", "--queries blank.txt holds no query"),
    ):
        refused(cse_here("mine", "glove:v.txt", "c.txt", *flags.split(), cwd=corpus), phrase)


def test_rows_are_mined_from_an_index_with_passages(corpus, cse_here, glove):
    texts = (corpus / "c.txt").read_text(encoding="utf8").split("\n")[:-1]
    SearchIndex.build(Encoder(glove), texts, corpus / "cut", passages=8)
    flags = ["c.txt", "-o", "t.csv", "--queries", "c.txt", "--index", "cut", "--ranks", "4-50"]
    ran(cse_here("mine", glove, *flags, cwd=corpus))
    assert len((corpus / "t.csv").read_text(encoding="utf8").splitlines()) == 1921


def test_bm25_scores_equal_the_formula():
    texts = ["The cat sat.", "A cat and a dog, and a cat!", "", "dogs", "the the the"]
    index = Bm25.build(texts)
    documents = Terms()(texts)
    mean = np.mean([len(each) for each in documents])
    for query in ("cat", "The dog", "dog dog", "unheard of"):
        expected = np.zeros(len(texts))
        for term in Terms()([query])[0]:
            df = sum(term in each for each in documents)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            for row, each in enumerate(documents):
                tf = each.count(term)
                expected[row] += idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * len(each) / mean)) if df else 0
        np.testing.assert_allclose(index.scores(query), expected, rtol=1e-5, atol=1e-7)
        best = [row for row in np.argsort(-expected, kind="stable").tolist() if expected[row] > 0]
        for k in (1, 2, 5):
            assert index.search(query, k).tolist() == best[:k]


def test_passages_cover_the_whole_text_and_begin_and_end_between_words():
    for seed in range(20):
        text = some_texts(1, seed, most=90)[0] + " end"
        tokens = [(match.start(), match.end()) for match in re.finditer(r"word|\d+|end", text)]
        for size in (8, 9, 30):
            spans = windows(text, tokens, size)
            assert spans[0][0] == 0
            assert spans[-1][1] == len(text)
            for start, end in spans:
                assert sum(start <= token[0] and token[1] <= end for token in tokens) <= size
                assert start == 0 or text[start - 1] == " "
                assert end == len(text) or text[end] == " "
            for (_, end), (start, _) in pairwise(spans):
                assert start <= end + 1
            assert [start for start, _ in spans] == sorted({start for start, _ in spans})
    assert windows("x" * 50, [(each, each + 1) for each in range(50)], 20)[0] == (0, 20)  # a long word is cut
    assert windows(" \t", [], 8) == []


def test_rows_that_rounding_may_order_otherwise_are_found_as_in_float64(monkeypatch, encoder):
    generator = np.random.default_rng(0)
    width, count = encoder.embedding_dim, 400
    axis = generator.normal(size=width)
    vectors = scaled(axis + 2e-6 * generator.normal(size=(count, width)), {"similarity": "cosine"})
    index = SearchIndex.build(encoder, [f"row {row}" for row in range(count)])
    monkeypatch.setattr(index._rows, "vectors", [vectors])
    monkeypatch.setattr(
        type(encoder), "encode_query", lambda self, texts, **_: np.repeat(axis[None], len(texts), 0).astype(np.float32)
    )
    exact = vectors.astype(np.float64) @ scaled(axis[None], {"similarity": "cosine"})[0].astype(np.float64)
    assert np.ptp(exact) < TIE  # the same score
    assert [hit.row for hit in index.search(["a"], 7)[0]] == list(range(7))
