"""Layers that are one operation of a program: Linear, embeddings, recurrent layers, cells; packing; convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.rnn import PackedSequence

from gatewise.nn.lookup import cell_of, is_embedding, is_linear, is_single_step
from gatewise.program.along import reduced
from gatewise.program.arithmetic import RULES, rule
from gatewise.program.fits import matched, unified
from gatewise.program.graph import INT, Node
from gatewise.program.operations import Convolve, Embed, LastState, Linear, Pool, Recurrent, Unpack
from gatewise.program.recorder import Recorder, decide
from gatewise.program.shapes import maybe, permute, reshaped, unsqueeze
from gatewise.program.sizes import Size, letter, same
from gatewise.program.stand_ins import Impossible, NeedsShape, Recorded, Refused, current

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


def call_linear(recorder: Recorder, name: str, module: Any, input: Any) -> Recorded:
    width = module.in_features
    needs(
        input, (BATCH, TIME, width), (TIME, BATCH, width), (BATCH, width), (BATCH, TIME, letter("S9"), width)
    )
    node = recorder.node(input)
    if not node.rank:
        raise Impossible
    matched(node.shape[-1], width)
    return recorder.made(Linear(name), [node], (*node.shape[:-1], module.out_features))


def call_embedding(recorder: Recorder, name: str, module: Any, input: Any) -> Recorded:
    needs(input, (BATCH, TIME), (TIME, BATCH), (BATCH,), (BATCH, TIME, letter("S9")), kind=INT)
    node = recorder.node(input)
    decide(node, INT)
    if node.kind != INT:
        raise Impossible
    return recorder.made(Embed(name), [node], (*node.shape, module.embedding_dim))


def state_shapes(module: Any, batch: tuple[int, ...]) -> Any:
    """What a layer takes as its first state: (L*D, B, H), or two of them."""
    places = module.num_layers * (2 if module.bidirectional else 1)
    shape = (places, *batch, module.hidden_size)
    return shape if n_states(module) == 1 else (shape, shape)


def n_states(module: nn.Module) -> int:
    cell = cell_of(module)
    assert cell is not None
    return cell.n_states


def call_recurrent(
    recorder: Recorder, name: str, module: Any, input: Any, hx: Any = None, *, mask: Any = None
) -> Any:
    """y, h_n or y, (h_n, c_n), in the layout of the module; the operation itself is batch first."""
    if mask is not None:
        if not recorder.lenient:
            raise Refused(
                f"{name} skips the steps that mask= says; lengths, or a packed sequence, can be said"
            )
        recorder.unknown("it says which steps count", [mask])
    if isinstance(input, RecordedPack):
        if recorder.node(input.data_first).rank != 3:
            raise Impossible
        y, states = recur(recorder, name, module, input.data_first, hx, input.lengths)
        return RecordedPack(y, input.lengths), as_states(module, states)
    width = module.input_size
    first = (BATCH, TIME, width) if module.batch_first else (TIME, BATCH, width)
    needs(input, first, (TIME, width))
    node = recorder.node(input)
    if node.rank not in (2, 3):
        raise Impossible
    matched(node.shape[-1], width)
    alone = node.rank == 2
    x = (
        unsqueeze(recorder, input, 0)
        if alone
        else input
        if module.batch_first
        else permute(recorder, input, 1, 0, 2)
    )
    y, states = recur(recorder, name, module, x, hx, None, alone)
    shape = recorder.node(y).shape
    if alone:
        return reshaped(recorder, y, shape[1:]), as_states(
            module, [without_batch(recorder, s) for s in states]
        )
    return (y if module.batch_first else permute(recorder, y, 1, 0, 2)), as_states(module, states)


def without_batch(recorder: Recorder, state: Recorded) -> Recorded:
    shape = recorder.node(state).shape
    return reshaped(recorder, state, (shape[0], shape[2]))


def as_states(module: nn.Module, states: list[Recorded]) -> Any:
    return states[0] if len(states) == 1 else tuple(states)


def recur(
    recorder: Recorder, name: str, module: Any, x: Any, hx: Any, lengths: Node | None, alone: bool = False
) -> tuple[Recorded, list[Recorded]]:
    """A layer over (B, T, I), with y (B, T, D*H) and states (L*D, B, H)."""
    node = recorder.node(x)
    if same(node.shape[1], BATCH) and not same(node.shape[0], BATCH):
        raise Impossible  # the argument has its time first
    matched(node.shape[-1], module.input_size)
    given = first_states(recorder, module, hx, node.shape[0], alone)
    op = Recurrent(name, lengths is not None, len(given))
    directions = 2 if module.bidirectional else 1
    shape = (*node.shape[:2], directions * module.hidden_size)
    y = recorder.made(op, [node, *([] if lengths is None else [lengths]), *given], shape)
    form = (module.num_layers * directions, node.shape[0], module.hidden_size)
    states = [recorder.made(LastState(part), [y], form) for part in ("h", "c")[: n_states(module)]]
    return y, states


def first_states(recorder: Recorder, module: Any, hx: Any, batch: int, alone: bool) -> list[Node]:
    if hx is None:
        return []
    form = state_shapes(module, () if alone else (batch,))
    needs(hx, form)
    wanted = n_states(module)
    parts = [hx] if wanted == 1 else list(hx)
    if len(parts) != wanted:
        raise Impossible
    form = form if wanted == 1 else form[0]
    nodes = []
    for part in parts:
        needs(part, form)
        node = recorder.node(part)
        if node.rank != len(form):
            raise Impossible
        places = module.num_layers * (2 if module.bidirectional else 1)
        matched(node.shape[-1], module.hidden_size)
        for own, asked in zip(node.shape, (places, *([] if alone else [batch]))):
            unified(own, asked)
        whole = (places, batch, module.hidden_size)
        nodes.append(recorder.node(reshaped(recorder, part, whole)) if alone else node)
    return nodes


def call_cell(recorder: Recorder, name: str, module: Any, input: Any, hx: Any = None) -> Any:
    """One step: a layer over a sequence of one."""
    needs(input, (BATCH, module.input_size), (module.input_size,))
    node = recorder.node(input)
    if node.rank not in (1, 2):
        raise Impossible
    matched(node.shape[-1], module.input_size)
    batch = node.shape[0] if node.rank == 2 else 1
    wanted = n_states(module)
    form = (batch, module.hidden_size) if node.rank == 2 else (module.hidden_size,)
    given = []
    if hx is not None:
        needs(hx, form if wanted == 1 else (form, form))
        for part in [hx] if wanted == 1 else list(hx):
            needs(part, form)
            own = recorder.node(part)
            matched(own.shape[-1], module.hidden_size)
            if own.rank != node.rank or (own.rank == 2 and unified(own.shape[0], batch) is None):
                raise Impossible
            given.append(recorder.node(reshaped(recorder, part, (1, batch, module.hidden_size))))
    x = reshaped(recorder, input, (batch, 1, module.input_size))
    y = recorder.made(Recurrent(name, False, len(given)), [x, *given], (batch, 1, module.hidden_size))
    states = [
        reshaped(recorder, recorder.made(LastState(part), [y], (1, batch, module.hidden_size)),
                 (batch, module.hidden_size) if node.rank == 2 else (module.hidden_size,))
        for part in ("h", "c")[:wanted]
    ]  # fmt: skip
    return as_states(module, states)


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
def tolist(recorder: Recorder, x: Any) -> Numbers:
    node = recorder.node(x)
    if node.rank != 1 or recorder.lenient:
        raise Refused("it makes a list of what only a call knows")
    return Numbers(node)


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> RecordedPack:
    recorder = current()
    width = letter(f"C.{input.argument}") if isinstance(input, Recorded) and not input.is_shaped else 0
    needs(input, (BATCH, TIME, width) if batch_first else (TIME, BATCH, width))
    node = recorder.node(input)
    if node.rank < 2:
        raise Impossible
    needs(lengths, (node.shape[0 if batch_first else 1],), kind=INT)
    ends = lengths.node if isinstance(lengths, Numbers) else recorder.node(lengths)
    decide(ends, INT)
    if ends.rank != 1:
        raise Impossible
    x = input if batch_first else permute(recorder, input, 1, 0, *range(2, node.rank))
    unified(ends.shape[0], recorder.node(x).shape[0])
    return RecordedPack(x, ends)


def pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: Any = None
) -> tuple[Recorded, Recorded]:
    recorder = current()
    if type(sequence) is not RecordedPack:
        raise Refused("it pads a packed sequence that is an argument")
    lengths = sequence.lengths
    name = recorder.lengths.setdefault(lengths, f"L{len(recorder.lengths) + 1}")
    node = recorder.node(sequence.data_first)
    longest = recorder.bound(letter(name)) if total_length is None else total_length
    shape = (node.shape[0], longest, *node.shape[2:])
    y = recorder.made(Unpack(float(padding_value)), [node, lengths], shape)
    return (y if batch_first else permute(recorder, y, 1, 0, *range(2, node.rank))), Recorded.of(lengths)


def pack_sequence(*args: Any, **kwargs: Any) -> Any:
    raise Refused("it packs a list of sequences; give a padded tensor and lengths")


PACKING: dict[str, Callable[..., Any]] = {
    "pack_padded_sequence": pack_padded_sequence,
    "pad_packed_sequence": pad_packed_sequence,
    "pack_sequence": pack_sequence,
    "pad_sequence": pack_sequence,
}


# Convolutions and pools over time.


def single(value: Any) -> int:
    found = value[0] if isinstance(value, tuple | list) else value
    if isinstance(found, Size):
        raise Refused("a convolution as wide as only a call knows")
    return int(found)


@rule("conv1d")
def conv1d(
    recorder: Recorder, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Recorded:  # fmt: skip
    node, kernel = recorder.node(x), recorder.node(weight)
    alone = node.rank == 2
    if node.rank not in (2, 3):
        raise Impossible
    source = unsqueeze(recorder, x, 0) if alone else x
    batch, channels, steps = recorder.node(source).shape
    matched(channels, kernel.shape[1] * groups)
    by, wide, taps = single(stride), single(dilation), kernel.shape[2]
    reach = wide * (taps - 1)
    if padding == "same":
        around = (reach // 2, reach - reach // 2)
    elif padding == "valid":
        around = (0, 0)
    else:
        around = (single(padding), single(padding))
    length = (steps + around[0] + around[1] - reach - 1) // by + 1
    op = Convolve(by, wide, groups, around, bias is not None)
    inputs = [source, weight, *([] if bias is None else [bias])]
    y = recorder.made(op, inputs, (batch, kernel.shape[0], length))
    return reshaped(recorder, y, recorder.node(y).shape[1:]) if alone else y


def pooled(function: str) -> Any:
    def call(
        recorder: Recorder, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *more: Any,
        dilation: Any = 1, ceil_mode: bool = False, count_include_pad: bool = True, return_indices: bool = False,
    ) -> Recorded:  # fmt: skip
        if more:
            dilation, ceil_mode = (
                (more[0], more[1] if len(more) > 1 else False) if function == "max" else (1, more[0])
            )
            count_include_pad = more[1] if function == "mean" and len(more) > 1 else count_include_pad
        if ceil_mode or return_indices:
            raise Refused("pooling with ceil_mode or return_indices")
        node = recorder.node(x)
        if node.rank not in (2, 3):
            raise Impossible
        if isinstance(kernel_size, Size) and same(kernel_size, node.shape[-1]):
            return reduced(recorder, function, x, -1, True)
        kernel, around, wide = single(kernel_size), single(padding), single(dilation)
        by = kernel if stride is None or stride == () else single(stride)
        maybe(recorder, node.shape[-1], kernel)
        length = (node.shape[-1] + 2 * around - wide * (kernel - 1) - 1) // by + 1
        op = Pool(function, kernel, by, wide, (around, around), bool(count_include_pad))
        return recorder.made(op, [x], (*node.shape[:-1], length))

    return call


RULES["max_pool1d"], RULES["avg_pool1d"] = pooled("max"), pooled("mean")


def pooled_away(function: str) -> Any:
    def call(recorder: Recorder, x: Any, output_size: Any, **_: Any) -> Recorded:
        if single(output_size) != 1:
            raise Refused("adaptive pooling to more than one step")
        return reduced(recorder, function, x, -1, True)

    return call


RULES["adaptive_max_pool1d"], RULES["adaptive_avg_pool1d"] = pooled_away("max"), pooled_away("mean")
