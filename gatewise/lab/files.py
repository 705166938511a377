"""Files that are whole or absent, however the program ends."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gatewise.export.saved.file import model_file, not_there
from gatewise.export.saved.schema import Check, SchemaError
from gatewise.export.written import write_atomic
from gatewise.lab import recorded

MODEL, RECIPE = "model.safetensors", "recipe.toml"  # of a run: its network, and what was run
CHECKPOINT, METRICS, RESULT, GATES = "checkpoint.pt", "metrics.jsonl", "result.json", "gates.json"
NETWORKS = "networks.json"  # what is kept elsewhere


class RunError(ValueError):
    """A run that cannot go on; the message says where it stands and what to do."""


class Diverged(RunError):
    """A loss or a weight that is not finite: the recipe is to blame, not the machine."""


def model_of(path: str | Path) -> Path:
    """The file of a model, of a finished run say; where there is none, the error says why."""
    file = model_file(path)
    if file.is_file():
        return file
    check_not_elsewhere(file)
    run = file.parent
    if (run / RECIPE).is_file():
        lost = (run / RESULT).is_file() and not (run / CHECKPOINT).is_file()
        raise RunError(
            f"{file}: is not there: the run is not finished, or its model was not kept. "
            + (f"Nor is there a {CHECKPOINT}: train it again, --overwrite." if lost else "Go on by --resume.")
        )
    raise RunError(not_there(file))


def check_not_of_a_run(out: Path) -> None:
    """Refuse to write a model over the one of a run."""
    file = model_file(out)
    if file.name == MODEL and (file.parent / RECIPE).is_file():
        raise RunError(f"{file}: is the model of a run; name another file.")


def check_not_elsewhere(file: Path) -> None:
    """Refuse a model that networks.json, in a folder above, names as a release asset that is not here."""
    file = file.resolve()
    for above in file.parents[1:4]:  # results/ROW/model.safetensors, results/ROW/seeds/K/model.safetensors
        listed = read_json(above / NETWORKS, dict, recorded.networks) if (above / NETWORKS).is_file() else {}
        for network in listed.get("networks", []):
            if above / network["file"] == file:
                raise RunError(
                    f"{file}: the network ({network['bytes'] / 1e6:.1f} MB) is a release asset: unpack "
                    f"{listed['asset']} in {above}, or train it again in another folder: gatewise train "
                    f"{file.parent / RECIPE} --out DIR."
                )


def write_whole(path: Path, content: bytes) -> None:
    """The old file or the new one, never a part of it."""
    try:
        write_atomic(path, content)
    except OSError as error:
        kept = "The file from before is still there. " if path.exists() else ""
        raise RunError(
            f"{path}: could not be written ({error.strerror or error}). {kept}Make room or choose another folder, "
            "then run the command again; training goes on with --resume."
        ) from error


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
