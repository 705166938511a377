"""Layers that are one operation of a program: Linear, embeddings, recurrent layers, cells; packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.rnn import PackedSequence

from gatewise.nn.lookup import cell_of, is_embedding, is_linear, is_single_step, places_of
from gatewise.program.arithmetic import rule
from gatewise.program.fits import matched, require, unified
from gatewise.program.graph import INT, Node
from gatewise.program.operations import Embed, LastState, Linear, Recurrent, Unpack
from gatewise.program.recorder import as_recorded, decide, made, node_of
from gatewise.program.shapes import reshaped, transpose, unsqueeze, with_axes
from gatewise.program.sizes import letter, same
from gatewise.program.stand_ins import NeedsShape, Recorded, Refused, current

BATCH, TIME = letter("B"), letter("T")


def leaf_of(module: nn.Module) -> Callable[..., Any] | None:
    """How the call of a layer is recorded; None for modules whose forward() is followed."""
    if cell_of(module) is not None:
        return call_cell if is_single_step(module) else call_recurrent
    if is_linear(module):
        return call_linear
    return call_embedding if is_embedding(module) else None


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook may see or change what goes in or comes out, other than torch's own for pruned weights."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return not all(isinstance(hook, BasePruningMethod) for hook in hooks)


def needs(value: Any, *candidates: Any, kind: str | None = None) -> None:
    """Ask for the shape of an argument that has none yet."""
    if isinstance(value, Recorded) and not value.is_shaped:
        raise NeedsShape(value.argument, list(candidates), kind)


def call_linear(name: str, module: Any, input: Any) -> Recorded:
    width = module.in_features
    more = (BATCH, TIME, letter("S9"), width)
    needs(input, (BATCH, TIME, width), (TIME, BATCH, width), (BATCH, width), more)
    node = node_of(input)
    require(node.rank > 0)
    matched(node.shape[-1], width)
    return made(Linear(name), [node], (*node.shape[:-1], module.out_features))


def call_embedding(name: str, module: Any, input: Any) -> Recorded:
    needs(input, (BATCH, TIME), (TIME, BATCH), (BATCH,), (BATCH, TIME, letter("S9")), kind=INT)
    node = node_of(input)
    decide(node, INT)
    require(node.kind == INT)
    return made(Embed(name), [node], (*node.shape, module.embedding_dim))


# Recurrent layers.


def state_shape(module: Any, batch: tuple[int, ...]) -> tuple[int, ...]:
    """A state as a layer takes and gives it, (L*D, B, H); without L*D for a cell, without B for a single sequence."""
    places = () if is_single_step(module) else (n_places(module),)
    return (*places, *batch, module.hidden_size)


def state_shapes(module: Any, batch: tuple[int, ...]) -> Any:
    """What a layer takes as its first state: h, or h and c."""
    shape = state_shape(module, batch)
    return shape if n_states(module) == 1 else (shape, shape)


def n_places(module: nn.Module) -> int:
    return len([*places_of(module)])


def n_states(module: nn.Module) -> int:
    cell = cell_of(module)
    assert cell is not None
    return cell.n_states


def call_recurrent(name: str, module: Any, input: Any, hx: Any = None, *, mask: Any = None) -> Any:
    """y, h_n or y, (h_n, c_n), in the layout of the module; the operation itself is batch first."""
    if mask is not None:
        if not current().lenient:
            why = f"{name} skips the steps that mask= says; lengths, or a packed sequence, can be said"
            raise Refused(why)
        current().unknown("it says which steps count", [mask])
    if isinstance(input, RecordedPack):
        require(input.data_first.node.rank == 3)
        y, states = recur(name, module, input.data_first, hx, input.lengths)
        return RecordedPack(y, input.lengths), states
    width = module.input_size
    needs(input, (BATCH, TIME, width) if module.batch_first else (TIME, BATCH, width), (TIME, width))
    x = as_recorded(input)
    require(x.node.rank in (2, 3))
    if x.node.rank == 2:
        y, states = recur(name, module, unsqueeze(x, 0), hx, alone=True)
        return with_axes(y, 0, 1, ()), states
    y, states = recur(name, module, x if module.batch_first else transpose(x, 0, 1), hx)
    return y if module.batch_first else transpose(y, 0, 1), states


def call_cell(name: str, module: Any, input: Any, hx: Any = None) -> Any:
    """One step: a layer over a sequence of one."""
    needs(input, (BATCH, module.input_size), (module.input_size,))
    x = as_recorded(input)
    require(x.node.rank in (1, 2))
    *batch, width = x.node.shape
    return recur(name, module, reshaped(x, (*(batch or [1]), 1, width)), hx, alone=not batch)[1]


def recur(
    name: str, module: Any, x: Recorded, hx: Any, lengths: Node | None = None, alone: bool = False
) -> tuple[Recorded, Any]:
    """A layer over (B, T, I): y (B, T, D*H), and its last states as the module gives them."""
    batch, time, width = x.node.shape
    require(not same(time, BATCH) or same(batch, BATCH))  # else the argument has its time first
    matched(width, module.input_size)
    given = first_states(module, hx, batch, alone)
    op = Recurrent(name, lengths is not None, len(given))
    directions = 2 if getattr(module, "bidirectional", False) else 1
    ends = [] if lengths is None else [lengths]
    y = made(op, [x, *ends, *given], (batch, time, directions * module.hidden_size))
    whole, own = (n_places(module), batch, module.hidden_size), () if alone else (batch,)
    states = [made(LastState(part), [y], whole) for part in ("h", "c")[: n_states(module)]]
    h, *c = (reshaped(state, state_shape(module, own)) for state in states)
    return y, (h, *c) if c else h


def first_states(module: Any, hx: Any, batch: int, alone: bool) -> list[Node]:
    """Those that a call is given, as (L*D, B, H)."""
    if hx is None:
        return []
    shape = state_shape(module, () if alone else (batch,))
    needs(hx, state_shapes(module, () if alone else (batch,)))
    parts = [hx] if n_states(module) == 1 else list(hx)
    require(len(parts) == n_states(module))
    nodes = []
    for part in parts:
        needs(part, shape)
        own = node_of(part).shape
        require(len(own) == len(shape))
        matched(own[-1], shape[-1])
        for size, asked in zip(own[:-1], shape[:-1]):
            unified(size, asked)
        whole = (n_places(module), batch, module.hidden_size)
        nodes.append(reshaped(as_recorded(part), whole).node)
    return nodes


# Packed sequences.


class RecordedPack:
    """A PackedSequence: its data batch first, and the lengths."""

    def __init__(self, data_first: Recorded, lengths: Node) -> None:
        self.data_first, self.lengths = data_first, lengths

    @property
    def __class__(self) -> Any:
        return PackedSequence

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError("a recorded PackedSequence stays one")

    def to(self, *_: Any, **__: Any) -> RecordedPack:
        return self

    cpu = cuda = float = to

    def __getattr__(self, name: str) -> Any:
        raise Refused(f"it uses .{name} of a packed sequence; pad_packed_sequence() gives a tensor")

    def __iter__(self) -> Any:
        raise Refused("it takes a packed sequence apart; pad_packed_sequence() gives a tensor")

    __getitem__ = __len__ = __iter__


class Numbers:
    """lengths.tolist(): whole numbers that only packing reads."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __getattr__(self, name: str) -> Any:
        raise Refused(f"it uses .{name} of a list that only a call knows; keep the tensor")

    def __iter__(self) -> Any:
        raise Refused("it goes through a list that only a call knows; keep the tensor")

    __getitem__ = __len__ = __bool__ = __add__ = __mul__ = __iter__


@rule("tolist")
def tolist(x: Recorded) -> Numbers:
    if x.node.rank != 1 or current().lenient:
        raise Refused("it makes a list of what only a call knows")
    return Numbers(x.node)


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> RecordedPack:
    width = letter(f"C.{input.argument}") if isinstance(input, Recorded) and not input.is_shaped else 0
    needs(input, (BATCH, TIME, width) if batch_first else (TIME, BATCH, width))
    node = node_of(input)
    require(node.rank >= 2)
    needs(lengths, (node.shape[0 if batch_first else 1],), kind=INT)
    ends = lengths.node if isinstance(lengths, Numbers) else node_of(lengths)
    decide(ends, INT)
    require(ends.rank == 1)
    x = as_recorded(input) if batch_first else transpose(as_recorded(input), 0, 1)
    unified(ends.shape[0], x.node.shape[0])
    return RecordedPack(x, ends)


def pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: Any = None
) -> tuple[Recorded, Recorded]:
    recorder = current()
    if type(sequence) is not RecordedPack:
        raise Refused("it pads a packed sequence that is an argument")
    lengths = sequence.lengths
    name = recorder.lengths.setdefault(lengths, f"L{len(recorder.lengths) + 1}")
    batch, _, *widths = sequence.data_first.node.shape
    longest = recorder.bound(letter(name)) if total_length is None else total_length
    y = made(Unpack(float(padding_value)), [sequence.data_first, lengths], (batch, longest, *widths))
    return (y if batch_first else transpose(y, 0, 1)), Recorded.of(lengths)


def pack_sequence(*args: Any, **kwargs: Any) -> Any:
    raise Refused("it packs a list of sequences; give a padded tensor and lengths")


PACKING: dict[str, Callable[..., Any]] = {
    "pack_padded_sequence": pack_padded_sequence,
    "pad_packed_sequence": pad_packed_sequence,
    "pack_sequence": pack_sequence,
    "pad_sequence": pack_sequence,
}
