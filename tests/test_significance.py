"""Tests of confidence intervals and p-values against SciPy, known values and simulations, and of `cse compare`."""

import json
import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import spearmanr, ttest_1samp

import cse
from cse.cli.printing import compared_cells
from cse.evaluation.base import Report, Sample
from cse.evaluation.significance import (
    adjust,
    compare,
    holm,
    resampled_difference,
    sentence_clusters,
    sign_flips,
    summarise,
    t_interval,
)


def test_pairs_that_share_a_sentence_are_one_cluster():
    left = ["a", "b", "c", "d", "e", "a"]
    right = ["x", "y", "z", "b", "e2", "q"]
    clusters = sorted(sorted(cluster.tolist()) for cluster in sentence_clusters(left, right))
    assert clusters == [[0, 5], [1, 3], [2], [4]]


def test_differences_of_spearman_correlations_and_their_resamples_equal_scipy():
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 6, 40).astype(float)
    before, after = [gold + generator.normal(size=40) * scale for scale in (3.0, 1.0)]
    clusters = [np.arange(i, i + 2) for i in range(0, 40, 2)]
    difference, values = resampled_difference([before], [after], gold, clusters, resamples=300, seed=5)
    expected = 100 * (spearmanr(after, gold).statistic - spearmanr(before, gold).statistic)
    assert difference.mean == pytest.approx(expected)
    draws = np.random.default_rng(5)
    for value in values[:20]:
        rows = np.concatenate([clusters[i] for i in draws.integers(0, 20, 20)])
        new, old = (spearmanr(each[rows], gold[rows]).statistic for each in (after, before))
        assert value == pytest.approx(100 * (new - old))
    assert difference.low < difference.mean < difference.high
    assert difference.p < 0.05


def test_identical_encoders_have_a_difference_of_zero():
    gold = np.arange(30.0)
    cosines = np.sin(gold)
    difference, _ = resampled_difference([cosines], [cosines], gold, [np.array([i]) for i in range(30)], resamples=50)
    assert (difference.mean, difference.low, difference.high, difference.p) == (0, 0, 0, 1)


def simulated(trials, sides, **settings):
    """The differences of ``trials`` pairs of sides, and how many of their intervals cover ``truth``."""
    truth = settings.pop("truth", 0)
    found = [resampled_difference(*sides(trial), **settings)[0] for trial in range(trials)]
    return found, sum(each.low <= truth <= each.high for each in found)


def most_rejections(trials):
    """Two standard errors above 5 % of the trials."""
    return 0.05 * trials + 2 * math.sqrt(trials * 0.05 * 0.95)


def test_the_bootstrap_interval_covers_the_mean_of_about_95_percent_of_samples():
    def sides(seed):
        return [np.zeros(60)], [np.random.default_rng(seed).normal(0.5, 1, 60)]

    # 95 are expected; the probability of a lower count than 87 is below 0.002.
    assert 87 <= simulated(100, sides, truth=0.5, resamples=400)[1] <= 100


@pytest.mark.parametrize("units", [2, 3, 5, 8, 10, 15])
def test_equal_systems_seldom_differ_and_intervals_cover_with_few_units(units):
    generator = np.random.default_rng(units)
    found, covered = simulated(200, lambda _: ([np.zeros(units)], [generator.normal(size=units)]), resamples=2)
    assert sum(each.p < 0.05 for each in found) <= most_rejections(200)
    assert abs(covered - 190) <= 4 * math.sqrt(190 * 0.05)
    assert min(each.p for each in found) >= 2.0 ** (1 - units)


def test_the_jackknife_of_a_correlation_covers_it_with_few_clusters():
    generator, clusters = np.random.default_rng(0), [np.arange(i, i + 2) for i in range(0, 24, 2)]

    def sides(_):
        gold = generator.normal(size=24)
        return *([gold + generator.normal(size=24)] for _ in range(2)), gold, clusters

    assert 88 <= simulated(100, sides, resamples=2)[1] <= 100


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03])
def test_intervals_cover_where_few_rows_change(share):
    generator = np.random.default_rng(1)

    def sides(_):
        changes = generator.choice([0.0, 1.0, -1.0], 150, p=[1 - share, 0.75 * share, 0.25 * share])
        before = generator.integers(0, 2, 150).astype(float)
        return [before], [before + changes]

    found, covered = simulated(150, sides, truth=0.5 * share, resamples=60)
    assert all(each.high > each.low for each in found)
    assert covered >= 0.93 * 150


@pytest.mark.parametrize("units", [6, 10, 15])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_few_rows_that_are_right_or_wrong_have_honest_intervals(units, share):
    generator = np.random.default_rng(units)

    def sides(_):
        before, after = generator.integers(0, 2, (2, units)) * 100.0
        return [before], [np.where(generator.random(units) < share, after, before)]

    found, covered = simulated(400, sides, resamples=2)
    assert covered >= 0.93 * 400
    assert sum(each.p < 0.05 for each in found) <= most_rejections(400)


def test_the_t_interval_equals_scipy():
    values = [0.3, 0.5, 0.1, 0.6, 0.4]
    result, expected = t_interval(values), ttest_1samp(values, 0)
    interval = expected.confidence_interval(0.95)
    assert (result.low, result.high, result.p) == pytest.approx((interval.low, interval.high, expected.pvalue))


def test_holm_adjusted_p_values_equal_known_values():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.01, math.nan, 0.04])[::2] == holm([0.01, 0.04])


@pytest.mark.slow
def test_compare_prints_differences_with_a_verdict(cse, tiny_bert, tiny_roberta, scored_pairs):
    flags = ("--data", scored_pairs, "--pooler", "avg", "--json")

    def tasks(*arguments):
        return [side["tasks"][0] for side in json.loads(cse("compare", *arguments, *flags).stdout)["comparisons"]]

    same, other = tasks(tiny_bert, tiny_bert, tiny_roberta)
    assert (same["mean"], same["p_holm"], same["verdict"]) == (0, 1, "no difference seen")
    assert other["mean"] == pytest.approx(other["b"] - other["a"])
    assert "checkpoints, not methods" in cse("compare", tiny_bert, tiny_roberta, *flags[:-1]).stdout
    both = f"{tiny_bert},{tiny_roberta}"
    assert tasks(both, both, "--seeds")[0]["mean"] == 0
    alone = json.loads(cse("eval", tiny_roberta, *flags, "--dims", "8").stdout)["suites"]["sts"]["tasks"][0]
    assert tasks(tiny_bert, tiny_roberta, "--dims", "8")[0]["b"] == pytest.approx(alone["spearman"])
    for arguments in ((tiny_bert,), (both, tiny_bert, "--seeds")):
        assert cse("compare", *arguments, *flags).returncode == 2


def samples_report(values, gold=None):
    return Report([], samples=[Sample("a task", np.asarray(values, dtype=np.float64), gold)])


@pytest.mark.parametrize(
    ("seeds", "side", "values"), [(False, 0, [math.nan] * 12), (False, 1, [0.5] * 12), (True, 1, [math.nan] * 12)]
)
def test_a_score_that_is_nan_gives_no_interval_p_value_or_verdict(seeds, side, values):
    gold = np.arange(12.0)
    right, wrong = samples_report(np.sin(gold), gold), samples_report(values, gold)
    sides = [[right, samples_report(np.cos(gold), gold)], [wrong, wrong]] if seeds else [[right], [wrong]]
    if side == 0:
        sides.reverse()
    (record,) = records = compare(*sides, seeds=seeds)
    adjust(records)
    assert math.isnan(record["mean"])
    assert record["verdict"] == ""
    assert not {"low", "high", "p", "p_holm"} & set(record)
    assert compared_cells(record)["95 % interval"] == compared_cells(record)["p (Holm)"] == ""


def test_resamples_without_a_value_do_not_count_as_agreement():
    values = np.full(1000, 1.0)
    assert summarise(1.0, values).p < 0.01
    for share, known in [(10, True), (30, False)]:
        values[:share] = math.nan
        difference = summarise(1.0, values)
        assert math.isfinite(difference.low) == math.isfinite(difference.p) == known
        assert not known or difference.p > 0.02
    # Half of the resamples of these six pairs hold equal gold scores.
    gold = np.array([1.0] * 5 + [2.0])
    difference, _ = resampled_difference([np.arange(6.0)], [-np.arange(6.0)], gold, resamples=200)
    assert math.isnan(difference.p)


def test_one_unit_has_no_p_value_and_a_note():
    (record,) = compare([samples_report([1.0])], [samples_report([2.0])], seeds=False)
    adjust([record])
    assert "p" not in record
    assert record["verdict"] == ""
    assert record["note"] == "1 of the queries: no interval and no p"
    (record,) = compare([samples_report([1.0, 2.0, 0.0])], [samples_report([2.0, 3.5, 2.0])], seeds=False)
    assert record["note"] == "3 queries: t-test, p is at least 0.25"
    assert record["p"] >= 0.25
    (record,) = compare([samples_report([1.0])] * 2, [samples_report([2.0])] * 2, seeds=True)
    assert record["p"] == 0.5  # two seeds with equal differences


def test_the_exact_test_flips_the_signs_of_all_changes():
    values = np.array([0.5, -1.0, 2.0, 0.25])
    totals = [abs(sum(np.array(signs) * abs(values))) for signs in product((1, -1), repeat=4)]
    assert sign_flips(values) == np.mean([total >= abs(values.sum()) for total in totals])
    assert sign_flips(np.ones(5)) == 2 / 32


@pytest.mark.parametrize(("units", "after"), [(2, 100.0), (12, 100.0), (150, 100.0), (2, 0.0), (5, 0.0), (19, 0.0)])
def test_intervals_of_rows_that_all_change_alike_are_not_points(units, after):
    """All rows are right before (an accuracy of 100 %). By a bootstrap or a t-test, the difference would be certain."""
    (record,) = compare([samples_report([100.0] * units)], [samples_report([after] * units)], seeds=False)
    assert record["high"] - record["low"] > 200 / (units + 2)
    assert record["p"] == (1.0 if after else 2.0 ** (1 - units))


def test_compare_of_an_encoder_whose_cosines_are_all_equal_gives_no_verdict(scored_pairs):
    class Encodes:
        def __init__(self, constant):
            self.constant = constant

        def encode(self, texts, **_):
            return np.ones((len(texts), 4)) if self.constant else np.random.default_rng(0).normal(size=(len(texts), 4))

    for first in (False, True):
        (record,) = cse.compare(Encodes(first), Encodes(not first), data=scored_pairs).tasks
        assert record["verdict"] == ""
        assert "p" not in record
