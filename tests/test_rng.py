"""Tests of random numbers as functions of seed, epoch, row and stream, and of sorting by random keys."""

import numpy as np
import pytest

from cse import rng
from una_reference import chacha8_block


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 1000, 4096])
@pytest.mark.parametrize("kept_bits", [64, 34, 4, 1])
def test_stable_order_equals_a_stable_argsort(rows, kept_bits):
    """Some keys are equal or differ only in the low bits, which ``stable_order`` replaces with positions."""
    keys = np.random.default_rng(rows).integers(0, 2**64, rows, dtype=np.uint64) >> np.uint64(64 - kept_bits)
    for each in (keys, keys << np.uint64(64 - kept_bits)):
        assert (rng.stable_order(each) == np.argsort(each, kind="stable")).all()


def test_random_bits_do_not_depend_on_the_number_of_rows():
    """The bits of 40,000 rows are computed in parallel, those of 777 rows in one thread."""
    rows = np.arange(40_000) + 2**40
    whole = rng.bits(3, 1, rows, rng.SHUFFLE)
    parts = [rng.bits(3, 1, rows[start : start + 777], rng.SHUFFLE) for start in range(0, len(rows), 777)]
    assert (whole == np.concatenate(parts)).all()
    for row in (0, 1, 17, 39_999):  # the first number of the ChaCha8 stream of each row
        low, high = chacha8_block(3, 1, int(rows[row]), rng.SHUFFLE)[:2]
        assert int(whole[row]) == high << 32 | low
    assert len(np.unique(whole)) == len(whole)


def test_each_epoch_draws_numbers_of_its_own_and_the_same_ones_again():
    rows = np.arange(200)
    first, second = (rng.Draws(3, epoch).uniform(rows, "words", 2) for epoch in (0, 1))
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.2
    assert (rng.Draws(3, 1).uniform(rows, "words", 2) == second).all()
