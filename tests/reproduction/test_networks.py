"""Networks that are release assets: listed with their sums, named where they are asked for, taken where they lie."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from stored import RESULTS, stored_rows, stored_runs

from gatewise.lab.cli import main
from gatewise.lab.files import MODEL, NETWORKS, RESULT, RunError, model_of, write_json

LISTED = {own["file"]: own for own in json.loads((RESULTS / NETWORKS).read_text())["networks"]}


def test_every_network_is_here_or_listed() -> None:
    """Of an asset the sum is known; each belongs to a finished run."""
    for file, own in LISTED.items():
        path = RESULTS / file
        assert path.name == MODEL
        assert (path.parent / RESULT).is_file()
        if path.exists():  # unpacked here
            assert hashlib.sha256(path.read_bytes()).hexdigest() == own["sha256"]
    runs = [run for row in stored_rows(RESULTS) for run in stored_runs(RESULTS, row, MODEL)]
    assert {RESULTS / file for file in LISTED} <= {run.folder / MODEL for run in runs}
    assert any((run.folder / MODEL).is_file() for run in runs)


def test_an_asset_is_asked_for_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence names the archive and the way to train it."""
    for row in ("row", "row/seeds/1", "other"):
        (tmp_path / row).mkdir(parents=True)
    files = [{"file": f"{row}/{MODEL}", "bytes": 2_500_000, "sha256": ""} for row in ("row", "row/seeds/1")]
    write_json(tmp_path / NETWORKS, {"asset": "all.tar", "networks": files})
    for path in (tmp_path / "row", tmp_path / "row" / MODEL, tmp_path / "row" / "seeds" / "1"):
        with pytest.raises(
            RunError, match=r"2\.5 MB\) is a release asset: unpack all\.tar in .* or train it"
        ):
            model_of(path)
        assert main(["evaluate", str(path)]) == 1
        assert "release asset" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(RunError, match=r"other/model\.safetensors: there is no such file"):
        model_of(tmp_path / "other")
    (tmp_path / "row" / MODEL).write_bytes(b"")
    assert model_of(tmp_path / "row") == tmp_path / "row" / MODEL
