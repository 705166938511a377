"""The tensors of a program on their way into an ONNX graph, and sizes that only a call knows as numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from torch import nn

from gatewise.export.onnx.graph import Graph
from gatewise.export.onnx.layers import widened
from gatewise.program.graph import BOOL, FLOAT, INT, Node
from gatewise.program.sizes import Floor, Size, Term, whole
from gatewise.runtime.narrow import Floats, Ints

ARRAYS = {FLOAT: np.float32, INT: np.int64, BOOL: np.bool_}


@dataclass(frozen=True)
class Held:
    """A tensor that has only some of its channels, the last axis; the others are zero."""

    name: str
    kept: Ints | None = None  # their original numbers; None: it has all
    scale: Floats | None = None  # of those it has, to be multiplied in by whoever reads it


class Tensors:
    """What every node of a program is in the graph, as far as it is written."""

    def __init__(self, graph: Graph, model: nn.Module, users: dict[Node, list[Node]]) -> None:
        self.graph, self.model, self.users = graph, model, users
        self.sizes = Sizes(graph)
        self.kinds = {FLOAT: graph.float32, INT: graph.int64, BOOL: graph.bool}
        self.unscaled: dict[Node, Held] = {}
        self.lasts: dict[Node, dict[str, str]] = {}  # h and c (L*D, B, H) of a Recurrent
        self.tables: dict[int, str] = {}  # embeddings that have a row for every word, by their parameter

    def put(self, node: Node, made: str | Held) -> None:
        self.unscaled[node] = made if isinstance(made, Held) else Held(made)
        self.sizes.bind(self.unscaled[node].name, node.shape)

    def some(self, node: Node) -> Held:
        """The channels that a node has."""
        held = self.unscaled[node]
        if held.scale is None:
            return held
        return Held(self.graph.add("Mul", held.name, self.graph.constant(held.scale)), held.kept)

    def whole(self, node: Node, kind: str | None = None) -> str:
        """A node with all its channels, as another kind if asked for."""
        held = self.some(node)
        name = held.name
        if held.kept is not None:
            name = widened(self.graph, name, node.rank, held.kept, node.shape[-1])
        return self.cast(name, node.kind, kind or node.kind)

    def cast(self, name: str, kind: str, to: str) -> str:
        return name if kind == to else self.graph.add("Cast", name, to=self.kinds[to])

    def zeros(self, shape: Sequence[int]) -> str:
        return self.graph.add("ConstantOfShape", self.sizes.vector(shape))


class Sizes:
    """Sizes as int64 numbers of the graph. A letter is read off the first tensor that has it for an axis."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.letters: dict[str, str] = {}

    def bind(self, tensor: str, shape: Sequence[int]) -> None:
        for axis, size in enumerate(shape):
            if isinstance(size, Size) and (name := lone_letter(size)) and name not in self.letters:
                self.letters[name] = self.graph.add("Shape", tensor, start=axis, end=axis + 1)

    def number(self, size: int) -> str:  # (1,)
        if not isinstance(size, Size):
            return self.graph.integers(size)
        return reduce(lambda a, b: self.graph.add("Add", a, b), map(self.product, size.terms.items()))

    def product(self, item: tuple[Term, int]) -> str:
        term, number = item
        factors = [self.part(part) for part in term]
        if number != 1 or not factors:
            factors.append(self.graph.integers(number))
        return reduce(lambda a, b: self.graph.add("Mul", a, b), factors)

    def part(self, part: str | Floor) -> str:
        if isinstance(part, str):
            return self.letters[part]
        return floor_divided(
            self.graph, self.number(whole(dict(part.terms))), self.graph.integers(part.divisor)
        )

    def vector(self, shape: Sequence[int]) -> str:  # (n,)
        if not any(isinstance(size, Size) for size in shape):
            return self.graph.integers(*shape)
        numbers = [self.number(size) for size in shape]
        return numbers[0] if len(numbers) == 1 else self.graph.add("Concat", *numbers, axis=0)


def lone_letter(size: Size) -> str:
    """T, for the size that is just this letter; empty: another one."""
    ((term, number), *more) = size.terms.items()
    (part, *_) = term or [""]
    return part if (number, len(term), more) == (1, 1, []) and isinstance(part, str) else ""


def floor_divided(graph: Graph, a: str, b: str) -> str:
    """floor(a / b) of whole numbers; ONNX rounds towards zero."""
    return graph.add("Div", graph.add("Sub", a, graph.add("Mod", a, b)), b)
