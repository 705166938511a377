"""config.json and model.safetensors in one directory: replaced as a whole, read only if they belong together.

Both files are written whole under temporary names, then the weights are renamed, then the config. A crash leaves the
old or the new model: between the two renames the new config is still there under its temporary name, matches the
weights by its SHA-256, and the next load() or save() finishes the rename. What is read is what was summed: the
weights are opened once, and where another process saves meanwhile, both files are read again.

A config is ours if it says its format, its digest and the version of gatewise that wrote it; the weights beside it
are. Files of the same names without that are somebody else's, and are replaced only where the caller says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from gatewise.export.written import TEMPORARY, alone_in, check_regular, write_new

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
LARGEST_TEXT = (
    2**23
)  # bytes of a config or a header; 40,000 tensors fit, and Python objects take 20 times as much
ATTEMPTS = 100  # to read a pair that others replace meanwhile


class CheckpointError(ValueError):
    """A saved model that cannot be written or read; says which file, what is wrong, and the way out."""


# Writing.


def write_pair(
    folder: Path, stored: dict[str, Tensor], config: dict[str, Any], overwrite: bool = False
) -> None:
    """Put tensors and config in place of what was there; the config with the sum of the weights, and with its own."""
    weights, waiting = folder / (TEMPORARY + WEIGHTS), folder / (TEMPORARY + CONFIG)
    with contextlib.ExitStack() as until_renamed:
        with nothing_left(folder):
            until_renamed.enter_context(alone_in(folder))
            finish_interrupted(folder)
            refuse_foreign(folder, overwrite)
            for left in (weights, waiting):  # of a save that was killed
                left.unlink(missing_ok=True)
            data = safetensors.torch.save(stored, metadata={"format": "pt"})
            sums = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            text = config_text(config | {"weights": sums}, folder)
            write_new(weights, data)
            write_new(waiting, text)
        os.replace(weights, folder / WEIGHTS)
        with contextlib.suppress(FileNotFoundError):  # a load() came between and has finished the second
            os.replace(waiting, folder / CONFIG)
        flush(folder)


@contextlib.contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Where files cannot be written, a full disk say, those of before stay, and no part of the new ones does."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError, CheckpointError) as error:
        with contextlib.suppress(OSError):
            for name in (WEIGHTS, CONFIG):
                (folder / (TEMPORARY + name)).unlink(missing_ok=True)
            if new:
                folder.rmdir()
        if isinstance(error, CheckpointError):
            raise
        reason = getattr(error, "strerror", None) or said(error)
        raise CheckpointError(
            f"{folder}: the model could not be written ({reason}). What was there before is still "
            "there. Make room, or choose another folder."
        ) from error


def refuse_foreign(folder: Path, overwrite: bool) -> None:
    """Only our files are replaced, or regular ones if the caller says so."""
    config, weights = folder / CONFIG, folder / WEIGHTS
    for path in (config, weights):
        try:
            check_regular(path)
        except FileExistsError as error:
            raise CheckpointError(f"{path}: {error.strerror}.") from error
    if overwrite or is_ours(config) or not (config.exists() or weights.exists()):
        return
    found = config if config.exists() else weights
    raise CheckpointError(
        f"{found}: was not written by gatewise, and would be replaced. Choose another folder, or say that it may go: "
        "save(model, path, overwrite=True), or --overwrite where a command has it."
    )


def is_ours(config: Path) -> bool:
    """Whether a config.json is one that save() wrote, of whatever version."""
    try:
        found = parsed(config)
    except (OSError, ValueError):
        return False
    writer = found.get("provenance")
    return {"format", "digest"} <= found.keys() and isinstance(writer, dict) and "gatewise" in writer


def config_text(config: dict[str, Any], folder: Path) -> bytes:
    try:
        text = json.dumps(config | {"digest": digest(config)}, indent=1)
    except TypeError as error:
        raise CheckpointError(
            f"{folder / CONFIG}: config() must return plain numbers, strings and lists: {error}."
        ) from error
    if len(text) > LARGEST_TEXT:
        raise CheckpointError(
            f"{folder / CONFIG}: would take {len(text):,} bytes, more than {LARGEST_TEXT:,}, for "
            f"{len(config['tensors']):,} tensors; save parts of the model each by itself."
        )
    return (text + "\n").encode()


def digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of the config without its own digest, in one canonical spelling."""
    rest = {key: value for key, value in config.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def flush(folder: Path) -> None:
    """The renames in a directory are on the disk."""
    if os.name == "nt":
        return  # Windows cannot open a directory
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Reading.


def read_pair(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The config, and the weights that belong to it. An interrupted save is finished, all else raises."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such directory; gatewise.save(model, path) makes one.")
    for attempt in range(ATTEMPTS):
        before = stamps(folder)
        try:
            config, data, interrupted = read_once(folder)
        except CheckpointError:
            # Someone saved meanwhile: one file was read before, the other after. Else they are what they are.
            if attempt == ATTEMPTS - 1 or stamps(folder) == before:
                raise
            continue
        if interrupted:  # where the directory is read-only, what was read is still true
            with contextlib.suppress(OSError), alone_in(folder, wait=False) as alone:
                if alone and stamps(folder) == before:
                    os.replace(folder / (TEMPORARY + CONFIG), folder / CONFIG)
        return config, data
    raise AssertionError


def stamps(folder: Path) -> list[tuple[int, int, int] | None]:
    """What tells one file from its successor of the same name."""
    found: list[tuple[int, int, int] | None] = []
    for name in (WEIGHTS, CONFIG, TEMPORARY + CONFIG):
        try:
            of = (folder / name).stat()
            found.append((of.st_ino, of.st_size, of.st_mtime_ns))
        except OSError:
            found.append(None)
    return found


def read_once(folder: Path) -> tuple[dict[str, Any], bytes, bool]:
    """Config, weights, and whether the save was interrupted: then the config has its temporary name still."""
    weights, refusal = folder / WEIGHTS, None
    if not weights.is_file():
        inside = ", ".join(sorted(str(found.parent) for found in folder.glob(f"*/{WEIGHTS}")))
        way_out = f"There is one in {inside}." if inside else "If a first save was interrupted, save again."
        raise CheckpointError(f"{weights}: not found, so {folder} holds no saved model. {way_out}")
    with reading(weights), weights.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        waiting = config_waiting(folder)
        configs = [waiting] if waiting is not None and waiting["weights"]["bytes"] == size else []
        try:
            configs.insert(0, config_for(folder, size))
        except CheckpointError as error:
            refusal = error
            if not configs:
                raise
        data = file.read(size)
    actual = hashlib.sha256(data).hexdigest()
    for config in configs:
        if config["weights"]["sha256"] == actual:
            return config, data, config is waiting
    raise refusal or CheckpointError(
        f"{weights}: altered: its SHA-256 begins with {actual[:12]}, but {CONFIG} says "
        f"{configs[0]['weights']['sha256'][:12]}. Copy the directory again, both files together, or save the model "
        "again."
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error}).") from error


def config_for(folder: Path, size: int) -> dict[str, Any]:
    """The config of weights that have this many bytes."""
    config = folder / CONFIG
    if not config.is_file():
        raise CheckpointError(
            f"{config}: not found; {WEIGHTS} alone does not say what the model is. Save it again."
        )
    found = read_config(config)
    wanted = found["weights"]["bytes"]
    if size != wanted:
        state = "truncated" if size < wanted else "too long"
        raise CheckpointError(
            f"{folder / WEIGHTS}: {state}: {size} bytes, but {CONFIG} says {wanted}. Copy the directory again, or "
            "save the model again."
        )
    return found


def config_waiting(folder: Path) -> dict[str, Any] | None:
    """The config under its temporary name, if it was written to its end."""
    waiting = folder / (TEMPORARY + CONFIG)
    if waiting.is_symlink() or not waiting.is_file():
        return None
    try:
        return read_config(waiting)
    except CheckpointError:
        return None


def finish_interrupted(folder: Path) -> None:
    """The second rename of a save that was killed before it; for who is alone in the folder."""
    waiting = folder / (TEMPORARY + CONFIG)
    with contextlib.suppress(CheckpointError):
        if config_waiting(folder) is not None and read_once(folder)[2]:
            os.replace(waiting, folder / CONFIG)


def parsed(path: Path, largest: int = LARGEST_TEXT) -> dict[str, Any]:
    """The object in a JSON file; ValueError for everything else."""
    if path.stat().st_size > largest:
        raise ValueError(f"more than {largest:,} bytes")
    try:
        found = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, not an object")
    return found


def read_config(path: Path) -> dict[str, Any]:
    """A config with its own digest; of what it says only format and weights are checked here."""
    try:
        config = parsed(path)
        version = config["format"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: not the config of a saved model ({said(error)}): truncated or altered. Save the model again."
        ) from error
    if type(version) is not int or not 1 <= version <= FORMAT:
        provenance = config.get("provenance")
        writer = provenance.get("gatewise") if isinstance(provenance, dict) else None
        raise CheckpointError(
            f"{path}: format {str(version)[:40]}, but this gatewise reads formats up to {FORMAT}. It was written by "
            f"gatewise {writer or 'of a newer version'}: upgrade to that or later."
        )
    if config.get("digest") != digest(config):
        raise CheckpointError(
            f"{path}: altered: its contents do not match its own digest. Copy the directory again, or save again."
        )
    weights = config.get("weights")
    if (
        not isinstance(weights, dict)
        or type(weights.get("bytes")) is not int
        or not isinstance(weights.get("sha256"), str)
    ):
        raise CheckpointError(
            f"{path}: does not say what its weights are, 'bytes' and 'sha256'. Save the model again."
        )
    return config


def tensors_in(data: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, as large as the file."""
    try:
        header = int.from_bytes(data[:8], "little")
        if header > LARGEST_TEXT:
            raise ValueError(f"a header of {header:,} bytes")
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise CheckpointError(
            f"{path}: not a safetensors file ({said(error)}). Save the model again."
        ) from error


def said(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__
