"""Tests that an argument of the wrong type or value is refused, and named, by the package or by the Rust core."""

import pytest

from cse import InputError, TfidfIndex, _core


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": "x"}, InputError, "^seed: must be an integer, got 'x'"),
        ({"seed": -1}, InputError, "^seed: must be 0 or more"),
        ({"radius": [3]}, InputError, "^--radius "),
        ({"beta": "half"}, TypeError, "Drawing.beta"),
        ({"beta": 1.5}, InputError, "^--beta: 1.5 is not a number from 0 to 1"),
        ({"mode": 1}, TypeError, "Drawing.mode"),
        ({"mode": "x"}, InputError, '^--mode: "x" is unknown; choose negative or positive'),
        ({"surface": "x"}, InputError, "^--surface: "),
        ({"replace_which": "x"}, InputError, "^--replace-which: "),
        ({"replace_with": "x"}, InputError, "^--replace-with: "),
    ],
)
def test_invalid_options_of_augment_are_named(sample_index, options, error, message):
    with pytest.raises(error, match=message):
        sample_index.augment(["a text"], **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tokenizer": "x"}, InputError, "^--tokenizer: "),
        ({"lowercase": "yes"}, TypeError, "Words.lowercase"),
        ({"encoding_errors": "x"}, InputError, '^--encoding-errors: "x" is unknown; choose strict or replace'),
        ({"max_line_bytes": "1 MB"}, (InputError, TypeError), "max.line.bytes"),
        ({"threads": -1}, (InputError, OverflowError), "threads"),
    ],
)
def test_invalid_options_of_building_are_named(sample, options, error, message):
    with pytest.raises(error, match=message):
        TfidfIndex.build([str(sample)], **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda index: index.augment(["a", 3], [0, 1], {}),
        lambda index: index.transform([None]),
        lambda index: index.save(3),
        lambda _: _core.Index.open("tfidf", "few", None),
        lambda _: _core.count("corpus.txt", {}, {}),
    ],
)
def test_arguments_of_another_type_are_refused(sample_index, call):
    with pytest.raises((TypeError, OverflowError)):
        call(sample_index._core)
