"""A tenth of ``benches/size.py`` with a fixed seed: how often the verdict is wrong, and that it is given."""

import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).parents[1] / "benches"


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
