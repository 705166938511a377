"""Nodes and constants of an ONNX graph, and what becomes of the time axis in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise import __version__


class Graph:
    """Nodes and constants with names of their own, in one version of ONNX's operators; what is equal, once."""

    def __init__(self, opset: int) -> None:
        from onnx import TensorProto, helper, numpy_helper

        self.opset, self.helper, self.to_tensor = opset, helper, numpy_helper.from_array
        self.int32, self.int64, self.float32 = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT
        self.bool = TensorProto.BOOL
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.made: dict[tuple[str, tuple[str, ...], str], str] = {}

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        key = (operator, inputs, str(attributes))
        if key not in self.made:
            (self.made[key],) = self.add_many(operator, inputs, [True], **attributes)
        return self.made[key]

    def add_many(
        self, operator: str, inputs: Sequence[str], wanted: Sequence[bool], **attributes: Any
    ) -> list[str]:
        """The names of a node's outputs; those that nobody wants are empty, which in ONNX means absent."""
        names = [
            f"{operator}_{len(self.nodes)}_{k}" if is_wanted else "" for k, is_wanted in enumerate(wanted)
        ]
        self.nodes.append(self.helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def over(self, operator: str, x: str, *axes: int, keepdims: int) -> str:
        """A mean, maximum or sum over axes."""
        return self.add(operator, x, self.integers(*axes), keepdims=keepdims)

    def transposed(self, x: str, *order: int) -> str:
        """Axis k of the answer is axis order[k] of x. Two in a row are one, or none."""
        made = next((node for node in self.nodes if x in node.output), None)
        if made is not None and made.op_type == "Transpose":
            (before,) = made.attribute
            x, order = made.input[0], tuple(before.ints[k] for k in order)
        return x if order == tuple(range(len(order))) else self.add("Transpose", x, perm=list(order))

    def constant(self, array: NDArray[Any]) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.known:
            self.known[key] = f"constant_{len(self.constants)}"
            self.constants.append(self.to_tensor(np.array(array, order="C"), self.known[key]))
        return self.known[key]

    def integers(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def integer(self, value: int) -> str:
        return self.constant(np.array(value, np.int64))

    def count(self, n: str) -> str:  # (1,) -> (n,)
        """0, 1, ... n - 1"""
        return self.add("Range", self.integer(0), self.add("Squeeze", n), self.integer(1))

    def model(self, inputs: Sequence[Any], outputs: Sequence[Any], tensors: Sequence[str]) -> Any:
        """The graph with what goes in and comes out, and which tensors these outputs are."""
        self.publish([value.name for value in outputs], tensors)
        graph = self.helper.make_graph(self.nodes, "gatewise", inputs, outputs, self.constants)
        version = [self.helper.make_opsetid("", self.opset)]
        return self.helper.make_model(
            graph,
            opset_imports=version,
            ir_version=self.helper.find_min_ir_version_for(version),
            producer_name="gatewise",
            producer_version=__version__,
        )

    def publish(self, names: Sequence[str], tensors: Sequence[str]) -> None:
        """Give tensors the names of outputs, or copies of them that have one already, and drop what none needs."""
        own = {name for node in self.nodes for name in node.output}
        public: dict[str, str] = {}
        for name, tensor in zip(names, tensors):
            if tensor in own and tensor not in public:
                public[tensor] = name
            else:
                self.nodes.append(self.helper.make_node("Identity", [tensor], [name]))
        inner = [each for node in self.nodes for a in node.attribute for each in a.g.node]
        for listed in (names for node in (*self.nodes, *inner) for names in (node.input, node.output)):
            listed[:] = [public.get(name, name) for name in listed]
        needed, nodes = set(names), []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                needed.update(node.input)
                needed.update(name for a in node.attribute for inner in a.g.node for name in inner.input)
                nodes.append(node)
        self.nodes = nodes[::-1]
        self.constants = [constant for constant in self.constants if constant.name in needed]


def not_empty(graph: Graph, lengths: str) -> str:  # (B) -> (B)
    """Lengths of at least 1."""
    wrong = graph.add("Less", lengths, graph.integers(1))
    return refusing(graph, lengths, graph.add("Cast", wrong, to=graph.int64), "a_sequence_has_no_step")


def refusing(graph: Graph, lengths: str, wrong: str, why: str) -> str:  # (B), (B) -> (B)
    """The same lengths. Where `wrong` is 1, an index is out of bounds, and a runtime raises and names the node."""
    zeros = graph.add("Gather", graph.integers(0), wrong, name=f"{why}_of_{lengths}")
    return graph.add("Add", lengths, zeros)
