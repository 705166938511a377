"""The best model of a sweep under a limit, copied out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gatewise.export import load, save
from gatewise.lab.data.encoding import ENCODING, copy_encoding, read_encoding, sum_of
from gatewise.lab.files import MODEL, model_folder
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


def copy_model(point: Point, out: Path, overwrite: bool = False) -> None:
    """Its compact network and encoding.json, ready for `gatewise export`."""
    if not point.folder.is_dir():
        raise SweepError(
            f"{point.folder}: is not on this machine. Run pick where the trial was run, or share the sweep's folder."
        )
    model = model_folder(point.folder)
    if out.resolve() in (model.resolve(), point.folder.resolve()) or (out / MODEL).is_dir():
        raise SweepError(f"{out}: is the folder of a run; name another --out.")
    save(load(model), out, overwrite=overwrite, beside=sum_of(read_encoding(model)))
    copy_encoding(model, out / ENCODING, overwrite)
