"""Files that are whole or absent, however the program ends."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gatewise.export.saved.schema import Check, SchemaError
from gatewise.export.written import alone_in, check_regular, write_new
from gatewise.lab import recorded

MODEL, RECIPE = "model", "recipe.toml"  # of a run: the folder of its network, and what was run
CHECKPOINT, METRICS, RESULT, GATES = "checkpoint.pt", "metrics.jsonl", "result.json", "gates.json"
TENSORBOARD, VECTORS = "tensorboard", "vectors.json"
NETWORKS, WEIGHTS = (
    "networks.json",
    "model.safetensors",
)  # what is kept elsewhere, and the large file of a model

PARTIAL = ".partial-"  # begins the name of what is being written


class RunError(ValueError):
    """A run that cannot go on; the message says where it stands and what to do."""


class Diverged(RunError):
    """A loss or a weight that is not finite: the recipe is to blame, not the machine."""


def model_folder(path: Path) -> Path:
    """The model in the folder of a run; any other folder itself."""
    if not path.is_dir():
        what = "is a file" if path.is_file() else "there is no such folder"
        raise RunError(f"{path}: {what}. Name the folder of a run, or one that gatewise.save() wrote.")
    model = path / MODEL if (path / MODEL).is_dir() else path
    check_not_elsewhere(model)
    if model != path:
        return model
    if (path / RECIPE).is_file():
        lost = (path / RESULT).is_file() and not (path / CHECKPOINT).is_file()
        raise RunError(
            f"{path}: there is no {MODEL}/ in it: the run is not finished, or its model was not kept. "
            + (f"Nor is there a {CHECKPOINT}: train it again, --overwrite." if lost else "Go on by --resume.")
        )
    return path


def check_not_elsewhere(model: Path) -> None:
    """Refuse a model whose weights networks.json, in a folder above, names as a release asset that is not here."""
    weights = (model / WEIGHTS).resolve()
    if weights.exists() or not (model / "config.json").is_file():
        return
    for above in weights.parents[1:5]:  # results/ROW/model, results/ROW/seeds/K/model
        listed = read_json(above / NETWORKS, dict, recorded.networks) if (above / NETWORKS).is_file() else {}
        for network in listed.get("networks", []):
            if above / network["file"] == weights:
                raise RunError(
                    f"{model}: its network ({network['bytes'] / 1e6:.1f} MB) is a release asset: unpack "
                    f"{listed['asset']} in {above}, or train it again in another folder: gatewise train "
                    f"{model.parent / RECIPE} --out DIR."
                )


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """The name of a file to write; it becomes `path` only if the block ends well.

    The ending of the name stays, because writers look at it. Writers of one folder take turns: until the block ends,
    nothing else is written there.
    """
    partial = path.with_name(PARTIAL + path.name)
    try:
        check_regular(path)
        if path.is_dir():
            raise FileExistsError(errno.EEXIST, "is a folder, which is not replaced by a file", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            # Of a process that was killed, or a link to a file of someone else's.
            partial.unlink(missing_ok=True)
            try:
                yield partial
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        kept = "The file from before is still there. " if path.exists() else ""
        if isinstance(error, FileExistsError) and error.filename == str(path):
            raise RunError(f"{path}: {error.strerror}.") from error
        raise RunError(
            f"{path}: could not be written ({error.strerror or error}). {kept}Make room or choose another folder, "
            "then run the command again; training goes on with --resume."
        ) from error


def remove_partials(folder: Path) -> None:
    """What a process that was killed had half written; only for who alone writes to the folder."""
    for path in folder.glob(f"{PARTIAL}*"):
        path.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """The old file or the new one, never a part; the new one is on the disk before the old one goes."""
    with appearing(path) as partial:
        write_new(partial, content)


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    write_whole(path, (json.dumps(plain(content), indent=indent) + "\n").encode())


def read_json(path: Path, kind: type[Any], check: Check) -> Any:
    """The file's content, checked, or an empty one where there is no such file."""
    if not path.is_file():
        return kind()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is not JSON ({error}). Write it again, or remove it.") from error
    if not isinstance(found, kind):
        raise RunError(f"{path}: holds {type(found).__name__}, expected {kind.__name__}. Remove it.")
    try:
        return check("it", found)
    except SchemaError as error:
        raise RunError(
            f"{path}: is not what a run writes ({error}). Write it again, or remove it."
        ) from error


def plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
