"""A tenth of ``benches/size.py`` with a fixed seed: how often the verdict is wrong, and that it is given."""

import json
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).parents[1] / "benches"


@pytest.mark.skipif(not BENCHES.is_dir(), reason="there is no benches/ folder")
def test_the_stored_limits_are_those_of_all_cells_and_low(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHES), *sys.path])
    import size

    stored = json.loads(size.FILE.read_text(encoding="utf8"))
    assert stored.keys() == {name for name, _, _ in size.cells()}
    assert len(stored) == 66  # as docs/evaluation.md says
    for cell in stored.values():
        assert cell["upper"] == pytest.approx(size.limit(cell["false"], cell["trials"]))
        assert cell["upper"] < size.LIMIT
        assert 1000 <= cell["trials"] <= 10_000


@pytest.mark.slow
@pytest.mark.skipif(not BENCHES.is_dir(), reason="there is no benches/ folder")
def test_the_verdict_is_seldom_wrong_and_is_given(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHES), *sys.path])
    import size

    found = {name: size.measure(sides, seeds, 100) for name, sides, seeds in size.cells() if "2,000" not in name}
    false, trials = (sum(cell[key] for cell in found.values()) for key in ("false", "trials"))
    assert size.limit(false, trials) < size.LIMIT
    # 5 % of 100 trials, and 4.5 standard errors, for each of many cells
    assert max(cell["false"] for cell in found.values()) <= 15
    # 5 % of rows that change, and few seeds, cannot tell; most others can.
    powers = sorted(cell["power"] for cell in found.values())
    assert powers[len(powers) // 4] > 0.4
    assert powers[len(powers) // 2] > 0.7
