"""A loop over time as operations on whole sequences.

    h_t = cell(x_t, h_{t-1})  for t from the first step to the last    =    Recurrent(cell)(x)_t

Three steps of a loop were recorded, which stand for all (`gatewise.program.loops`). What a step makes of its own step
of the input, it makes of all at once, with time as an axis in front. What it hands to the next step must be the state
of a cell, and nothing else. Behind the loop, names mean what the last step gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gatewise.program import operations as ops
from gatewise.program.fits import require
from gatewise.program.graph import INT, Node, Program, filling, mapped, unshaped
from gatewise.program.layers import BATCH
from gatewise.program.sizes import bounds, same
from gatewise.program.stand_ins import Refused

LAST = 2  # the recorded step that stands for the last one, and for all others


def over_time(program: Program) -> Program:
    """The program without steps of loops.

    Raises:
        Refused: a step goes by more than its own step of the input and the state that its cell left before.
    """
    roll = Roller()
    outputs = mapped(lambda leaf: roll.after(leaf) if isinstance(leaf, Node) else leaf, program.outputs)
    return replace(program, outputs=outputs, effects=())


class Roller:
    """Nodes of a program as they are behind its loops (`after`), and in every step of one (`lifted`)."""

    def __init__(self) -> None:
        self.afters: dict[Node, Node] = {}
        self.lifts: dict[Node, Node | None] = {}
        self.cells: dict[Node, Node] = {}
        self.steps = Comparison()

    def after(self, node: Node) -> Node:
        if node not in self.afters:
            self.afters[node] = self.made_after(node)
        return self.afters[node]

    def made_after(self, node: Node) -> Node:
        op = node.op
        if isinstance(op, ops.Collect):
            return self.collected(node, op)
        if node.turn is not None and not self.steps.is_constant(node):
            if node.turn[1] != LAST:
                raise refused(node, "behind a loop, only what its last step made can be read")
            if isinstance(op, ops.Turn):
                return Node(ops.Extent(op.count - 1), (), (), INT, node.line)
            if isinstance(op, ops.LastState):
                return like(node, op, (self.cell(node.inputs[0]),), node.shape)
            if any(self.steps.is_before(source, node) for source in node.inputs):
                raise refused(node, "a step of a loop reads what the step before it made")
        inputs = tuple(map(self.after, node.inputs))
        return node if inputs == node.inputs else like(node, op, inputs, node.shape)

    def collected(self, node: Node, op: ops.Collect) -> Node:
        """What every step gave, along a new axis."""
        if len(node.inputs) != LAST + 1 or not all(map(self.steps.is_next, node.inputs, node.inputs[1:])):
            raise refused(node, "it joins anything but what each step of a loop made of its own")
        count, last = node.shape[op.axis], node.inputs[-1]
        front = self.lifted(last) or expanded(self.after(last), (count, *last.shape))
        order = [*range(1, front.rank)]
        order.insert(op.axis, 0)
        return permuted(front, order)

    # All steps at once, time in front.

    def lifted(self, node: Node) -> Node | None:
        """What a node of the last step is in every step; None: the same in all."""
        if node.turn is None or self.steps.is_constant(node):
            return None
        if node not in self.lifts:
            self.lifts[node] = self.made_lifted(node, node.op)
        return self.lifts[node]

    def made_lifted(self, node: Node, op: ops.Operation) -> Node:
        if node.turn is None or node.turn[1] != LAST:
            raise refused(node, "a step of a loop reads what the step before it made")
        if isinstance(op, ops.Turn):
            low, _ = bounds(op.count)
            if low is None or low < 1:
                raise refused(node, "a loop over an input may have no step at all")
            return Node(ops.Count(), (), (op.count,), INT, node.line)
        if isinstance(op, ops.LastState) and op.part == "h":
            y = permuted(self.cell(node.inputs[0]), [1, 0, 2])  # (T, B, H)
            return reshaped(y, (y.shape[0], *node.shape))
        if isinstance(op, ops.Index):
            return self.indexed(node, op)
        if isinstance(op, ops.Reshape):
            (front,) = filter(None, map(self.lifted, node.inputs))
            return reshaped(front, (front.shape[0], *node.shape))
        rule = ALONG.get(type(op))
        if rule is None:
            what = "c of a cell" if isinstance(op, ops.LastState) else op.name
            raise refused(node, f"{what} of every step of a loop is not an operation that a program has")
        inputs = [(self.lifted(source), source) for source in node.inputs]
        count = next(lift.shape[0] for lift, _ in inputs if lift is not None)
        whole = [self.beside(lift, source, node, count) for lift, source in inputs]
        return like(node, rule(op), tuple(whole), (count, *node.shape))

    def beside(self, lift: Node | None, source: Node, node: Node, count: int) -> Node:
        """An input as an operation on all steps reads it: every axis of its own beside those of the others."""
        if lift is None:
            own = self.after(source)
            return expanded(own, (count, *own.shape)) if isinstance(node.op, ops.Concat) else own
        if not isinstance(node.op, BROADCAST) or source.rank == node.rank:
            return lift
        return reshaped(lift, (count, *[1] * (node.rank - source.rank), *source.shape))

    def indexed(self, node: Node, op: ops.Index) -> Node:
        """x[:, t]: x itself, where t goes from its first step to its last."""
        x, *indices = node.inputs
        places = [self.lifted(index) for index in indices]
        if self.lifted(x) is not None or len(places) != 1 or places[0] is None or indices[0].rank:
            raise refused(node, "it takes anything but a step of what is known before the loop")
        source, (count,) = self.after(x), places[0].shape
        if not (places[0].op == ops.Count() and same(count, x.shape[op.axis])):
            shape = (*x.shape[: op.axis], count, *x.shape[op.axis + 1 :])
            source = like(node, op, (source, places[0]), shape)
        return permuted(source, [op.axis, *(k for k in range(x.rank) if k != op.axis)])

    def cell(self, node: Node) -> Node:
        """The layer that a cell is in all steps: y (B, T, H)."""
        if node in self.cells:
            return self.cells[node]
        op = node.op
        assert isinstance(op, ops.Recurrent)
        before = own_state(node)
        first = own_state(before) if before is not None else None
        if (
            before is None
            or first is None
            or not (self.steps.is_next(before, node) and self.steps.is_next(first, before))
        ):
            why = f"{op.module}: its state in a loop is not the one that it left in the step before"
            raise refused(node, why)
        starts = first.inputs[1:]
        if not all(start.turn is None or self.steps.is_constant(start) for start in starts):
            raise refused(node, f"{op.module}: its first state is made in the loop")
        x = self.lifted(node.inputs[0])
        if x is None:
            raise refused(node, f"{op.module}: it reads the same in every step of a loop")
        count, batch = x.shape[0], node.shape[0]
        require(not same(count, BATCH))  # else the argument has its time first
        over = permuted(reshaped(x, (count, batch, x.shape[-1])), [1, 0, 2])
        given = (
            () if all(filling(unshaped(start)) == 0 for start in starts) else tuple(map(self.after, starts))
        )
        made = like(node, replace(op, states=len(given)), (over, *given), (batch, count, node.shape[-1]))
        self.cells[node] = made
        return made


# Which node is which in another step.


class Comparison:
    """Nodes of one step of a loop, and of the next; every answer is kept, as graphs have many ways to a node."""

    def __init__(self) -> None:
        self.constants: dict[Node, bool] = {}
        self.pairs: dict[tuple[Node, Node], bool] = {}

    def is_constant(self, node: Node) -> bool:
        """Whether a node has nothing of a step in it, though one may have made it."""
        if node.turn is None:
            return True
        if node not in self.constants:
            of_step = isinstance(node.op, ops.Turn | ops.Recurrent | ops.LastState)
            outside = (source.turn in (None, node.turn) for source in node.inputs)
            self.constants[node] = not of_step and all(outside) and all(map(self.is_constant, node.inputs))
        return self.constants[node]

    def is_before(self, source: Node, node: Node) -> bool:
        """Whether a node is of an earlier step of the same loop."""
        of_loop = source.turn is not None and node.turn is not None and source.turn[0] == node.turn[0]
        return of_loop and source.turn != node.turn and not self.is_constant(source)

    def is_next(self, one: Node, other: Node) -> bool:
        """Whether two nodes are the same in one step of a loop and in the next."""
        if (one, other) not in self.pairs:
            self.pairs[one, other] = self.compared(one, other)
        return self.pairs[one, other]

    def compared(self, one: Node, other: Node) -> bool:
        if one is other:
            return self.is_constant(one)
        if one.turn is None or other.turn != (one.turn[0], one.turn[1] + 1):
            return self.is_constant(one) and self.is_constant(other) and self.is_alike(one, other)
        if isinstance(one.op, ops.Recurrent) and isinstance(other.op, ops.Recurrent):
            own = own_state(other) is one and one.op.module == other.op.module
            return own and self.is_next(one.inputs[0], other.inputs[0])
        return self.is_alike(one, other)

    def is_alike(self, one: Node, other: Node) -> bool:
        """The same operation on inputs that are the same in the next step."""
        shapes = one.rank == other.rank and all(map(same, one.shape, other.shape))
        alike = shapes and same_operation(one.op, other.op) and len(one.inputs) == len(other.inputs)
        return alike and all(map(self.is_next, one.inputs, other.inputs))


def same_operation(one: ops.Operation, other: ops.Operation) -> bool:
    if isinstance(one, ops.Constant) and isinstance(other, ops.Constant):
        return np.array_equal(one.values, other.values, equal_nan=True)
    if isinstance(one, ops.Turn) and isinstance(other, ops.Turn):
        return one.loop == other.loop
    return repr(one) == repr(other)  # where sizes are spelled out, which cannot be compared


def own_state(node: Node) -> Node | None:
    """The call of the same cell in the step before, if all of its last states, in order, start this one."""
    found = [unshaped(start) for start in node.inputs[1:]]
    parts = [start.op.part for start in found if isinstance(start.op, ops.LastState)]
    layers = {start.inputs[0] for start in found if isinstance(start.op, ops.LastState)}
    whole = len(layers) == 1 and len(parts) == len(found) and parts == ["h", "c"][: len(found)]
    return layers.pop() if whole else None


# New nodes.


def like(node: Node, op: ops.Operation, inputs: tuple[Node, ...], shape: tuple[int, ...]) -> Node:
    return Node(op, inputs, shape, node.kind, node.line)


def permuted(node: Node, order: Sequence[int]) -> Node:
    """Axis k is axis order[k]; twice in a row is once, or nothing."""
    if isinstance(node.op, ops.Permute):
        order = [node.op.order[k] for k in order]
        (node,) = node.inputs
    if [*order] == [*range(node.rank)]:
        return node
    return like(node, ops.Permute(tuple(order)), (node,), tuple(node.shape[k] for k in order))


def reshaped(node: Node, shape: tuple[int, ...]) -> Node:
    """In another shape; twice in a row is once, or nothing."""
    if isinstance(node.op, ops.Reshape):
        node = node.inputs[0]
    unchanged = node.rank == len(shape) and all(map(same, node.shape, shape))
    return node if unchanged else like(node, ops.Reshape(), (node,), shape)


def expanded(node: Node, shape: tuple[int, ...]) -> Node:
    return like(node, ops.Expand(), (node,), shape)


def refused(node: Node, why: str) -> Refused:
    return Refused(f"{node.line}: {why}")


# What an operation on one step is on all of them: its axes count from one further on.

BROADCAST = (ops.Combine, ops.Choose, ops.Expand, ops.Matmul)
Along = Callable[[Any], ops.Operation]
SAME: Along = lambda op: op  # noqa: E731
ALONG: dict[type[ops.Operation], Along] = {
    **dict.fromkeys(
        (ops.Map, ops.Cast, ops.Linear, ops.Embed, ops.LayerNorm, ops.Combine, ops.Choose, ops.Expand,
         ops.Matmul), SAME,
    ),
    **dict.fromkeys(
        (ops.Softmax, ops.Slice, ops.Concat, ops.Cumulate, ops.Pad), lambda op: replace(op, axis=op.axis + 1)
    ),
    **dict.fromkeys((ops.Reduce, ops.Flip), lambda op: replace(op, axes=tuple(k + 1 for k in op.axes))),
    ops.Permute: lambda op: ops.Permute((0, *(k + 1 for k in op.order))),
}  # fmt: skip
