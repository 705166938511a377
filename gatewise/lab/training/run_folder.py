"""The folder of a run: who may write there, what may begin, go on or be replaced, and what is refused beforehand."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from gatewise.export import CheckpointError, load
from gatewise.export.card import CARD
from gatewise.export.written import TEMPORARY, check_regular
from gatewise.lab import recorded
from gatewise.lab.data.corpus import describe, digest, load_data
from gatewise.lab.data.sources import DataError, data_folder
from gatewise.lab.files import (
    CHECKPOINT,
    GATES,
    METRICS,
    MODEL,
    RECIPE,
    RESULT,
    RunError,
    read_json,
)
from gatewise.lab.recipe import dump
from gatewise.lab.schema import KEYS, OWN_DATA, Recipe

if TYPE_CHECKING:
    from gatewise.lab.training.options import Options

# What a run writes besides recipe, checkpoint and metrics, which tell that there is one.
WRITTEN = (RESULT, GATES, MODEL, CARD)
REPORTING = {"train.count_every", "train.test_every"}  # what is told along the way; the run is the same


LOCK = TEMPORARY + "lock"


class Busy(RunError):
    """Another process writes to the folder."""


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which goes with its process; refused where another process holds it.

    The folder is made if need be, and goes again if nothing was written into it.
    """
    lock, new = FileLock(folder / LOCK, blocking=False), not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise Busy(
            f"{folder}: another process is writing to this run. Wait for its end, or name another --out."
        ) from error
    except OSError as error:
        raise RunError(f"{folder}: cannot be used for a run ({error.strerror or error}).") from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # something was written
            if new:
                folder.rmdir()


def checked_result(recipe: Recipe, options: Options) -> dict[str, Any]:
    """result.json of a finished run, if it was made with this recipe from these data."""
    path = options.out / RESULT
    found: dict[str, Any] = read_json(path, dict, recorded.result)
    if "recipe" not in found:
        raise RunError(
            f"{path}: names no recipe, so it is not the result of a run. Remove it, then --resume."
        )
    refuse_other_recipe(found["recipe"], recipe, path)
    before = found.get("data", {})
    if "digest" not in before:
        return found
    try:
        # Nothing is downloaded only to look at an old result.
        if recipe.data.task in OWN_DATA or not data_folder(options.data_dir)[1]:
            corpus = load_data(recipe, options.data_dir)
            refuse_other_data(before["sizes"], before["digest"], describe(corpus), digest(corpus), path)
    except DataError as error:
        warnings.warn(f"{path}: it was not compared with the data of today: {error}", stacklevel=2)
    return found


def goes_on_with_refit(recipe: Recipe, out: Path) -> bool:
    """Whether a run has finished without a refit, and is asked for one now: it goes on behind [train]."""
    if not recipe.refit.epochs or not (out / CHECKPOINT).is_file():
        return False
    before = read_json(out / RESULT, dict, recorded.result).get("recipe", {})
    return not before.get("refit.epochs")


def can_be_rebuilt(out: Path) -> bool:
    """Whether the model of a finished run is gone or damaged, and its checkpoint there."""
    if not (out / CHECKPOINT).is_file():
        return False
    try:
        load(out / MODEL)
    except CheckpointError:
        return True
    return False


def holds_run(out: Path) -> bool:
    return (out / CHECKPOINT).exists() or (out / METRICS).exists()


def refuse_taken_folder(recipe: Recipe, options: Options) -> None:
    out = options.out
    if holds_run(out):
        if not (options.resume or options.overwrite):
            raise RunError(
                f"{out}: holds a run already. Go on with it by --resume, begin it anew by --overwrite, or name "
                "another --out."
            )
        return
    if (out / RECIPE).is_file() and (out / RECIPE).read_bytes() != dump(recipe).encode():
        raise RunError(
            f"{out / RECIPE}: belongs to no run, and the run would write its own over it. Name another --out, or "
            "move the file away."
        )
    taken = [name for name in WRITTEN if os.path.lexists(out / name)]
    if taken and not options.overwrite:
        raise RunError(
            f"{out / taken[0]}: belongs to no run, and the run would write its own over it. Name another --out, or "
            "say that it may go: --overwrite."
        )


def prepare_folder(options: Options) -> None:
    out = options.out
    try:
        if options.overwrite and holds_run(out):
            remove_run(out)
    except OSError as error:
        raise RunError(f"{out}: cannot be used for a run ({error.strerror or error}).") from error


def remove_run(out: Path) -> None:
    """The files of a run; what others put beside them stays."""
    for path in (out / name for name in (CHECKPOINT, METRICS, *WRITTEN)):
        check_regular(path)
        path.unlink(missing_ok=True)


def refuse_other_recipe(before: dict[str, Any], recipe: Recipe, source: Path, refitted: bool = True) -> None:
    """What differs and matters; [refit] does not as long as it has not begun."""
    usual = {key: info.default for key, info in KEYS.items()}  # of keys that have come since
    before, now = usual | before, usual | recipe.steering()
    differs = [key for key in before | now if key not in REPORTING and before.get(key) != now.get(key)]
    differs = [key for key in differs if refitted or not key.startswith("refit.")]
    if differs:
        listed = ", ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differs[:4])
        raise RunError(
            f"{source}: the run was made with another recipe: {listed}. Resume with the recipe it began with, or "
            "begin anew in another --out."
        )


def refuse_other_data(sizes: str, content: str, now: str, content_now: str, source: Path) -> None:
    if content == content_now:
        return
    differs = f"{sizes}; here is {now}" if sizes != now else f"{sizes}, of the same sizes but another content"
    raise RunError(
        f"{source}: the run was made from other data: {differs}. Resume with the data it began with, or begin anew "
        "in another --out."
    )
