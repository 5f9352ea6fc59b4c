"""Tests of random numbers as functions of seed, epoch, row and stream."""

import numpy as np

from cse import rng


def test_random_bits_do_not_depend_on_the_number_of_rows():
    """The bits of 40,000 rows are computed in parallel, those of 777 rows in one thread."""
    rows = np.arange(40_000) + 2**40
    whole = rng.bits(3, 1, rows, rng.SHUFFLE)
    parts = [rng.bits(3, 1, rows[start : start + 777], rng.SHUFFLE) for start in range(0, len(rows), 777)]
    assert (whole == np.concatenate(parts)).all()
    assert len(np.unique(whole)) == len(whole)
