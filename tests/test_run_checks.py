"""Tests of what a run checks: collapsed embeddings, saturated losses, rows without negatives, and infinite losses."""

import json

import numpy as np
import pytest
import torch

from cse import TrainConfig, train
from cse.errors import RunError
from cse.evaluation.geometry import mean_cosine, uniformity
from cse.training.selection import is_collapsed
from cse.training.watching import SaturationCheck


def config(tmp_path, short_corpus, model, **values):
    values = {"batch_size": 8, "max_steps": 3, "eval_every": 0, "device": "cpu", **values}
    return TrainConfig(corpus=short_corpus, output=tmp_path / "runs", model=str(model), **values)


@pytest.mark.parametrize(
    ("sentences", "mrr", "collapsed"),
    [(500, 0.03, True), (500, 0.05, False), (15, 0.3, True), (15, 0.6, False), (2, 0.75, True), (2, 1.0, False)],
)
def test_an_encoder_is_collapsed_if_its_mrr_is_close_to_that_of_a_random_ranking(sentences, mrr, collapsed):
    assert is_collapsed({"mrr": mrr, "uniformity": -3.6}, sentences) is collapsed


CHINESE = ["北京是中华人民共和国的首都", "上海是一个大城市吗", "我喜欢学习机器学习", "今天天气非常好"]


def test_an_encoder_shared_with_a_loss_term_is_optimised_once(tiny_bert):
    from cse.context import Context
    from cse.encoder.resolve import find_model
    from cse.encoder.trained import load_encoder
    from cse.losses.base import LossTerm
    from cse.training.step.state import build_optimizer

    class Holds(LossTerm):
        def __init__(self, options, context):
            super().__init__(options, context)
            self.encoder = context.trained

    encoder = load_encoder(find_model(str(tiny_bert)), "avg")
    alone = build_optimizer([encoder], 1e-5, 0.0)
    held = build_optimizer([encoder, Holds(None, Context(encoder=encoder))], 1e-5, 0.0)
    count = lambda optimizer: [len(group["params"]) for group in optimizer.param_groups]  # noqa: E731
    assert count(alone) == count(held)


def test_uniformity_and_mean_cosine_of_one_sentence_are_nan():
    assert np.isnan(uniformity(np.ones((1, 3))))
    assert np.isnan(mean_cosine(np.ones((1, 3))))


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


def test_collapse_is_reported_even_if_training_did_not_cause_it(tmp_path, short_corpus, tiny_bert):
    """The [CLS] vectors of a model with random weights are nearly equal before and after training."""
    result = train(config(tmp_path, short_corpus, tiny_bert, lr=1e-6))
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
    lines = (tmp_path / "runs" / "r" / "log.jsonl").read_text().splitlines()
    (step,) = [record for record in map(json.loads, lines) if "loss" in record]
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


def test_training_stops_at_an_infinite_loss_with_finite_weights(tmp_path, sample, tiny_bert, monkeypatch):
    from cse.losses.contrastive import Contrastive
    from cse.training import loop

    whole = Contrastive.forward

    def explode(term, views, step):
        loss = whole(term, views, step)
        return loss * float("inf") if step.number == 1 else loss

    monkeypatch.setattr(Contrastive, "forward", explode)
    states = []
    prepare = loop.prepare

    def keep(*arguments, **more):
        states.append(prepare(*arguments, **more))
        return states[0]

    monkeypatch.setattr(loop, "prepare", keep)
    with pytest.raises(RunError, match=r"not finite at step 2 \(first rows of the batch: \d+, .*lower --lr"):
        train(config(tmp_path, sample, tiny_bert, pooler="avg"))
    assert all(torch.isfinite(weights).all() for weights in states[0].state.encoder.parameters())
