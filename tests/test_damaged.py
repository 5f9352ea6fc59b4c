"""A sample of ``mutations.py`` and ``odd_values.py``; ``make test-faults`` runs all of them."""

import sys

import pytest

import mutations
import odd_values


def test_damaged_files_are_accepted_or_refused_in_one_sentence(tmp_path):
    for case in mutations.cases(tmp_path):
        mutations.test(case, 1, 5)
        assert not case.failures, case.failures


def test_odd_values_of_options_give_no_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["odd_values.py", "--sample", "40", "--seed", "3"])
    with pytest.raises(SystemExit) as end:
        odd_values.main()
    assert not end.value.code
