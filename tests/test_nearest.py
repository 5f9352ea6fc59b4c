"""Tests of search functions: nearest rows, near pairs, int8 vectors, BM25, fusion of rankings, and passages."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest

from cse import InputError
from cse.models.running.passages import windows
from cse.search import pairs
from cse.search import vectors as stored
from cse.search.bm25 import Bm25
from cse.search.hybrid import fuse
from cse.search.terms import Terms
from cse.search.vectors import Array, Unit, exact_products, nearest, quantize, unit
from random_texts import some_texts


def brute_force(vectors, queries, k):
    """Returns the float64 dot products and row numbers of the k nearest rows of each query; ties are in row order."""
    rows = np.arange(len(vectors))
    given = Array(queries)
    scores = np.stack([exact_products(given, np.full(len(rows), q), vectors, rows) for q in range(len(queries))])
    np.testing.assert_allclose(scores, queries.astype(np.float64) @ vectors.take(rows).T, atol=1e-12)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


@pytest.mark.parametrize("products", [256, 4096, 1 << 22])
@pytest.mark.parametrize(("rows", "queries", "k"), [(3000, 37, 10), (3000, 1, 5), (300, 5, 300), (7, 3, 50)])
def test_nearest_rows_equal_brute_force(monkeypatch, products, rows, queries, k):
    monkeypatch.setattr(stored, "PRODUCTS", products)
    monkeypatch.setattr(stored, "CANDIDATES", products)
    draw = np.random.default_rng(rows + queries)
    values = unit(draw.standard_normal((rows, 24)))
    values[rows // 2 : rows // 2 + 3] = values[0]  # ties
    values[1:3] = 0
    given = unit(draw.standard_normal((queries, 24)))
    given[0] = values[0]
    int8 = Array(*quantize(values))
    for vectors in (Array(values), int8, Array(30 * values), Unit(int8), Unit(Array(30 * values))):
        scores, found = nearest(vectors, given, k)
        expected, order = brute_force(vectors, given, k)
        np.testing.assert_array_equal(found, order)
        np.testing.assert_array_equal(scores, expected)


def test_nearest_rows_equal_brute_force_if_products_ascend_or_are_equal(monkeypatch):
    monkeypatch.setattr(stored, "PRODUCTS", 512)
    monkeypatch.setattr(stored, "CANDIDATES", 64)
    values = unit(np.random.default_rng(0).standard_normal((2000, 8)))
    query = values[:1]
    rising = Array(values[np.argsort(values @ query[0])])
    np.testing.assert_array_equal(nearest(rising, query, 9)[1], brute_force(rising, query, 9)[1])
    same = Array(np.repeat(query, 2000, axis=0))
    np.testing.assert_array_equal(nearest(same, query, 9)[1], [np.arange(9)])


def test_quantisation_to_int8_changes_an_element_by_at_most_half_the_scale_of_its_row():
    values = np.random.default_rng(0).standard_normal((50, 30)).astype(np.float32)
    values[7] = 0
    stored, scales = quantize(values)
    assert stored.dtype == np.int8
    assert np.abs(stored).max() == 127
    error = np.abs(Array(stored, scales).block(0, 50) - values)
    assert (error <= scales[:, None] * 0.5001).all()
    assert error.max() > 0.4 * scales.max()


@pytest.mark.parametrize("threshold", [0.99, 0.9, 0.3, -1])
def test_near_pairs_and_groups_equal_brute_force(monkeypatch, threshold):
    monkeypatch.setattr(pairs, "BLOCK_ROWS", 50)
    monkeypatch.setattr(pairs, "BLOCK_COLUMNS", 90)
    monkeypatch.setattr(pairs, "EDGES", 100)
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((30, 8))
    values = unit(centres[draw.integers(0, 30, 400)] + 0.2 * draw.standard_normal((400, 8)))
    values[300] = values[17]
    for vectors in (Array(values), Unit(Array(*quantize(values))), Unit(Array(7 * values))):
        wide = vectors.take(np.arange(400))
        cosines = np.round(wide @ wide.T, 6)
        expected = {(i, j) for i, j in zip(*np.nonzero(cosines >= threshold), strict=True) if i < j}
        groups, found = pairs.Groups(400), {}
        for first, second, values_of in pairs.near_pairs(vectors, threshold):
            groups.add(first, second)
            found.update(zip(zip(first, second, strict=True), values_of, strict=True))
        assert found.keys() == expected
        assert all(abs(cosines[pair] - value) < 2e-6 for pair, value in found.items())
        # The expected groups: both rows of a pair take the smaller of their two labels, until no label changes.
        labels = np.arange(400)
        while True:
            before = labels.copy()
            for i, j in expected:
                labels[i] = labels[j] = min(labels[i], labels[j])
            if (labels == before).all():
                break
        np.testing.assert_array_equal(groups.labels(), labels)
        members = groups.members()
        assert {frozenset(each.tolist()) for each in members} == {
            frozenset(np.flatnonzero(labels == label).tolist()) for label in labels if (labels == label).sum() > 1
        }
        assert [len(each) for each in members] == sorted(map(len, members), reverse=True)


def test_identical_rows_have_a_cosine_of_1():
    values = unit(np.random.default_rng(3).standard_normal((200, 7)))
    twice = np.repeat(values, 2, axis=0)
    for vectors in (Array(twice), Unit(Array(*quantize(twice)))):
        found = [*pairs.near_pairs(vectors, 1)]
        first, second, cosines = (np.concatenate(part) for part in zip(*found, strict=True))
        np.testing.assert_array_equal(first, np.arange(0, 400, 2))
        np.testing.assert_array_equal(second, first + 1)
        assert (cosines == 1).all()


@pytest.mark.parametrize("threshold", [-1.01, 1.5, float("nan"), True])
def test_a_threshold_that_is_not_a_cosine_is_refused(threshold):
    with pytest.raises(InputError, match=r"--threshold must be a cosine, from -1 to 1"):
        pairs.check_threshold(threshold)


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


def test_fusion_adds_reciprocals_of_60_plus_the_rank():
    found = fuse([[4, 7, 1], [7, 9]], 10)
    expected = {4: 1 / 61, 7: 1 / 62 + 1 / 61, 1: 1 / 63, 9: 1 / 62}
    assert [row for row, _ in found] == [7, 4, 9, 1]
    assert dict(found) == pytest.approx(expected)
    assert fuse([[3], [2]], 1) == [(2, 1 / 61)]


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
