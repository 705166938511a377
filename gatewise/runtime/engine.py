"""gw.Engine(small): a whole chain of compact layers in one call to the C kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gatewise.runtime.arguments import check_finite, from_tensor, is_tensor, plain_array, unknown
from gatewise.runtime.bindings import check_threads
from gatewise.runtime.chained import ChainError
from gatewise.runtime.narrow import Floats, NarrowChain, narrowed, pools, recorded, shippable
from gatewise.runtime.rounding import check_weights
from gatewise.runtime.stages import FLOAT32, Array, Frame, NetworkStage, PoolStage, make_stages
from gatewise.wording import counted

INT64 = np.dtype(np.int64)


class EngineState:
    """What an engine remembers between two calls; opaque, made by the engine, never changed by it."""

    __slots__ = ("_parts", "batch", "shape")
    _parts: tuple[Floats, ...]
    batch: int
    shape: tuple[
        tuple[str, int], ...
    ]  # cell and neurons of every layer and direction, pools, sizes of all parts

    def __init__(self, *_: object) -> None:
        raise TypeError(
            "A state is made by an engine, which alone knows how it lies in memory: y, state = engine(x). Sequences "
            "that are to go on together begin together."
        )


def made_state(batch: int, parts: tuple[Floats, ...], shape: tuple[tuple[str, int], ...]) -> EngineState:
    state = EngineState.__new__(EngineState)
    state.batch, state._parts, state.shape = batch, parts, shape
    return state


class Ready(NamedTuple):
    """A repeated single step: an x of this shape and type goes straight to the kernels."""

    kernel: Callable[..., Any]
    how: tuple[Any, ...]  # the state's address, batch, threads, what makes the answer
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    memory: Floats  # the state itself: reset() in another thread must not free it while a kernel runs


class Again(NamedTuple):
    """A repeated call: an x of this shape and type goes straight to the kernels."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    answer: tuple[int, ...]
    kernel: Callable[..., None]
    how: tuple[Any, ...]  # steps, batch, whether it comes first, no lengths, threads
    floats: int  # of the state
    kind: tuple[tuple[str, int], ...]  # the state's shape

    def knows(self, state: Any) -> bool:
        return type(state) is EngineState and state.shape is self.kind and state.batch == self.how[1]

    def run(self, x: Array, state: EngineState | None) -> tuple[Floats, EngineState]:
        memory = np.zeros(self.floats, FLOAT32) if state is None else state._parts[0].copy()
        y = np.empty(self.answer, FLOAT32)
        self.kernel(x, memory, y, *self.how)
        return y, made_state(self.how[1], (memory,), self.kind)


class Engine:
    """y, state = engine(x, state): the model's forward() on the CPU, for inference.

    x is what `model.forward` takes first, a NumPy array or CPU tensor of float32 vectors or integer word ids; the
    answer is of the same type, in the shape forward() gives it. `step(x)` feeds one time step, (B, I) or ids (B,),
    and remembers the state until `reset()`. Calls with an explicit state may run from several threads at once. With
    two directions there is no step(), and a state only where forward() returns one.

    Args:
        fold_embedding: True folds the embedding into the first layer as a table word -> input projection, False never
            does; None (default) does it where that takes fewer bytes. A one-hot input is always read as a table.
        threads: threads for large batches.
        weights: "int8", with one scale for every row, of the matrices that are multiplied: a step of a network
            larger than the cache takes as long as reading them. Embeddings, biases, inputs and states stay
            float32; sums are as exact.
        example: the arguments of one call of forward(), where their shapes cannot be told without.
        check: refuse inputs that are not finite. One NaN stays in the state of step() for ever, or until reset().

    A model that is no chain of layers runs as the graph it is: `y, state = engine(*inputs)` takes forward()'s
    arguments in its order or by name, and y has forward()'s structure.
    """

    narrow: NarrowChain

    def __new__(cls, model: nn.Module, **options: Any) -> Engine:
        small = shippable(model)
        ways = recorded(small, options.pop("example", None))
        try:
            narrow = narrowed(small, ways)
        except ChainError:
            from gatewise.runtime.graph_engine import graph_engine

            return graph_engine(small, ways, **options)
        made = super().__new__(cls)
        made.narrow = narrow
        return made

    def __init__(
        self,
        model: nn.Module,
        *,
        threads: int = 1,
        fold_embedding: bool | None = None,
        weights: str = "float32",
        example: Any = None,
        check: bool = False,
    ) -> None:
        check_threads(threads)
        self.threads, self.check = threads, check
        self.weights = check_weights(weights)
        self.stages = make_stages(self.narrow, fold_embedding, self.weights)
        self._remembering = [stage for stage in self.stages if isinstance(stage, NetworkStage | PoolStage)]
        cells = [(level.cell.name, r.kept) for level in self.narrow.levels for r in level.directions]
        pooled = [(link.name, 0) for link in self.narrow.links if pools(link)]
        sizes = [("", stage.state_size) for stage in self._remembering]
        self._state_shape = (*cells, *pooled, *sizes)
        self._remembered: tuple[EngineState, Frame] | None = None
        self._ready: Ready | None = None
        self._again: Again | None = None
        chain = self.narrow.chain
        self._words, self._batch_axis, self._squeezed = chain.words, chain.batch_axis, chain.squeezed
        self._batch_first = self._batch_axis == 0
        self._whole = len(self.narrow.kept) == self.narrow.width
        self._rows = chain.output_axes == "RC"
        answer_batch_first = not chain.rows_time_first if self._rows else chain.output_axes == "BTC"
        self._swapped = answer_batch_first != self._batch_first

    def __repr__(self) -> str:
        """`<Engine 4 numbers -> GRU, 11 neurons, 12 live gates -> 2 numbers, float32 weights, threads=1>`"""
        given = f"{self.narrow.n_inputs:,} numbers" if self.narrow.n_inputs else "words"
        layers = [
            f"{level.cell.name}, {own.kept:,} neurons, {len(own.slots):,} live gates"
            for level in self.narrow.levels
            for own in level.directions
        ]
        chain = " -> ".join([given, *layers, f"{self.narrow.width:,} numbers"])
        return f"<Engine {chain}, {self.weights} weights, threads={self.threads}>"

    def __call__(self, x: Any, state: EngineState | None = None, **named: Any) -> tuple[Any, EngineState]:
        for name in named:
            raise unknown(name, ("x", "state"))
        if self.check:
            check_finite([x])
        again = self._again
        if again is not None:
            given = plain_array(x, again.shape, again.dtype)
            if given is not None and (state is None or again.knows(state)):
                y, after = again.run(given, state)
                return (y if given is x else torch.from_numpy(y)), after
        array = self._input(x, 2)
        axes = array.shape[:2]
        batch = axes[self._batch_axis]
        if not batch:
            return self._no_sequence(x, array), self.zero_state(0)
        after = self.zero_state(batch) if state is None else self._copy(state, batch)
        frame = Frame(axes, axes[1 - self._batch_axis], batch, self._batch_first, self.threads)
        value = self._layout(self._run(array, after, frame))
        self._again = self._repeated_call(array, frame)
        return (torch.from_numpy(value) if is_tensor(x) else value), after

    def _no_sequence(self, x: Any, array: Array) -> Any:
        """The answer to a batch of none, as torch gives it: that to one sequence, without the sequence."""
        shape = tuple([size or 1 for size in array.shape])
        y, _ = self(np.zeros(shape, array.dtype))
        y = y[(slice(None),) * max(self.narrow.chain.output_axes.find("B"), 0) + (slice(0),)]
        return torch.from_numpy(y) if is_tensor(x) else y

    def step(self, x: Any) -> Any:  # (B, I) or ids (B,) -> (B, C)
        """One time step, from the state that the step before left."""
        if self.check:
            check_finite([x])
        ready = self._ready
        if ready is None:
            return self._any_step(x)
        if type(x) is not np.ndarray:
            given = plain_array(x, ready.shape, ready.dtype)
            return self._any_step(x) if given is None else torch.from_numpy(self.step(given))
        y = ready.kernel(x, ready.how)
        return self._any_step(x) if y is None else y

    def _any_step(self, x: Any) -> Any:
        """step() for whatever may come: the first one, tensors, engines of several stages, mistakes."""
        array = self._input(x, 1)
        batch = len(array)
        before = self._remembered
        if before is None and self.narrow.both_ways:
            raise self._no_pieces("step()")
        if not batch:  # as torch answers; the state stays
            y = self._run(np.zeros((1, *array.shape[1:]), array.dtype), self.zero_state(1), Frame((1,), 1, 1))
            y = y[:0, ..., 0] if self._squeezed else y[:0]
            return torch.from_numpy(y) if is_tensor(x) else y
        state, frame = before or (self._step_state(batch), Frame((batch,), 1, batch, threads=self.threads))
        if frame.batch != batch:
            raise ValueError(
                f"step() had {counted(frame.batch, 'sequence')} before, now {batch}; call reset() in between."
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
        parts = tuple([np.zeros(batch * stage.state_size, FLOAT32) for stage in self._remembering])
        return made_state(batch, parts, self._state_shape)

    def _step_state(self, batch: int) -> EngineState:
        """As above, but where vectors do not cross cache lines; worth its time for a state that stays."""
        parts = tuple([stage.zero_state(batch) for stage in self._remembering])
        return made_state(batch, parts, self._state_shape)

    def _repeated_step(self, x: Array, state: EngineState) -> Ready | None:
        """The short way for more steps like this one, where the kernels do everything."""
        stage, as_it_is = self.stages[0], self._whole and not self._squeezed
        if len(self.stages) != 1 or not isinstance(stage, NetworkStage) or not as_it_is:
            return None
        batch, memory = state.batch, state._parts[0]
        how = (memory.ctypes.data, batch, self.threads, np.empty, (batch, stage.width), FLOAT32)
        return Ready(stage.step, how, x.shape, x.dtype, memory)

    def _repeated_call(self, x: Array, frame: Frame) -> Again | None:
        """The same for calls of whole sequences."""
        stage, as_it_is = self.stages[0], self._whole and not (self._squeezed or self._rows or self._swapped)
        if len(self.stages) != 1 or not isinstance(stage, NetworkStage) or not as_it_is:
            return None
        if self.narrow.both_ways and not self.narrow.chain.returns_state:
            return None
        answer = (frame.batch, stage.width) if stage.final else (*frame.axes, stage.width)
        how = (frame.steps, frame.batch, frame.batch_first, None, frame.threads)
        return Again(
            x.shape, x.dtype, answer, stage.kernel, how, frame.batch * stage.state_size, self._state_shape
        )

    def _run(self, x: Array, state: EngineState, frame: Frame) -> Array:
        """Every stage in turn; the state is overwritten."""
        parts = iter(state._parts)
        for stage in self.stages:
            x = stage(x, frame) if callable(stage) else stage.run(x, next(parts), frame)
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
        if axes == 2 and array.ndim > 1 and not array.shape[1 - self._batch_axis]:
            raise ValueError(f"x is empty: {array.shape}; it needs a step, at least.")
        if self._words:
            if array.dtype.kind not in "iu":
                raise TypeError(f"x must be integer word ids, got {array.dtype}.")
            if array.ndim != axes:
                raise ValueError(f"x must be word ids {self._expected(array.shape, axes)}.")
            return (
                array if array.dtype is INT64 and is_plain(array) else np.require(array, np.int64, ["C", "A"])
            )
        if array.dtype != FLOAT32:
            convert = "x.float()" if is_tensor(x) else "x.astype(np.float32)"
            raise TypeError(f"x must be float32, got {array.dtype}; {convert} converts it.")
        if array.ndim != axes + 1 or array.shape[-1] != self.narrow.n_inputs:
            raise ValueError(f"x must be {self._expected(array.shape, axes, self.narrow.n_inputs)}.")
        return array if is_plain(array) else np.require(array, None, ["C", "A"])

    def _expected(self, given: tuple[int, ...], axes: int, *width: int) -> str:
        """How x is laid out, for messages: (B,) and (B, I) for a step, (T, B) and (B, T, I) for sequences."""
        names = ("B",) if axes == 1 else ("B", "T") if self._batch_first else ("T", "B")
        said = f"{as_shape(*names, *width)}, got shape {given}"
        if len(given) != axes + len(width) - 1:
            return said
        return f"{said}; one alone is {as_shape(*('1' if name == 'B' else name for name in names), *width)}"

    def _no_pieces(self, what: str) -> TypeError:
        return TypeError(
            f"{what}: {self.narrow.both_ways} reads sequences in both directions, so every answer depends on "
            "steps to come. Give whole sequences: engine(x)."
        )

    def _copy(self, state: EngineState, batch: int) -> EngineState:
        if not isinstance(state, EngineState) or state.shape != self._state_shape:
            raise TypeError("state must be what an earlier call of this engine returned, or None.")
        if self.narrow.both_ways and not self.narrow.chain.returns_state:
            raise self._no_pieces("state")
        if state.batch != batch:
            raise ValueError(f"state is of {counted(state.batch, 'sequence')}, x of {batch}.")
        return made_state(batch, tuple([part.copy() for part in state._parts]), state.shape)


def as_shape(*sizes: int | str) -> str:
    """(B, T, 3) or (B,), as Python writes it."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def is_plain(x: Array) -> bool:
    """Whether the kernels can read an array where it is."""
    flags = x.flags
    return flags.c_contiguous and flags.aligned
