"""Tests of augmentations that make positives: the words they keep, and their dependence on seed, epoch and row."""

import numpy as np
import pytest

from cse import InputError
from cse.augment import AUGMENTATIONS
from cse.augment.base import Draws
from cse.context import TextContext
from cse.options import parse_options

NAMES = ("crop", "delete", "dropout", "halves", "spans", "uda")


def made(name, texts, index=None, seed=1, epoch=0, rows=None, **options):
    kind = AUGMENTATIONS.get(name)
    method = kind(parse_options(name, kind.Options, options), TextContext(lambda _: index))
    rows = np.arange(len(texts)) if rows is None else rows
    return method(texts, rows, Draws(seed, epoch))


def pairs(name, texts, *arguments, **options):
    """Returns the pairs (anchor, positive) that the augmentation ``name`` makes."""
    found = made(name, texts, *arguments, **options)
    if isinstance(found, list):
        return list(zip(texts, found, strict=True))
    return list(zip(found.anchors, found.positives or found.anchors, strict=True))


def is_span(part, words):
    part = part.split()
    return any(words[i : i + len(part)] == part for i in range(len(words) - len(part) + 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_positive_depends_only_on_text_seed_epoch_and_row(name, sample_rows, sample_index):
    texts, rows = sample_rows[:64], np.arange(64)
    whole = pairs(name, texts, sample_index)
    one_by_one = [pairs(name, [text], sample_index, rows=rows[i : i + 1])[0] for i, text in enumerate(texts)]
    assert whole == one_by_one
    if name not in ("dropout", "halves"):
        assert pairs(name, texts, sample_index, epoch=1) != whole
        assert pairs(name, texts, sample_index, seed=2) != whole


def test_the_two_spans_are_independent_and_have_50_to_90_percent_of_the_words():
    text = " ".join(f"w{i}" for i in range(20))
    lengths, starts = [], []
    for anchor, positive in pairs("spans", [text] * 4000):
        for part in (anchor, positive):
            words = part.split()
            assert is_span(part, text.split())
            lengths.append(len(words))
            starts.append(int(words[0][1:]) / (20 - len(words)) if len(words) < 20 else 0)
    assert (min(lengths), max(lengths)) == (10, 18)
    assert np.mean(lengths) == pytest.approx(14, abs=0.15)
    assert np.mean(starts) == pytest.approx(0.5, abs=0.02)
    first, second = np.array(lengths[0::2]), np.array(lengths[1::2])
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
    assert pairs("spans", ["only three words"]) == [("only three words", "only three words")]


def test_the_option_max_span_words_limits_the_spans_of_long_rows():
    lengths = {}
    for count in (10, 30, 200):
        text = " ".join(f"w{i}" for i in range(count))
        found = pairs("spans", [text] * 3000, min_share=0.3, max_share=0.7, max_span_words=24)
        assert all(is_span(part, text.split()) for pair in found[:50] for part in pair)
        lengths[count] = [len(part.split()) for pair in found for part in pair]
    # In a row of n words, a span has min(0.3 n, 8) to min(0.7 n, 24) words.
    assert {count: (min(each), max(each)) for count, each in lengths.items()} == {10: (3, 7), 30: (8, 21), 200: (8, 24)}
    assert np.mean(lengths[200]) == pytest.approx(16, abs=0.2)
    short = [" ".join(f"w{i}" for i in range(9))] * 100
    assert pairs("spans", short, min_share=0.3, max_share=0.7, max_span_words=24) == pairs(
        "spans", short, min_share=0.3, max_share=0.7
    )
    with pytest.raises(InputError, match=r"spans\.min_span_words: .* at most spans\.max_span_words \(4\), got 8"):
        made("spans", ["a b c d"], max_span_words=4)


def test_crop_keeps_consecutive_words_and_leaves_one_word_rows_unchanged():
    text = " ".join(f"w{i}" for i in range(20))
    *cropped, single = made("crop", [text] * 500 + ["one"], share=0.2)
    starts = set()
    for positive in cropped:
        assert len(positive.split()) == 16
        assert is_span(positive, text.split())
        starts.add(positive.split()[0])
    assert starts == {"w0", "w1", "w2", "w3", "w4"}
    assert single == "one"


def test_delete_removes_every_word_equally_often_and_leaves_one_word_rows_unchanged():
    text = " ".join(f"w{i}" for i in range(10))
    *shortened, single = made("delete", [text] * 5000 + ["one"], share=0.2)
    gone = np.zeros(10)
    for positive in shortened:
        kept = positive.split()
        assert len(kept) == 8
        assert kept == sorted(kept)
        gone[[i for i in range(10) if f"w{i}" not in kept]] += 1
    assert gone / 5000 == pytest.approx(np.full(10, 0.2), abs=0.025)
    assert single == "one"


def test_halves_do_not_overlap_and_one_word_rows_have_no_positive():
    assert pairs("halves", ["a b c d e", "one"])[0] == ("a b c", "d e")
    assert made("halves", ["a b c d e", "one"]).mask.tolist() == [True, False]


def test_uda_positives_equal_the_output_of_augment_in_positive_mode(sample_index, sample_rows):
    edited = made("uda", sample_rows[:50], sample_index)
    assert edited == sample_index.augment(sample_rows[:50], seed=1, beta=0.3, mode="positive")
