"""Sizes that only a call knows, B, T, 2*T + 1, floor((T - 3) / 2): whole numbers that remember what they are made of.

    size = sum over terms of coefficient * product of letters        every letter is at least 1

forward() runs once, with a stand-in for every letter. A comparison that every call would answer alike is answered;
any other raises Undecided, because forward() would take one way here and perhaps another in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Term = tuple["str | Floor", ...]


class Undecided(Exception):
    """A question about a size that calls answer differently."""


@dataclass(frozen=True)
class Floor:
    """floor(size / divisor), as one letter."""

    terms: tuple[tuple[Term, int], ...]
    divisor: int

    def __str__(self) -> str:
        return f"floor(({spelled(dict(self.terms))}) / {self.divisor})"


# Stand-ins: primes that no width is likely to have, so that a mistake shows.
FIRST_FREE = [10007]


class Size(int):
    """A whole number that depends on letters; use whole() to make one, which gives plain numbers where it can."""

    terms: dict[Term, int]

    def at(self, letters: Mapping[str, int]) -> int:
        """Its value where the letters have values."""
        return evaluated(self.terms, letters.__getitem__)

    @property
    def letters(self) -> frozenset[str]:
        return frozenset(name for term in self.terms for part in term for name in names_in(part))

    def __add__(self, other: Any) -> Any:
        return combined(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return combined(self, other, -1)

    def __rsub__(self, other: Any) -> Any:
        return combined(self * -1, other, 1)

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        if not is_whole(other):
            return NotImplemented
        product: dict[Term, int] = {}
        for a, x in self.terms.items():
            for b, y in terms_of(other).items():
                term = tuple(sorted((*a, *b), key=str))
                product[term] = product.get(term, 0) + x * y
        return whole(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if not is_whole(other):
            return NotImplemented
        return divided(self, other)

    def __mod__(self, other: Any) -> Any:
        return self - divided(self, other) * other

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rfloordiv__(self, other: Any) -> Any:
        raise Undecided(f"{other} // ({self})")

    __rmod__ = __rdivmod__ = __rfloordiv__

    def __eq__(self, other: object) -> bool:
        return decided(self, other, "==", {0}) if isinstance(other, int | float) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not decided(self, other, "==", {0}) if isinstance(other, int | float) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return decided(self, other, "<", {-1})

    def __ge__(self, other: Any) -> bool:
        return decided(self, other, ">=", {0, 1})

    def __gt__(self, other: Any) -> bool:
        return decided(self, other, ">", {1})

    def __le__(self, other: Any) -> bool:
        return decided(self, other, "<=", {-1, 0})

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        raise Undecided(f"{self} is in a set or dict")

    def __index__(self) -> int:
        return int.__int__(self)

    def __str__(self) -> str:
        return spelled(self.terms)

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return format(str(self), how)

    def __reduce__(self) -> tuple[Any, ...]:
        return whole, (self.terms,)


def letter(name: str) -> Size:
    """A size of its own."""
    made = whole({(name,): 1})
    assert isinstance(made, Size)
    return made


def whole(terms: Mapping[Term, int]) -> int:
    """The number with these terms: a plain one where it depends on nothing."""
    left = {term: number for term, number in terms.items() if number}
    if all(term == () for term in left):
        return left.get((), 0)
    made = int.__new__(Size, evaluated(left, stand_in))
    made.terms = left
    return made


def is_whole(value: Any) -> bool:
    return issubclass(type(value), int)


def terms_of(number: int) -> dict[Term, int]:
    return number.terms if isinstance(number, Size) else {(): int(number)}


def combined(one: int, other: Any, sign: int) -> Any:
    if not is_whole(other):
        return NotImplemented
    terms = dict(terms_of(one))
    for term, number in terms_of(other).items():
        terms[term] = terms.get(term, 0) + sign * number
    return whole(terms)


def divided(size: Size, by: int) -> int:
    """floor(size / by): term by term where it divides, else a letter of its own."""
    if isinstance(by, Size):
        if len(by.terms) != 1:
            if size.terms == by.terms:
                return 1
            raise Undecided(f"({size}) // ({by})")
        ((term, number),) = by.terms.items()
        quotient = {without(t, term): n // number for t, n in size.terms.items() if n % number == 0}
        if None in quotient or len(quotient) != len(size.terms):
            raise Undecided(f"({size}) // ({by})")
        return whole({t: n for t, n in quotient.items() if t is not None})
    if by <= 0:
        raise Undecided(f"({size}) // {by}")
    exact = {term: n // by for term, n in size.terms.items() if n % by == 0}
    rest = {term: n for term, n in size.terms.items() if n % by}
    if not rest or set(rest) == {()}:
        return whole(exact) + (rest.get((), 0) // by)
    return whole(exact) + whole({(Floor(tuple(sorted(rest.items(), key=str)), by),): 1})


def without(term: Term, part: Term) -> Term | None:
    left = list(term)
    for name in part:
        if name not in left:
            return None
        left.remove(name)
    return tuple(left)


def bounds(size: int) -> tuple[int | None, int | None]:
    """The least and the largest value over all calls; None: without limit. Every letter is at least 1."""
    if not isinstance(size, Size):
        return int(size), int(size)
    low: int | None = 0
    high: int | None = 0
    for term, number in size.terms.items():
        if term == ():
            low, high = (None if v is None else v + number for v in (low, high))
        elif any(isinstance(part, Floor) for part in term):  # may be zero or less
            low = high = None
        elif number > 0:
            low, high = (None if low is None else low + number), None
        else:
            low, high = None, (None if high is None else high + number)
    return low, high


def decided(one: Size, other: Any, how: str, signs: set[int]) -> bool:
    """Whether one - other has one of these signs in every call, or in none."""
    if is_whole(other):
        low, high = bounds(one - other)
    else:  # every size is finite; other fractions are not asked for
        low, high = {float("inf"): (None, -1), float("-inf"): (1, None)}.get(other, (None, None))
    possible = {-1} if low is None or low < 0 else set[int]()
    possible |= {1} if high is None or high > 0 else set()
    possible |= {0} if (low is None or low <= 0) and (high is None or high >= 0) else set()
    if possible <= signs:
        return True
    if not possible & signs:
        return False
    raise Undecided(f"({one}) {how} {other}")


def evaluated(terms: Mapping[Term, int], value: Callable[[str], int]) -> int:
    """Their sum, where every letter has a value: a number, or another size."""
    total: int = 0
    for term, number in terms.items():
        product: int = number
        for part in term:
            if isinstance(part, Floor):
                product = product * (evaluated(dict(part.terms), value) // part.divisor)
            else:
                product = product * value(part)
        total = total + product
    return total


def stand_in(name: str) -> int:
    return FIRST_FREE[-1] + 2 * sum(k * ord(sign) for k, sign in enumerate(name, 1))


@contextmanager
def other_stand_ins() -> Iterator[None]:
    """What depends on a size changes with it; what enters a program as a number does too, and then shows."""
    FIRST_FREE.append(20011)
    try:
        yield
    finally:
        FIRST_FREE.pop()


def names_in(part: str | Floor) -> list[str]:
    return (
        [part] if isinstance(part, str) else [n for term, _ in part.terms for p in term for n in names_in(p)]
    )


def replaced(size: int, values: Mapping[str, int]) -> int:
    """A size with some of its letters given other sizes or numbers."""
    return evaluated(terms_of(size), lambda name: values[name] if name in values else letter(name))


def spelled(terms: Mapping[Term, int]) -> str:
    """`2*B*T + 1`."""
    parts = []
    for term, number in sorted(terms.items(), key=lambda item: (-len(item[0]), str(item[0]))):
        names = "*".join(map(str, term))
        parts.append(str(number) if not names else names if number == 1 else f"{number}*{names}")
    return " + ".join(parts).replace("+ -", "- ")


def at(size: int, letters: Mapping[str, int]) -> int:
    """A size, plain or not, in a call."""
    return size.at(letters) if isinstance(size, Size) else int(size)


def settled(size: int, letters: Mapping[str, int]) -> int:
    """With letters that turned out to be other sizes, one by one, as these may stand for others again."""
    for _ in range(len(letters) + 1):
        if not isinstance(size, Size) or not size.letters & letters.keys():
            break
        size = replaced(size, letters)
    return size


def same(one: int, other: int) -> bool:
    """Whether two sizes are equal in every call."""
    return (
        terms_of(one) == terms_of(other) if isinstance(one, Size) or isinstance(other, Size) else one == other
    )


def same_shape(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))
