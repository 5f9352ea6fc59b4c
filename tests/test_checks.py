"""Checks before and in training: runs that cannot learn, truncated texts, collapse, saturation, masked negatives."""

import re

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from conftest import refuses
from cse import TfidfIndex, TrainConfig, train
from cse.training.batches.checks import cut_off
from cse.training.selection import is_collapsed
from cse.training.setup import prepare
from cse.training.watching import SaturationCheck
from runs import records_of

EMOJI = ["\U0001f600", "\U0001f602", "\U0001f60d", "\U0001f44d"]
CHINESE = ["北京是中华人民共和国的首都", "上海是一个大城市吗", "我喜欢学习机器学习", "今天天气非常好"]


@pytest.fixture
def of_rows(tmp_path, tiny_bert):
    """A function that prepares a run on given sentences and builds their TF-IDF index."""

    def start(rows, **values):
        path = tmp_path / "corpus.txt"
        path.write_text("".join(row + "\n" for row in rows), encoding="utf8")
        # The default tokenizer finds no terms in emoji, and an index needs at least one term.
        TfidfIndex.from_texts([*rows, "word"]).save(tmp_path / "tfidf")
        settings = {"batch_size": 8, "max_steps": 2, "device": "cpu", "tfidf": tmp_path / "tfidf", **values}
        return prepare(TrainConfig(corpus=path, model=tiny_bert, output=tmp_path / "runs", **settings))

    return start


def test_a_corpus_of_identical_sentences_is_refused(of_rows):
    message = "^CORPUS: the first {} tokens of all {} sampled sentences are identical"
    refuses(message.format(32, 200), of_rows, ["one and the same sentence"] * 200)
    of_rows(["one and the same sentence"] * 199 + ["another one"])
    rows = ["one and the same sentence" + " again" * i for i in range(1, 20)]
    refuses(message.format(7, 19), of_rows, rows, max_length=7)
    of_rows(rows, max_length=64)


@pytest.mark.parametrize("positive", ["crop", "delete", "halves", "spans"])
def test_positives_that_are_all_masked_or_unchanged_are_refused(of_rows, positive):
    words = [f"word{i}" for i in range(40)]
    refuses(rf"^--positive {positive}: none of 40 .* use --positive dropout", of_rows, words, positive=positive)
    of_rows(words, positive="dropout")
    of_rows([*words, "one sentence of several words"], positive=positive)


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [(CHINESE, "Chinese, Japanese, Thai"), (EMOJI, "without letters"), (["word"], "the index was built")],
)
def test_negatives_that_are_all_unchanged_are_refused_with_advice(of_rows, texts, remedy):
    rows = [text + end for text in texts for end in ("!" * i for i in range(16 // len(texts)))]
    refuses(rf"^--negative una: none of 16 sampled .*{remedy}", of_rows, rows, negatives=("una",))
    of_rows(rows, negatives=("una",), una={"every": 0})


def test_truncated_fraction_is_measured_on_the_texts_used_for_training(of_rows, tiny_bert):
    rows = [" ".join(f"w{(row * 7 + i) % 50}" for i in range(100)) for row in range(16)]
    whole = of_rows(rows, positive="dropout", max_length=16).facts["text"]
    tokens = sum(map(len, AutoTokenizer.from_pretrained(tiny_bert)(rows).input_ids))
    assert "100.0% of the texts truncated to 16 tokens, " in whole
    assert f"which cuts off {100 - 1600 * len(rows) / tokens:.1f}% of all tokens (--max-length 32 would " in whole
    spans = {"max_span_words": 8, "min_span_words": 2}
    short = of_rows(rows, positive="spans", spans=spans, max_length=64).facts["text"]
    assert "0.0% of the texts truncated to 64 tokens, which cuts off 0.0% of all tokens, " in short


def test_truncation_message_gives_the_cost_of_a_larger_maximum_length():
    lengths = np.array([10, 20, 40, 60])
    # Of 130 tokens, 10 + 16 + 16 + 16 = 58 remain at length 16, and 10 + 20 + 32 + 32 = 94 (1.6 times 58) at 32.
    expected = "75.0% of the texts truncated to 16 tokens, which cuts off 55.4% of all tokens"
    larger = "(--max-length 32 would cut off 27.7%, for 1.6 times the computation)"
    assert cut_off(lengths, 16, 512) == f"{expected} {larger}"
    assert cut_off(lengths, 16, 16) == expected
    assert cut_off(lengths, 64, 512) == "0.0% of the texts truncated to 64 tokens, which cuts off 0.0% of all tokens"


def test_an_encoder_is_collapsed_if_its_mrr_is_close_to_that_of_a_random_ranking():
    for sentences, collapsed, other in ((500, 0.03, 0.05), (15, 0.3, 0.6), (2, 0.75, 1.0)):
        assert is_collapsed({"mrr": collapsed, "uniformity": -3.6}, sentences)
        assert not is_collapsed({"mrr": other, "uniformity": -3.6}, sentences)


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
    flags = ("--model", tiny_bert, "--max-steps", 1, "--batch-size", 8, "--verbose")
    done = cse("train", "twice.txt", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "801 rows" in line]
    numbers = [int(word.replace(",", "")) for word in line.split() if word.replace(",", "").isdigit()]
    assert numbers[0] == sum(numbers[1:]) == 801
    assert "left out because they share a text with held-out rows" in line
    (line,) = [line for line in done.stderr.splitlines() if "duplicate rows" in line]
    assert float(re.search(r"(\S+)%", line)[1]) == pytest.approx(50, abs=1)
    assert "unknown tokens" in done.stderr
