"""What an operation of a program means on the path of a chain: a link more, the same value elsewhere, or its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gatewise.program import operations as ops
from gatewise.program.graph import Node, filling, unshaped
from gatewise.program.sizes import Size, same
from gatewise.runtime.chained import POOLS, ChainLink
from gatewise.runtime.path import OnPath, States, along_channels, renamed, same_shapes

if TYPE_CHECKING:
    from gatewise.runtime.chain import Finder

POINTWISE = ("relu", "tanh", "sigmoid")

# Layers.


def recurrent(path: Finder, node: Node, op: ops.Recurrent) -> OnPath:
    x, module = path.at(node.inputs[0]), path.model.get_submodule(op.module)
    if x.axes != ("B", "T", "C"):
        raise path.no("a recurrent layer does not read the sequences of the input")
    if op.lengths:
        raise path.no("its sequences have lengths of their own")
    for first in map(unshaped, node.inputs[len(node.inputs) - op.states :]):
        given = isinstance(first.op, ops.Input) and first is not path.x
        if not given and not (filling(first) == 0 and not path.takes_states):
            raise path.no("the first state of a layer is computed by forward()")
    both_ways = getattr(module, "bidirectional", False)
    path.begins_anew = path.begins_anew or (both_ways and path.takes_states and not op.states)
    return OnPath((*x.links, ChainLink("recurrent", op.module, module)), x.axes)


def last_state(path: Finder, node: Node, op: ops.LastState) -> States:
    places = node.shape[0]
    return States(path.at(node.inputs[0]).links, op.part, range(places), places)


def embed(path: Finder, node: Node, op: ops.Embed) -> OnPath:
    x = path.at(node.inputs[0])
    if x.links or len(x.axes) != 2:
        raise path.no("an embedding reads anything but the words of the input")
    return OnPath((ChainLink("embedding", op.module, path.model.get_submodule(op.module)),), (*x.axes, "C"))


def linear(path: Finder, node: Node, op: ops.Linear) -> OnPath:
    x = path.at(node.inputs[0])
    if x.axes[-1] != "C":
        raise path.no("a linear layer reads anything but the channels")
    return path.then(x, ChainLink("linear", op.module, path.model.get_submodule(op.module)))


def pointwise(path: Finder, node: Node, op: ops.Map) -> OnPath:
    if op.function not in POINTWISE:
        raise path.no(f"{op.function}() is no link of a chain")
    return path.then(path.at(node.inputs[0]), ChainLink("pointwise", op.function))


def scores(path: Finder, node: Node, op: ops.Softmax) -> OnPath:
    x = path.at(node.inputs[0])
    if x.axes[op.axis] != "C":
        raise path.no("a softmax over anything but the channels")
    return path.then(x, ChainLink("log_softmax" if op.log else "softmax"))


def layer_norm(path: Finder, node: Node, op: ops.LayerNorm) -> OnPath:
    x = path.at(node.inputs[0])
    numbers = [path.numbers(source) for source in node.inputs[1:]]
    if op.axes != 1 or x.axes[-1] != "C" or any(given is None for given in numbers):
        raise path.no("LayerNorm normalises anything but the channels, the last axis")
    scale = numbers.pop(0) if op.scaled else np.ones(1)
    shift = numbers.pop(0) if op.shifted else np.zeros(1)
    return affine(path, path.then(x, ChainLink("layer_norm", eps=op.eps)), node.shape[-1], scale, shift)


def affine(path: Finder, x: OnPath, width: int, scale: Any, shift: Any) -> OnPath:
    """scale * x + shift, channel by channel; one link with the scale before it, as a shift alone is not: it may keep
    sums small."""
    scale, shift = (np.broadcast_to(given.reshape(-1), (width,)) for given in (scale, shift))
    last = x.links[-1] if x.links else ChainLink("")
    if last.kind == "affine" and set(last.scale) != {1.0}:
        x = replace(x, links=x.links[:-1])
        scale, shift = scale * last.scale, scale * last.shift + shift
    if (scale == 1).all() and not shift.any():
        return x
    return path.then(x, ChainLink("affine", scale=tuple(scale.tolist()), shift=tuple(shift.tolist())))


# Two values, of which one is on the path.


def combined(path: Finder, node: Node, op: ops.Combine) -> OnPath:
    at = [k for k, source in enumerate(node.inputs) if source in path.values]
    own, other = node.inputs[at[0]], node.inputs[1 - at[0]]
    x = path.at(own)
    if len(at) == 2:
        raise path.no(f"{op.function} of two values")
    if op.function in ops.COMPARISONS and not x.links:
        return one_hot(path, x, op, other)
    if not same_shapes(node, own):
        raise path.no(f"{op.function} makes its input larger")
    if op.function == "div" and at == [0] and x.links[-1:] == (ChainLink("sum"),):
        return mean_of_sum(path, x, other)
    numbers = path.numbers(other) if along_channels(x, other) else None
    changed = None if numbers is None else by_numbers(op.function, numbers, at == [1])
    if changed is None:
        raise path.no(f"{op.function} is no link of a chain")
    return affine(path, x, own.shape[x.axes.index("C")] if "C" in x.axes else 1, *changed)


def one_hot(path: Finder, x: OnPath, op: ops.Combine, other: Node) -> OnPath:
    """x[..., None] == 0, 1, 2, ..."""
    if op.function != "eq" or x.axes[2:] != ("1",) or other.op != ops.Count():
        raise path.no("it compares its input")
    return OnPath((ChainLink("one_hot", classes=other.shape[0]),), (*x.axes[:2], "C"))


def by_numbers(function: str, numbers: Any, swapped: bool) -> tuple[Any, Any] | None:
    """x + n, n - x, x * n, x / n as scale and shift."""
    one, zero = np.ones_like(numbers), np.zeros_like(numbers)
    if function in ("add", "mul"):
        return (one, numbers) if function == "add" else (numbers, zero)
    if function == "sub":
        return (-one, numbers) if swapped else (one, -numbers)
    return (1 / numbers, zero) if function == "div" and not swapped and numbers.all() else None


def mean_of_sum(path: Finder, x: OnPath, by: Node) -> OnPath:
    """A sum by the number of steps."""
    if not isinstance(by.op, ops.Extent) or str(by.op.size) != "T":
        raise path.no("it divides a sum over time by anything but how many steps there are")
    return replace(x, links=(*x.links[:-1], ChainLink("mean")))


def cast(path: Finder, node: Node, op: ops.Cast) -> OnPath:
    x = path.at(node.inputs[0])
    if not x.links or x.links[-1].kind != "one_hot":
        raise path.no("a cast changes what it is given")
    return x


# The same values in other places.


def permuted(path: Finder, node: Node, op: ops.Permute) -> OnPath:
    x = path.at(node.inputs[0])
    return replace(x, axes=tuple(x.axes[k] for k in op.order))


def reshaped(path: Finder, node: Node, op: ops.Reshape) -> OnPath | States:
    x = path.values[node.inputs[0]]
    if isinstance(x, States):
        return one_state(path, node, x)
    if (found := renamed(x, node.inputs[0].shape, node.shape)) is None:
        raise path.no("axes are put together in another way than sequences lie")
    return found


def one_state(path: Finder, node: Node, x: States) -> OnPath | States:
    """h_n[-1] as (B, H): the answer of one direction, or half of that of two."""
    directions = 2 if getattr(x.links[-1].module, "bidirectional", False) else 1
    top = range(x.whole - directions, x.whole)
    if len(x.places) != 1 or node.rank != 2 or x.part != "h" or x.places[0] not in top:
        raise path.no("of a state, only the last layer's h can be read")
    return x if directions == 2 else OnPath((*x.links, ChainLink("last_state")), ("B", "C"))


def joined(path: Finder, node: Node, op: ops.Concat) -> OnPath:
    """torch.cat([h_n[-2], h_n[-1]], 1)"""
    parts = [path.values.get(source) for source in node.inputs]
    halves = [part for part in parts if isinstance(part, States)]
    first = halves[0] if len(halves) == len(parts) == 2 else None
    both = [(half.links, half.places) for half in halves]
    wanted = (
        [] if first is None else [(first.links, range(k, k + 1)) for k in (first.whole - 2, first.whole - 1)]
    )
    if first is None or both != wanted or (node.rank, op.axis) != (2, 1):
        raise path.no("it joins anything but the last states of both directions")
    return OnPath((*first.links, ChainLink("last_state")), ("B", "C"))


# Parts of time.


def sliced(path: Finder, node: Node, op: ops.Slice) -> OnPath | States:
    x, steps = path.values[node.inputs[0]], node.inputs[0].shape[op.axis]
    if isinstance(x, States) and op.axis == 0 and not isinstance(op.stop, Size):
        return replace(x, places=x.places[op.start : op.stop : op.step])
    last = same(op.start, steps - 1) and same(op.stop, steps)
    if not isinstance(x, OnPath) or x.axes[op.axis] != "T" or not last:
        raise path.no("it takes anything but the last step")
    return of_last(path, x)


def of_last(path: Finder, x: OnPath) -> OnPath:
    """The last position of what the links give, taken right behind the last recurrent layer: what follows that works
    on every position by itself."""
    behind = max((k + 1 for k, link in enumerate(x.links) if link.kind == "recurrent"), default=0)
    if not behind:
        raise path.no("a step is taken of what no recurrent layer gave")
    return OnPath((*x.links[:behind], ChainLink("last_step"), *x.links[behind:]), x.without_time(keep=True))


def reduced(path: Finder, node: Node, op: ops.Reduce) -> OnPath:
    x = path.at(node.inputs[0])
    if [x.axes[k] for k in op.axes] != ["T"] or op.function not in POOLS:
        raise path.no(f"{op.function} over anything but time")
    if all(link.kind != "recurrent" for link in x.links):
        raise path.no(f"the {op.function} is not over steps of a recurrent layer")
    return OnPath((*x.links, ChainLink(op.function)), x.without_time(op.keep))


LINKS: dict[type[ops.Operation], Callable[..., OnPath | States]] = {
    ops.Recurrent: recurrent,
    ops.LastState: last_state,
    ops.Embed: embed,
    ops.Linear: linear,
    ops.Map: pointwise,
    ops.Softmax: scores,
    ops.LayerNorm: layer_norm,
    ops.Combine: combined,
    ops.Cast: cast,
    ops.Permute: permuted,
    ops.Reshape: reshaped,
    ops.Concat: joined,
    ops.Slice: sliced,
    ops.Reduce: reduced,
}
