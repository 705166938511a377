"""Networks that are release assets: listed with their sums, named where they are asked for, taken where they lie."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from stored import NETWORK, RESULTS, stored_rows, stored_runs

from gatewise.lab.cli import main
from gatewise.lab.files import MODEL, NETWORKS, RESULT, RunError, model_folder, write_json

LISTED = {own["file"]: own for own in json.loads((RESULTS / NETWORKS).read_text())["networks"]}


def test_every_network_is_here_or_listed() -> None:
    """A finished run has its config; its weights are in the tree, or an asset of which the sum is known."""
    runs = [run for row in stored_rows(RESULTS) for run in stored_runs(RESULTS, row, MODEL)]
    places = {(run.folder / NETWORK).relative_to(RESULTS).as_posix(): run for run in runs}
    assert LISTED.keys() <= places.keys()
    for file, run in places.items():
        assert run.has(RESULT)
        assert run.has(f"{MODEL}/config.json")
        assert run.has(NETWORK) or file in LISTED
        if run.has(NETWORK) and file in LISTED:  # unpacked here
            assert hashlib.sha256((RESULTS / file).read_bytes()).hexdigest() == LISTED[file]["sha256"]


def test_an_asset_is_asked_for_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence names the archive and the way to train it; other models are left to load()."""
    for row in ("row", "row/seeds/1", "other"):
        (tmp_path / row / MODEL).mkdir(parents=True)
        (tmp_path / row / MODEL / "config.json").write_text("{}")
    files = [{"file": f"{row}/{NETWORK}", "bytes": 2_500_000, "sha256": ""} for row in ("row", "row/seeds/1")]
    write_json(tmp_path / NETWORKS, {"asset": "all.tar", "networks": files})
    for path in (tmp_path / "row", tmp_path / "row" / MODEL, tmp_path / "row" / "seeds" / "1"):
        with pytest.raises(
            RunError, match=r"2\.5 MB\) is a release asset: unpack all\.tar in .* or train it"
        ):
            model_folder(path)
        assert main(["evaluate", str(path)]) == 1
        assert "release asset" in " ".join(capsys.readouterr().err.split())
    assert model_folder(tmp_path / "other") == tmp_path / "other" / MODEL
    (tmp_path / "row" / NETWORK).write_bytes(b"")
    assert model_folder(tmp_path / "row") == tmp_path / "row" / MODEL
