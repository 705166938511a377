"""Whether a program can be fed in pieces, and what each of its values then is.

    still    the same for every piece: parameters, inputs without time
    steps    one entry for every step, which reads that step and those before it
    final    of the whole sequence: after every piece, as if it ended there
    weights  a softmax over the steps that is to be summed up, weighted: the values that such a sum will add

A value of steps may have entries of the past in front (`ahead`, of a window that looks back) and entries behind that
read what has not come yet (`behind`), which must be cut off again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gatewise.export.coperations import shape_of
from gatewise.export.csizes import letters_of, product, same
from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program
from gatewise.program.sizes import letter

MOVES = (ops.Reshape, ops.Permute, ops.Slice, ops.Expand, ops.Concat)
BEGIN = (
    ops.Input,
    ops.Full,
    ops.Count,
    ops.Expand,
    ops.Slice,
)  # what may have steps although nothing before had
RUNNING = ("sum", "mean", "max", "min")


class Whole(Exception):
    """Why a program reads whole sequences only."""


@dataclass(frozen=True)
class Flow:
    """What a value is while a sequence goes on; `axis` is that of its steps."""

    kind: str
    axis: int = 0
    ahead: int = 0
    behind: int = 0

    @property
    def has_steps(self) -> bool:
        return self.kind not in ("still", "final")

    @property
    def exact(self) -> bool:
        return not self.ahead and not self.behind


STILL, FINAL = Flow("still"), Flow("final")


@dataclass(frozen=True)
class Stream:
    """The letter of time, the flow of every value, and whether the caller hands states over."""

    time: str
    flows: Mapping[Node, Flow]
    explicit: bool

    def is_steps(self, node: Node) -> bool:
        return self.flows[node].kind == "steps"


def streamed(program: Program, model: nn.Module) -> Stream:
    """The flow of every value.

    Raises:
        Whole: a value reads steps to come, or the whole sequence and every step.
    """
    free = {name for node in program.inputs for size in shape_of(node) for name in letters_of(size)}
    if len(free) != 1:
        raise Whole("it reads no sequence" if not free else "it reads sequences of several lengths")
    (time,) = free
    analysis = Analysis(time, model)
    flows: dict[Node, Flow] = {}
    for node in Program(program.arguments, program.outputs).nodes:
        try:
            flows[node] = analysis.flow(node, [flows[source] for source in node.inputs])
            analysis.check(node, flows[node])
        except Whole as reason:
            where = f"{node.line}: " if node.line else ""
            raise Whole(f"{where}{reason}") from None
    for node in (*program.inputs, *program.results):
        found = flows[node]
        if found.kind in ("weights", "weighted"):
            raise Whole("it returns a softmax over all steps")
        if found.kind == "steps" and not (found.exact and same(product(shape_of(node)[: found.axis]), 1)):
            raise Whole("the steps of an input or output do not follow each other in memory")
    return Stream(time, flows, any(map(analysis.is_handed_over, flows)))


class Analysis:
    """The rules: one for every kind of operation."""

    def __init__(self, time: str, model: nn.Module) -> None:
        self.time, self.model = letter(time), model

    def flow(self, node: Node, given: list[Flow]) -> Flow:
        op = node.op
        if isinstance(op, ops.Recurrent):
            return self.recurrent(node, given)
        if isinstance(op, ops.LastState):
            return FINAL if given[0].kind == "steps" else given[0]
        if isinstance(op, BEGIN) and not any(flow.kind == "steps" for flow in given):
            return self.begun(node, given)
        steps = [k for k, flow in enumerate(given) if flow.has_steps]
        if not steps:
            return FINAL if FINAL in given else STILL
        if any(flow.kind == "final" for flow in given):
            raise Whole("what the whole sequence says meets every step")
        soft = [k for k in steps if given[k].kind != "steps"]
        if soft:
            return self.attention(node, given, steps, soft)
        return self.by_rule(node, given, steps)

    def by_rule(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        rule = getattr(self, type(node.op).__name__.lower(), None)
        if rule is None:
            raise Whole(f"{node.op.name} reads whole sequences")
        found: Flow = rule(node, given, steps)
        return found

    def attention(self, node: Node, given: list[Flow], steps: list[int], soft: list[int]) -> Flow:
        """A softmax over the steps is known at the end only; a sum of what it weighs is corrected as it goes on."""
        op, axis = node.op, given[soft[0]].axis
        kind, plain = given[soft[0]].kind, [replace(f, kind="steps") if f.has_steps else f for f in given]
        if isinstance(op, ops.Permute | ops.Reshape | ops.Expand):
            return replace(self.by_rule(node, plain, steps), kind=kind)
        if isinstance(op, ops.Combine) and op.function == "mul" and len(soft) == 1:
            return replace(self.joint(node, plain, steps), kind="weighted")
        if isinstance(op, ops.Reduce) and op.function == "sum" and op.axes == (axis,):
            return FINAL
        summed = (node.inputs[0].rank - 1, node.inputs[-1].rank - 2)
        if isinstance(op, ops.Matmul) and len(soft) == 1 and all(given[k].axis == summed[k] for k in (0, 1)):
            return FINAL
        raise Whole("a softmax over all steps")

    def check(self, node: Node, flow: Flow) -> None:
        """Time is an axis of steps and of nothing else, and a size that enters no value."""
        shape = shape_of(node)
        length = self.time + flow.ahead + flow.behind
        for axis, size in enumerate(shape):
            own = flow.has_steps and axis == flow.axis
            if own != bool(letters_of(size)) or (own and not same(size, length)):
                raise Whole(f"{node.op.name} changes how many steps there are")
        if isinstance(node.op, ops.Extent) and letters_of(node.op.size):
            raise Whole("it reads how long the sequence is")

    def begun(self, node: Node, given: list[Flow]) -> Flow:
        """What has steps of its own: an input, one value for all, numbers of steps, or as many rows of a table."""
        axes = [k for k, size in enumerate(shape_of(node)) if letters_of(size)]
        if not axes:
            return FINAL if FINAL in given else STILL
        if FINAL in given:
            raise Whole("what the whole sequence says meets every step")
        if isinstance(node.op, ops.Slice) and (letters_of(node.op.start) or node.op.step != 1):
            raise Whole("it takes some of the steps")
        return Flow("steps", axes[0])

    def recurrent(self, node: Node, given: list[Flow]) -> Flow:
        op, x = node.op, given[0]
        assert isinstance(op, ops.Recurrent)
        if x.kind != "steps":
            if any(flow.kind == "steps" for flow in given):
                raise Whole(f"{op.module} begins at every step anew")
            return FINAL if FINAL in given else STILL
        module: Any = self.model.get_submodule(op.module)
        if getattr(module, "bidirectional", False):
            raise Whole(f"{op.module} reads sequences in both directions")
        if op.lengths:
            raise Whole(f"{op.module} reads how long the sequence is")
        if x.axis != 1 or not x.exact or any(flow.kind != "still" for flow in given[1:]):
            raise Whole(f"{op.module} begins with what another sequence says")
        return Flow("steps", 1)

    def is_handed_over(self, node: Node) -> bool:
        """Whether a recurrent layer begins with a state that is an argument."""
        if not isinstance(node.op, ops.Recurrent) or not node.op.states:
            return False
        waiting, found = list(node.inputs[len(node.inputs) - node.op.states :]), False
        while waiting:
            current = waiting.pop()
            if not isinstance(current.op, (ops.Input, *MOVES)):
                return False
            found = found or isinstance(current.op, ops.Input)
            waiting.extend(current.inputs)
        return found

    # Every value by itself.

    def joint(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        """Axes count from the last one, as values are repeated along those in front."""
        first = given[steps[0]]
        from_end = {given[k].axis - node.inputs[k].rank for k in steps}
        if len(from_end) > 1 or any(replace(given[k], axis=first.axis) != first for k in steps):
            raise Whole("steps meet other steps")
        return replace(first, axis=node.rank + from_end.pop())

    map = combine = choose = cast = expand = joint

    def embed(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        return given[0]

    def linear(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        return self.apart_from(given[0], [node.rank - 1])

    def apart_from(self, flow: Flow, axes: list[int]) -> Flow:
        if flow.axis in axes:
            raise Whole("it mixes all steps")
        return flow

    # The same values in other places.

    def permute(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        assert isinstance(node.op, ops.Permute)
        return replace(given[0], axis=node.op.order.index(given[0].axis))

    def reshape(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        flow, shape, before = given[0], shape_of(node), shape_of(node.inputs[0])
        for axis, size in enumerate(shape):
            if same(size, before[flow.axis]) and same(product(shape[:axis]), product(before[: flow.axis])):
                return replace(flow, axis=axis)
        raise Whole("it joins steps with other axes")

    def slice(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        op, flow = node.op, given[0]
        assert isinstance(op, ops.Slice)
        if op.axis != flow.axis:
            return flow
        size = shape_of(node.inputs[0])[op.axis]
        looks_back = not letters_of(op.start) and op.start <= flow.ahead
        if op.step == 1 and looks_back and same(op.stop - op.start, self.time):
            return replace(flow, ahead=0, behind=0)
        if op.step == 1 and same(op.start, size - 1) and same(op.stop, size) and flow.exact:
            return FINAL
        raise Whole("it takes some of the steps")

    def concat(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        assert isinstance(node.op, ops.Concat)
        found = self.apart_from(self.joint(node, given, steps), [node.op.axis])
        if len(steps) < len(given):
            raise Whole("steps are joined with what has none")
        return found

    def flip(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        assert isinstance(node.op, ops.Flip)
        return self.apart_from(given[0], list(node.op.axes))

    def pad(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        op, flow = node.op, given[0]
        assert isinstance(op, ops.Pad)
        if op.axis != flow.axis:
            return flow
        if not flow.exact:
            raise Whole("it pads steps that were padded or cut before")
        return replace(flow, ahead=op.before, behind=op.after)

    def index(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        op = node.op
        assert isinstance(op, ops.Index)
        if steps == [0]:
            gone = len(given) - 1
            flow = self.apart_from(given[0], list(range(op.axis, op.axis + gone)))
            places = node.rank - (node.inputs[0].rank - gone)
            return flow if flow.axis < op.axis else replace(flow, axis=flow.axis - gone + places)
        if 0 in steps:
            raise Whole("steps are looked up by steps")
        places = max(source.rank for source in node.inputs[1:])
        from_end = {given[k].axis - node.inputs[k].rank for k in steps}
        if len(from_end) > 1:
            raise Whole("steps meet other steps")
        return replace(given[steps[0]], axis=op.axis + places + from_end.pop())

    def gather(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        assert isinstance(node.op, ops.Gather)
        if len(steps) < 2:
            raise Whole("steps are looked up in what has none")
        return self.apart_from(self.joint(node, given, steps), [node.op.axis])

    # What looks along axes.

    def reduce(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        op, flow = node.op, given[0]
        assert isinstance(op, ops.Reduce)
        if flow.axis not in op.axes:
            gone = 0 if op.keep else sum(axis < flow.axis for axis in op.axes)
            return replace(flow, axis=flow.axis - gone)
        if op.function not in RUNNING or not flow.exact:
            raise Whole(f"{op.function} over all steps")
        return FINAL

    def softmax(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        op, flow = node.op, given[0]
        assert isinstance(op, ops.Softmax)
        if flow.axis != op.axis:
            return flow
        if op.log or not flow.exact:
            raise Whole("a softmax over all steps")
        return replace(flow, kind="weights")

    def cumulate(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        assert isinstance(node.op, ops.Cumulate)
        if given[0].axis == node.op.axis and not given[0].exact:
            raise Whole("it adds up steps that were padded")
        return given[0]

    def layernorm(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        assert isinstance(node.op, ops.LayerNorm)
        if steps != [0]:
            raise Whole("it is scaled by steps")
        return self.apart_from(given[0], list(range(node.rank - node.op.axes, node.rank)))

    def matmul(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        summed = (node.inputs[0].rank - 1, node.inputs[1].rank - 2)
        for k in steps:
            self.apart_from(given[k], [summed[k]])
        return self.joint(node, given, steps)

    def convolve(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        op, flow = node.op, given[0]
        assert isinstance(op, ops.Convolve)
        if steps != [0] or flow.axis != 2:
            raise Whole("its filters or channels are steps")
        looks = op.dilation * (node.inputs[1].shape[2] - 1)
        if op.stride != 1 or flow.ahead + op.padding[0] != looks or (flow.ahead and op.padding[0]):
            raise Whole("a window reads steps to come, or leaves some out")
        return replace(flow, ahead=0, behind=flow.behind + op.padding[1])

    def pool(self, node: Node, given: list[Flow], steps: list[int]) -> Flow:
        return self.apart_from(given[0], [node.rank - 1])
