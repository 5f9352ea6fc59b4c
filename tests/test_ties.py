"""Tests of what counts as the same score, and that every ranking and comparison of scores treats it so."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from cse import SearchIndex
from cse.encoder.encoder import Encoder
from cse.evaluation import significance
from cse.evaluation.base import Pairs, Report, Sample
from cse.evaluation.geometry import half_ranks, nearest_others, unit
from cse.evaluation.labels import neighbours
from cse.evaluation.retrieval import rank_documents
from cse.evaluation.sts import pair_cosines, score_vectors
from cse.search.bm25 import Bm25, Terms
from cse.ties import TIE, WIDEST, at_least, best, comparable, differences


def slowly(scores, sizes):
    """The definition, one score after the other."""
    merged, before, first = [0.0] * len(scores), None, None
    for place in sorted(range(len(scores)), key=lambda place: -scores[place]):

        def apart(other, limit, place=place):
            return scores[other] - scores[place] > limit * TIE * max(sizes[other], sizes[place])

        if before is None or apart(before, 1) or apart(first, WIDEST):
            first = place
        merged[place], before = scores[first], place
    return merged


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-4, 1e-5, 1e-7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 50, 400])
def test_scores_are_merged_and_ranked_as_by_the_definition(count, spread):
    draw = np.random.default_rng(count)
    scores, sizes = draw.random((3, count)) * spread, draw.choice([0.1, 1.0, 3.0], (3, count))
    merged = comparable(scores, sizes)
    assert merged.tolist() == [slowly(*row) for row in zip(scores, sizes, strict=True)]
    assert comparable(comparable(scores)).tolist() == comparable(scores).tolist()
    for k in (1, 3, count + 1):
        ranked = np.argsort(-merged, axis=1, kind="stable")[:, :k]
        assert best(scores, k, sizes).tolist() == ranked.tolist()
        assert [
            best(*row, k, size).tolist() for row, size in zip(scores[:, None], sizes, strict=True)
        ] == ranked.tolist()
    assert at_least(scores, 0.5 + TIE, 1.0).tolist() == (scores >= 0.5).tolist()


def test_infinite_and_missing_scores_are_the_same_as_none():
    scores = np.array([1.0, -np.inf, np.nan, 1.0 - 1e-8, -np.inf])
    np.testing.assert_array_equal(comparable(scores), [1.0, -np.inf, np.nan, 1.0, -np.inf])


def test_differences_that_are_the_same_are_equal_and_those_of_the_same_results_are_zero():
    before = np.array([70.0, 69.8, 70.2, 50.0, 0.1 + 0.2])
    after = np.array([70.1, 69.9, 70.3, 50.0, 0.3])
    change = differences(before, after)
    assert len(set(change[:3])) == 1
    assert change[0] == pytest.approx(0.1)
    assert change[3:].tolist() == [0, 0]
    assert len(set((after - before)[:3])) > 1


GROUPS, OF_EACH = 12, 6


@pytest.fixture(scope="module")
def tied():
    """Points of groups, each with the same vector but for rounding, and the exact vectors: ``(GROUPS, 16)``."""
    draw = np.random.default_rng(0)
    exact = draw.normal(size=(GROUPS, 16))
    noisy = np.repeat(exact, OF_EACH, axis=0) * (1 + draw.uniform(-1, 1, (GROUPS * OF_EACH, 16)) * 2e-7)
    return exact, noisy.astype(np.float32)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e4])
def test_documents_of_the_same_score_are_in_descending_order_of_id_whatever_the_norms(tied, similarity, scale):
    exact, noisy = tied
    norms = np.random.default_rng(1).choice([1.0, 30.0, 1000.0], GROUPS)
    names = [f"d{place:03}" for place in np.random.default_rng(2).permutation(len(noisy))]

    class Table:
        similarity_name = similarity

        def encode_query(self, texts, **_):
            return scale * exact[[int(text) for text in texts]]

        def encode(self, texts, **_):
            places = [int(text) for text in texts]
            return noisy[places] * np.repeat(norms, OF_EACH)[places, None].astype(np.float32)

    documents = {name: str(place) for place, name in enumerate(names)}
    queries = {f"q{number}": str(number) for number in range(GROUPS)}
    points = exact * norms[:, None] if similarity == "dot" else unit(exact)
    for query, found in zip(exact, rank_documents(Table(), queries, documents, depth=20), strict=True):
        scores = dict(zip(names, np.repeat(points @ query, OF_EACH), strict=True))
        wanted = sorted(sorted(names, reverse=True), key=lambda name: -scores[name])[:20]
        assert list(found) == wanted


def test_rows_of_the_same_score_are_found_in_their_order(glove, tmp_path):
    draw = np.random.default_rng(3)
    groups = [list(draw.choice(60, 7, replace=False)) for _ in range(40)]
    texts = [" ".join(f"word{word}" for word in draw.permutation(groups[row % 40])) for row in range(400)]
    index = SearchIndex.build(Encoder(glove), texts)
    for hybrid in (False, True):
        for hits in index.search(
            [" ".join(f"word{word}" for word in group[:4]) for group in groups], 15, hybrid=hybrid
        ):
            rows = [hit.row for hit in hits]
            # The ten rows of a group are equal, so that only the last group is not whole.
            for start in (0, 10):
                some = rows[start : start + 10]
                assert some == [rows[start] % 40 + 40 * place for place in range(len(some))]
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_rows_with_the_same_sum_of_bm25_scores_are_found_in_their_order():
    # The terms of a row have equal scores and occur in the order of the query, so that sums differ by rounding only.
    texts = [f"a{place} b{place % 7} c{place % 5} d{place % 3}" for place in range(105)]
    index = Bm25.build(texts, terms=Terms())
    query = " ".join(dict.fromkeys(word for text in texts for word in text.split()))
    assert len(set(index.scores(query).tolist())) > 1
    assert index.search(query, 105).tolist() == list(range(105))


def test_labels_of_neighbours_do_not_depend_on_rounding(tied):
    _, noisy = tied
    labels = np.random.default_rng(4).integers(0, 3, len(noisy))
    exact = np.repeat(noisy[::OF_EACH], OF_EACH, axis=0)
    for count in (2, 10):
        assert (
            neighbours(unit(noisy), labels, None, count).tolist()
            == neighbours(unit(exact), labels, None, count).tolist()
        )


def test_halves_and_nearest_rows_of_the_same_cosine_tie(tied):
    _, noisy = tied
    forward, backward = half_ranks(noisy, noisy)
    assert set(forward) == set(backward) == {OF_EACH}
    nearest, _ = nearest_others(noisy)
    first = OF_EACH * (np.arange(len(noisy)) // OF_EACH)
    assert nearest.tolist() == np.where(first == np.arange(len(noisy)), first + 1, first).tolist()


def test_pairs_of_the_same_cosine_tie_in_correlations(tied):
    exact, noisy = tied
    others = np.random.default_rng(5).normal(size=(GROUPS, 16)).repeat(OF_EACH, axis=0)
    gold = np.random.default_rng(6).integers(0, 6, len(noisy)).astype(np.float64)
    cosines = pair_cosines(noisy, others)
    assert len(set(cosines)) == GROUPS
    pairs = Pairs(gold, [*map(str, range(len(gold)))], [f"o{place}" for place in range(len(gold))])
    expected = np.repeat(pair_cosines(exact, others[::OF_EACH]), OF_EACH)
    assert score_vectors(pairs, noisy, others).spearman == pytest.approx(100 * spearmanr(expected, gold).statistic)


@pytest.mark.parametrize(
    ("base", "gain"), [((70.0, 69.8, 70.2), 0.1), ((65.5, 65.5, 65.5), 0.1), ((70.0, 69.8, 70.2), 0.7)]
)
def test_seeds_with_the_same_gain_have_the_p_value_of_an_exact_test(base, gain):
    def side(scores):
        return [
            Report([], samples=[Sample("accuracy", 100.0 * (np.arange(1000) < 10 * score - 0.5))]) for score in scores
        ]

    (record,) = significance.compare(side(base), side([score + gain for score in base]), seeds=True)
    assert record["p"] == 0.25
    assert record["low"] < record["mean"] < record["high"]
