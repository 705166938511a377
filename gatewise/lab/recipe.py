"""A recipe is one training run, written down so that it can be read aloud: TOML with up to nine sections.

    [data]      which corpus, how it is cut into batches
    [model]     the network and its starting values
    [sparsify]  what is made zero, and by which framework
    [train]     optimiser, schedule, length, seed
    [budget]    how large the network may be, if that is known
    [refit]     a second part without the penalty, if there is one
    [teacher]   a trained network whose answers this one learns, too
    [start]     a trained network in place of [train]
    [expect]    numbers to compare with; they steer nothing

`base = "NAME"` above them takes all from another recipe, but for what the file says itself. Those of the package lie
in recipes/, a family in a file. A key that is not in schema.py is an error, in a file and in `--set`.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gatewise.lab.schema import (
    BUDGETS,
    KEYS,
    OWN_DATA,
    PAPER_DATA,
    SECTIONS,
    TAGS,
    Recipe,
    RecipeError,
    is_read,
    parse,
    suggestion,
)

FOLDER = Path(__file__).parent / "recipes"


@cache
def packaged() -> dict[str, dict[str, Any]]:
    """The recipes that come with the package: a file for each family, a table for each row, what they share first."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        family = tomllib.loads(path.read_text(encoding="utf-8"))
        every = family.pop("every")
        for row, own in family.items():
            base = found[f"{path.stem}-{own.pop('base')}"] if "base" in own else every
            found[f"{path.stem}-{row}"] = _over(base, own)
    return found


def names() -> list[str]:
    return sorted(packaged())


def load(name_or_path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A packaged recipe by name, or a file; `changes` are `section.key=value`, the section may be left out."""
    own, base = _read(name_or_path)
    content, asked = {"name": Path(name_or_path).stem, **_over(base, own)}, dict[str, Any]()
    before = _tags(base or content).get("data.task")
    changed = {apply_change(asked, change): change for change in changes}
    content = _over(content, {"name": content["name"], **asked})
    try:
        recipe = parse(content)
    except RecipeError as error:
        raise RecipeError(f"{_blamed(str(error), changes) or name_or_path}: {error}") from error
    _refuse_unread(recipe, changed)
    if before not in PAPER_DATA or recipe.data.task not in OWN_DATA:
        return recipe
    return _of_own_data(recipe, own if base else {})


def _read(name_or_path: str | Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a recipe says itself, and what it takes from its base, which may have one, too."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if str(path) in packaged():
            return packaged()[str(path)], {}
        raise RecipeError(
            f"no recipe {str(path)!r}{suggestion(str(path), names())} `gatewise train --list` shows all; a file of "
            "your own ends in .toml."
        )
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: is not TOML ({error}).") from error
    base, above = own.pop("base", None), (*above, path.resolve())
    if base is None:
        return own, {}
    if not isinstance(base, str):
        raise RecipeError(
            f"{path}: base = {base!r} must be the name of a recipe, or of a file ending in .toml."
        )
    below = path.parent / base if base.endswith(".toml") else Path(base)
    if below.resolve() in above:
        raise RecipeError(f"{path}: base = {base!r} leads back to {below.name}. Leave one of them out.")
    try:
        theirs, deeper = _read(below, above)
    except RecipeError as error:
        raise RecipeError(f"{path}: base: {error}") from error
    return own, _over(deeper, theirs)


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a section one by one, the rest whole: expected numbers belong together. A name is a file's own.

    There is one budget: of weights, say. Who names another one means it instead. Who names another task or framework
    leaves behind what that one does not read.
    """
    both = {**base, **own}
    before, now = _tags(base), _tags(base) | _tags(own)
    for name in SECTIONS:
        theirs, ours = base.get(name), own.get(name, {})
        if isinstance(theirs, dict) and isinstance(ours, dict):
            replaced = BUDGETS if name == "budget" and set(BUDGETS) & set(ours) else ()
            kept = {
                key: value
                for key, value in theirs.items()
                if key not in replaced and (before == now or is_read(f"{name}.{key}", now))
            }
            both[name] = {**kept, **ours}
    if "name" not in own:
        both.pop("name", None)
    return both


def _tags(content: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a file that say which keys there are."""
    return {
        f"{name}.{tag}": section[tag]
        for name, tag in TAGS.items()
        if isinstance(section := content.get(name), dict) and isinstance(section.get(tag), str)
    }


def _of_own_data(recipe: Recipe, own: Mapping[str, Any]) -> Recipe:
    """The recipe of a paper's row on other data: its title and the paper's numbers tell nothing about them, but what
    a file says itself stays."""
    sparsify = recipe.sparsify
    method = {"none": "dense network", "group-lasso": "pruning", "variational": "Bayes"}[sparsify.method]
    title = (
        f"{Path(getattr(recipe.data, 'path', '')).name}, {method} {getattr(sparsify, 'levels', '')}".strip()
    )
    return recipe.model_copy(
        update={
            "title": recipe.title if "title" in own else title,
            "expect": recipe.expect if "expect" in own else {},
        }
    )


def _refuse_unread(recipe: Recipe, changed: Mapping[str, str]) -> None:
    """Keys of a part that there is not may wait in a file; who asks for a change expects one."""
    for key, change in changed.items():
        if key == "sparsify.threshold" and getattr(recipe.sparsify, "update", "") == "proximal":
            raise RecipeError(f"--set {change}: proximal updates have no threshold. Leave it out.")
        if recipe.steering()[key] == KEYS[key].default:
            continue
        if key.startswith("refit.") and not recipe.refit.epochs:
            raise RecipeError(f"--set {change}: does nothing without refit.epochs, which is 0. Set it, too.")
        if key.startswith("budget.") and not recipe.budget.wanted():
            raise RecipeError(
                f"--set {change}: does nothing without budget.gates, neurons, weights or bytes. Set one, too."
            )


def _blamed(message: str, changes: Sequence[str]) -> str:
    """The changes whose key a message names: then they are to be mended, not the file."""
    keys = {change: change.partition("=")[0].strip().rpartition(".")[2] for change in changes}
    return " ".join(f"--set {change}" for change, key in keys.items() if re.search(rf"\b{key}\b", message))


def apply_change(content: dict[str, Any], change: str) -> str:
    """Put one `section.key=value` into the parsed TOML, and return the key; what is no TOML value is a string."""
    target, equals, text = change.partition("=")
    section, _, key = target.strip().rpartition(".")
    if not equals or not key:
        raise RecipeError(f"--set {change!r}: write it as section.key=value, for instance train.epochs=5.")
    if not section:
        found = [full for full in KEYS if full.partition(".")[2] == key]
        # A refit and a budget have keys of the other sections: without a section they mean those.
        found = [full for full in found if not full.startswith(("refit.", "budget."))] or found
        if len(found) > 1:
            raise RecipeError(f"--set {key}: there are {', '.join(found)}; name the section.")
        section = found[0].partition(".")[0] if found else ""
    if f"{section}.{key}" not in KEYS:
        asked = f"{section}.{key}" if section else key
        short = {full.partition(".")[2]: full for full in reversed(KEYS)}
        close = difflib.get_close_matches(key, short, 1)
        hint = f"; did you mean {short[close[0]]!r}?" if close else suggestion(asked, list(KEYS))
        raise RecipeError(f"--set {asked}: there is no such key{hint}")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    content.setdefault(section, {})[key] = value
    return f"{section}.{key}"


def dump(recipe: Recipe) -> str:
    """The recipe as TOML, with every value that was used; `None` is a key left out."""
    lines = [f"name = {_toml(recipe.name)}", f"title = {_toml(recipe.title)}"]
    for section, values in recipe.model_dump(exclude_none=True).items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    # JSON's escape of an emoji is a pair, which TOML does not know.
    return json.dumps(value, ensure_ascii=False)
