"""Where the corpora come from: a folder the user names, else a cache that pooch fills from the public addresses.

    the argument `data_dir`, else the environment variable GATEWISE_DATA: that folder only, nothing is downloaded
    neither:                                                              ~/.cache/gatewise, with download

registry.txt has files, sums and addresses. A file of the cache has its sum, or is downloaded again. A file in
a user's own folder that differs from the published one is used, and the data set made from it says so in its `note`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

REGISTRY = Path(__file__).with_name("registry.txt")
UNPACKED = {"ptb": "simple-examples/data", "ag_news_csv": "ag_news"}  # other names of these folders


class DataError(ValueError):
    """A data file is missing, broken or not what it should be; the message says which, and what to do."""


@cache
def registry(folder: Path = Path()) -> Any:
    """pooch's: `registry` has sums by name, `urls` addresses, and fetch() fills the folder."""
    import pooch  # a user's own data are read without it

    found = pooch.create(path=folder, base_url="", registry=None, retry_if_failed=1)
    found.load_registry(REGISTRY)
    return found


@dataclass(frozen=True)
class Found:
    """A file of the registry as it lies on this disk."""

    name: str
    path: Path

    def read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error}). Fetch the file again.") from error

    def deviation(self) -> str:
        """Empty if the file has the published sum, else a sentence for the `note` of what is made from it."""
        import pooch

        expected, url = registry().registry[self.name], registry().urls.get(self.name)
        algorithm = expected.partition(":")[0]
        try:
            actual = f"{algorithm}:{pooch.file_hash(str(self.path), alg=algorithm)}"
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error}). Fetch the file again.") from error
        if actual == expected:
            return ""
        published = f"the published file, {url}" if url else "one of the expected sum"
        return (
            f"{self.path.name} is not the published file ({actual}, expected {expected}): replace it by {published}, "
            "if the difference is not intended"
        )


def data_folder(data_dir: str | Path | None = None) -> tuple[Path, bool]:
    """The folder to look in, and whether missing files may be downloaded into it."""
    named = data_dir or os.environ.get("GATEWISE_DATA")
    if not named:
        cached = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return cached / "gatewise", True
    folder = Path(named).expanduser()
    if not folder.is_dir():
        origin = "--data-dir" if data_dir else "GATEWISE_DATA"
        raise DataError(
            f"{folder}: no such folder (from {origin}). Name an existing one, or none to download the public files."
        )
    return folder, False


def places(name: str) -> list[str]:
    """Where a file may lie below a data folder: as in the registry, in a folder of another name, or in none."""
    folder, _, file = name.partition("/")
    return [name, f"{UNPACKED.get(folder, folder)}/{file}", file]


def find(name: str, data_dir: str | Path | None = None) -> Found | None:
    """The file if it is already there; never downloads."""
    folder, _ = data_folder(data_dir)
    there = (folder / place for place in places(name) if (folder / place).is_file())
    return next((Found(name, path) for path in there), None)


def obtain(name: str, data_dir: str | Path | None = None) -> Found:
    """The file, downloaded into the cache if the user named no folder; else an error that says what to do."""
    found, (folder, may_download) = find(name, data_dir), data_folder(data_dir)
    url = registry().urls.get(name)
    if may_download and url and (found is None or found.path == folder / name):
        return Found(name, fetched(name, folder))
    if found is not None:
        return found
    published = f" It is published at {url}." if url else ""
    auto = "" if may_download else " Without --data-dir and GATEWISE_DATA the public files are downloaded."
    looked = ", ".join(dict.fromkeys(places(name)))
    raise DataError(f"{Path(name).name} is not in {folder} (looked for {looked}).{published}{auto}")


def fetched(name: str, folder: Path) -> Path:
    """The file of the cache with its published sum, downloaded if it is not there or damaged."""
    target, cached = folder / name, registry(folder)
    try:
        return Path(cached.fetch(name))
    except (OSError, ValueError) as error:  # those of requests are OSErrors
        damaged = f"{target} is damaged, and " if target.is_file() else ""
        raise DataError(
            f"{damaged}{target.name} could not be downloaded from {cached.urls[name]} ({error}). Nothing was kept. "
            f"Check the network, or fetch it elsewhere and put it at {target} or into the folder named by --data-dir."
        ) from error
