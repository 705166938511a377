"""Which runs of a sweep are best: those that no other beats in everything. One of them can be taken out.

a beats b:  a is nowhere worse than b, and somewhere better
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna

from gatewise.export import attached, load, save
from gatewise.lab.analyse.history import named
from gatewise.lab.analyse.page import render
from gatewise.lab.files import MODEL, check_not_of_a_run, model_of, write_json, write_whole
from gatewise.lab.finished.explore import write_report
from gatewise.lab.sweep.plan import KINDS, OBJECTIVES, Under
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import ABOUT, MEASURED, RUN, opened, read_about, study_name
from gatewise.lab.training.progress import shown_quality

REPORT = "report.html"  # of a run: its own page, which its point opens
AXES = {"bytes": "bytes of the int8 export", "time": "microseconds of a step"}


@dataclass(frozen=True)
class Point:
    """A finished run."""

    name: str  # sparse/0003
    folder: Path
    measured: dict[str, float]  # quality, bytes, time
    values: dict[str, Any]  # what was searched

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Front:
    name: str
    quality: str  # valid_ppl
    higher_is_better: bool
    points: tuple[Point, ...]  # all finished runs
    unfinished: int = 0  # runs that go on, or failed, or were stopped early

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured of all runs."""
        return tuple(key for key in OBJECTIVES if all(key in point.measured for point in self.points))

    @property
    def best(self) -> list[Point]:
        """Runs that no other beats, the smallest first."""
        sign, others = -1 if self.higher_is_better else 1, self.measures[1:]
        costs = [(sign * p.measured["quality"], *(p.measured[key] for key in others)) for p in self.points]
        best = [
            (own[::-1], k)
            for k, own in enumerate(costs)
            if not any(cost != own and all(a <= b for a, b in zip(cost, own)) for cost in costs)
        ]
        return [self.points[k] for _, k in sorted(best)]


def open_front(folder: Path, address: str | None = None) -> Front:
    """From the storage of a sweep: the file in its folder, or the database that the folder names."""
    about = read_about(folder)
    if not about:
        raise SweepError(
            f"{folder}: has no {ABOUT}, so it is no folder of a sweep. `gatewise sweep` makes one."
        )
    with opened(address or about["storage"], folder) as storage:
        known = optuna.get_all_study_names(storage)
        names = [name for kind in KINDS if (name := study_name(about["name"], kind)) in known]
        if not names:
            raise SweepError(f"{folder}: the sweep {about['name']!r} has not begun in its storage.")
        studies = [optuna.load_study(study_name=name, storage=storage) for name in names]
        trials = [trial for study in studies for trial in study.get_trials(deepcopy=False)]
        quality, direction = studies[0].metric_names[0], studies[0].directions[0]
    points = {
        name: Point(name, folder / name, trial.user_attrs[MEASURED], dict(trial.params))
        for trial in trials
        if MEASURED in trial.user_attrs and (name := trial.user_attrs[RUN])
    }
    higher = direction == optuna.study.StudyDirection.MAXIMIZE
    unfinished = len({trial.user_attrs[RUN] for trial in trials if RUN in trial.user_attrs} - set(points))
    return Front(about["name"], quality, higher, tuple(points.values()), unfinished)


# Showing.


def table(front: Front) -> str:
    """One line for each run of the front."""
    searched = list(dict.fromkeys(key for point in front.best for key in point.values))
    rows = [["run", front.quality.replace("_", " "), "bytes", "us", *searched]]
    for point in front.best:
        found = point.measured
        time = f"{found['time']:.1f}" if "time" in found else "-"
        numbers = [shown_quality(found["quality"]), f"{found['bytes']:,.0f}", time]
        rows.append([point.name, *numbers, *(cell(point.values.get(key)) for key in searched)])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows)


def cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def to_dict(front: Front) -> dict[str, Any]:
    best = {point.name for point in front.best}
    return {
        "name": front.name,
        "quality": front.quality,
        "compared": list(front.measures),
        "unfinished": front.unfinished,
        "points": [
            {"name": p.name, "kind": p.kind, **p.measured, "best": p.name in best, "values": p.values}
            for p in front.points
        ],
    }


def write_front(front: Front, out: Path) -> list[Path]:
    """front.json, the figure as PNG and SVG, and a page whose points open their runs."""
    if not front.points:
        raise SweepError(f"{front.name}: no trial has finished yet, so there is nothing to draw.")
    from gatewise.lab import plot

    quality, higher = named(front.quality), front.higher_is_better
    axes = {key: title for key, title in AXES.items() if key in front.measures}
    panels = {
        title: [plot.Point(p.name, p.measured[key], p.measured["quality"], p.kind) for p in front.points]
        for key, title in axes.items()
    }
    content = to_dict(front)
    paths = [out / f"front.{form}" for form in ("json", "png", "svg", "html")]
    write_json(paths[0], content)
    figure = plot.front(panels, quality, higher, front.name)
    for path in paths[1:3]:
        plot.save(figure, path)
    columns = [{"key": key, "title": title} for key, title in {"quality": quality, **axes}.items()]
    for point, told in zip(front.points, content["points"]):  # a run with a page of its own is linked
        told |= {"folder": point.folder.as_posix(), "href": link_to(point.folder / REPORT, out)}
    page = render({**content, "quality": quality, "higher": higher, "columns": columns}, "front")
    write_whole(paths[3], page.encode())
    return paths


def link_to(path: Path, out: Path) -> str | None:
    """A path from here."""
    return quote(Path(os.path.relpath(path, out)).as_posix()) if path.is_file() else None


def write_reports(front: Front, data_dir: str | Path | None, say: Callable[[str], None]) -> None:
    """A page for each run of the front whose model is here, without lag curves, which take long."""
    for point in front.best:
        if (point.folder / MODEL).is_file() and not (point.folder / REPORT).exists():
            say(f"{point.folder / REPORT}")
            write_report([point.folder], point.folder / REPORT, data_dir, lags=0)


# Picking.


def best_under(front: Front, limits: Sequence[Under]) -> Point:
    """The run of the best validation quality that keeps to all limits; of equals the smallest."""
    points = front.points
    for limit in limits:
        if any(limit.objective not in point.measured for point in points):
            raise SweepError(f"--under {limit}: the sweep {front.name!r} has no {limit.objective}.")
        found = [point.measured[limit.objective] for point in points]
        points = tuple(point for point, much in zip(points, found) if much <= limit.most)
        if found and not points:
            raise SweepError(
                f"--under {limit}: no run of the sweep {front.name!r} keeps to it. The least is {min(found):,.4g}; "
                "take a higher limit, or search further."
            )
    if not points:
        raise SweepError(f"{front.name}: no trial has finished yet, so there is nothing to pick.")
    sign = -1 if front.higher_is_better else 1
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
