"""What is known of values without units: how many axes they have, and where units were used up.

An assumed rank is ruled out by an axis that such a value does not have, or by a matrix that would read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatewise.readers.names import BINARY, DIVISIONS, JOINS, KEEPS_ZERO, MAY_BE_SAME, MOVES_ZERO, REDUCTIONS
from gatewise.readers.values import UNKNOWN, Bare, Impossible, Sized, Value, axes_taken, listed, within


def of_numbers(operation: Callable[..., Value], args: Any) -> Value:
    """Arithmetic with sizes; one that a tensor of the assumed rank does not have cannot be meant."""
    try:
        return operation(*args)
    except IndexError as error:
        raise Impossible from error


def without_units(name: str, args: Any, kwargs: Any) -> Value:
    """The result of an operation on values without units: where it is known, its rank, and that it is still bare."""
    first = args[0] if args else None
    if name in BINARY and all(isinstance(a, Bare | int | float) for a in args):
        bare = [a for a in args if isinstance(a, Bare)]
        ranks = [a.rank for a in bare if a.rank is not None]
        return Bare(max(ranks) if len(ranks) == len(bare) else None, bare[0].width) if bare else UNKNOWN
    # A mean over the steps that a mask leaves, the most usual head: what it divides by is seldom of a known shape.
    if name in DIVISIONS and isinstance(first, Bare):
        return Bare(None, first.width)
    if name in JOINS and isinstance(first, list | tuple) and all(isinstance(a, Bare) for a in first):
        return bare_join(first, kwargs.get("dim", args[1] if len(args) > 1 else 0))
    if name in ("view", "reshape", "expand", "repeat") and len(args) > 1:
        rank = len(listed(args[1:]))
        return Bare(rank, first.width) if isinstance(first, Bare) else Sized(rank)
    if isinstance(first, Bare):
        return of_bare(name, first, args[1:])
    if name == "values" and isinstance(first, tuple):
        return first[0]  # of max() and its like, over units that are used up
    if name == "unsqueeze" and isinstance(first, Sized):
        return Sized(first.rank + 1)
    return UNKNOWN


def of_bare(name: str, x: Bare, rest: Any) -> Value:
    """One operation on what is bare; a dimension that it does not have cannot be meant."""
    if x.rank is not None:
        if name == "getitem" and axes_taken(rest[0] if isinstance(rest[0], tuple) else (rest[0],)) > x.rank:
            raise Impossible
        if name in REDUCTIONS | {"softmax", "log_softmax", "transpose"} and rest and isinstance(rest[0], int):
            within(rest[0], x.rank)
    same = KEEPS_ZERO | MAY_BE_SAME | MOVES_ZERO | {"masked_fill", "squeeze", "flatten"}
    return x if name in same else UNKNOWN


def bare_join(parts: Any, dim: Any) -> Value:
    """Side by side; where some still had units, these are exposed before."""
    rank = next((part.rank for part in parts if part.rank is not None), None)  # joined, all have it
    if dim == -1:
        last = True
    elif rank is None:
        return UNKNOWN
    else:
        last = isinstance(dim, int) and within(dim, rank) == rank - 1
    return Bare(rank, sum(part.width for part in parts) if last else parts[0].width)
