"""The best model of a sweep under a limit, copied out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gatewise.export import attached, load, save
from gatewise.lab.files import check_not_of_a_run, model_of
from gatewise.lab.sweep.front import Front, Point
from gatewise.lab.sweep.plan import Under
from gatewise.lab.sweep.space import SweepError


def best_under(front: Front, limits: Sequence[Under]) -> Point:
    """The run of the best validation quality that keeps to all limits; of equals the smallest."""
    points = front.points
    for limit in limits:
        missing = [point for point in points if limit.objective not in point.measured]
        if missing:
            raise SweepError(f"--under {limit}: the sweep {front.name!r} has no {limit.objective}.")
        fitting = tuple(point for point in points if point.measured[limit.objective] <= limit.most)
        if not fitting:
            least = min((point.measured[limit.objective] for point in points), default=None)
            nearest = (
                ""
                if least is None
                else f" The least is {least:,.4g}; take a higher limit, or search further."
            )
            raise SweepError(f"--under {limit}: no run of the sweep {front.name!r} keeps to it.{nearest}")
        points = fitting
    if not points:
        raise SweepError(f"{front.name}: no trial has finished yet, so there is nothing to pick.")
    sign = -1 if front.measures.higher_is_better else 1
    return min(points, key=lambda point: (sign * point.measured["quality"], point.measured["bytes"]))


def copy_model(point: Point, out: Path, overwrite: bool = False) -> Path:
    """Its compact network with its encoding, ready for `gatewise export`."""
    if not point.folder.is_dir():
        raise SweepError(
            f"{point.folder}: is not on this machine. Run pick where the trial was run, or share the sweep's folder."
        )
    model = model_of(point.folder)
    check_not_of_a_run(out)
    return save(load(model), out, overwrite=overwrite, attached=attached(model)).path
