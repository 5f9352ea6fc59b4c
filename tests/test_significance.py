"""Tests of confidence intervals and p-values against SciPy, known values and simulations, and of `cse compare`."""

import json
import math

import numpy as np
import pytest
from scipy.stats import spearmanr, ttest_1samp

import cse
from cse.cli.commands.evaluate import compared_cells
from cse.evaluation.base import Report, Sample
from cse.evaluation.significance import (
    adjust,
    compare,
    holm,
    paired_bootstrap,
    resampled_difference,
    sentence_clusters,
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


def test_the_bootstrap_interval_covers_the_mean_of_about_95_percent_of_samples():
    covered = 0
    for seed in range(200):
        sample = np.random.default_rng(seed).normal(0.5, 1, 60)
        _, low, high = paired_bootstrap(sample, resamples=400, seed=seed)
        covered += low <= 0.5 <= high
    assert 178 <= covered <= 199  # 190 are expected; the probability of a count outside these limits is below 0.001


def test_the_t_interval_equals_scipy():
    values = [0.3, 0.5, 0.1, 0.6, 0.4]
    result, expected = t_interval(values), ttest_1samp(values, 0)
    interval = expected.confidence_interval(0.95)
    assert (result.low, result.high, result.p) == pytest.approx((interval.low, interval.high, expected.pvalue))


def test_holm_adjusted_p_values_equal_known_values():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_compare_prints_differences_with_a_verdict(cse, tiny_bert, tiny_roberta, sample_rows, tmp_path):
    lines = [f"{i % 6}\t{a}\t{b}" for i, (a, b) in enumerate(zip(sample_rows[:40], sample_rows[40:80], strict=True))]
    (tmp_path / "stsb.dev.tsv").write_text("\n".join(lines), encoding="utf8")
    flags = ("--data", tmp_path, "--allow-partial", "--pooler", "avg")
    value = json.loads(cse("compare", tiny_bert, tiny_bert, tiny_roberta, *flags, "--json").stdout)
    same, other = value["comparisons"]
    (row,) = same["tasks"]
    assert (row["mean"], row["p_holm"], row["verdict"]) == (0, 1, "no difference seen")
    (row,) = other["tasks"]
    assert row["mean"] == pytest.approx(row["b"] - row["a"])
    done = cse("compare", tiny_bert, tiny_roberta, *flags)
    assert "checkpoints, not methods" in done.stdout
    both = f"{tiny_bert},{tiny_roberta}"
    value = json.loads(cse("compare", both, both, *flags, "--seeds", "--json").stdout)
    assert value["comparisons"][0]["tasks"][0]["mean"] == 0
    value = json.loads(cse("compare", tiny_bert, tiny_roberta, *flags, "--dims", "8", "--json").stdout)
    (cut,) = value["comparisons"][0]["tasks"]
    alone = json.loads(cse("eval", tiny_roberta, *flags, "--dims", "8", "--json").stdout)
    assert cut["b"] == pytest.approx(alone["suites"]["sts"]["tasks"][0]["spearman"])
    for arguments in ((tiny_bert,), (both, tiny_bert, "--seeds")):
        assert cse("compare", *arguments, *flags).returncode == 2


def samples_report(values, gold=None):
    return Report([], samples=[Sample("a task", np.asarray(values, dtype=np.float64), gold)])


@pytest.mark.parametrize("seeds", [False, True])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("values", [[math.nan] * 12, [0.5] * 12], ids=["NaN", "constant"])
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


def test_tests_of_other_tasks_do_not_change_if_a_task_has_no_p_value():
    assert holm([0.01, math.nan, 0.04])[::2] == holm([0.01, 0.04])


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


def test_compare_of_an_encoder_whose_cosines_are_all_equal_gives_no_verdict(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{row % 5}\tword{row} one\tword{row} two\n" for row in range(20)))

    class Encodes:
        def __init__(self, constant):
            self.constant = constant

        def encode(self, texts, **_):
            return np.ones((len(texts), 4)) if self.constant else np.random.default_rng(0).normal(size=(len(texts), 4))

    for sides in ([Encodes(False), Encodes(True)], [Encodes(True), Encodes(False)]):
        (record,) = cse.compare(*sides, data=pairs).tasks
        assert record["verdict"] == ""
        assert "p" not in record
