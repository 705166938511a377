"""Whether sizes fit: equal ones, repeated ones, and letters that turn out to be other sizes."""

from __future__ import annotations

from typing import Any

from gatewise.program.sizes import Size, same, terms_of, whole
from gatewise.program.stand_ins import Assume, Impossible, Recorded, Refused, current

LOOSE = "#"  # assumed where nothing else fits: that the batch or time is as large as a layer is wide
BINDABLE = ("C", "L", "S")  # what letters begin with that may turn out to be another size


def require(fits: object) -> None:
    """What is assumed about shapes cannot be where this is not so."""
    if not fits:
        raise Impossible


def unified(one: int, other: int) -> int:
    """The size that two equal ones have; letters that were free until now turn out to be the other."""
    if same(one, other):
        return one
    found = solved(one - other)
    raise Impossible if found is None else Assume(*found)


def matched(size: int, width: int) -> None:
    """A layer's width is no accident: neither the batch nor time is as large because it would fit."""
    if not same(size, width):
        loose = current().shapes.get(LOOSE) is not None
        found = solved(size - width, () if loose else BINDABLE)
        raise Impossible if found is None else Assume(*found)


def solved(difference: int, names: tuple[str, ...] = ()) -> tuple[str, int] | None:
    """A letter that may be chosen such that the difference is zero: rest + number * letter = 0.

    The batch and time only if forward() writes a number for them.
    """
    terms = difference.terms if isinstance(difference, Size) else {}
    for term, number in sorted(terms.items(), key=lambda item: (not is_bindable(item[0]), str(item[0]))):
        name = term[0] if len(term) == 1 else None
        if not isinstance(name, str) or not (is_bindable(term) or (not names and name in ("B", "T"))):
            continue
        rest = whole({t: n for t, n in terms.items() if t != term})
        alone = not isinstance(rest, Size) or (name not in rest.letters and is_bindable(term))
        if alone and all(n % number == 0 for n in terms_of(rest).values()):
            value = whole({t: -n // number for t, n in terms_of(rest).items()})
            if isinstance(value, Size) or value > 0:
                return name, value
    return None


def is_bindable(term: Any) -> bool:
    return len(term) == 1 and isinstance(term[0], str) and term[0].startswith(BINDABLE)


def is_one(size: int) -> bool:
    return not isinstance(size, Size) and size == 1


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of several, axes of size 1 and missing ones in front repeated."""
    rank = max(map(len, shapes))
    result: list[int] = []
    for axis in range(rank):
        size: int = 1
        for shape in shapes:
            at = axis - rank + len(shape)
            if at >= 0 and not is_one(shape[at]):
                size = shape[at] if is_one(size) else unified(size, shape[at])
        result.append(size)
    return tuple(result)


def within(axis: Any, rank: int) -> int:
    if isinstance(axis, Size):
        raise Refused("it goes along an axis that only a call knows")
    if isinstance(axis, Recorded) or not isinstance(axis, int) or not -rank <= axis < max(rank, 1):
        raise Impossible
    return axis % rank if rank else 0
