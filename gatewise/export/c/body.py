"""The body of a generated function while it is written: statements, the memory they use, and what they call.

Buffers are named v0, v1, ... and get their places when all statements are known: two whose uses do not overlap share
memory. One line of `statements` is a whole statement, however many lines of text it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gatewise.export.c.arrays import Arrays
from gatewise.export.c.sizes import is_one, largest, product
from gatewise.export.c.structs import Structs
from gatewise.export.c.values import Value, copied, merged, stored
from gatewise.program.graph import FLOAT, Node
from gatewise.program.source import SourceLine

C_KINDS = {"float": "float", "int": "int32_t", "bool": "int32_t"}
POOLS = {"float": "memory", "int32_t": "numbers"}


@dataclass
class Body:
    """What is written so far; `most` is the largest value of every letter."""

    most: int
    int8: bool = False
    arrays: Arrays = field(default_factory=Arrays)
    statements: list[list[str]] = field(default_factory=list)
    buffers: dict[str, tuple[str, int]] = field(default_factory=dict)  # name -> type, entries
    helpers: dict[str, None] = field(default_factory=dict)  # in the order of their use
    includes: set[str] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)  # BAD_INDEX, ...
    checks: dict[str, int] = field(
        default_factory=dict
    )  # arguments of word ids, and how many words there are
    direct: dict[Node, Value] = field(
        default_factory=dict
    )  # answers that are computed where the caller wants them
    line: str = ""  # of forward()
    told: str = ""  # the last one that a comment names
    scratch: int = 0
    kept: list[int] = field(default_factory=list)  # floats that stay from call to call: s0, s1, ...

    def __post_init__(self) -> None:
        self.structs = Structs(self.arrays)

    def say(self, *lines: str) -> None:
        if self.line != self.told:
            self.statements.append([f"/* {self.line} */"] if self.line else [])
            self.told = self.line
        self.statements.append(list(lines))

    @contextmanager
    def apart(self) -> Iterator[list[str]]:
        """What is said goes into this list: lines for a statement around them."""
        before, told, lines = self.statements, self.told, list[str]()
        self.statements, self.told = [], self.line
        try:
            yield lines
        finally:
            lines += [line for statement in self.statements for line in statement]
            self.statements, self.told = before, told

    @property
    def code(self) -> list[list[str]]:
        """The statements without comments, which may name anything."""
        return [lines for lines in self.statements if lines and not lines[0].startswith("/*")]

    def at(self, line: SourceLine | None) -> None:
        """What is written now is said in this line of forward()."""
        self.line = str(line or "").replace("*/", "* /").replace("/*", "/ *")

    def call(self, helper: str) -> str:
        """The name of a helper, which the source will have."""
        self.helpers[helper] = None
        return helper

    def need(self, floats: int) -> None:
        self.scratch = max(self.scratch, floats)

    def buffer(self, entries: int, kind: str = FLOAT) -> str:
        name = f"v{len(self.buffers)}"
        self.buffers[name] = (C_KINDS[kind], max(largest(entries, self.most), 1))
        return name

    def remembered(self, floats: int) -> str:
        """Memory that the next piece of a sequence finds as this one left it."""
        self.kept.append(max(floats, 1))
        return f"s{len(self.kept) - 1}"

    def room(self, shape: tuple[int, ...], kind: str = FLOAT) -> Value:
        return stored(self.buffer(product(shape), kind), shape, kind)

    def fresh(self, value: Value) -> Value:
        """A copy of its own, row by row."""
        made = self.room(value.shape, value.kind)
        self.say(*copied(made, value))
        return made

    def answer(self, node: Node, shape: tuple[int, ...]) -> tuple[Value, str]:
        """Where an answer is computed, and what its statements begin with: nothing to do where nobody wants it."""
        if node not in self.direct:
            return self.room(shape, node.kind), ""
        return self.direct[node], f"if ({self.direct[node].leaves[0].base}) "

    def plain(self, value: Value) -> Value:
        """As it is where that is memory, in whatever order, or a number."""
        return value if value.plain else self.fresh(value)

    def whole(self, value: Value) -> Value:
        """Row by row in memory."""
        if value.in_memory and is_dense(value):
            return value
        return self.fresh(value)

    def constant(self, name: str, array: NDArray[np.generic], finite: bool = True) -> str:
        """The name of a constant array."""
        kind = array.dtype
        if kind == np.bool_:
            array = array.astype(np.int8)
        elif kind.kind in "iu" and kind.itemsize > 2:
            array = array.astype(np.int32)
        elif kind.kind == "f":
            array = array.astype(np.float32)
        return self.arrays.add(name, np.ascontiguousarray(array), finite)

    def require(self, condition: str, error: str) -> str:
        """A statement that gives up unless the condition holds."""
        self.errors.add(error)
        return f"if (!({condition})) return MODEL_{error};"


def is_dense(value: Value) -> bool:
    """Whether entries follow each other, row by row."""
    (flat,) = merged([value])
    return not flat.shape or (len(flat.shape) == 1 and is_one(flat.leaves[0].strides[0]))


def placed(body: Body) -> tuple[dict[str, int], dict[str, int]]:
    """Where every buffer begins in the memory of its type, and how much of each type there is."""
    uses: dict[str, tuple[int, int]] = {}
    for k, lines in enumerate(body.code):
        for name in re.findall(r"\bv\d+\b", "\n".join(lines)):
            uses[name] = (uses.get(name, (k, k))[0], k)
    places: dict[str, int] = {}
    sizes = dict.fromkeys(POOLS.values(), 0)
    for name in sorted(uses, key=lambda name: -body.buffers[name][1]):
        kind, size = body.buffers[name]
        first, last = uses[name]
        beside = sorted(
            (places[other], places[other] + body.buffers[other][1])
            for other in places
            if body.buffers[other][0] == kind and uses[other][0] <= last and first <= uses[other][1]
        )
        at = 0
        for begin, end in beside:
            if at + size <= begin:
                break
            at = max(at, end)
        places[name] = at
        sizes[POOLS[kind]] = max(sizes[POOLS[kind]], at + size)
    return places, sizes
