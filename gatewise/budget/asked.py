"""What was asked of a budget: one number of one kind, absolute or as a part of all."""

from __future__ import annotations

from collections.abc import Mapping

PRECISIONS = ("float32", "int8")
KINDS = ("gates", "neurons", "weights", "bytes")


def the_one(wanted: Mapping[str, float | None]) -> tuple[str, float]:
    given = {kind: value for kind, value in wanted.items() if value is not None}
    if len(given) != 1:
        raise ValueError(f"Give one of {', '.join(KINDS)}, not {' and '.join(given) or 'none'}.")
    ((kind, value),) = given.items()
    return kind, value


def absolute(kind: str, asked: float, whole: int) -> int:
    """A whole number as it is, a part of what there is rounded down."""
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        raise ValueError(f"{kind}={asked!r} must be a number, or a part of all as 0.25.")
    if isinstance(asked, float):
        if not 0 < asked <= 1:
            raise ValueError(
                f"{kind}={asked} is a part of all, so it must be in (0, 1]; a number of {kind} is an int."
            )
        target = int(asked * whole + 1e-9)
    else:
        target = asked
    if not 1 <= target <= whole:
        raise ValueError(
            f"{kind}={asked!r}: the network has {whole:,}; the budget must be 1 to that, it is {target:,}."
        )
    return target


def checked_steps(steps: int) -> int:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r} must be how often step() will be called, at least 1.")
    return steps
