"""A number says which sources it comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import gatewise
from gatewise.lab import provenance


def test_the_commit_says_whether_files_differ_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`+` for a changed file of the package; a new one beside them is none of its sources."""

    def git(*arguments: str) -> str:
        me = ["-c", "user.name=me", "-c", "user.email=me@here"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *me, *arguments], capture_output=True, check=True, text=True
        )
        return done.stdout.strip()

    package = tmp_path / "gatewise"
    package.mkdir()
    monkeypatch.setattr(gatewise, "__file__", str(package / "__init__.py"))
    monkeypatch.delenv("GATEWISE_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit() is None
    (package / "__init__.py").touch()
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    (package / "notes").touch()
    assert provenance.commit() == git("rev-parse", "HEAD")
    (package / "__init__.py").write_text("changed")
    assert provenance.commit() == git("rev-parse", "HEAD") + "+"
    monkeypatch.setenv("GATEWISE_COMMIT", "abc")
    assert provenance.commit() == "abc"
