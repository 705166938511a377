"""README and the pages of docs/, as Markdown: fenced blocks, headings, links."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [body for kind, body in FENCE.findall(text) if kind == language]


def prose(page: Path) -> str:
    """The text without code, so that a comment is no heading and an index no link."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"^ {4,}.*$", "", text, flags=re.M)


def anchors(page: Path) -> set[str]:
    """Ids of headings, as Python-Markdown makes them."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.M)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in found]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def links(page: Path) -> list[str]:
    return LINK.findall(prose(page))


def nav() -> list[str]:
    """The pages that the site's navigation names."""

    def files(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values() if isinstance(entry, dict) else entry:
                yield from files(value)

    return list(files(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
