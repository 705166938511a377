"""The network of an earlier run, which teaches another one, or begins it."""

from __future__ import annotations

from pathlib import Path

from gatewise.export import load
from gatewise.tasks import recorded
from gatewise.tasks.data.corpus import digest
from gatewise.tasks.data.encoding import Corpus, content_of, encoding_of, read_encoding
from gatewise.tasks.files import RESULT, RunError, model_folder, read_json
from gatewise.tasks.models import TaskModel


def network_of(key: str, run: str, corpus: Corpus) -> TaskModel:
    """The network in the folder of a finished run of the same symbols; `key` of the recipe names it.

    Raises:
        RunError: there is no such run, or it reads and answers with others.
    """
    folder = model_folder(Path(run))
    encoding = read_encoding(folder)
    same = made_from(folder, corpus) if encoding is None else encoding == content_of(encoding_of(corpus))
    if not same:
        raise RunError(
            f"{key} = {run!r}: its network reads other symbols, or answers with others, than this run does. Name a "
            "finished run of the same data."
        )
    model = load(folder)
    if not isinstance(model, TaskModel):
        raise RunError(f"{key} = {run!r}: holds a {type(model).__name__}, which no recipe makes.")
    return model


def made_from(model: Path, corpus: Corpus) -> bool:
    """By the digest that result.json tells: runs of before there was an encoding."""
    result = model.parent / RESULT
    told = read_json(result, dict, recorded.result).get("data", {}) if result.is_file() else {}
    return bool(told.get("digest") == digest(corpus))
