"""Checks before training: runs that cannot learn are refused, and the fraction of truncated texts is reported."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from cse import InputError, TfidfIndex, TrainConfig
from cse.training.batches.checks import cut_off
from cse.training.setup import prepare

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
    with pytest.raises(InputError, match=r"^CORPUS: the first 32 tokens of all 200 sampled sentences are identical"):
        of_rows(["one and the same sentence"] * 200)
    of_rows(["one and the same sentence"] * 199 + ["another one"])
    rows = ["one and the same sentence" + " again" * i for i in range(1, 20)]
    with pytest.raises(InputError, match=r"^CORPUS: the first 7 tokens of all 19 sampled sentences are identical"):
        of_rows(rows, max_length=7)
    of_rows(rows, max_length=64)


@pytest.mark.parametrize("positive", ["crop", "delete", "halves", "spans"])
def test_positives_that_are_all_masked_or_unchanged_are_refused(of_rows, positive):
    words = [f"word{i}" for i in range(40)]
    with pytest.raises(InputError, match=rf"^--positive {positive}: none of 40 .* use --positive dropout"):
        of_rows(words, positive=positive)
    of_rows(words, positive="dropout")
    of_rows([*words, "one sentence of several words"], positive=positive)


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [(CHINESE, "Chinese, Japanese, Thai"), (EMOJI, "without letters"), (["word"], "the index was built")],
)
def test_negatives_that_are_all_unchanged_are_refused_with_advice(of_rows, texts, remedy):
    rows = [text + end for text in texts for end in ("!" * i for i in range(16 // len(texts)))]
    with pytest.raises(InputError, match=rf"^--negative una: none of 16 sampled .*{remedy}"):
        of_rows(rows, negatives=("una",))
    of_rows(rows, negatives=("una",), una={"every": 0})


def test_truncated_fraction_is_measured_on_the_texts_used_for_training(of_rows, tiny_bert):
    rows = [" ".join(f"w{(row * 7 + i) % 50}" for i in range(100)) for row in range(16)]
    whole = of_rows(rows, positive="dropout", max_length=16).facts["text"]
    tokens = sum(map(len, AutoTokenizer.from_pretrained(tiny_bert)(rows).input_ids))
    assert "100.0% of the texts truncated to 16 tokens, " in whole
    assert f"which cuts off {100 - 1600 * len(rows) / tokens:.1f}% of all tokens (--max-length 32 would " in whole
    short = of_rows(rows, positive="spans", spans={"max_span_words": 8, "min_span_words": 2}, max_length=64).facts[
        "text"
    ]
    assert "0.0% of the texts truncated to 64 tokens, which cuts off 0.0% of all tokens, " in short


def test_truncation_message_gives_the_cost_of_a_larger_maximum_length():
    lengths = np.array([10, 20, 40, 60])
    # Of 130 tokens, 10 + 16 + 16 + 16 = 58 remain at length 16, and 10 + 20 + 32 + 32 = 94 (1.6 times 58) at 32.
    expected = "75.0% of the texts truncated to 16 tokens, which cuts off 55.4% of all tokens"
    larger = "(--max-length 32 would cut off 27.7%, for 1.6 times the computation)"
    assert cut_off(lengths, 16, 512) == f"{expected} {larger}"
    assert cut_off(lengths, 16, 16) == expected
    assert cut_off(lengths, 64, 512) == "0.0% of the texts truncated to 64 tokens, which cuts off 0.0% of all tokens"
