"""Tiny corpora and recipes for the tests of the trainer: every task in a second."""

from __future__ import annotations

import csv
import io
import lzma
import random
from pathlib import Path

import numpy as np

from gatewise.lab import recipe
from gatewise.lab.schema import Recipe

WORDS = "the cat dog sat ran on under mat house a big small".split()
SIZES = ["model.hidden=4", "train.epochs=1", "train.schedule=constant"]
WORD_SIZES = [*SIZES, "model.embedding=4"]


def write_corpora(folder: Path) -> Path:
    """A data folder with PTB, IMDb, AG News and word2vec files, and own files beside them."""
    draw = random.Random(0)

    def text(lines: int) -> str:
        return "".join(" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) + "\n" for _ in range(lines))

    (folder / "ptb").mkdir(parents=True)
    for split, lines in (("train", 30), ("valid", 12), ("test", 12)):
        (folder / "ptb" / f"ptb.{split}.txt").write_text(text(lines))
    (folder / "own.txt").write_text(text(60))
    rows = [[str(k), str(k % 2), text(1).strip()] for k in range(24)]
    (folder / "own.csv").write_text(table([["id", "label", "text"], *rows]))
    (folder / "imdb").mkdir()
    (folder / "ag_news_csv").mkdir()
    for split in ("train", "test"):
        content = table([["id", "label", "text"], *rows]).encode()
        (folder / "imdb" / f"{split}.csv.xz").write_bytes(lzma.compress(content))
        news = [[str(k % 4 + 1), text(1).strip(), text(1).strip()] for k in range(25)]
        (folder / "ag_news_csv" / f"{split}.csv").write_text(table(news))
    (folder / "cmudict").mkdir()
    (folder / "cmudict" / "cmudict.dict").write_text(dictionary(draw))
    (folder / "embeddings").mkdir()
    np.savez(
        folder / "embeddings" / "word2vec_googlenews_300d_subset.npz",
        words=np.array(WORDS[:5]),
        vectors=np.random.RandomState(0).randn(5, 300).astype(np.float16),
    )
    x = np.random.RandomState(1).randn(20, 6, 2)
    np.savez(folder / "classes.npz", x=x, y=np.arange(20) % 3)
    np.savez(folder / "series.npz", series=np.sin(np.arange(120) / 5))
    return folder


def dictionary(draw: random.Random) -> str:
    """Words of four sounds, written as they are spoken; every tenth has a second pronunciation."""
    sounds = {"b": "B", "t": "T", "a": "AE1", "o": "AO0"}
    lines = []
    for k in range(300):
        word = "".join(draw.choices("btao", k=draw.randint(1, 5)))
        spoken = " ".join(sounds[letter] for letter in word)
        lines += [f"{word} {spoken}"] + [f"{word}(2) {spoken} T # also"] * (k % 10 == 0)
    return "\n".join(lines) + "\n"


def table(rows: list[list[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def changes(task: str, folder: Path) -> tuple[str, list[str]]:
    """Which family of recipes a task belongs to, and what makes them tiny."""
    language = ["data.batch=3", "data.steps=6"]
    classes = ["data.batch=8", "data.max_len=7"]
    own = [f"data.task={task}"]
    return {
        "word-ptb": ("ptb-word-small", [*WORD_SIZES, *language]),
        "char-ptb": ("ptb-char", [*SIZES, "data.batch=8", "data.chunk=12"]),
        "words": ("ptb-word-small", [*WORD_SIZES, *language, *own, f"data.path={folder / 'own.txt'}",
                                     "data.valid_fraction=0.2"]),
        "imdb": ("imdb", [*SIZES, *classes, "data.vocabulary=train", "model.embedding=300"]),
        "agnews": ("agnews", [*WORD_SIZES, *classes, "data.vocabulary=train", "data.vectors=none"]),
        "g2p": ("g2p", [*WORD_SIZES, "data.batch=16", "refit.epochs=0", "train.evaluate_every=1"]),
        "csv": ("imdb", [*WORD_SIZES, *classes, *own, "data.vectors=none", f"data.path={folder / 'own.csv'}"]),
        "npz": ("imdb", [*SIZES, "data.batch=8", *own, f"data.path={folder / 'classes.npz'}"]),
        "series": ("imdb", [*SIZES, "data.batch=4", "data.steps=9", "data.task=npz",
                            f"data.path={folder / 'series.npz'}"]),
    }[task]  # fmt: skip


def tiny(task: str, folder: Path, *more: str) -> Recipe:
    """The Bayesian W+G+N recipe of a task, made tiny."""
    family, small = changes(task, folder)
    return recipe.load(f"{family}-bayes-wgn", [*small, *more])
