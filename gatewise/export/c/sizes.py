"""Sizes of a program in C: expressions of the variables that a call has, and how large they may get. B = 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gatewise.program.sizes import Floor, Term, replaced, terms_of, whole


def alone(size: int) -> int:
    """A size in a call with one sequence."""
    return replaced(size, {"B": 1})


def same(a: int, b: int) -> bool:
    """Whether two sizes are equal in every call."""
    return terms_of(a) == terms_of(b)


def is_one(size: int) -> bool:
    return same(size, 1)


def product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total = total * size
    return total


def letters_of(size: int) -> frozenset[str]:
    found: frozenset[str] = getattr(size, "letters", frozenset())
    return found


def variable(letter: str) -> str:
    """What C calls a letter: `steps` for T, `n_s` for S, `n_c_x` for C.x."""
    return "steps" if letter == "T" else "n_" + re.sub(r"\W", "_", letter.lower())


def golden(letter: str) -> str:
    """What golden.h calls its value."""
    return "GOLDEN_" + re.sub(r"\W", "_", letter)


def in_c(size: int) -> str:
    """A size as an expression."""
    parts = []
    for term, count in sorted(terms_of(size).items(), key=lambda item: (-len(item[0]), str(item[0]))):
        factors = [factor(part) for part in term]
        if abs(count) != 1 or not factors:
            factors.append(str(abs(count)))
        parts.append((" - " if count < 0 else " + ") + " * ".join(factors))
    text = "".join(parts) or " + 0"
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def factor(part: str | Floor) -> str:
    if isinstance(part, Floor):
        return f"floor_div({in_c(whole(dict(part.terms)))}, {part.divisor})"
    return variable(part)


def largest(size: int, most: int) -> int:
    """The most a size can be where every letter is from 1 to `most`."""
    return bound(terms_of(size).items(), most, upper=True)


def bound(terms: Iterable[tuple[Term, int]], most: int, upper: bool) -> int:
    total = 0
    for term, count in terms:
        up = upper == (count > 0)
        extreme = count
        for part in term:
            if isinstance(part, Floor):
                extreme *= max(bound(part.terms, most, up) // part.divisor, 0)
            else:
                extreme *= most if up else 1
        total += extreme
    return total
