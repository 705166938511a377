"""The folder of a run: nothing in it is lost, nothing is half written, one process writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_corpora import tiny
from tiny_runs import Killed, numbers, options

from gatewise.lab import recipe
from gatewise.lab.data.sources import DataError
from gatewise.lab.files import RunError
from gatewise.lab.training import trainer
from gatewise.lab.training.run_folder import LOCK, only_writer
from gatewise.lab.training.trainer import train


def test_wrong_data_cost_nothing(folder: Path, tmp_path: Path) -> None:
    """Neither a finished run that was to be overwritten, nor a folder of a run that never began."""
    train(tiny("words", folder), options(tmp_path / "run", folder))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    typo = tiny("words", folder, "data.path=typo.txt")
    for out in ("run", "new"):
        with pytest.raises(DataError, match=r"typo\.txt: cannot be read"):
            train(typo, options(tmp_path / out, folder, overwrite=True))
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_recipe_of_ones_own_is_not_written_over(overwrite: bool, folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "recipe.toml"
    own.write_text("# mine\n" + recipe.dump(tiny("words", folder)))
    with pytest.raises(RunError, match=r"recipe\.toml: belongs to no run.*Name another --out"):
        train(recipe.load(own), options(tmp_path, folder, overwrite=overwrite))
    assert own.read_text().startswith("# mine")
    train(recipe.load(own), options(tmp_path / "run", folder))
    train(recipe.load(tmp_path / "run" / "recipe.toml"), options(tmp_path / "run", folder, overwrite=True))


def test_a_folder_with_a_run_is_not_written_over(folder: Path, tmp_path: Path) -> None:
    row = tiny("words", folder)
    first = train(row, options(tmp_path, folder))
    with pytest.raises(RunError, match=r"--resume.*--overwrite"):
        train(row, options(tmp_path, folder))
    assert numbers(train(row, options(tmp_path, folder, overwrite=True))) == numbers(first)


@pytest.mark.parametrize("name", ["result.json", "gates.json", "model.safetensors", "MODEL_CARD.md"])
def test_files_of_others_are_not_written_over(name: str, folder: Path, tmp_path: Path) -> None:
    """These are names that other libraries use, and this was not the folder of a run."""
    foreign = tmp_path / name
    foreign.write_text("theirs")
    row = tiny("words", folder)
    with pytest.raises(RunError, match=rf"{name}: belongs to no run.*--overwrite"):
        train(row, options(tmp_path, folder))
    with pytest.raises(RunError, match=rf"{name}: (belongs to no run|is not JSON)"):
        train(row, options(tmp_path, folder, resume=True))
    assert foreign.read_text() == "theirs"
    train(row, options(tmp_path, folder, overwrite=True))
    assert foreign.read_bytes() != b"theirs"


def test_overwrite_leaves_what_no_run_wrote(folder: Path, tmp_path: Path) -> None:
    """A run that begins anew replaces its own files; notes beside them, and a model of someone else's, stay."""
    row = tiny("words", folder)
    train(row, options(tmp_path, folder))
    others = [tmp_path / name for name in ("notes.txt", "README.md", "pytorch_model.bin")]
    for path in others:
        path.write_text("mine")
    train(row, options(tmp_path, folder, overwrite=True))
    assert [path.read_text() for path in others] == ["mine"] * 3


def test_a_pipe_is_not_replaced_by_a_result(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(RunError, match=r"result\.json: (belongs to no run|is a link, a pipe)"):
        train(tiny("words", folder), options(tmp_path, folder))


def test_metrics_alone_are_a_run(folder: Path, tmp_path: Path) -> None:
    """The first checkpoint may be a minute away."""
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(RunError, match="holds a run already"):
        train(tiny("words", folder), options(tmp_path, folder))


def test_a_run_that_begins_anew_leaves_nothing_of_the_old_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even until it has files of its own: what is killed early must not have the result of another."""

    def to_the_end(self: trainer.Run) -> None:
        raise Killed

    train(tiny("imdb", folder), options(tmp_path, folder))
    monkeypatch.setattr(trainer.Run, "to_the_end", to_the_end)
    with pytest.raises(Killed):
        train(tiny("words", folder), options(tmp_path, folder, overwrite=True))
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_a_folder_has_one_writer(folder: Path, tmp_path: Path) -> None:
    """Two processes would mix their metrics; a lock goes with the process that held it, however it ends."""
    row, out = tiny("words", folder), tmp_path / "run"
    hold = (
        "import sys, time; from pathlib import Path; from gatewise.lab.training.run_folder import only_writer\n"
        "with only_writer(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", hold, str(out)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other.stdout:
        assert other.stdout.readline() == "held\n"
        for more in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(RunError, match=r"run: another process is writing to this run"):
                train(row, options(out, folder, **more))
        assert not (out / "metrics.jsonl").exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
    train(row, options(out, folder))
    assert not list(out.glob(".*"))


def test_what_a_killed_process_had_half_written_goes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".gatewise-checkpoint.pt").write_bytes(b"half")
    (tmp_path / ".mine").touch()
    train(tiny("words", folder), options(tmp_path, folder, checkpoint_every=1e9))
    assert [path.name for path in tmp_path.glob(".*")] == [".mine"]


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """Whatever it leads to stays; what a killed process left is taken over."""
    path, victim = tmp_path / LOCK, tmp_path / "victim"
    path.touch()
    with only_writer(tmp_path):
        pass
    assert not path.exists()
    victim.write_text("12")
    path.symlink_to(victim)
    with pytest.raises(RunError, match="cannot be used for a run"), only_writer(tmp_path):
        pass
    assert victim.read_text() == "12"
    assert path.is_symlink()
