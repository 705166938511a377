"""A saved model is one safetensors file; its metadata say, as JSON, what the model is.

The file is written under a temporary name and renamed: whatever happens, it is the old model or the new one. The
config holds a SHA-256 of itself and of all tensors. A file without such a config is somebody else's, and is replaced
only where the caller says so.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from gatewise.export.written import write_atomic

FORMAT = 1
CONFIG = "gatewise"  # the key of the metadata
SUFFIX = ".safetensors"
LARGEST_HEADER = 2**23  # bytes; 40,000 tensors fit, and Python objects take 20 times as much


class CheckpointError(ValueError):
    """A saved model that cannot be written or read; says which file, what is wrong, and the way out."""


def model_file(path: str | os.PathLike[str]) -> Path:
    """In a folder, model.safetensors; any other path itself, with the suffix where it has none."""
    file = Path(path)
    if file.is_dir() or os.fspath(path).endswith(("/", os.sep)):
        return file / f"model{SUFFIX}"
    return file if file.suffix == SUFFIX else file.with_name(file.name + SUFFIX)


# Writing.


def write_file(
    file: Path, stored: dict[str, Tensor], config: dict[str, Any], overwrite: bool = False
) -> None:
    """Put tensors and config in place of what was there."""
    if os.path.lexists(file) and not overwrite and not is_ours(file):
        raise CheckpointError(
            f"{file}: was not written by gatewise, and would be replaced. Choose another name, or say that it may "
            "go: save(model, path, overwrite=True), or --overwrite where a command has it."
        )
    try:
        write_atomic(file, packed(stored, config, file))
    except (OSError, SafetensorError) as error:
        kept = " What was there before is still there." if os.path.lexists(file) else ""
        reason = getattr(error, "strerror", None) or said(error)
        raise CheckpointError(
            f"{file}: the model could not be written ({reason}).{kept} Make room, or choose another place."
        ) from error


def is_ours(file: Path) -> bool:
    """Whether save() wrote a file, of whatever version."""
    if not file.is_file():
        return False  # a pipe would not end
    try:
        with file.open("rb") as opened:
            found = config_in(header_of(opened))
    except (OSError, ValueError):
        return False
    return {"format", "sha256", "provenance"} <= found.keys()


def packed(stored: dict[str, Tensor], config: dict[str, Any], file: Path) -> bytes:
    try:
        text = json.dumps(config | {"sha256": digest(config, stored)})
    except TypeError as error:
        raise CheckpointError(
            f"{file}: config() must return plain numbers, strings and lists: {error}."
        ) from error
    data = safetensors.torch.save(stored, {CONFIG: text})
    if (size := int.from_bytes(data[:8], "little")) > LARGEST_HEADER:
        raise CheckpointError(
            f"{file}: its header would take {size:,} bytes, more than {LARGEST_HEADER:,}, for {len(stored):,} "
            "tensors; save parts of the model each by itself."
        )
    return data


def digest(config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> str:
    """SHA-256 of the config without its own sum, and of the tensors."""
    rest = {key: value for key, value in config.items() if key != "sha256"}
    found = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name, tensor in sorted(stored.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


# Reading.


def read_file(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors as they are stored; of what the config says only format and sum are checked."""
    if not file.is_file():
        raise CheckpointError(not_there(file))
    try:
        with file.open("rb") as opened:
            header = header_of(opened)
            opened.seek(0)
            data = opened.read()
        stored = dict(sorted(safetensors.torch.load(data).items()))  # theirs is any order
        config = config_in(header)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror or error}).") from error
    except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise CheckpointError(
            f"{file}: is no file that gatewise.save() wrote, or was truncated or altered ({said(error)}). Copy it "
            "again, or save the model again."
        ) from error
    version = config.get("format")
    if type(version) is not int or not 1 <= version <= FORMAT:
        provenance = config.get("provenance")
        writer = provenance.get("gatewise") if isinstance(provenance, dict) else None
        raise CheckpointError(
            f"{file}: format {str(version)[:40]}, but this gatewise reads formats up to {FORMAT}. It was written by "
            f"gatewise {writer or 'of a newer version'}: upgrade to that or later."
        )
    if config.get("sha256") != digest(config, stored):
        raise CheckpointError(
            f"{file}: altered: its contents do not have the SHA-256 that it was saved with. Copy it again, or save "
            "the model again."
        )
    return config, stored


def not_there(file: Path) -> str:
    others = ", ".join(sorted(found.name for found in file.parent.glob(f"*{SUFFIX}")))
    way_out = f"There is {others} beside it." if others else "gatewise.save(model, path) makes one."
    return f"{file}: there is no such file. {way_out}"


def header_of(opened: BinaryIO) -> bytes:
    size = int.from_bytes(opened.read(8), "little")
    if size > LARGEST_HEADER:
        raise ValueError(f"a header of {size:,} bytes")
    return opened.read(size)


def config_in(header: bytes) -> dict[str, Any]:
    """The config in the header of a safetensors file; ValueError for everything else."""
    try:
        metadata = json.loads(header).get("__metadata__")
        found = json.loads(metadata[CONFIG])
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its metadata have no {CONFIG!r}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{CONFIG!r} in its metadata is a {type(found).__name__}, not an object")
    return found


def said(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__
