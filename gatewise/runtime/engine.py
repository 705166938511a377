"""gw.Engine(small): a whole chain of compact layers in one call to the C kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gatewise.runtime.bindings import Network, expands, softmax
from gatewise.runtime.narrow import (
    Affine,
    Function,
    Level,
    Link,
    NarrowChain,
    Recurrence,
    Table,
    narrow_chain,
    spread_columns,
    takes_last_state,
)
from gatewise.runtime.packing import CELLS, PackedLayer, pack_layer, pack_matrix

Array = NDArray[Any]
Floats = NDArray[np.float32]
FLOAT32, INT64 = np.dtype(np.float32), np.dtype(np.int64)


class EngineState:
    """What an engine remembers between two calls; opaque, made by the engine, never changed by it."""

    __slots__ = ("batch", "parts", "shape")

    def __init__(self, batch: int, parts: tuple[Floats, ...], shape: tuple[tuple[str, int], ...]) -> None:
        # shape: cell and neurons of every layer and direction; a state of others would be misread.
        self.batch, self.parts, self.shape = batch, parts, shape


class Frame(NamedTuple):
    """How the sequences of one call lie: x and outputs (T, B, ...) or (B, T, ...), in a single step (B, ...)."""

    axes: tuple[int, ...]  # lengths of the axes before the channels
    steps: int
    batch: int
    batch_first: bool = False
    lengths: Array | None = None  # (B,) int32
    threads: int = 1


class Ready(NamedTuple):
    """A repeated single step: an x of this shape and type goes straight to the kernels."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    answer: tuple[int, ...]
    kernel: Callable[..., None]
    state: int  # its address
    batch: int
    threads: int
    memory: Floats  # the state itself: reset() in another thread must not free it while a kernel runs


class Engine:
    """y, state = engine(x, state): the model's forward() on the CPU, for inference.

    x is what `model.forward` takes first, a NumPy array or CPU tensor of float32 vectors or integer word ids; the
    answer is of the same type, in the shape forward() gives it. `step(x)` feeds one time step, (B, I) or ids (B,),
    and remembers the state until `reset()`. Calls with an explicit state may run from several threads at once.

    Args:
        fold_embedding: True folds the embedding into the first layer as a table word -> input projection, False never
            does; None (default) does it where that takes fewer bytes. A one-hot input is always read as a table.
        threads: threads for large batches.
    """

    def __init__(self, model: nn.Module, *, threads: int = 1, fold_embedding: bool | None = None) -> None:
        if threads < 1:
            raise ValueError(f"threads={threads} must be at least 1.")
        self.narrow = narrow_chain(model)
        self.threads = threads
        self.stages = build(self.narrow, fold_embedding)
        self._networks = [stage for stage in self.stages if isinstance(stage, NetworkStage)]
        self._state_sizes = [stage.network.state_size for stage in self._networks]
        self._state_shape = tuple(
            (link.cell.name, r.kept)
            for link in self.narrow.links
            if isinstance(link, Level)
            for r in link.directions
        )
        self._remembered: tuple[EngineState, Frame] | None = None
        self._ready: Ready | None = None
        chain = self.narrow.chain
        self._words, self._batch_axis, self._squeezed = chain.words, chain.batch_axis, chain.squeezed
        self._batch_first = self._batch_axis == 0
        self._whole = len(self.narrow.kept) == self.narrow.width
        self._rows = chain.output_axes == "RC"
        answer_batch_first = not chain.rows_time_first if self._rows else chain.output_axes == "BTC"
        self._swapped = answer_batch_first != self._batch_first

    def __call__(
        self, x: Any, state: EngineState | None = None, *, lengths: Any = None
    ) -> tuple[Any, EngineState]:
        """`lengths` (B): sequences are padded on the right. Past the end of its sequence a recurrent layer gives
        zeros, as after `pad_packed_sequence`, and the last step is that of the sequence.
        """
        array = self._input(x, 2)
        axes = array.shape[:2]
        batch = axes[self._batch_axis]
        after = self.zero_state(batch) if state is None else self._copy(state, batch)
        sizes = None if lengths is None else self._lengths(lengths, batch, axes[1 - self._batch_axis])
        frame = Frame(axes, axes[1 - self._batch_axis], batch, self._batch_first, sizes, self.threads)
        value = self._layout(self._run(array, after, frame))
        return (torch.from_numpy(value) if is_tensor(x) else value), after

    def step(self, x: Any) -> Any:  # (B, I) or ids (B,) -> (B, C)
        """One time step, from the state that the step before left."""
        ready = self._ready
        if (
            ready is None
            or type(x) is not np.ndarray
            or x.dtype is not ready.dtype
            or x.shape != ready.shape
            or not x.flags.carray  # in one piece, aligned; writable comes along
        ):
            return self._any_step(x)
        y = np.empty(ready.answer, FLOAT32)
        ready.kernel(x, ready.state, y, 1, ready.batch, False, None, ready.threads)
        return y

    def _any_step(self, x: Any) -> Any:
        """step() for whatever may come: the first one, tensors, engines of several stages, mistakes."""
        array = self._input(x, 1)
        batch = len(array)
        before = self._remembered
        state, frame = before or (self._step_state(batch), Frame((batch,), 1, batch, threads=self.threads))
        if frame.batch != batch:
            raise ValueError(
                f"step() had {frame.batch} sequences before, now {batch}; call reset() in between."
            )
        value = self._run(array, state, frame)
        if before is None:  # only now: a step that failed leaves nothing to go on from
            self._remembered, self._ready = (state, frame), self._repeated_step(array, state)
        if self._squeezed:
            value = value[..., 0]
        return torch.from_numpy(value) if is_tensor(x) else value

    def reset(self) -> None:
        """Forget the state of step()."""
        self._remembered = self._ready = None

    def __reduce__(self) -> str:
        """Neither copied nor pickled: two engines would share the memory of step()."""
        raise TypeError(
            "an Engine is neither copied nor pickled; build another one from the model: gw.Engine(model)."
        )

    def zero_state(self, batch: int) -> EngineState:
        parts = tuple([np.zeros(batch * size, FLOAT32) for size in self._state_sizes])
        return EngineState(batch, parts, self._state_shape)

    def _step_state(self, batch: int) -> EngineState:
        """As above, but where vectors do not cross cache lines; worth its time for a state that stays."""
        parts = tuple([stage.network.zero_state(batch) for stage in self._networks])
        return EngineState(batch, parts, self._state_shape)

    def _repeated_step(self, x: Array, state: EngineState) -> Ready | None:
        """The short way for more steps like this one, where the kernels do everything."""
        if len(self.stages) != 1 or not self._networks or not self._whole or self._squeezed:
            return None
        stage = self._networks[0]
        batch, memory = state.batch, state.parts[0]
        answer = (batch, stage.width)
        return Ready(x.shape, x.dtype, answer, stage.kernel, memory.ctypes.data, batch, self.threads, memory)

    def _run(self, x: Array, state: EngineState, frame: Frame) -> Array:
        """Every stage in turn; the state is overwritten."""
        parts = iter(state.parts)
        for stage in self.stages:
            x = stage.run(x, next(parts), frame) if isinstance(stage, NetworkStage) else stage(x, frame)
        return x if self._whole else self._widen(x)

    def _widen(self, value: Floats) -> Floats:
        """All original output channels; the removed ones are constant."""
        whole = np.broadcast_to(self.narrow.rest, (*value.shape[:-1], self.narrow.width)).copy()
        whole[..., self.narrow.kept] = value
        return whole

    def _layout(self, value: Array) -> Array:
        """From the axes of the input to those of forward()'s answer."""
        if value.ndim == 3:
            value = value.swapaxes(0, 1) if self._swapped else value
            value = value.reshape(-1, value.shape[-1]) if self._rows else value
        if self._squeezed:
            value = value[..., 0]
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    def _input(self, x: Any, axes: int) -> Array:
        """The caller's array, checked; `axes` are its axes besides the channels."""
        array = from_tensor(x) if is_tensor(x) else np.asarray(x)
        if 0 in array.shape[:axes]:
            raise ValueError(f"x is empty: {array.shape}; it needs a sequence and a step, at least.")
        if self._words:
            if array.dtype.kind not in "iu":
                raise TypeError(f"x must be integer word ids, got {array.dtype}.")
            if array.ndim != axes:
                raise ValueError(f"x must have {axes} axes of word ids, got shape {array.shape}.")
            return (
                array if array.dtype is INT64 and is_plain(array) else np.require(array, np.int64, ["C", "A"])
            )
        if array.dtype != FLOAT32:
            raise TypeError(f"x must be float32, got {array.dtype}.")
        if array.ndim != axes + 1 or array.shape[-1] != self.narrow.n_inputs:
            raise ValueError(
                f"x must have {axes + 1} axes, the last of {self.narrow.n_inputs}; got {array.shape}."
            )
        return array if is_plain(array) else np.require(array, None, ["C", "A"])

    def _copy(self, state: EngineState, batch: int) -> EngineState:
        if not isinstance(state, EngineState) or state.shape != self._state_shape:
            raise TypeError("state must be what an earlier call of this engine returned, or None.")
        if state.batch != batch:
            raise ValueError(f"state is of {state.batch} sequences, x of {batch}.")
        return EngineState(batch, tuple([part.copy() for part in state.parts]), state.shape)

    @staticmethod
    def _lengths(lengths: Any, batch: int, steps: int) -> Array:
        sizes = np.asarray(lengths)
        if sizes.shape != (batch,) or sizes.dtype.kind not in "iu":
            raise ValueError(
                f"lengths: expected an integer for each of {batch} sequences, got {sizes.dtype} {sizes.shape}."
            )
        # Before a cast makes other numbers of them.
        for wrong in np.flatnonzero((sizes < 0) | (sizes > steps))[:1]:
            raise ValueError(f"lengths: sequence {wrong} has length {sizes[wrong]}, outside 0..{steps}")
        return np.ascontiguousarray(sizes, np.int32)


def is_plain(x: Array) -> bool:
    """Whether the kernels can read an array where it is."""
    flags = x.flags
    return flags.c_contiguous and flags.aligned


def is_tensor(x: Any) -> bool:
    """Arrays first: torch's own check takes longer than all others together."""
    return type(x) is not np.ndarray and isinstance(x, torch.Tensor)


def from_tensor(x: torch.Tensor) -> Array:
    if not x.is_cpu:
        raise ValueError(f"x is on {x.device}; the engine runs on the CPU: x.cpu().")
    if x.requires_grad:
        if torch.is_grad_enabled():
            raise ValueError(
                "x requires a gradient, and the engine has none; use the compact model, or x.detach()."
            )
        x = x.detach()
    if x.dtype == torch.bfloat16:
        raise TypeError("x must be float32, got bfloat16.")  # NumPy has no such type
    array: Array = x.numpy()
    return array


class NetworkStage:
    """Embedding, levels and head that the kernels run in one call."""

    def __init__(self, network: Network, final: bool) -> None:
        self.network, self.final = network, final
        self.kernel, self.width = network.run, network.width

    def run(self, x: Array, state: Floats, frame: Frame) -> Floats:
        y = np.empty((frame.batch, self.width) if self.final else (*frame.axes, self.width), FLOAT32)
        self.kernel(x, state, y, frame.steps, frame.batch, frame.batch_first, frame.lengths, frame.threads)
        return y


Stage = NetworkStage | Callable[[Array, Frame], Array]


def build(narrow: NarrowChain, fold_embedding: bool | None) -> list[Stage]:
    """Stages for a narrow chain: as much as possible in networks, the rest in NumPy."""
    links = list(narrow.links)
    stages: list[Stage] = []
    width = narrow.n_inputs
    while links:
        table = links[0] if isinstance(links[0], Table) and isinstance(links[1], Level) else None
        if table is not None:
            links.pop(0)
        levels: list[Level] = []
        while links and isinstance(links[0], Level) and same_directions(levels, links[0]):
            levels.append(links[0])
            links.pop(0)
        if not levels:
            stage, width = numpy_stage(links.pop(0), width)
            stages.append(stage)
            continue
        final = takes_last_state(levels[-1], links)
        if final:
            links.pop(0)
        head = links[0] if links and isinstance(links[0], Affine) else None
        if head is not None:
            links.pop(0)
        scores = head is not None and bool(links) and links[0] == Function("softmax")
        if scores:
            links.pop(0)
        network = make_network(table, levels, head, width, final, scores, fold_embedding)
        stages.append(NetworkStage(network, final))
        width = network.width
    return stages


def same_directions(levels: list[Level], level: Level) -> bool:
    return not levels or len(levels[-1].directions) == len(level.directions)


def make_network(
    table: Table | None,
    levels: list[Level],
    head: Affine | None,
    width: int,
    final: bool,
    scores: bool,
    fold_embedding: bool | None,
) -> Network:
    fold = table is not None and folds(table, levels[0], fold_embedding)
    vectors = None if table is None else table.weight
    packed = [
        [pack(level, r, vectors if fold and k == 0 else None) for r in level.directions]
        for k, level in enumerate(levels)
    ]
    rows = None if table is None or table.rows is None else table.rows.astype(np.int32)
    top = sum(r.kept for r in levels[-1].directions)
    return Network(
        packed,
        width if vectors is None else vectors.shape[1],
        n_words=0 if table is None else table.n_words,
        remap=rows,
        embedding=None if fold else vectors,
        head=None
        if head is None
        else (pack_matrix(spread_columns(head.weight, head.inputs, top), expands=expands()), head.bias),
        softmax=scores,
        final=final,
    )


def folds(table: Table, level: Level, wish: bool | None) -> bool:
    """word -> input projection (V', R) in place of the embedding (V', E') and its product: fewer bytes, less work.

    Of one-hot vectors the table is the input matrix itself, a column for each word, so nothing speaks against it.
    """
    rows = sum(len(r.slots) for r in level.directions)
    return table.one_hot or (rows < table.weight.shape[1] if wish is None else wish)


def pack(
    level: Level, r: Recurrence, embedding: Floats | None, tight: bool = False, int8: bool = False
) -> PackedLayer:
    """The layer as the kernels want it; a list that names everything in order is left out."""
    if level.cell.name not in CELLS:
        where, cells = level.module or "the model", " and ".join(CELLS)
        raise ValueError(f"{where}: there are no C kernels for the cell {level.cell.name}, only for {cells}.")
    return pack_layer(
        level.cell.name,
        r.w_ih,
        r.w_hh,
        r.slots,
        r.bias,
        r.bias_gated[0] if len(r.bias_gated) else None,
        squash=level.gate_activation,
        inputs=None if np.array_equal(r.inputs, np.arange(len(r.inputs))) else r.inputs,
        reads=None if np.array_equal(r.reads, np.arange(r.kept)) else r.reads,
        scale=None if (r.scale == 1).all() else r.scale,
        embedding=embedding,
        tight=tight,
        int8=int8,
    )


def numpy_stage(link: Link, width: int) -> tuple[Callable[[Array, Frame], Array], int]:
    """What the kernels have no call for: functions, and embedding and linear layers before another."""
    if isinstance(link, Table):
        return Lookup(link), link.weight.shape[1]
    if isinstance(link, Affine):
        weight, bias = spread_columns(link.weight, link.inputs, width).T.copy(), link.bias
        return (lambda x, _: x @ weight + bias), len(bias)
    assert isinstance(link, Function)
    return FUNCTIONS[link.name], width


class Lookup:
    """Word -> vector; a removed word is zero."""

    def __init__(self, table: Table) -> None:
        zero = np.zeros((1, table.weight.shape[1]), np.float32)
        self.vectors = np.concatenate([table.weight, zero])
        self.rows = np.arange(table.n_words) if table.rows is None else table.rows

    def __call__(self, ids: Array, _: Frame) -> Floats:
        outside = (ids < 0) | (ids >= len(self.rows))
        if outside.any():
            at = int(outside.argmax())
            raise IndexError(f"word id {ids.flat[at]} at position {at} is outside 0..{len(self.rows) - 1}")
        return self.vectors[self.rows[ids]]  # row -1 is the last, of zeros


def last_step(x: Array, frame: Frame) -> Array:  # (T, B, C) or (B, T, C) -> (B, C)
    if x.ndim == 2:
        return x
    by_time = x.swapaxes(0, 1) if frame.batch_first else x
    ends = -1 if frame.lengths is None else frame.lengths - 1
    last: Array = by_time[ends, np.arange(frame.batch)]
    return last


def log_softmax(x: Array) -> Array:
    shifted: Array = x - x.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def scores(x: Array) -> Array:
    y = np.array(x, order="C")
    softmax(y)
    return y


FUNCTIONS: dict[str, Callable[[Array, Frame], Array]] = {
    "relu": lambda x, _: np.maximum(x, 0),
    "tanh": lambda x, _: np.tanh(x),
    "sigmoid": lambda x, _: np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)),
    "softmax": lambda x, _: scores(x),
    "log_softmax": lambda x, _: log_softmax(x),
    "last_step": last_step,
}
