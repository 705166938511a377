"""Compact layers as compression hands them over, and their equations in float64 NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatewise.runtime import bindings
from gatewise.runtime.arrangement import ArrangedLayer, arrange_layer

try:
    ISAS = tuple(bindings.kernels())
except bindings.NativeLibraryError:
    pytest.skip("the C kernels are not built", allow_module_level=True)

Doubles = NDArray[np.float64]
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@dataclass(frozen=True)
class Case:
    """A compact layer in the form that compression hands over, and the same numbers as the reference reads them."""

    cell: str
    squash: str
    n_x: int
    w_ih: Doubles  # (R, n_in)
    w_hh: Doubles  # (R, n_rec)
    slot: NDArray[np.int64]  # (R)
    bias: Doubles  # (G, K)
    bias_hn: Doubles  # (K)
    inputs: NDArray[np.int64] | None
    reads: NDArray[np.int64] | None
    scale: Doubles | None

    @property
    def n_units(self) -> int:
        return self.bias.shape[1]

    def arranged(self, **options: Any) -> ArrangedLayer:
        return arrange_layer(
            self.cell,
            self.w_ih,
            self.w_hh,
            self.slot,
            self.bias,
            self.bias_hn,
            squash=self.squash,
            inputs=self.inputs,
            reads=self.reads,
            scale=self.scale,
            **options,
        )


def make_case(
    seed: int,
    cell: str = "LSTM",
    squash: str = "sigmoid",
    n_x: int = 7,
    n_units: int = 5,
    live: float = 0.6,
    density: float = 1.0,
    subset: bool = True,
    scaled: bool = True,
) -> Case:
    rng = np.random.default_rng(seed)
    n_gates = 4 if cell == "LSTM" else 3
    slot = rng.permutation(np.flatnonzero(rng.random(n_gates * n_units) < live))
    if n_units and seed % 3 == 0:  # output-only neurons: their c moves, but not with the data
        slot = slot[slot >= (n_gates - 1) * n_units]
    inputs = rng.permutation(n_x)[: rng.integers(0, n_x + 1)] if subset else None
    reads = rng.permutation(n_units)[: rng.integers(0, n_units + 1)] if subset else None
    n_in, n_rec = n_x if inputs is None else len(inputs), n_units if reads is None else len(reads)

    def matrix(rows: int, cols: int) -> Doubles:
        w = rng.normal(size=(rows, cols)) / np.sqrt(max(cols, 1))
        return np.where(rng.random(w.shape) < density, w, 0).astype(np.float32).astype(np.float64)

    return Case(
        cell,
        squash,
        n_x,
        matrix(len(slot), n_in),
        matrix(len(slot), n_rec),
        slot,
        rng.normal(size=(n_gates, n_units)),
        rng.normal(size=n_units),
        inputs,
        reads,
        rng.normal(size=n_units) if scaled else None,
    )


def squash_reference(name: str, x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x)) if name == "sigmoid" else np.clip(0.2 * x + 0.5, 0, 1)


def reference_step(case: Case, x: Doubles, s: Doubles, c: Doubles) -> tuple[Doubles, Doubles]:
    """One step for one sequence, as the equations say it: a row that is not live is zero."""
    act = partial(squash_reference, case.squash)
    input_part, recurrent_part = np.zeros(case.bias.size), np.zeros(case.bias.size)
    input_part[case.slot] = case.w_ih @ (x if case.inputs is None else x[case.inputs])
    recurrent_part[case.slot] = case.w_hh @ (s if case.reads is None else s[case.reads])
    input_part = input_part.reshape(case.bias.shape) + case.bias
    recurrent_part = recurrent_part.reshape(case.bias.shape)
    if case.cell == "LSTM":
        i, f, g, o = input_part + recurrent_part
        c = act(f) * c + act(i) * np.tanh(g)
        return act(o) * np.tanh(c), c
    r, u = act(input_part[0] + recurrent_part[0]), act(input_part[1] + recurrent_part[1])
    n = np.tanh(input_part[2] + r * (recurrent_part[2] + case.bias_hn))
    return u * s + (1 - u) * n, c


def reference(
    case: Case,
    x: Doubles,  # (T, B, I)
    s: Doubles,  # (B, K)
    c: Doubles,  # (B, K)
    lengths: NDArray[np.int32] | None = None,
    reverse: bool = False,
) -> tuple[Doubles, Doubles, Doubles]:  # h: (T, B, K), s, c
    n_steps, n_batch = x.shape[:2]
    y, s, c = np.zeros((n_steps, n_batch, case.n_units)), s.copy(), c.copy()
    for b in range(n_batch):
        length = n_steps if lengths is None else lengths[b]
        for t in reversed(range(length)) if reverse else range(length):
            s[b], c[b] = reference_step(case, x[t, b], s[b], c[b])
            y[t, b] = s[b] * (1 if case.scale is None else case.scale)
    return y, s, c


def as_float(x: Doubles) -> NDArray[np.float32]:
    return np.ascontiguousarray(x, np.float32)


def random_states(rng: np.random.Generator, net: bindings.Network, batch: int) -> NDArray[np.float32]:
    """A state with NaN wherever nothing may be read: in the padding."""
    state = np.full(batch * net.state_size, np.nan, np.float32)
    for parts in net.states(state, batch):
        for part in parts:
            part[...] = rng.normal(size=part.shape)
    return state


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return make_case(
        draw(st.integers(0, 10_000)),
        draw(st.sampled_from(["LSTM", "GRU"])),
        draw(st.sampled_from(["sigmoid", "hard_sigmoid"])),
        n_x=draw(st.sampled_from([0, 1, 3, 20])),
        n_units=draw(st.sampled_from([0, 1, 2, 4, 8, 15, 16, 17, 33, 70])),
        live=draw(st.sampled_from([0.0, 0.1, 0.6, 1.0])),
        density=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        subset=draw(st.booleans()),
        scaled=draw(st.booleans()),
    )
