"""Stacks of gated layers with the constructor, call and state_dict of `torch.nn.LSTM` and `torch.nn.GRU`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from gatewise.layout import Cell, State, suffix
from gatewise.nn.cells import GRU as GRU_CELL
from gatewise.nn.cells import LSTM as LSTM_CELL
from gatewise.nn.cells import SQUASHES
from gatewise.nn.padded import stretches_of
from gatewise.nn.recurrence import (
    FUSED,
    Weights,
    faster_unfused,
    fused_layer,
    fused_stack,
    fusible,
    scan_anywhere,
)
from gatewise.nn.scripting import Unscriptable

Answer = tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]  # y, and the last state


class Recurrent(Unscriptable, nn.Module):
    """h_t, state_t = step(x_t, state_{t-1}), for every layer and direction; the cell says what a step is.

    Subclasses name their cell. Parameters are called and shaped as in `torch.nn`, so checkpoints go both
    ways. Beyond `torch.nn`: `gate_activation` ("sigmoid" or "hard_sigmoid"), and `forward(..., mask=)`, which
    copies the state over the positions where the mask is False (left-padded batches).
    """

    cell: Cell

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cell = vars(cls).get("cell")
        if isinstance(cell, Cell) and cell.name in FUSED and cell not in (LSTM_CELL, GRU_CELL):
            raise ValueError(
                f"{cls.__name__}: a cell named {cell.name} runs in the kernels of that name, not by its own step(). "
                f"Give it another name, or make {cls.__name__} a subclass of gatewise.nn.{cell.name}."
            )

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        gate_activation: str = "sigmoid",
    ) -> None:
        nn.Module.__init__(self)
        name = type(self).__name__
        if not isinstance(getattr(self, "cell", None), Cell):
            raise TypeError(
                f"{name}: has no cell. Declare one, cell = gatewise.layout.Cell(...), or use gatewise.nn.LSTM or GRU."
            )
        if proj_size:
            raise ValueError(
                f"{name}: proj_size={proj_size} is not supported: a projection mixes the neurons that are to be "
                "removed one by one. Use proj_size=0 and a Linear after the layer."
            )
        if gate_activation not in SQUASHES:
            raise ValueError(
                f"{name}: gate_activation={gate_activation!r} is not one of {', '.join(SQUASHES)}."
            )
        for label, size in (
            ("input_size", input_size),
            ("hidden_size", hidden_size),
            ("num_layers", num_layers),
        ):
            if size < 1:
                raise ValueError(f"{name}: {label}={size} must be at least 1.")
        if not 0 <= dropout <= 1:
            raise ValueError(f"{name}: dropout={dropout} is not a probability.")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size, self.gate_activation = bidirectional, 0, gate_activation
        rows = self.cell.n_gates * hidden_size
        for layer, direction in self.places():
            end, width = suffix(layer, direction), self.layer_input_size(layer)
            shapes: list[tuple[str, tuple[int, ...]]] = [
                ("weight_ih", (rows, width)),
                ("weight_hh", (rows, hidden_size)),
            ]
            if bias:
                shapes += [("bias_ih", (rows,)), ("bias_hh", (rows,))]
            for label, shape in shapes:
                self.register_parameter(
                    label + end, nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                )
        self.reset_parameters()
        self.flatten_parameters()

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, found by name: the copies that nn.DataParallel makes have no parameters()."""
        return cast(Tensor, getattr(self, "weight_ih" + suffix(0, 0))).dtype

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def places(self) -> Iterator[tuple[int, int]]:
        """(layer, direction) of every recurrence, in the order of the states."""
        return ((layer, d) for layer in range(self.num_layers) for d in range(self.num_directions))

    def layer_input_size(self, layer: int) -> int:
        return self.input_size if layer == 0 else self.hidden_size * self.num_directions

    def reset_parameters(self) -> None:
        """U(-1/sqrt(H), 1/sqrt(H)) everywhere, as torch does."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        options: dict[str, Any] = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "gate_activation": "sigmoid",
        }
        said = [
            f"{key}={getattr(self, key)!r}" for key, usual in options.items() if getattr(self, key) != usual
        ]
        return ", ".join([str(self.input_size), str(self.hidden_size), *said])

    # nn.RNNBase keeps lists of its parameters beside them; here they are made when somebody asks, as does its
    # flatten_parameters(), with which cuDNN needs no copy of the weights.

    __setattr__ = nn.Module.__setattr__
    __setstate__ = nn.Module.__setstate__
    _replicate_for_data_parallel = nn.Module._replicate_for_data_parallel

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    @property
    def mode(self) -> str:
        return self.cell.name

    @property
    def _flat_weights_names(self) -> list[str]:
        labels = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if self.bias else ("weight_ih", "weight_hh")
        return [label + suffix(*place) for place in self.places() for label in labels]

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._flat_weights_names]

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """As in torch, recurrence by recurrence."""
        each = 4 if self.bias else 2
        return [self._flat_weights[k : k + each] for k in range(0, len(self._flat_weights_names), each)]

    def flatten_parameters(self) -> None:
        """Lay the parameters out as one block, as cuDNN wants them; nothing happens elsewhere."""
        if self.cell.name in FUSED:
            nn.RNNBase.flatten_parameters(cast(nn.RNNBase, self))

    def _apply(self, fn: Any, recurse: bool = True) -> Recurrent:
        nn.Module._apply(self, fn, recurse)
        self.flatten_parameters()
        return self

    def weights(self, layer: int, direction: int, n_sequences: int) -> Weights:
        """What this layer and direction computes with on a batch of `n_sequences`."""
        end = suffix(layer, direction)
        w_ih, w_hh = getattr(self, "weight_ih" + end), getattr(self, "weight_hh" + end)
        if not self.bias:
            return Weights(w_ih, w_hh, None, None)
        return Weights(w_ih, w_hh, getattr(self, "bias_ih" + end), getattr(self, "bias_hh" + end))

    def deterministic(self, layer: int, direction: int) -> Weights:
        """What this layer and direction computes with in evaluation."""
        return self.weights(layer, direction, 1)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | tuple[Tensor, ...] | None = None,
        *,
        mask: Tensor | None = None,  # bool, (T, B), or (B, T) with batch_first
    ) -> Answer:
        # torch.compile leaves it alone, as it does nn.LSTM: followed, every step would be compiled.
        compiled = torch.compiler.is_compiling() or "torch._dynamo" in sys.modules
        answer: Answer = (self._uncompiled if compiled else self._called)(input, hx, mask)
        return answer

    # Asked for only then: it imports all of dynamo when it is called first.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _uncompiled(self, *given: Any) -> Any:
        return self._called(*given)

    def _called(self, input: Tensor | PackedSequence, hx: Any, mask: Tensor | None) -> Answer:
        if isinstance(input, PackedSequence):
            if mask is not None:
                raise ValueError(
                    f"{type(self).__name__}: a packed input needs no mask; its lengths say it all."
                )
            x, sizes, order, undo = input
            self._check_values(x)
            state = self._state(hx, int(sizes[0]), x, batched=True)
            output, state = self._packed(x, state, sizes, order, undo)
            return PackedSequence(output, sizes, order, undo), self._answer(state)
        x, batched = self._time_first(input)
        state = self._state(hx, x.shape[1], x, batched)
        mask = None if mask is None else self._time_first_mask(mask, x, batched)
        real = None if mask is None else stretches_of(mask)
        # A given state shows on padding where a layer begins, without its removed neurons: the scan sees to that.
        if real is not None and (hx is None or (real.at_the_front and not self.bidirectional)):
            packed, state = self._packed(real.pack(x), state, real.sizes, real.order, real.undo)
            output = real.pad(packed, state[0][-self.num_directions :], len(x))
        else:
            output, state = self._run(x, state, None, None, mask)
        if not batched:
            return output.squeeze(1), self._answer(tuple(part.squeeze(1) for part in state))
        return (output.transpose(0, 1) if self.batch_first else output), self._answer(state)

    def _packed(
        self, x: Tensor, state: State, sizes: Tensor, order: Tensor | None, undo: Tensor | None
    ) -> tuple[Tensor, State]:
        """Packed sequences, the longest first, with states in the caller's order."""
        if order is not None:
            state = tuple(part.index_select(1, order) for part in state)
        output, state = self._run(x, state, sizes, order, None)
        if undo is not None:
            state = tuple(part.index_select(1, undo) for part in state)
        return output, state

    def _run(
        self, x: Tensor, state: State, sizes: Tensor | None, order: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, State]:
        """All layers, time first. `order` is the caller's order of the sequences of a packed input."""
        n = state[0].shape[1]
        weights = [self.weights(*place, n) for place in self.places()]
        if order is not None:
            weights = [w.for_sequences(order) for w in weights]
        fused = fusible(self.cell, weights, self.gate_activation, mask)
        if fused and all(w.plain for w in weights) and not faster_unfused(self.cell, x, weights, n, sizes):
            flat = [p for w in weights for p in (w.w_ih, w.w_hh, w.b_ih, w.b_hh) if p is not None]
            output, *last = fused_stack(
                self.cell,
                x,
                state,
                flat,
                self.bias,
                sizes,
                num_layers=self.num_layers,
                dropout=self.dropout,
                training=self.training,
                bidirectional=self.bidirectional,
            )
            return output, tuple(last)
        lasts: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            here = range(layer * self.num_directions, (layer + 1) * self.num_directions)
            before = [silence(tuple(part[k] for part in state), weights[k]) for k in here]
            x, after = self._layer(x, before, [weights[k] for k in here], sizes, mask)
            lasts += after
        return x, tuple(torch.stack(parts) for parts in zip(*lasts))

    def _layer(
        self,
        x: Tensor,
        states: Sequence[State],
        weights: Sequence[Weights],
        sizes: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, list[State]]:
        """One layer, by torch's kernel where that is exact and as fast, else by our own."""
        fused = fusible(self.cell, weights, self.gate_activation, mask)
        if fused and not faster_unfused(self.cell, x, weights, len(states[0][0]), sizes):
            return fused_layer(self.cell, x, states, weights, sizes)
        runs = [
            scan_anywhere(
                self.cell,
                x,
                state,
                w,
                gate_activation=self.gate_activation,
                batch_sizes=sizes,
                mask=mask,
                reverse=d == 1,
            )
            for d, (state, w) in enumerate(zip(states, weights))
        ]
        outputs = [output for output, _ in runs]
        return outputs[0] if len(runs) == 1 else torch.cat(outputs, dim=-1), [last for _, last in runs]

    def to_dense(self) -> nn.LSTM | nn.GRU:
        """The same layer as `torch.nn` knows it, with copies of the parameters."""
        classes: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"LSTM": nn.LSTM, "GRU": nn.GRU}
        name = type(self).__name__
        if self.gate_activation != "sigmoid":
            raise ValueError(
                f"{name}: torch.nn has no {self.gate_activation} gates, so to_dense() cannot be exact. "
                "The layer itself, the engine, C and ONNX run it as it is."
            )
        if self.cell.name not in classes:
            raise ValueError(f"{name}: torch.nn has no {self.cell.name} layer to go back to.")
        example = next(self.parameters())
        dense = classes[self.cell.name](
            self.input_size, self.hidden_size, self.num_layers, self.bias, self.batch_first, self.dropout,
            self.bidirectional, device=example.device, dtype=example.dtype,
        )  # fmt: skip
        dense.load_state_dict(
            {name: tensor.detach() for name, tensor in zip(self._flat_weights_names, self._flat_weights)}
        )
        return dense.train(self.training)

    # What the caller passed, checked and brought into one form.

    def _check_values(self, x: Tensor) -> None:
        name, dtype = type(self).__name__, self.dtype
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"{name}: input_size is {self.input_size}, but the input's last dimension is "
                f"{x.shape[-1]} (shape {tuple(x.shape)})."
            )
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"{name}: the input is {x.dtype}, the weights are {dtype}; convert one of them: input.to({dtype})."
            )

    def _time_first(self, x: Tensor) -> tuple[Tensor, bool]:
        name = type(self).__name__
        if x.dim() not in (2, 3):
            raise ValueError(
                f"{name}: input must be 2-D (unbatched) or 3-D, got {x.dim()}-D {tuple(x.shape)}."
            )
        batched = x.dim() == 3
        self._check_values(x)
        if not batched:
            x = x.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        if not len(x):
            raise ValueError(f"{name}: the input has no time step (shape {tuple(x.shape)}, time first).")
        return x, batched

    def _time_first_mask(self, mask: Tensor, x: Tensor, batched: bool) -> Tensor:
        mask = mask.unsqueeze(1) if not batched else mask.transpose(0, 1) if self.batch_first else mask
        if mask.shape != x.shape[:2] or mask.dtype != torch.bool:
            raise ValueError(
                f"{type(self).__name__}: mask must be bool of shape {tuple(x.shape[:2])} (time first), "
                f"got {mask.dtype} {tuple(mask.shape)}."
            )
        return mask

    def _state(self, hx: Tensor | tuple[Tensor, ...] | None, n: int, x: Tensor, batched: bool) -> State:
        name, shape = type(self).__name__, (self.num_layers * self.num_directions, n, self.hidden_size)
        if hx is None:
            return tuple(x.new_zeros(shape) for _ in range(self.cell.n_states))
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if len(state) != self.cell.n_states or isinstance(hx, Tensor) != (self.cell.n_states == 1):
            wanted = "one tensor h" if self.cell.n_states == 1 else "a pair (h, c)"
            raise ValueError(
                f"{name}: the initial state must be {wanted}, got {type(hx).__name__} of {len(state)}."
            )
        if not batched:
            state = tuple(part.unsqueeze(1) for part in state)
        for part in state:
            if part.shape != shape:
                raise ValueError(
                    f"{name}: the initial state must have shape {shape}, got {tuple(part.shape)}."
                )
        return state

    def _answer(self, state: State) -> Tensor | State:
        return state if self.cell.n_states > 1 else state[0]


def silence(state: State, weights: Weights) -> State:
    """Neurons whose z_h is zero are removed: what the caller says of their h counts as zero."""
    z = weights.neuron_scale
    return state if z is None else (torch.where(z == 0, torch.zeros_like(state[0]), state[0]), *state[1:])


class LSTM(Recurrent, nn.LSTM):  # type: ignore[misc, override]
    """`torch.nn.LSTM`, with a choice of gate activation."""

    cell = LSTM_CELL


class GRU(Recurrent, nn.GRU):  # type: ignore[misc, override]
    """`torch.nn.GRU`, with a choice of gate activation."""

    cell = GRU_CELL
