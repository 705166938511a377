"""Which programs run on sequences that arrive in pieces, and why others do not.

Every value flows in one of three ways: it is the same in all pieces (fixed), has an entry for every step (moving), or
sums up the steps so far (ending). A node that would need steps to come makes the program one for whole sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program
from gatewise.program.sizes import Size, letter
from gatewise.runtime import pieces
from gatewise.runtime.prepared import Run

FIXED, MOVING, ENDING = "fixed", "moving", "ending"
TO_COME = "every answer depends on steps to come"
RUNNING = frozenset("sum mean max min any all prod logsumexp".split())


@dataclass(frozen=True)
class Flow:
    """How a value flows; of a moving one also where time is, and what a piece holds besides its own steps."""

    kind: str
    axis: int | None = None
    earlier: int = 0  # entries of the pieces before, in front
    ahead: int = 0  # entries behind the last step, which a slice must cut
    before: str = ""  # the sizes in front of time, multiplied; rows B*T do not show them

    @property
    def plain(self) -> bool:
        return not self.earlier and not self.ahead


@dataclass(frozen=True)
class Stream:
    """How a program runs in pieces: by nodes that remember, or not at all, because of what `refused` says."""

    time: str = ""  # the letters of steps and sequences
    batch: str = ""
    refused: str = ""
    special: dict[Node, Run] = field(default_factory=dict)
    remembering: frozenset[Node] = frozenset()
    flows: dict[Node, Flow] = field(default_factory=dict)


class Whole(Exception):
    """A node needs whole sequences."""


def streamed(program: Program, model: nn.Module) -> Stream:
    read = [node.inputs[0].shape for node in program.nodes if isinstance(node.op, ops.Recurrent)]
    times, batches = ({name for shape in read for name in letters_of(shape[axis])} for axis in (1, 0))
    others = {name for node in program.inputs for size in node.shape for name in letters_of(size)}
    others = {name for name in others - times - batches if name[0] != "C"}
    if len(times) != 1 or len(batches) != 1 or others:
        return Stream(refused="it reads several sequences" if times else "it reads no sequence")
    (time,), (batch,) = times, batches
    walk = Walk(time, batch, model)
    try:
        for node in program.nodes:
            walk.visit(node)
        for node in program.results:
            walk.check_answer(node)
    except Whole as error:
        return Stream(time, batch, str(error))
    return Stream(time, batch, "", walk.special, frozenset(walk.remembering), walk.flows)


def letters_of(size: int) -> frozenset[str]:
    return size.letters if isinstance(size, Size) else frozenset()


class Walk:
    """Follows a program node by node."""

    def __init__(self, time: str, batch: str, model: nn.Module) -> None:
        self.time, self.rows, self.model = time, str(letter(batch) * letter(time)), model
        self.flows: dict[Node, Flow] = {}
        self.special: dict[Node, Run] = {}
        self.remembering: set[Node] = set()

    def visit(self, node: Node) -> None:
        said = [getattr(node.op, own.name) for own in fields(node.op)]
        if any(self.time in letters_of(n) for n in said) and not isinstance(node.op, ops.Extent | ops.Slice):
            raise self.whole(node, "it computes with the number of steps")
        rule = RULES.get(type(node.op), Walk.passed)
        self.flows[node] = rule(self, node)

    def whole(self, node: Node, why: str) -> Whole:
        return Whole(f"{node.line}: {why}" if node.line else why)

    def remember(self, node: Node, run: Run) -> None:
        self.special[node] = run
        self.remembering.add(node)

    def check_answer(self, node: Node) -> None:
        if not self.flows[node].plain:
            raise self.whole(node, "it returns more steps than it was given")

    # What follows from shapes.

    def own(self, node: Node) -> Flow:
        """The flow of a node with a time axis, from its shape."""
        axes = [k for k, size in enumerate(node.shape) if self.time in letters_of(size)]
        if len(axes) != 1:
            raise self.whole(
                node, "it compares steps with each other" if axes else "it needs all steps at once"
            )
        (axis,) = axes
        size, before = node.shape[axis], str(product(node.shape[:axis]))
        rest = size - letter(self.time)
        if not isinstance(rest, Size) and rest >= 0:
            return Flow(MOVING, axis, int(rest), 0, before)
        sources = [self.flows[source] for source in node.inputs]
        rows = next((flow for flow in sources if flow.kind == MOVING), None)
        if str(size) == self.rows and rows is not None and rows.plain:
            return Flow(MOVING, axis, 0, 0, rows.before)
        raise self.whole(node, f"it makes {size} entries of {self.time} steps")

    def kinds(self, node: Node) -> set[str]:
        return {self.flows[source].kind for source in node.inputs}

    def passed(self, node: Node) -> Flow:
        """A node that treats every step like every other."""
        kinds = self.kinds(node)
        has_time = any(self.time in letters_of(size) for size in node.shape)
        if ENDING in kinds and (has_time or MOVING in kinds):
            raise self.whole(node, TO_COME)
        if ENDING in kinds:
            return Flow(ENDING)
        if not has_time:
            if MOVING in kinds:
                raise self.whole(node, "it needs all steps at once")
            return Flow(FIXED)
        flow = self.own(node)
        ahead = max((self.flows[source].ahead for source in node.inputs), default=0)
        if ahead and not isinstance(node.op, ops.Map):
            raise self.whole(node, "it reads behind the last step")
        return replace(flow, ahead=ahead, earlier=flow.earlier - ahead)

    def steps_of(self, node: Node, source: Node, what: str) -> Flow:
        """An input that must be moving, with nothing besides its own steps."""
        flow = self.flows[source]
        if not flow.plain:
            raise self.whole(node, f"{what} more steps than it was given")
        return flow

    # Operations with rules of their own.

    def argument(self, node: Node) -> Flow:
        moves = any(self.time in letters_of(size) for size in node.shape)
        return self.own(node) if moves else Flow(FIXED)

    def extent(self, node: Node) -> Flow:
        assert isinstance(node.op, ops.Extent)
        if self.time not in letters_of(node.op.size):
            return Flow(FIXED)
        self.special[node] = pieces.extent_so_far(node, self.time)
        return Flow(ENDING)

    def count(self, node: Node) -> Flow:
        flow = self.argument(node)
        if not flow.plain:
            raise self.whole(node, "it counts more steps than were given")
        if flow.kind == MOVING:
            self.special[node] = pieces.counted_on(node)
        return flow

    def recurrent(self, node: Node) -> Flow:
        op = node.op
        assert isinstance(op, ops.Recurrent)
        flow = self.steps_of(node, node.inputs[0], "it reads")
        states = (
            [self.flows[s].kind for s in node.inputs[len(node.inputs) - op.states :]] if op.states else []
        )
        if flow.kind != MOVING:
            return Flow(ENDING if ENDING in (flow.kind, *states) else FIXED)
        if getattr(self.model.get_submodule(op.module), "bidirectional", False):
            raise self.whole(
                node, f"{op.module or 'the model'} reads sequences in both directions, so {TO_COME}"
            )
        if op.lengths:
            raise self.whole(node, "sequences of several lengths are read whole")
        if any(kind != FIXED for kind in states):
            raise self.whole(node, f"its first state is a last one: {TO_COME}")
        if flow.axis != 1:
            raise self.whole(node, "it reads steps along another axis than time")
        self.remembering.add(node)
        return self.own(node)

    def last_state(self, node: Node) -> Flow:
        source = self.flows[node.inputs[0]]
        return Flow(ENDING) if source.kind == MOVING else source

    def convolve(self, node: Node) -> Flow:
        op, (x, *rest) = node.op, node.inputs
        assert isinstance(op, ops.Convolve)
        flow = self.flows[x]
        if any(self.flows[r].kind == MOVING for r in rest):
            raise self.whole(node, "the weights of a convolution have an entry for every step")
        if flow.kind != MOVING or any(self.flows[r].kind != FIXED for r in rest):
            return self.passed(node)
        reach = op.dilation * (rest[0].shape[2] - 1)
        before, after = op.padding
        if flow.axis != 2 or op.stride != 1 or flow.ahead or before + flow.earlier < reach or (
            before and (flow.earlier or before != reach)
        ):  # fmt: skip
            raise self.whole(
                node, "a convolution runs in pieces where it looks back only, with a stride of 1"
            )
        if before:
            self.remember(node, pieces.looked_back(node, before))
        own = self.own(node)
        return replace(own, earlier=own.earlier - after, ahead=after)

    def pad(self, node: Node) -> Flow:
        op, flow = node.op, self.flows[node.inputs[0]]
        assert isinstance(op, ops.Pad)
        if flow.kind != MOVING or flow.axis != op.axis:
            return self.passed(node)
        if op.after or not flow.plain or isinstance(op.before, Size):
            raise self.whole(node, "steps are put behind the last one")
        self.remember(node, pieces.padded_once(node))
        return self.own(node)

    def slice(self, node: Node) -> Flow:
        op, flow = node.op, self.flows[node.inputs[0]]
        assert isinstance(op, ops.Slice)
        size = node.inputs[0].shape[op.axis]
        if flow.kind == FIXED and any(self.time in letters_of(n) for n in (op.start, op.stop)):
            if isinstance(op.start, Size) or op.step != 1:
                raise self.whole(node, "it takes the last positions")
            self.special[node] = pieces.sliced_on(node)
            return self.own(node)
        if flow.kind != MOVING or flow.axis != op.axis:
            if any(self.time in letters_of(n) for n in (op.start, op.stop)):
                raise self.whole(node, "it computes with the number of steps")
            return self.passed(node)
        if op.step != 1:
            raise self.whole(node, "it takes some of the steps")
        if not flow.ahead and str(op.stop) == str(size) and str(op.start) == str(size - 1):
            return Flow(ENDING)
        if isinstance(op.start, Size) or self.time not in letters_of(op.stop):
            raise self.whole(node, "it takes some of the steps")
        own = self.own(node)
        if flow.ahead and (op.start or str(op.stop) != self.time):
            raise self.whole(node, "it reads behind the last step")
        return own

    def along(self, node: Node, axes: tuple[int, ...], why: str) -> Flow:
        """A node that looks along axes, of which time must not be one."""
        flow = next((f for f in map(self.flows.__getitem__, node.inputs) if f.kind == MOVING), None)
        if flow is not None and flow.axis in axes:
            raise self.whole(node, why)
        return self.passed(node)

    def reduce(self, node: Node) -> Flow:
        op, flow = node.op, self.flows[node.inputs[0]]
        assert isinstance(op, ops.Reduce)
        if flow.axis is None or flow.axis not in op.axes:
            return self.passed(node)
        self.steps_of(node, node.inputs[0], "it sums up")
        if op.function not in RUNNING:
            raise self.whole(node, f"{op.function}() over time needs all steps at once")
        if str(node.inputs[0].shape[flow.axis]) != self.time:
            raise self.whole(node, "it sums up sequences and steps together")
        self.remember(node, pieces.reduced_so_far(node, flow.axis))
        return Flow(ENDING)

    def softmax(self, node: Node) -> Flow:
        op, flow = node.op, self.flows[node.inputs[0]]
        assert isinstance(op, ops.Softmax)
        if flow.kind != MOVING or flow.axis != op.axis:
            return self.passed(node)
        raise self.whole(node, f"it is a softmax over time: {TO_COME}")

    def cumulate(self, node: Node) -> Flow:
        flow = self.flows[node.inputs[0]]
        assert isinstance(node.op, ops.Cumulate)
        if flow.kind == MOVING and flow.axis == node.op.axis:
            self.steps_of(node, node.inputs[0], "it sums up")
            self.remember(node, pieces.cumulated_on(node))
            return self.own(node)
        return self.passed(node)

    def matmul(self, node: Node) -> Flow:
        a, b = node.inputs
        contracted = (
            self.time in letters_of(a.shape[-1]) and self.time in letters_of(b.shape[-2])
            if b.rank > 1
            else False
        )
        if not contracted:
            return self.passed(node)
        if not (self.flows[a].plain and self.flows[b].plain):
            raise self.whole(node, "it multiplies all steps with each other")
        self.remember(node, pieces.summed_product(node))
        return Flow(ENDING)


def product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total = total * size
    return total


def axes_of(node: Node) -> tuple[int, ...]:
    op = node.op
    assert isinstance(op, ops.Gather | ops.Concat | ops.Flip)
    return op.axes if isinstance(op, ops.Flip) else (op.axis,)


def layer_norm(walk: Walk, node: Node) -> Flow:
    assert isinstance(node.op, ops.LayerNorm)
    return walk.along(node, tuple(range(node.rank - node.op.axes, node.rank)), "it normalises over time")


def reshape(walk: Walk, node: Node) -> Flow:
    source, flow = walk.flows[node.inputs[0]], walk.passed(node)
    if flow.kind == source.kind == MOVING and flow.before != source.before:
        raise walk.whole(node, "it mixes steps with channels")
    return flow


def index(walk: Walk, node: Node) -> Flow:
    assert isinstance(node.op, ops.Index)
    if walk.flows[node.inputs[0]].kind == FIXED:
        return walk.passed(node)
    axes = tuple(range(node.op.axis, node.op.axis + len(node.inputs) - 1))
    if any(walk.flows[i].kind != FIXED for i in node.inputs[1:]):
        raise walk.whole(node, "it looks steps up")
    return walk.along(node, axes, "it looks steps up")


def whole(why: str) -> Callable[[Walk, Node], Flow]:
    def rule(walk: Walk, node: Node) -> Flow:
        if walk.kinds(node) == {FIXED} and not any(walk.time in letters_of(size) for size in node.shape):
            return Flow(FIXED)
        raise walk.whole(node, why)

    return rule


RULES: dict[type[ops.Operation], Callable[[Walk, Node], Any]] = {
    ops.Input: Walk.argument,
    ops.Extent: Walk.extent,
    ops.Count: Walk.count,
    ops.Recurrent: Walk.recurrent,
    ops.LastState: Walk.last_state,
    ops.Convolve: Walk.convolve,
    ops.Pad: Walk.pad,
    ops.Slice: Walk.slice,
    ops.Reduce: Walk.reduce,
    ops.Softmax: Walk.softmax,
    ops.Cumulate: Walk.cumulate,
    ops.Matmul: Walk.matmul,
    ops.LayerNorm: layer_norm,
    ops.Reshape: reshape,
    ops.Index: index,
    ops.Gather: lambda walk, node: walk.along(node, axes_of(node), "it looks steps up"),
    ops.Concat: lambda walk, node: walk.along(node, axes_of(node), "it puts steps behind each other"),
    ops.Flip: lambda walk, node: walk.along(node, axes_of(node), f"it turns time around: {TO_COME}"),
    ops.Pool: whole("windows of steps are pooled"),
    ops.Unpack: whole("sequences of several lengths are read whole"),
}
