"""Figures and the explorer page of finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.export.written import check_regular
from gatewise.lab.analyse.history import COUNTED, named, rises
from gatewise.lab.analyse.page import Fact, PageRun, page
from gatewise.lab.data.encoding import Corpus
from gatewise.lab.files import CHECKPOINT, RunError, write_whole
from gatewise.lab.finished.opened import Build, FinishedRun, corpus_of, lags_of, names_of, open_run
from gatewise.lab.schema import Bayes, Lasso
from gatewise.lab.training.checkpoints import load_checkpoint
from gatewise.lab.training.progress import shown_quality
from gatewise.report import measure, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAGS, SEQUENCES = 100, 32
Say = Callable[[str], None]


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    data_dir: str | Path | None = None,
    lags: int = LAGS,
    sequences: int = SEQUENCES,
    build: Build = lambda: None,
) -> tuple[Path, list[str]]:
    """One self-contained HTML file about one run, or two side by side; and notes on what could not be shown.

    `lags=0` leaves the lag curves out.
    """
    check_regular(Path(out))  # now, not after minutes
    runs = [open_run(path, build) for path in paths]
    shown, told = [], []
    for run, title in zip(runs, distinct(runs)):
        corpus, why_not = corpus_of(run, data_dir)
        shown.append(replace(page_run(run, corpus, lags, sequences), title=title))
        told += [f"{title}: {note}" for note in (why_not, *shown[-1].notes) if note]
    out = Path(out)
    write_whole(out, page(shown).encode())
    return out, told


def page_run(run: FinishedRun, corpus: Corpus | None, lags: int, sequences: int) -> PageRun:
    return PageRun(
        run.title,
        run.model,
        facts(run),
        run.metrics,
        lags_of(run.model, corpus, lags, sequences) if corpus is not None and lags else None,
        *(names_of(corpus) if corpus else (None, None)),
        [corpus.note] if corpus and corpus.note else [],
        "" if corpus else "without the data: no words, no lag curves",
    )


def facts(run: FinishedRun) -> list[Fact]:
    """The summary: quality, counts, bytes, and speed where it was measured."""
    result, expect = run.result, run.result.get("expect") or {}
    counts = result.get("counts") or measure(run.model).to_dict()
    found = []
    for key, value in (result.get("quality") or {}).items():
        if not key.startswith("compact"):
            note = f"paper: {expect[key]}" if key in expect else ""
            found.append(Fact(named(key), shown_quality(value), note))
    note = f"paper: {show(expect['compression'])}" if "compression" in expect else ""
    compression = counts["compression"]
    found.append(Fact("compression", "infinite" if compression is None else show(compression), note))
    found.append(Fact("weights left", f"{counts['nonzero']:,}", f"of {counts['weights']:,}"))
    found.append(Fact(COUNTED["neurons"], dashed(counts["neurons"]), paper(expect, "neurons")))
    found.append(Fact(COUNTED["gates"], dashed(counts["gates"]), paper(expect, "live_gates")))
    size, dense = run.file.stat().st_size, 4 * counts["weights"]
    found.append(Fact("model file", in_bytes(size), f"{in_bytes(dense)} of dense matrices"))
    if result.get("seconds"):
        hardware = result.get("hardware") or {}
        where = str(hardware.get("gpu") or hardware.get("cpu") or "")
        found.append(Fact("training time", f"{result['seconds']:,.0f} s", where))
    found += [
        Fact(
            f"{line['situation']}, {line['name']}",
            f"{line['seconds'] * 1e6:,.1f} us",
            f"{line['ratio']:.1f}x",
        )
        for line in run.bench
    ]
    return found


def dashed(numbers: Mapping[str, int]) -> str:
    return "\N{EN DASH}".join(str(n) for n in numbers.values()) or "none"


def paper(expect: Mapping[str, Any], key: str) -> str:
    wanted = expect.get(key)
    if wanted is None:
        return ""
    listed = wanted if isinstance(wanted, list) else [wanted]
    return "paper: " + "\N{EN DASH}".join(str(n) for n in listed)


def in_bytes(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB"


def write_figures(
    paths: Sequence[str | Path],
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    lags: int = LAGS,
    sequences: int = SEQUENCES,
    say: Say = lambda _: None,
    build: Build = lambda: None,
) -> list[Path]:
    """PNG and SVG of the first run's gates, lag curves and group norms, and of all runs' training and sizes.

    They go to `out`, by default the folder `figures` of the first run. Only gates, lag curves and group norms need a
    model; where the first run has none, they are left out.
    """
    from gatewise.lab import plot

    runs = [open_run(path, build) for path in dict.fromkeys(paths)]
    made: dict[str, Figure] = {}
    try:
        runs[0].file  # noqa: B018  whether it is there
    except RunError as error:
        say(f"no gates, no lag curves and no histogram: {error} Or name a run that has its model first.")
    else:
        made |= model_figures(runs[0], data_dir, lags, sequences, say)
    made |= figures_of_all(runs, say)
    folder = Path(out) if out is not None else runs[0].folder / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in made.items():
        for ending in ("png", "svg"):
            path = folder / f"{name}.{ending}"
            plot.save(figure, path)
            written.append(path)
    return written


def model_figures(
    run: FinishedRun, data_dir: str | Path | None, lags: int, sequences: int, say: Say
) -> dict[str, Figure]:
    """What is drawn of one run's network: its gates, its lag curves, and the values that decided."""
    from gatewise.lab import plot
    from gatewise.lab.analyse.spread import group_norms, log_alphas

    made = {"gates": plot.gate_structure(run.model, title=run.title)}
    made["gates-15"] = plot.gate_structure(run.model, sample=15, title=run.title)
    corpus, why_not = corpus_of(run, data_dir)
    if corpus is not None and lags:
        made["lag"] = plot.lag_figure(lags_of(run.model, corpus, lags, sequences), title=run.title)
    elif lags:
        say(why_not)
    sparsify = run.recipe.sparsify if run.recipe else None
    # Norms decide in group lasso alone; a posterior is in the checkpoint, if that was kept.
    threshold = sparsify.threshold if isinstance(sparsify, Lasso) else 0.0
    spread = group_norms(run.model, threshold)
    if isinstance(sparsify, Bayes) and (run.folder / CHECKPOINT).is_file():
        alphas = log_alphas(load_checkpoint(run.folder / CHECKPOINT)["model"], sparsify.snr_threshold)
        spread = alphas if alphas.values else spread
    made["histogram"] = plot.histogram(spread, title=run.title)
    return made


def figures_of_all(runs: Sequence[FinishedRun], say: Say) -> dict[str, Figure]:
    """What is drawn of runs without their networks: training, and size against quality."""
    from gatewise.lab import plot

    made: dict[str, Figure] = {}
    titles = distinct(runs)
    if any(run.metrics for run in runs):
        title = runs[0].title if len(runs) == 1 else None
        made["training"] = plot.training({name: run.metrics for name, run in zip(titles, runs)}, title)
    quality = shared_quality(runs)
    if quality is None:
        say("no size-quality figure: it takes two or more finished runs that are judged alike")
        return made
    points = [
        plot.Point(name, run.result["counts"]["nonzero"], run.result["quality"][quality], name)
        for name, run in zip(titles, runs)
    ]
    panels = {"weights that are not zero": points}
    made["size"] = plot.front(panels, named(quality), rises(quality), "size and quality")
    return made


def distinct(runs: Sequence[FinishedRun]) -> list[str]:
    """Titles; runs of one title are told apart by their folders."""
    titles = [run.title for run in runs]
    return [
        title if titles.count(title) == 1 else f"{title} ({run.folder})" for title, run in zip(titles, runs)
    ]


def shared_quality(runs: Sequence[FinishedRun]) -> str | None:
    """The quality on test data that all of several runs have."""
    if len(runs) < 2 or any("counts" not in run.result for run in runs):
        return None
    found = [run.result.get("quality") or {} for run in runs]
    shared = (
        key for key in found[0] if all(key in other for other in found)
    )  # the first is what runs are chosen by
    return next((key for key in shared if key.startswith("test_")), None)
