"""Tests of what a run checks: collapsed embeddings, saturated losses, rows without negatives, and infinite losses."""

import pytest
import torch

from cse import train
from cse.training.selection import is_collapsed
from cse.training.watching import SaturationCheck
from runs import records_of


@pytest.mark.parametrize(
    ("sentences", "mrr", "collapsed"),
    [(500, 0.03, True), (500, 0.05, False), (15, 0.3, True), (15, 0.6, False), (2, 0.75, True), (2, 1.0, False)],
)
def test_an_encoder_is_collapsed_if_its_mrr_is_close_to_that_of_a_random_ranking(sentences, mrr, collapsed):
    assert is_collapsed({"mrr": mrr, "uniformity": -3.6}, sentences) is collapsed


CHINESE = ["北京是中华人民共和国的首都", "上海是一个大城市吗", "我喜欢学习机器学习", "今天天气非常好"]


def test_the_saturation_check_ignores_steps_without_positives():
    check = SaturationCheck("halves", 0.05)
    assert check.update([{"p_pos": float("nan")}] * 30) is None
    assert "0.9990" in (check.update([{"p_pos": 0.999}] * 10) or "")
    assert check.update([{"p_pos": 0.999}] * 10) is None


def test_the_mean_cosine_of_negatives_excludes_masked_rows():
    from cse.losses.contrastive import similarity_summary

    z = torch.eye(3)
    views = {"anchor": z, "positive": torch.stack([z[0], z[1], z[0]])}
    assert similarity_summary(views, {"positive": torch.tensor([True, True, False])})["cos_neg"] == 0
    assert similarity_summary(views)["cos_neg"] > 0


def test_collapse_is_reported_even_if_training_did_not_cause_it(run_config):
    """The [CLS] vectors of a model with random weights are nearly equal before and after training."""
    result = train(run_config.replace(lr=1e-6, max_steps=3, eval_every=0))
    assert any("nearly all equal" in note for note in result.verdict["notes"])
    assert not any("not collapsed" in note for note in result.verdict["notes"])


def test_rows_without_a_synthetic_negative_are_masked_and_reported(tmp_path, tiny_bert, sample_rows, cse):
    rows = [*CHINESE, *sample_rows[:12]]
    (tmp_path / "mixed.txt").write_text("\n".join(rows), encoding="utf8")
    assert cse("build-tfidf", "mixed.txt", cwd=tmp_path).returncode == 0
    done = cse("train", "mixed.txt", "--una", "--model", tiny_bert, "--batch-size", 16, "--max-steps", 1, "--name", "r",
               "--temperature", 0.05, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "25% of the sentences have no word that can be replaced" in done.stderr
    assert "--tokenizer whitespace" in done.stderr
    (step,) = records_of(tmp_path / "runs" / "r")[0]
    assert step["masked/synthetic"] == 4


def test_printed_row_counts_add_up_to_the_rows_of_the_corpus(tmp_path, tiny_bert, sample_rows, cse):
    rows = [*sample_rows[:400], "", *sample_rows[:400]]
    (tmp_path / "twice.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    done = cse(
        "train", "twice.txt", "--model", tiny_bert, "--max-steps", 1, "--batch-size", 8, "--verbose", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "801 rows" in line]
    numbers = [int(word.replace(",", "")) for word in line.split() if word.replace(",", "").isdigit()]
    assert numbers[0] == sum(numbers[1:]) == 801
    assert "left out because they repeat held-out rows" in line
    (percent,) = [float(word.removesuffix("%")) for line in done.stderr.splitlines() if "duplicate rows" in line
                for word in line.split() if word.endswith("%")][:1]  # fmt: skip
    assert percent == pytest.approx(50, abs=1)
    assert "unknown tokens" in done.stderr
