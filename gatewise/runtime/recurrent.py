"""A recurrent layer in a chain, and what is read of it: every step, the last one, the state behind it.

    out, h_n = layer(x)    out[:, -1]    h_n[-1]    torch.cat([h_n[-2], h_n[-1]], 1)

Of sequences that were padded and not packed, the last step and state of all are those behind the padding.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import fx, nn
from torch.nn.utils.rnn import pack_padded_sequence

from gatewise.nn.lookup import cell_of, is_single_step
from gatewise.program.graph import leaves
from gatewise.readers.names import name_of
from gatewise.readers.record import Recording, is_written, origin
from gatewise.runtime.lengths import Pad
from gatewise.runtime.looped import ZEROS, LoopedWalk
from gatewise.runtime.steps import (
    NO_PACKS,
    HalfState,
    LastStates,
    OneStep,
    Packed,
    Step,
    Unbound,
    Value,
    part,
    with_last_step,
)

LAST = "Take the last step of each sequence: out[torch.arange(out.size(0)), lengths - 1]."
PACK = "Train it with pack_padded_sequence(x, lengths, ...): packed, it begins at the end of each sequence."


class RecurrentWalk(LoopedWalk):
    """The part of a walk that knows what a recurrent layer gives."""

    way: Recording
    given: set[fx.Node]  # arguments of forward() that are states or masks of layers

    def recurrent(self, node: fx.Node, name: str, module: nn.Module, x: Value | Packed) -> Any:
        if is_single_step(module):
            return self.cell(node, name, module, x)
        hx = node.args[1] if len(node.args) > 1 else node.kwargs.get("hx")
        mask = node.kwargs.get("mask")
        for given, what in ((hx, "initial state"), (mask, "mask")):
            zeros = given is hx and takes_no_state(self.way, self.lengths)
            for leaf in () if given is None else leaves(given):
                source, _ = origin(leaf)
                if not comes_from_argument(leaf, zeros) or is_written(source, self.model, self.values):
                    raise self.refuse(name, f"its {what} is computed by forward()")
                if source is self.lengths:
                    raise self.refuse_packs(name, f"its {what} is what forward() packs with")
                self.given.add(source)
        if isinstance(x, Value):
            if len(x.axes) != 3 or x.axes[-1] != "C":
                raise self.refuse(name, "it does not read sequences of channels")
            self.take_batch(name, x.axes[0] if module.batch_first else x.axes[1])
            if x.padding == -math.inf:  # the layer makes NaN of it, and NaN times a mask is NaN
                self.refuse_unlike(name, x)
            if module.bidirectional:
                self.reads_padding(name, "its backward direction begins in the padding", PACK)
        steps, packed = (*x.steps, Step("recurrent", name, module)), isinstance(x, Packed)
        h, c = LastStates(steps, False, packed), LastStates(steps, True, packed)
        cell = cell_of(module)
        assert cell is not None
        out = Packed(steps) if isinstance(x, Packed) else Value(steps, x.axes, cut=x.cut)
        return out, (h, c) if cell.n_states == 2 else h

    def item(self, node: fx.Node, x: Any, index: Any) -> Any:
        if isinstance(x, tuple):
            return part(x, index)
        if isinstance(x, LastStates):
            return self.last_state(node, x, index)
        if isinstance(x, OneStep):
            raise self.refuse(
                node, f"the index {index} of a step with a time axis", f"Write squeeze({x.axis})."
            )
        x = x.value if isinstance(x, Unbound) else x
        if not isinstance(x, Value):
            raise self.refuse(node, f"the index {index} of a state")
        if (step := self.step_of(node, x, index)) is not None:
            return step
        if (ends := self.last_of_each(node, x)) is not None:
            return ends
        if x.padding is not None:
            raise self.refuse_packs(
                node, "an index into padded sequences does not mean the last step of each"
            )
        time = next((k for k, axis in enumerate(x.axes) if axis == self.time), None)
        items = list(index) if isinstance(index, tuple) else [index]
        wanted = [slice(None)] * (time or 0) + [-1]
        plain = items[: len(wanted)] == wanted and all(
            i in (slice(None), Ellipsis) for i in items[len(wanted) :]
        )
        if time is None or not plain:
            computed = any(isinstance(leaf, fx.Node) for leaf in leaves(node.args[1]))
            packs = any(other.target is pack_padded_sequence for other in node.graph.nodes)
            way = NO_PACKS if packs else LAST if computed else ""
            raise self.refuse(node, f"the index {node.args[1]} is not the last time step", way)
        self.reads_padding(node, "the last step of all is padding of those that are shorter", LAST)
        axes = tuple(axis for k, axis in enumerate(x.axes) if k != time)
        return replace(x, steps=with_last_step(x.steps), axes=axes)

    def last_state(self, node: fx.Node, x: LastStates, index: Any) -> Value | HalfState:
        module = x.steps[-1].module
        assert module is not None
        directions = 2 if module.bidirectional else 1
        if isinstance(index, int) and index >= 0:
            index -= directions * int(module.num_layers)  # type: ignore[arg-type]
        if x.cell or index not in range(-directions, 0):
            raise self.refuse(
                node, "of a state, only the last layer's h can be read: h_n[-1], or h_n[-2] and h_n[-1]"
            )
        if not x.packed:
            self.reads_padding(node, "the last state is that behind the padding", LAST)
        if directions == 2:
            return HalfState(x.steps, index + 2)
        return Value((*x.steps, Step("last_state")), (self.batch_axis, "C"))

    def joined_states(
        self, node: fx.Node, parts: list[Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Value:
        both = [part.direction for part in parts if isinstance(part, HalfState)] == [0, 1] and len(parts) == 2
        if (
            not both
            or parts[0].steps != parts[1].steps
            or kwargs.get("dim", args[0] if args else 0) not in (1, -1)
        ):
            raise self.refuse(node, "cat() joins anything but the last states of both directions")
        return Value((*parts[0].steps, Step("last_state")), (self.batch_axis, "C"))


def takes_no_state(way: Recording, lengths: fx.Node | Pad | None) -> bool:
    """Whether forward() was recorded without some argument, or has none but the input and its lengths: nobody gives a
    state, so it may make one of zeros."""
    taken = {node for node in way.graph.nodes if node.op == "placeholder"} - {lengths}
    return bool(way.absent) or len(taken) == 1


def comes_from_argument(node: Any, zeros: bool) -> bool:
    """Whether a node is an argument of forward(), or a part of one, perhaps detached; or zeros, which layers start
    from anyway."""
    source, _ = origin(node)
    if not isinstance(source, fx.Node):
        return False
    return source.op == "placeholder" or (zeros and name_of(source.target) in ZEROS)
