"""Tests of confidence intervals and p-values against SciPy, known values and simulations, and of `cse compare`."""

import json
import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import spearmanr, ttest_1samp

from cse.cli.printing import compared_cells
from cse.evaluation import significance
from cse.evaluation.base import Report, Sample


def test_pairs_that_share_a_sentence_are_one_cluster():
    left = ["a", "b", "c", "d", "e", " A"]
    right = ["x", "y", "z", "b", "e2", "q"]
    clusters = sorted(sorted(cluster.tolist()) for cluster in significance.sentence_clusters(left, right))
    assert clusters == [[0, 5], [1, 3], [2], [4]]


def test_differences_of_spearman_correlations_and_their_resamples_equal_scipy():
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 6, 40).astype(float)
    before, after = [gold + generator.normal(size=40) * scale for scale in (4.0, 0.5)]
    clusters = [np.arange(i, i + 2) for i in range(0, 40, 2)]
    difference = significance.paired_difference([before], [after], gold, clusters, resamples=300)
    expected = 100 * (spearmanr(after, gold).statistic - spearmanr(before, gold).statistic)
    assert difference.mean == pytest.approx(expected)
    values = []
    for drawn in np.random.default_rng(0).integers(0, 20, (300, 20)):
        rows = np.concatenate([clusters[i] for i in drawn])
        new, old = (spearmanr(each[rows], gold[rows]).statistic for each in (after, before))
        values.append(100 * (new - old))
    # 20 clusters: Student's t with 19 degrees of freedom, and a standard error that is larger than in the bootstrap
    wider = 2.0930 / 1.95996 / math.sqrt(19 / 20)
    for end, share in ((difference.low, 0.025), (difference.high, 0.975)):
        assert end == pytest.approx(expected + wider * (np.quantile(values, share) - expected), abs=1e-3)
    assert difference.low < difference.mean < difference.high
    assert difference.p < 0.05


def test_identical_encoders_have_a_difference_of_zero():
    gold = np.arange(30.0)
    sides = [np.sin(gold)], [np.sin(gold)], gold, [np.array([i]) for i in range(30)]
    difference = significance.paired_difference(*sides, resamples=50)
    assert (difference.mean, difference.low, difference.high, difference.p) == (0, 0, 0, 1)


def shifted(units, mean=0.0):
    return lambda draw: ([np.zeros(units)], [draw.normal(mean, 1, units)])


def correlated(draw):
    gold, clusters = draw.normal(size=24), [np.arange(i, i + 2) for i in range(0, 24, 2)]
    return *([gold + draw.normal(size=24)] for _ in range(2)), gold, clusters


def few_changes(share):
    """Sides of 150 rows, of which a share changes, three of four for the better."""

    def sides(draw):
        changes = draw.choice([0.0, 1.0, -1.0], 150, p=[1 - share, 0.75 * share, 0.25 * share])
        before = draw.integers(0, 2, 150).astype(float)
        return [before], [before + changes]

    return sides


def right_or_wrong(units, share):
    """Sides of which a share of the rows is drawn again."""

    def sides(draw):
        before, after = draw.integers(0, 2, (2, units)) * 100.0
        return [before], [np.where(draw.random(units) < share, after, before)]

    return sides


@pytest.mark.parametrize(
    ("sides", "truth", "trials", "resamples", "least"),
    [
        (shifted(60, 0.5), 0.5, 100, 400, 0.87),  # the bootstrap; a lower count has a probability below 0.002
        *((shifted(units), 0.0, 200, 2, 0.89) for units in (2, 3, 5, 8, 10, 15)),  # the exact test or t-test
        (correlated, 0.0, 100, 2, 0.88),  # the jackknife
        *((few_changes(share), 0.5 * share, 150, 60, 0.93) for share in (0.0, 0.01, 0.03)),
        *((right_or_wrong(units, share), 0.0, 400, 2, 0.93) for units in (6, 10, 15) for share in (0.05, 0.3, 0.8)),
    ],
    ids=range(20),
)
def test_intervals_cover_the_truth_and_equal_systems_seldom_differ(sides, truth, trials, resamples, least):
    draw = np.random.default_rng(1)
    drawn = [sides(draw) for _ in range(trials)]
    found = [significance.paired_difference(*each, resamples=resamples) for each in drawn]
    assert all(each.high > each.low for each in found)
    assert sum(each.low <= truth <= each.high for each in found) >= least * trials
    assert min(each.p for each in found) >= 2.0 ** (1 - len(drawn[0][0][0]))
    if truth == 0:  # two standard errors above 5 % of the trials
        assert sum(each.p < 0.05 for each in found) <= 0.05 * trials + 2 * math.sqrt(trials * 0.05 * 0.95)


def test_the_t_interval_equals_scipy():
    values = [0.3, 0.5, 0.1, 0.6, 0.4]
    result, expected = significance.t_interval(values), ttest_1samp(values, 0)
    interval = expected.confidence_interval(0.95)
    assert (result.low, result.high, result.p) == pytest.approx((interval.low, interval.high, expected.pvalue))


def test_holm_adjusted_p_values_equal_known_values():
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert significance.holm([0.01, math.nan, 0.04])[::2] == significance.holm([0.01, 0.04])


@pytest.mark.slow
def test_compare_prints_differences_with_a_verdict(cse_here, tiny_bert, tiny_roberta, scored_pairs):
    flags = ("--data", scored_pairs, "--pooler", "avg", "--json")

    def tasks(*arguments):
        return [side["tasks"][0] for side in json.loads(cse_here("compare", *arguments, *flags).stdout)["comparisons"]]

    same, other = tasks(tiny_bert, tiny_bert, tiny_roberta)
    assert (same["mean"], same["p_holm"], same["verdict"]) == (0, 1, "cannot tell")
    assert other["mean"] == pytest.approx(other["b"] - other["a"])
    assert "checkpoints, not methods" in cse_here("compare", tiny_bert, tiny_roberta, *flags[:-1]).stdout
    both = f"{tiny_bert},{tiny_roberta}"
    assert tasks(both, both, "--seeds")[0]["mean"] == 0
    alone = json.loads(cse_here("eval", tiny_roberta, *flags, "--dims", "8").stdout)["suites"]["sts"]["tasks"][0]
    assert tasks(tiny_bert, tiny_roberta, "--dims", "8")[0]["b"] == pytest.approx(alone["spearman"])
    for arguments in ((tiny_bert,), (both, tiny_bert, "--seeds")):
        assert cse_here("compare", *arguments, *flags).returncode == 2


def samples_report(values, gold=None):
    return Report([], samples=[Sample("a task", np.asarray(values, dtype=np.float64), gold)])


@pytest.mark.parametrize(
    ("seeds", "side", "values"), [(False, 0, [math.nan] * 12), (False, 1, [0.5] * 12), (True, 1, [math.nan] * 12)]
)
def test_a_score_that_is_nan_gives_no_interval_and_no_p_value(seeds, side, values):
    gold = np.arange(12.0)
    right, wrong = samples_report(np.sin(gold), gold), samples_report(values, gold)
    sides = [[right, samples_report(np.cos(gold), gold)], [wrong, wrong]] if seeds else [[right], [wrong]]
    if side == 0:
        sides.reverse()
    (record,) = records = significance.compare(*sides, seeds=seeds)
    significance.adjust(records)
    assert math.isnan(record["mean"])
    assert record["verdict"] == "cannot tell"
    assert not {"low", "high", "p", "p_holm"} & set(record)
    assert compared_cells(record)["95 % interval"] == compared_cells(record)["p (Holm)"] == ""


def test_resamples_without_a_value_do_not_count_as_agreement():
    values = np.full(1000, 1.0)
    assert significance.summarise(1.0, values).p < 0.01
    for share, known in [(10, True), (30, False)]:
        values[:share] = math.nan
        difference = significance.summarise(1.0, values)
        assert math.isfinite(difference.low) == math.isfinite(difference.p) == known
        assert not known or difference.p > 0.02
    # Half of the resamples of these six pairs hold equal gold scores.
    gold = np.array([1.0] * 5 + [2.0])
    difference = significance.paired_difference([np.arange(6.0)], [-np.arange(6.0)], gold, resamples=200)
    assert math.isnan(difference.p)


def test_one_unit_has_no_p_value_and_a_note():
    (record,) = significance.compare([samples_report([1.0])], [samples_report([2.0])], seeds=False)
    significance.adjust([record])
    assert "p" not in record
    assert record["verdict"] == "cannot tell"
    assert record["note"] == "1 of the examples: no interval and no p"
    (record,) = significance.compare([samples_report([1.0, 2.0, 0.0])], [samples_report([2.0, 3.5, 2.0])], seeds=False)
    assert record["note"] == "3 examples: few, so that p is at least 0.25"
    assert record["p"] >= 0.25
    (record,) = significance.compare([samples_report([1.0])] * 2, [samples_report([2.0])] * 2, seeds=True)
    assert record["p"] == 0.5  # two seeds with equal differences


def test_the_exact_test_flips_the_signs_of_all_changes():
    values = np.array([0.5, -1.0, 2.0, 0.25])
    totals = [abs(sum(np.array(signs) * abs(values))) for signs in product((1, -1), repeat=4)]
    assert significance.sign_flips(values) == np.mean([total >= abs(values.sum()) for total in totals])
    assert significance.sign_flips(np.ones(5)) == 2 / 32


@pytest.mark.parametrize(("units", "after"), [(2, 100.0), (12, 100.0), (150, 100.0), (2, 0.0), (5, 0.0), (19, 0.0)])
def test_intervals_of_rows_that_all_change_alike_are_not_points(units, after):
    """All rows are right before (an accuracy of 100 %). By a bootstrap or a t-test, the difference would be certain."""
    (record,) = significance.compare([samples_report([100.0] * units)], [samples_report([after] * units)], seeds=False)
    assert record["high"] - record["low"] > 200 / (units + 2)
    assert record["p"] == (1.0 if after else 2.0 ** (1 - units))
