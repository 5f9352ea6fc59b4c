"""Tests that an argument of the wrong type or value is refused, and named, by the package or by the Rust core."""

import pytest

from cse import InputError, TfidfIndex


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": -1}, TypeError, "Drawing.seed"),
        ({"radius": [3]}, InputError, "^--radius "),
        ({"beta": "half"}, TypeError, "Drawing.beta"),
        ({"beta": 1.5}, InputError, "^--beta: 1.5 is not a number from 0 to 1"),
        ({"mode": 1}, TypeError, "Drawing.mode"),
        ({"mode": "x"}, InputError, '^--mode: "x" is unknown; choose negative or positive'),
        ({"tokenizer": "x"}, InputError, "^--tokenizer: "),
        ({"lowercase": "yes"}, TypeError, "Words.lowercase"),
        ({"encoding_errors": "x"}, InputError, '^--encoding-errors: "x" is unknown; choose strict or replace'),
        ({"odd": 1}, TypeError, "odd"),
    ],
)
def test_invalid_options_are_named(sample, sample_index, options, error, message):
    building = {"tokenizer", "lowercase", "encoding_errors"} & options.keys()
    with pytest.raises(error, match=message):
        TfidfIndex.build(sample, **options) if building else sample_index.augment(["a text"], **options)
