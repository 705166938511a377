"""A loop over time around nn.LSTMCell or nn.GRUCell in a chain: the cell is a layer that reads every step.

    h_t = cell(x_t, h_{t-1}), h_{-1} = 0, for t from the first step to the last    =    layer(x)_t

Three steps are recorded, which stand for all (`gatewise.readers.loops`). They are those of a layer if each reads its
own step of the input and the state that the cell left in the step before. What else a step does works on it alone, as
the links of a chain do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx, nn

from gatewise.nn.lookup import cell_of
from gatewise.program.graph import leaves
from gatewise.readers.loops import RECORDED, carried, collected, number
from gatewise.readers.names import name_of
from gatewise.readers.record import is_written, origin
from gatewise.runtime.normed import NormedWalk
from gatewise.runtime.steps import (
    CellState,
    Collected,
    Number,
    OneStep,
    Size,
    Step,
    Unbound,
    Value,
    axis_at,
    with_last_step,
)

ZEROS = ("zeros", "new_zeros", "zeros_like")
SAME = ("contiguous", "detach", "clone")  # methods that hand on what they are given


class LoopedWalk(NormedWalk):
    """The part of a walk that knows in which step of a loop it is."""

    inside: tuple[int, int] | None = None  # the loop and its step

    # What nodes stand for.

    def current(self, node: fx.Node) -> Any:
        """Its value, or, where nothing is known of it, the node itself: None would be an argument that was not given,
        and out[:k] all of out."""
        value = self.values.get(node)
        return node if value is None else self.settled(node, value)

    def answer(self, node: fx.Node) -> Any:
        """The same for a state (h, c) as a whole."""
        value: Any = self.of_list(self.values.get(node))
        whole = isinstance(value, tuple)
        return tuple(self.settled(node, part) for part in value) if whole else self.settled(node, value)

    def of_list(self, value: Any) -> Any:
        """outs[-1]: what the last step added is read by itself."""
        return value.value if isinstance(value, Collected) else value

    def settled(self, node: fx.Node, value: Any) -> Any:
        """What was computed in a loop is that of its last step behind it."""
        at = value.at if isinstance(value, Value | CellState) else None
        if at is None or (self.inside is not None and self.inside[0] == at[0]):
            return value
        if at[1] != RECORDED - 1 or isinstance(value, CellState):
            raise self.refuse(node, "behind a loop, only what was made of the last h can be read")
        self.reads_padding(node, "behind a loop, what the last step made is of the padding, too")
        return replace(value, steps=with_last_step(value.steps), at=None)

    # What nodes do.

    def of_loop(self, node: fx.Node, args: list[Any]) -> Any:
        """What the loop itself does; NotImplemented for any other node."""
        if node.target is range:
            return args[-1] if len(args) == 1 or args[:-1] == [0] else None
        if node.target is len:
            return args[0].sizes[0] if isinstance(args[0], Value) else None
        if node.target is number:
            return self.number(*args)
        if node.target is collected:
            return Collected(*args)
        if node.target is carried:
            self.inside = None
            return None
        return NotImplemented

    def number(self, over: Any, loop: int, k: int) -> Number:
        self.inside = loop, k
        value = over.value if isinstance(over, Unbound) else over
        size = value.sizes[0] if isinstance(value, Value) else value
        if not isinstance(size, Size) or size.axis not in (0, 1) or size.cut:
            raise self.refuse("forward()", "a loop does not run from the first step of the input to the last")
        self.take_batch("forward()", 1 - size.axis)
        return Number(size.axis, loop, k)

    def of_steps(self, node: fx.Node, name: str, x: Any, dim: Any) -> Any:
        """What takes steps apart and puts them together again; None for any other operation."""
        if name in ("stack", "cat") and any(isinstance(leaf, Collected) for leaf in leaves(x)):
            return self.joined_steps(node, name, list(x), dim)
        if name == "unbind" and isinstance(x, Value) and (axis := axis_at(x, dim)) is not None:
            return Unbound(replace(x, axes=(axis, *(other for other in x.axes if other != axis))))
        if name == "unsqueeze" and isinstance(x, Value) and x.at is not None and isinstance(dim, int):
            return OneStep(x, dim % (len(x.axes) + 1))
        return x if isinstance(x, CellState) and name in SAME else None

    def step_of(self, node: fx.Node, x: Value, index: Any) -> Value | None:
        """x[:, t]; None where the index has nothing to do with a loop."""
        items = list(index) if isinstance(index, tuple) else [index]
        at = next((k for k, item in enumerate(items) if isinstance(item, Number)), None)
        if at is None:
            if self.inside is not None and any(isinstance(leaf, fx.Node) for leaf in leaves(node.args[1])):
                raise self.refuse(node, "the index is not the number of the step")
            return None
        t = items[at]
        before = all(item == slice(None) for item in items[:at])
        behind = all(item in (slice(None), Ellipsis) for item in items[at + 1 :])
        if not before or not behind or x.axes[at : at + 1] != (t.axis,) or x.padding is not None:
            raise self.refuse(node, "it takes anything but one step of the input")
        return replace(x, axes=(*x.axes[:at], *x.axes[at + 1 :]), at=(t.loop, t.k))

    def joined_steps(self, node: fx.Node, name: str, parts: list[Any], dim: Any) -> Value:
        """torch.stack(outs, 1); cat(outs, 1) of steps (B, 1, C); cat(outs) of steps (B, C) gives rows."""
        value, loop = (parts[0].value, parts[0].loop) if isinstance(parts[0], Collected) else (None, 0)
        if parts != [Collected(moved(value, (loop, k)), loop, k) for k in range(RECORDED)]:
            raise self.refuse(node, f"{name}() joins anything but what each step made of its own")
        x, axis = (value.value, value.axis) if isinstance(value, OneStep) else (value, None)
        if not isinstance(x, Value) or not isinstance(dim, int):
            raise self.refuse(node, f"{name}() joins what does not come from the input alone")
        x, place = replace(x, at=None), dim % (len(x.axes) + 1)
        if name == "cat" and axis is None and dim in (0, -2) and x.axes == (self.batch_axis, "C"):
            return replace(x, axes=(("R", self.time, self.batch_axis), "C"))
        if axis != (place if name == "cat" else None):
            raise self.refuse(node, f"{name}() gives the steps no axis of their own")
        return replace(x, axes=(*x.axes[:place], self.time, *x.axes[place:]))

    def cell(self, node: fx.Node, name: str, module: nn.Module, x: Any) -> Any:
        if not isinstance(x, Value) or x.at is None:
            raise self.refuse(name, "a single-step cell leaves the loop over time to forward()")
        if x.at != self.inside or x.axes != (self.batch_axis, "C"):
            raise self.refuse(name, "it does not read the channels of its own step")
        hx = node.args[1] if len(node.args) > 1 else node.kwargs.get("hx")
        loop, k = x.at
        steps = (*x.steps, Step("recurrent", name, module))
        if k == 0 and not (hx is None or all(self.is_zero(leaf) for leaf in leaves(hx))):
            raise self.refuse(name, "its state before the first step is not zero")
        if k > 0 and listed_state(fx.map_arg(hx, self.current)) != left(module, steps, x, (loop, k - 1)):
            raise self.refuse(name, "its state is not the one that it left in the step before")
        return left(module, steps, x, x.at)

    def is_zero(self, leaf: Any) -> bool:
        source, _ = origin(leaf)
        made = isinstance(source, fx.Node) and source.op != "placeholder" and name_of(source.target) in ZEROS
        return made and not is_written(source, self.model, self.values)


def left(module: nn.Module, steps: tuple[Step, ...], x: Value, at: tuple[int, int]) -> Any:
    """What a cell gives in one step: h, or h and c."""
    cell = cell_of(module)
    assert cell is not None
    h = Value(steps, x.axes, at=at)
    return (h, CellState(steps, at)) if cell.n_states == 2 else h


def moved(value: Any, at: tuple[int, int]) -> Any:
    """The same value of another step."""
    if isinstance(value, OneStep):
        return replace(value, value=replace(value.value, at=at))
    return replace(value, at=at) if isinstance(value, Value) else value


def listed_state(state: Any) -> Any:
    """[h, c] and (h, c) alike."""
    return tuple(state) if isinstance(state, list) else state
