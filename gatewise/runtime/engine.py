"""gw.Engine(small): a whole chain of compact layers in one call to the C kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gatewise.runtime.bindings import Network, softmax
from gatewise.runtime.narrow import Affine, Function, Level, NarrowChain, Recurrence, Table, narrow_chain
from gatewise.runtime.packing import pack_layer, pack_matrix

Array = NDArray[Any]
Floats = NDArray[np.float32]


class EngineState:
    """What an engine remembers between two calls; opaque, made by the engine, never changed by it."""

    def __init__(self, batch: int, parts: tuple[Floats, ...]) -> None:
        self.batch, self.parts = batch, parts


class Engine:
    """y, state = engine(x, state): the model's forward() on the CPU, for inference.

    x is what `model.forward` takes first, a NumPy array or CPU tensor of float32 vectors or integer word ids; the
    answer is of the same type, in the shape forward() gives it. `step(x)` feeds one time step, (B, I) or ids (B,),
    and remembers the state until `reset()`. Calls with an explicit state may run from several threads at once.

    Args:
        fold_embedding: True folds the embedding into the first layer as a table word -> input projection, False never
            does; None (default) does it where that takes fewer bytes.
        threads: threads for large batches.
    """

    def __init__(self, model: nn.Module, *, threads: int = 1, fold_embedding: bool | None = None) -> None:
        if threads < 1:
            raise ValueError(f"threads={threads} must be at least 1.")
        self.narrow = narrow_chain(model)
        self.threads = threads
        self.stages = build(self.narrow, fold_embedding, threads)
        self._networks = [stage for stage in self.stages if isinstance(stage, NetworkStage)]
        self._remembered: EngineState | None = None
        chain = self.narrow.chain
        self._words, self._batch_first = chain.words, chain.batch_axis == 0

    def __call__(
        self, x: Any, state: EngineState | None = None, *, lengths: Sequence[int] | None = None
    ) -> tuple[Any, EngineState]:
        """`lengths` (B): sequences are padded on the right; outputs past the end are zero."""
        array = self._input(x, 2)
        chain = self.narrow.chain
        batch = array.shape[chain.batch_axis]
        sizes = None if lengths is None else np.ascontiguousarray(lengths, np.int32)
        if sizes is not None and sizes.shape != (batch,):
            raise ValueError(f"lengths: expected one for each of {batch} sequences, got {sizes.shape}.")
        state = self._state(state, batch)
        value, after = self._run(array, state, sizes, self._batch_first)
        return self._like(self._layout(value, self._batch_first), x), after

    def step(self, x: Any) -> Any:  # (B, I) or ids (B,) -> (B, C)
        """One time step, from the state that the step before left."""
        array = self._input(x, 1)
        batch = array.shape[0]
        remembered = self._remembered
        if remembered is not None and remembered.batch != batch:
            raise ValueError(
                f"step() had {remembered.batch} sequences before, now {batch}; call reset() in between."
            )
        value, self._remembered = self._run(array[None], self._state(remembered, batch), None, False)
        value = value[0] if value.ndim == 3 else value
        return self._like(value[..., 0] if self.narrow.chain.squeezed else value, x)

    def reset(self) -> None:
        """Forget the state of step()."""
        self._remembered = None

    def zero_state(self, batch: int) -> EngineState:
        return EngineState(batch, tuple(stage.network.zero_state(batch) for stage in self._networks))

    def _run(
        self, x: Array, state: EngineState, lengths: Array | None, batch_first: bool
    ) -> tuple[Array, EngineState]:
        parts = iter(state.parts)
        after = []
        value = x
        for stage in self.stages:
            if isinstance(stage, NetworkStage):
                value, part = stage.run(value, next(parts), lengths, batch_first, self.threads)
                after.append(part)
            else:
                value = stage(value, batch_first)
        return self._widen(value), EngineState(state.batch, tuple(after))

    def _widen(self, value: Floats) -> Floats:
        """All original output channels; the removed ones are constant."""
        if len(self.narrow.kept) == self.narrow.width:
            return value
        whole = np.broadcast_to(self.narrow.rest, (*value.shape[:-1], self.narrow.width)).copy()
        whole[..., self.narrow.kept] = value
        return whole

    def _layout(self, value: Array, batch_first: bool) -> Array:
        chain = self.narrow.chain
        if value.ndim == 3:
            wanted_batch_first = chain.output_axes == "BTC" or (
                chain.output_axes == "RC" and not chain.rows_time_first
            )
            if wanted_batch_first != batch_first:
                value = value.swapaxes(0, 1)
            if chain.output_axes == "RC":
                value = value.reshape(-1, value.shape[-1])
        return np.ascontiguousarray(value[..., 0] if chain.squeezed else value)

    def _input(self, x: Any, axes: int) -> Array:
        """The caller's array, checked; `axes` are its axes besides the channels."""
        if isinstance(x, torch.Tensor):
            if x.device.type != "cpu":
                raise ValueError(f"x is on {x.device}; the engine runs on the CPU: x.cpu().")
            if x.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    "x requires a gradient, and the engine has none; use the compact model, or x.detach()."
                )
            x = x.detach().numpy()
        array = np.asarray(x)
        if self._words:
            if array.dtype.kind not in "iu":
                raise TypeError(f"x must be integer word ids, got {array.dtype}.")
            if array.ndim != axes:
                raise ValueError(f"x must have {axes} axes of word ids, got shape {array.shape}.")
            return np.ascontiguousarray(array, np.int64)
        if array.dtype != np.float32:
            raise TypeError(f"x must be float32, got {array.dtype}.")
        if array.ndim != axes + 1 or array.shape[-1] != self.narrow.n_inputs:
            raise ValueError(
                f"x must have {axes + 1} axes, the last of {self.narrow.n_inputs}; got {array.shape}."
            )
        return np.ascontiguousarray(array)

    def _state(self, state: EngineState | None, batch: int) -> EngineState:
        if state is None:
            return self.zero_state(batch)
        if not isinstance(state, EngineState) or len(state.parts) != len(self._networks):
            raise TypeError("state must be what an earlier call of this engine returned, or None.")
        if state.batch != batch:
            raise ValueError(f"state is of {state.batch} sequences, x of {batch}.")
        return state

    @staticmethod
    def _like(value: Array, x: Any) -> Any:
        return torch.from_numpy(value) if isinstance(x, torch.Tensor) else value


class NetworkStage:
    """Embedding, levels and head that the kernels run in one call."""

    def __init__(self, network: Network, final: bool) -> None:
        self.network, self.final = network, final

    def run(
        self, x: Array, state: Floats, lengths: Array | None, batch_first: bool, threads: int
    ) -> tuple[Floats, Floats]:
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
        shape = (batch, self.network.width) if self.final else (*x.shape[:2], self.network.width)
        y, after = np.empty(shape, np.float32), state.copy()
        self.network.run(x, after, y, steps, batch, batch_first, lengths, threads)
        return y, after


Stage = NetworkStage | Callable[[Array, bool], Array]


def build(narrow: NarrowChain, fold_embedding: bool | None, threads: int) -> list[Stage]:
    """Stages for a narrow chain: as much as possible in networks, the rest in NumPy."""
    links = list(narrow.links)
    stages: list[Stage] = []
    width = narrow.n_inputs
    while links:
        table = links.pop(0) if isinstance(links[0], Table) else None
        levels: list[Level] = []
        while links and isinstance(links[0], Level) and same_directions(levels, links[0]):
            levels.append(links.pop(0))  # type: ignore[arg-type]
        if not levels:
            stage, width = numpy_stage(links.pop(0), width)
            stages.append(stage)
            continue
        final = bool(links) and links[0] == Function("last_state")
        one_way = len(levels[0].directions) == 1
        if links and links[0] == Function("last_step") and one_way:
            final = True  # with one direction the last step is the last state
        if final:
            links.pop(0)
        head = links.pop(0) if links and isinstance(links[0], Affine) else None
        scores = head is not None and bool(links) and links[0] == Function("softmax")
        if scores:
            links.pop(0)
        network = make_network(table, levels, head, width, final, scores, fold_embedding)  # type: ignore[arg-type]
        stages.append(NetworkStage(network, final))
        width = network.width
    return stages


def same_directions(levels: list[Level], level: object) -> bool:
    assert isinstance(level, Level)
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
        head=None if head is None else (pack_matrix(spread_columns(head, top)), head.bias),
        softmax=scores,
        final=final,
    )


def folds(table: Table, level: Level, wish: bool | None) -> bool:
    """word -> input projection (V', R) in place of the embedding (V', E') and its product: fewer bytes, less work."""
    rows = sum(len(r.slots) for r in level.directions)
    return rows < table.weight.shape[1] if wish is None else wish


def pack(level: Level, r: Recurrence, embedding: Floats | None) -> Any:
    return pack_layer(
        level.cell.name,
        r.w_ih,
        r.w_hh,
        r.slots,
        r.bias,
        r.bias_gated[0] if len(r.bias_gated) else None,
        squash=level.gate_activation,
        inputs=r.inputs,
        reads=r.reads,
        scale=r.scale,
        embedding=embedding,
    )


def spread_columns(head: Affine, width: int) -> Floats:
    """The head's matrix over all channels it is handed: zero columns for those it does not read."""
    if len(head.inputs) == width:
        return head.weight
    whole = np.zeros((len(head.weight), width), np.float32)
    whole[:, head.inputs] = head.weight
    return whole


def numpy_stage(link: object, width: int) -> tuple[Callable[[Array, bool], Array], int]:
    """What the kernels have no call for: a function, or a linear layer that no recurrent layer precedes."""
    if isinstance(link, Affine):
        return (lambda x, _: x[..., link.inputs] @ link.weight.T + link.bias), len(link.weight)
    assert isinstance(link, Function)
    if link.name == "last_step":
        return (lambda x, batch_first: x[:, -1] if batch_first else x[-1]), width
    return FUNCTIONS[link.name], width


def log_softmax(x: Array) -> Array:
    shifted: Array = x - x.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def scores(x: Array) -> Array:
    y = np.ascontiguousarray(x)
    softmax(y)
    return y


FUNCTIONS: dict[str, Callable[[Array, bool], Array]] = {
    "relu": lambda x, _: np.maximum(x, 0),
    "tanh": lambda x, _: np.tanh(x),
    "sigmoid": lambda x, _: np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)),
    "softmax": lambda x, _: scores(x),
    "log_softmax": lambda x, _: log_softmax(x),
}
