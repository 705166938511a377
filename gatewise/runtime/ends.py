"""Where sequences end: what a program computes of their lengths.

    lengths (B)    lengths - 1    mask = torch.arange(T) < lengths[:, None] (B, T)    mask.sum(1) = lengths

Sizes have names, so a shape says along which axes a tensor lies. The lengths come from one place: an argument of
forward(), or the words of x, of which one says that a text is over (mask = x != pad).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gatewise.program import operations as ops
from gatewise.program.graph import BOOL, INT, Node

OPPOSITE = {"inside": "outside", "outside": "inside"}
# Which steps a comparison is true of.
COMPARED = {
    ("time", "lt", "lengths"): "inside",
    ("time", "ge", "lengths"): "outside",
    ("lengths", "gt", "time"): "inside",
    ("lengths", "le", "time"): "outside",
}


class Ends:
    """What is known of lengths; `source` is the argument that has them, or the word of padding."""

    def __init__(self, x: Node) -> None:
        self.x = x
        self.source: Node | int | None = None
        self.least = 0  # steps that a sequence must have: without one, forward() gives something else
        self.known: dict[Node, str] = {}

    def holds(self, node: Node) -> str:
        """What follows from the lengths alone; empty: anything else.

        "lengths"; "last": lengths - 1; "batch" and "time": 0, 1, 2, ... along that axis; "inside" and "outside":
        which steps are of a sequence, and which are padding.
        """
        if node not in self.known:
            self.known[node] = self.meaning(node)
        return self.known[node]

    def meaning(self, node: Node) -> str:
        op = node.op
        if isinstance(op, ops.Input):
            is_one = node is not self.x and list(map(str, node.shape)) == ["B"]
            return "lengths" if is_one and self.is_from(node) else ""
        if isinstance(op, ops.Count):
            return {"B": "batch", "T": "time"}.get(axis_of(node.shape[0]), "") if op == ops.Count() else ""
        if isinstance(op, ops.Combine):
            return self.combined(op.function, *node.inputs)
        found = self.holds(node.inputs[0]) if node.inputs else ""
        if isinstance(op, ops.Cast):
            return found if found in OPPOSITE or node.kind != BOOL else ""
        if isinstance(op, ops.Permute | ops.Expand):
            return found
        if isinstance(op, ops.Reshape):
            return found if named(node) == named(node.inputs[0]) else ""
        if isinstance(op, ops.Map):
            return self.mapped(op, found)
        if isinstance(op, ops.Reduce) and found == "inside" and op.function == "sum":
            return "lengths" if [axis_of(node.inputs[0].shape[k]) for k in op.axes] == ["T"] else ""
        return ""

    def is_from(self, source: Node | int) -> bool:
        """The first place that is asked for is the one."""
        self.source = source if self.source is None else self.source
        if isinstance(source, int):
            self.least = 1
        return self.source is source or (isinstance(source, int) and self.source == source)

    def combined(self, function: str, one: Node, other: Node) -> str:
        number = number_of(other)
        if one is self.x and one.kind == INT and number is not None:
            function = "ne" if (function, number) == ("gt", 0) else function
            what = {"ne": "inside", "eq": "outside"}.get(function, "")
            return what if what and self.is_from(int(number)) else ""
        a = self.holds(one)
        if a == "lengths" and number is not None:
            if (function, number) == ("sub", 1):
                return "last"
            return a if function == "add" and np.float32(1 + number) == 1 else ""
        return COMPARED.get((a, function, self.holds(other)), "") if a else ""

    def mapped(self, op: ops.Map, found: str) -> str:
        if op.function == "not":
            return OPPOSITE.get(found, "")
        if op.function == "clamp" and found == "lengths" and op.settings[0] <= 1 and op.settings[1] == np.inf:
            self.least = 1
            return found
        return ""


def axis_of(size: int) -> str:
    """B, T, or C for a width; time that ends with the longest sequence is time."""
    name = str(size)
    return name if name in ("B", "T") else "T" if name.startswith("L") and name[1:].isdigit() else "C"


def named(node: Node) -> list[str]:
    """The axes of a tensor but those of size 1."""
    return [str(size) for size in node.shape if str(size) != "1"]


def number_of(node: Node) -> Any:
    """A number that forward() wrote down, or None."""
    return node.op.values.item() if isinstance(node.op, ops.Constant) and node.op.values.size == 1 else None
