"""Which runs of a sweep are best: those that no other beats in everything.

a beats b:  a is nowhere worse than b, and somewhere better
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gatewise.lab.analyse.history import named
from gatewise.lab.analyse.page import render
from gatewise.lab.files import MODEL, write_json, write_whole
from gatewise.lab.finished.explore import write_report
from gatewise.lab.sweep.plan import DENSE, SPARSE
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.values import Measures, better
from gatewise.lab.training.progress import shown_quality

if TYPE_CHECKING:
    import optuna

REPORT = "report.html"  # of a run: its own page, which its point opens
AXES = {"bytes": "bytes of the int8 export", "time": "microseconds of a step"}


@dataclass(frozen=True)
class Point:
    """A finished trial."""

    kind: str  # sparse or dense
    number: int
    folder: Path
    measured: dict[str, float]  # quality, bytes, time
    values: dict[str, Any]  # what was searched

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.number:04d}"


@dataclass(frozen=True)
class Front:
    name: str
    measures: Measures
    points: tuple[Point, ...]  # all finished trials
    best: tuple[Point, ...]  # those that no other beats, the smallest first
    unfinished: int  # trials that run, or failed, or were stopped early


def open_front(folder: Path, storage: str | None = None) -> Front:
    """From the storage of a sweep: the journal of its folder, or the database that the folder names."""
    import optuna

    from gatewise.lab.sweep.storage import opened
    from gatewise.lab.sweep.studies import ABOUT, measures_of, read_about, study_name

    about = read_about(folder)
    if not about:
        raise SweepError(
            f"{folder}: has no {ABOUT}, so it is no folder of a sweep. `gatewise sweep` makes one."
        )
    with opened(storage or about["storage"], folder) as kept:
        known = set(optuna.get_all_study_names(kept))
        names = {kind: study_name(about["name"], kind) for kind in (SPARSE, DENSE)}
        studies = {
            kind: optuna.load_study(study_name=n, storage=kept) for kind, n in names.items() if n in known
        }
        if SPARSE not in studies:
            raise SweepError(f"{folder}: the sweep {about['name']!r} has not begun in its storage.")
        found, unfinished = [], 0
        for kind, study in studies.items():
            points, rest = points_of(study, kind, folder)
            found += points
            unfinished += rest
        measures = measures_of(studies[SPARSE])
    return Front(about["name"], measures, tuple(found), tuple(unbeaten(found, measures)), unfinished)


def points_of(study: optuna.Study, kind: str, folder: Path) -> tuple[list[Point], int]:
    """Finished trials, and how many others have a place."""
    from optuna.trial import TrialState

    from gatewise.lab.sweep import places

    trials = study.get_trials(deepcopy=False)
    points = []
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            first = places.first_of(trial)
            measured: dict[str, float] = {
                name: trial.user_attrs[name]
                for name in ("quality", "bytes", "time")
                if name in trial.user_attrs
            }
            points.append(Point(kind, first, folder / kind / f"{first:04d}", measured, dict(trial.params)))
    return points, places.begun(trials) - len(points)


def compared(measures: Measures) -> tuple[str, ...]:
    """With a limit there is one objective; its runs are still compared by quality and by what is limited."""
    return ("quality", measures.under.objective) if measures.under else measures.objectives


def unbeaten(points: Sequence[Point], measures: Measures) -> list[Point]:
    keys = compared(measures)

    def at_least(a: Point, b: Point, key: str) -> bool:
        return not better(b.measured[key], a.measured[key], key == "quality" and measures.higher_is_better)

    def beats(a: Point, b: Point) -> bool:
        return all(at_least(a, b, key) for key in keys) and not all(at_least(b, a, key) for key in keys)

    best = [point for point in points if not any(beats(other, point) for other in points)]
    return sorted(best, key=lambda point: [point.measured[key] for key in reversed(keys)])


# Showing.


def table(front: Front) -> str:
    """One line for each run of the front."""
    searched = list(dict.fromkeys(key for point in front.best for key in point.values))
    head = ["run", f"valid {front.measures.quality}", "bytes", "us", *searched]
    rows = [
        [point.name, *shown(point), *(cell(point.values.get(key)) for key in searched)]
        for point in front.best
    ]
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in [head, *rows]]
    return "\n".join(lines)


def shown(point: Point) -> tuple[str, str, str]:
    found = point.measured
    return (
        shown_quality(found["quality"]),
        f"{found['bytes']:,.0f}",
        f"{found['time']:.1f}" if "time" in found else "-",
    )


def cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def to_dict(front: Front) -> dict[str, Any]:
    measures, best = front.measures, {point.name for point in front.best}
    return {
        "name": front.name,
        "quality": f"valid_{measures.quality}",
        "compared": list(compared(measures)),
        "cost": None if measures.cost is None else vars(measures.cost),
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

    quality, higher = named(f"valid_{front.measures.quality}"), front.measures.higher_is_better
    panels = {
        title: [plot.Point(p.name, p.measured[key], p.measured["quality"], p.kind) for p in front.points]
        for key, title in shown_axes(front).items()
    }
    paths = [out / name for name in ("front.json", "front.png", "front.svg", "front.html")]
    write_json(paths[0], to_dict(front))
    figure = plot.front(panels, quality, higher, front.name)
    for path in paths[1:3]:
        plot.save(figure, path)
    write_whole(paths[3], page(front, out, quality).encode())
    return paths


def shown_axes(front: Front) -> dict[str, str]:
    """What quality is drawn against."""
    return {key: title for key, title in AXES.items() if all(key in p.measured for p in front.points)}


def page(front: Front, out: Path, quality: str) -> str:
    """The explorer's style; a run with a page of its own is linked, by a path from here."""
    best = {point.name for point in front.best}
    columns = [{"key": "quality", "title": quality}]
    columns += [{"key": key, "title": title} for key, title in shown_axes(front).items()]
    points = [
        {
            "name": point.name,
            "kind": point.kind,
            **point.measured,
            "best": point.name in best,
            "values": point.values,
            "folder": point.folder.as_posix(),
            "href": link_to(point.folder / REPORT, out),
        }
        for point in front.points
    ]
    data = {"name": front.name, "quality": quality, "higher": front.measures.higher_is_better}
    return render({**data, "columns": columns, "points": points}, "front")


def link_to(path: Path, out: Path) -> str | None:
    return quote(Path(os.path.relpath(path, out)).as_posix()) if path.is_file() else None


def write_reports(front: Front, data_dir: str | Path | None, say: Callable[[str], None]) -> None:
    """A page for each run of the front whose model is here, without lag curves, which take long."""
    for point in front.best:
        if (point.folder / MODEL).is_file() and not (point.folder / REPORT).exists():
            say(f"{point.folder / REPORT}")
            write_report([point.folder], point.folder / REPORT, data_dir, lags=0)
