"""The model card of a run: what result.json tells, in words, with the licence of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatewise.export.card import model_card
from gatewise.lab.analyse.history import named
from gatewise.lab.schema import OWN_DATA, Dense, Recipe
from gatewise.report import Report

# What the publishers of a corpus ask for.
CORPORA = {
    "word-ptb": ("Penn Treebank, words", "The Penn Treebank is licensed by the LDC (LDC99T42)."),
    "char-ptb": ("Penn Treebank, characters", "The Penn Treebank is licensed by the LDC (LDC99T42)."),
    "imdb": (
        "IMDb reviews (Maas et al. 2011)",
        "Published for research, without a licence; cite Maas et al. 2011.",
    ),
    "agnews": ("AG News (Zhang et al. 2015)", "Published for research and other non-commercial use."),
    "g2p": ("CMU Pronouncing Dictionary", "BSD-like, see the LICENSE of the dictionary."),
}
OWN = "The licence of your data was not stated; add it before you pass the model on."


def card_of(recipe: Recipe, result: Mapping[str, Any], report: Report) -> str:
    task, data = recipe.data.task, result["data"]
    corpus, licence = CORPORA.get(task, (f"own data ({task})", OWN))
    quality = {named(key): value for key, value in result["quality"].items() if not key.startswith("compact")}
    return model_card(
        report,
        title=result["title"],
        use=f"Made by `gatewise train {recipe.name}`. The encoding in the file says what inputs and outputs mean.",
        data=". ".join(part for part in (f"{corpus}: {data['sizes']}", data["note"]) if part) + ".",
        licence=licence,
        quality=quality,
        seeds=[result["seed"]],
        training=training_line(recipe, result),
        limits=limits_of(recipe, result),
    )


def training_line(recipe: Recipe, result: Mapping[str, Any]) -> str:
    hardware, versions = result["hardware"], result["versions"]
    machine = hardware.get("gpu") or hardware.get("cpu") or "unknown hardware"
    method = (
        "dense"
        if isinstance(recipe.sparsify, Dense)
        else f"{recipe.sparsify.method}, {recipe.sparsify.levels}"
    )
    refit = f" and {recipe.refit.epochs} of a refit" if recipe.refit.epochs else ""
    return (
        f"Method: {method}; {recipe.train.epochs} epochs{refit}; {result['seconds']:,.0f} s on {machine}; "
        f"gatewise {versions['gatewise']}, torch {versions['torch']}, commit {result['commit']}."
    )


def limits_of(recipe: Recipe, result: Mapping[str, Any]) -> list[str]:
    """What is true of every such run, and of this one."""
    known = ["One seed: another one gives other neurons, and a quality that differs in its last digits."]
    if recipe.data.task in OWN_DATA:
        known.append("Words, classes and units are those of the training file; others are unknown to it.")
    if result["counts"]["neurons"] and not all(result["counts"]["neurons"].values()):
        known.append("A layer has no neuron left: it says the same to every input.")
    return [*known, "Not examined for bias, or on data of another kind."]
