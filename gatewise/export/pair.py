"""config.json and model.safetensors in one directory: replaced as a whole, read only if they belong together.

Both files are written whole under temporary names, then the weights are renamed, then the config. A crash leaves the
old or the new model: between the two renames the new config is still there under its temporary name, matches the
weights by its SHA-256, and the next load() or save() finishes the rename.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = 1
CONFIG, WEIGHTS, TEMPORARY = "config.json", "model.safetensors", ".tmp"


class CheckpointError(ValueError):
    """A saved model that cannot be written or read; says which file, what is wrong, and the way out."""


def write_pair(folder: Path, stored: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Put tensors and config in place of what was there; the config with the sum of the weights, and with its own."""
    weights = folder / (WEIGHTS + TEMPORARY)
    finish_interrupted(folder)
    with nothing_left(folder):
        save_file(stored, weights, metadata={"format": "pt"})
        flush(weights)
        sums = {"bytes": weights.stat().st_size, "sha256": sha256(weights)}
        write_config(folder / (CONFIG + TEMPORARY), config | {"weights": sums})
        shutil.copymode(folder / (CONFIG + TEMPORARY), weights)  # safetensors writes for the owner alone
    os.replace(weights, folder / WEIGHTS)
    try:
        os.replace(folder / (CONFIG + TEMPORARY), folder / CONFIG)
    except FileNotFoundError:  # a load() came between the two renames and has finished the second
        matching_config(folder)
    flush(folder)


@contextlib.contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Where files cannot be written, a full disk say, those of before stay, and no part of the new ones does."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            for name in (WEIGHTS, CONFIG):
                (folder / (name + TEMPORARY)).unlink(missing_ok=True)
            if new:
                folder.rmdir()
        reason = getattr(error, "strerror", None) or said(error)
        raise CheckpointError(
            f"{folder}: the model could not be written ({reason}). What was there before is still "
            "there. Make room, or choose another folder."
        ) from error


def write_config(path: Path, config: dict[str, Any]) -> None:
    try:
        text = json.dumps(config | {"digest": digest(config)}, indent=1)
    except TypeError as error:
        raise CheckpointError(
            f"{path}: config() must return plain numbers, strings and lists: {error}."
        ) from error
    path.write_text(text + "\n", encoding="utf-8")
    flush(path)


def digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of the config without its own digest, in one canonical spelling."""
    rest = {key: value for key, value in config.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def flush(path: Path) -> None:
    """On the disk before anything is renamed; a directory, so that its renames are."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a directory
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def matching_config(folder: Path) -> dict[str, Any]:
    """The config that belongs to the weights. An interrupted save is finished; anything else that differs raises."""
    weights, config = folder / WEIGHTS, folder / CONFIG
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such directory; gatewise.save(model, path) makes one.")
    if not weights.is_file():
        inside = ", ".join(sorted(str(found.parent) for found in folder.glob(f"*/{WEIGHTS}")))
        way_out = f"There is one in {inside}." if inside else "If a first save was interrupted, save again."
        raise CheckpointError(f"{weights}: not found, so {folder} holds no saved model. {way_out}")
    if finish_interrupted(folder):
        return read_config(config if config.is_file() else config.with_name(CONFIG + TEMPORARY))
    if not config.is_file():
        raise CheckpointError(
            f"{config}: not found; {WEIGHTS} alone does not say what the model is. Save it again."
        )
    found = read_config(config)
    want, size = found["weights"], weights.stat().st_size
    if size != want["bytes"]:
        state = "truncated" if size < want["bytes"] else "too long"
        raise CheckpointError(
            f"{weights}: {state}: {size} bytes, but {CONFIG} says {want['bytes']}. Copy the directory again, or save "
            "the model again."
        )
    actual = sha256(weights)
    if actual != want["sha256"]:
        raise CheckpointError(
            f"{weights}: altered: its SHA-256 begins with {actual[:12]}, but {CONFIG} says {want['sha256'][:12]}. "
            "Copy the directory again, both files together, or save the model again."
        )
    return found


def finish_interrupted(folder: Path) -> bool:
    """Whether the config under its temporary name is the one that belongs to the weights; it is then renamed."""
    weights, config, waiting = folder / WEIGHTS, folder / CONFIG, folder / (CONFIG + TEMPORARY)
    if not waiting.is_file() or not weights.is_file():
        return False
    try:
        new = read_config(waiting)["weights"]
    except CheckpointError:
        return False  # not written to its end: the save never came to its first rename
    if weights.stat().st_size != new["bytes"] or sha256(weights) != new["sha256"]:
        return False
    if config.is_file():
        try:
            if read_config(config)["weights"]["sha256"] == new["sha256"]:
                return False  # both describe these weights; the save stopped before its first rename, or lost a race
        except CheckpointError:
            pass
    # A read-only directory, or someone was faster: what was read is still true.
    with contextlib.suppress(OSError):
        os.replace(waiting, config)
    return True


def read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        version = config["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: not the config of a saved model ({said(error)}): truncated or altered. Save the model again."
        ) from error
    if not isinstance(version, int) or version > FORMAT:
        writer = config.get("provenance", {}).get("gatewise", "a newer version")
        raise CheckpointError(
            f"{path}: format {version}, but this gatewise reads formats up to {FORMAT}. It was written by gatewise "
            f"{writer}: upgrade to that or later."
        )
    if config.get("digest") != digest(config):
        raise CheckpointError(
            f"{path}: altered: its contents do not match its own digest. Copy the directory again, or save again."
        )
    assert isinstance(config, dict)
    return config


def read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a safetensors file ({said(error)}). Save the model again."
        ) from error


def said(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__
