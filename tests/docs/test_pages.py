"""README and site: links lead somewhere, code runs, sentences are short, generated pages are those of today."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import generate
import pytest
import typer
from dense_rivals import BUDGETS, CONTROLS, of_page, of_trials
from pages import DOCS, PAGES, ROOT, anchors, blocks, links, name_of, nav, prose

from gatewise.lab.cli import app

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
README = PAGES[0].read_text(encoding="utf-8")
LONGEST, AVERAGE = 35, 15


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    """Files and headings exist; from docs/ no link leaves it, because the site would not have what it names."""
    for link in links(page):
        if re.match(r"https?:|mailto:", link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert page == PAGES[0] or target.is_relative_to(DOCS), f"{link} leaves the site"
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_can_be_reached() -> None:
    """It is in the navigation, once, or a page links to it."""
    listed = nav()
    assert len(listed) == len(set(listed))
    assert all((DOCS / page).is_file() for page in listed)
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES[1:] for link in links(page)}
    assert not [
        page for page in PAGES[1:] if page.relative_to(DOCS).as_posix() not in listed and page not in linked
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
@pytest.mark.filterwarnings("default")
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, in their order, in one fresh folder: what a reader would paste."""
    monkeypatch.chdir(tmp_path)
    if "lightning" in page.name and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    names: dict[str, object] = {"__name__": "page"}
    for k, block in enumerate(blocks(page, "python")):
        source = tmp_path / f"{page.stem}_{k}.py"  # forward() is read from its file
        source.write_text(block, encoding="utf-8")
        exec(compile(block, str(source), "exec"), names)


def commands(page: Path) -> list[list[str]]:
    """`gatewise ...` lines of shell blocks, without comments and with continued lines joined."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [words[1:] for words in lines if words and words[0] == "gatewise"]


@every_page
def test_commands_exist(page: Path) -> None:
    """Every command line of a page names a command with options it has; it is parsed, not run."""
    root = typer.main.get_command(app)
    for words in commands(page):
        context = root.make_context("gatewise", list(words), resilient_parsing=True)
        name, command, rest = root.resolve_command(context, list(words))  # type: ignore[attr-defined]
        assert command is not None, words
        command.make_context(name, rest, parent=context, resilient_parsing=False)


def sentences(page: Path) -> list[str]:
    """Sentences of paragraphs and lists, not of tables and headings; what is code counts as a word."""
    text = re.sub(r"^(\||#|!\[|:::).*$", "", prose(page), flags=re.M)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"(?<=[.!?])\s+|:\n|\n\s*\n|^\s*[-*\d]+\.? ", text, flags=re.M)
    return [" ".join(part.split()) for part in parts if len(part.split()) > 1]


@every_page
def test_sentences_are_short(page: Path) -> None:
    lengths = {sentence: len(sentence.split()) for sentence in sentences(page)}
    assert not [sentence for sentence, n in lengths.items() if n > LONGEST]
    assert sum(lengths.values()) <= AVERAGE * max(len(lengths), 1)


def test_the_readme_is_one_screen_and_some() -> None:
    assert len(README.splitlines()) <= 150


def test_generated_pages_are_fresh() -> None:
    """recipes.md, cli.md and operations.md follow from the code of today."""
    for page, text in generate.pages().items():
        assert (DOCS / page).read_text(encoding="utf-8") == text, f"{page}: python tests/docs/generate.py"


def test_the_readme_shows_the_networks_of_the_picture() -> None:
    """Pruned to a budget as stored, each beside dense ones, plain and regularised; to the digits that are shown."""
    row = r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$"
    shown = [[float(cell.replace(",", "")) for cell in cells] for cells in re.findall(row, README, re.M)]
    _, dense = of_page((DOCS / "reproduction.md").read_text(encoding="utf-8"))
    budgets, controls = (of_trials(path.read_text(encoding="utf-8")) for path in (BUDGETS, CONTROLS))
    assert [(n, g, round(p, 1)) for n, g, p in budgets] == [(n, g, p) for g, n, p, *_ in shown]
    assert {(n, g, p) for *_, g, n, p, _ in shown} <= {(n, g, round(p, 1)) for n, g, p in dense}
    assert {(n, g, p) for *_, g, n, _, p in shown} <= {(n, g, round(p, 1)) for n, g, p in controls}


def test_the_site_builds(tmp_path: Path) -> None:
    """Without a warning; what is built is a page for each of ours."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: the site was not built")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    assert "griffe" not in done.stdout + done.stderr
    assert {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")} <= {
        path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")
    }
