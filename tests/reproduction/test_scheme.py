"""The drawing of the three levels."""

from __future__ import annotations

from pathlib import Path

from scheme import CONSTANT_GATES, INPUTS, REMOVED, example, scheme

from gatewise.lab.plot import save


def test_the_scheme_removes_what_each_level_removes(tmp_path: Path) -> None:
    weights, neurons, gates = (example(levels) for levels in ("W", "W+N", "W+G+N"))
    for gate in "ifgo":
        assert weights[gate].any(1).all()  # no gate of W is constant
        assert not neurons[gate][list(REMOVED)].any()
        assert not neurons[gate][:, [INPUTS + j for j in REMOVED]].any()
        assert not gates[gate][list(CONSTANT_GATES[gate])].any()
        assert (gates[gate] <= neurons[gate]).all()
        assert (neurons[gate] <= weights[gate]).all()
    save(scheme(), tmp_path / "scheme.png")
    assert (tmp_path / "scheme.png").stat().st_size > 1000
