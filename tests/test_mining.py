"""Tests of BM25, passages, and the command `cse mine`."""

import math
import re
import shutil
from itertools import pairwise

import numpy as np
import pytest

from cse import Encoder, SearchIndex
from cse.encoder.passages import windows
from cse.search.bm25 import Bm25, Terms
from cse.search.fusion import Fusion
from cse.search.mining import QueryRows
from random_texts import some_texts
from test_cli import ran, refused


@pytest.fixture
def corpus(tmp_path, glove):
    """A folder with word vectors (v.txt) and a corpus (c.txt) with a blank and a repeated row."""
    shutil.copy(glove.removeprefix("glove:"), tmp_path / "v.txt")
    rows = some_texts(60)
    (tmp_path / "c.txt").write_text("\n".join([*rows, "", rows[4]]) + "\n", encoding="utf8")
    return tmp_path


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
    (corpus / "blank.txt").write_text("\n \n", encoding="utf8")
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


def test_rows_are_mined_from_an_index_with_passages(corpus, cse, glove):
    texts = (corpus / "c.txt").read_text(encoding="utf8").split("\n")[:-1]
    SearchIndex.build(Encoder(glove), texts, corpus / "cut", passages=8)
    flags = ["c.txt", "-o", "t.csv", "--queries", "c.txt", "--index", "cut", "--ranks", "4-50"]
    ran(cse("mine", glove, *flags, cwd=corpus))
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
