"""What was asked of a budget: one number of one kind, absolute or as a part of all; and whether a model has more."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real

from torch import nn

from gatewise.masks import Masks, find_masks
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.report import count
from gatewise.sizes import stored_bytes
from gatewise.structure import one_pass, reachable

PRECISIONS = ("float32", "int8")
KINDS = ("gates", "neurons", "weights", "bytes")
MARK = "_gatewise_budget"  # of a model that has one: a plain dict, which is copied and pickled with it


@dataclass(frozen=True)
class Asked:
    """The most that a network may have of one kind."""

    kind: str
    target: int
    layers: Sequence[str]  # whose gates and neurons are counted
    precision: str  # of weights in bytes
    readers: Stated | None

    def left(self, masks: Masks, graph: ReaderGraph) -> int:
        """What there is of it."""
        if self.kind == "bytes":
            return stored_bytes(masks, reachable(masks, graph), self.precision == "int8")
        counts = count(masks, graph, one_pass(masks, graph))
        if self.kind == "weights":
            return counts.nonzero
        return sum(n for name, n in getattr(counts, self.kind).items() if name in self.layers)

    def leave_mark(self, model: nn.Module) -> None:
        setattr(model, MARK, asdict(self))


def warn_unmet(model: nn.Module) -> None:
    """Say of every module that was trained with a budget whether it has more than that now."""
    for module in model.modules():
        if MARK not in vars(module):
            continue
        asked = Asked(**vars(module)[MARK])
        left = asked.left(find_masks(module), find_readers(module, asked.readers))
        if left > asked.target:
            warnings.warn(
                f"The budget of {type(module).__name__} is {asked.target:,} {asked.kind}, and it has {left:,}. A "
                "budget is met after the last of its steps: train to the end, take no weights of an earlier epoch, "
                "and let no optimizer change them after budget.step().",
                stacklevel=3,
            )


def the_one(wanted: Mapping[str, float | None]) -> tuple[str, float]:
    given = {kind: value for kind, value in wanted.items() if value is not None}
    if len(given) != 1:
        raise ValueError(f"Give one of {', '.join(KINDS)}, not {' and '.join(given) or 'none'}.")
    ((kind, value),) = given.items()
    return kind, value


def absolute(kind: str, asked: float, whole: int) -> int:
    """A whole number as it is, a part of what there is rounded down."""
    if isinstance(asked, bool) or not isinstance(asked, Real):
        raise ValueError(f"{kind}={asked!r} must be a number, or a part of all as 0.25.")
    if isinstance(asked, Integral):
        target = int(asked)
    else:
        if not 0 < asked <= 1:
            raise ValueError(
                f"{kind}={asked} is a part of all, so it must be in (0, 1]; a number of {kind} is an int."
            )
        target = int(asked * whole + 1e-9)
    if not 1 <= target <= whole:
        raise ValueError(
            f"{kind}={asked!r}: the network has {whole:,}; the budget must be 1 to that, it is {target:,}."
        )
    return target


def checked_steps(steps: int) -> int:
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        raise ValueError(f"steps={steps!r} must be how often step() will be called, at least 1.")
    return int(steps)
