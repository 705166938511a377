"""Golden vectors: an input, and what the generated C must answer to it."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gatewise.export.c.arrays import declaration
from gatewise.export.c.reference import answer, rounded
from gatewise.nn.lookup import evaluating
from gatewise.program.graph import leaves
from gatewise.runtime.narrow import NarrowChain

GOLDEN_STEPS, GOLDEN_NUMBERS = 12, 20_000
BESIDES = "forward() gives something else than the chain of layers that was found in it; its answer must come first."


class Golden:
    """An input, the compact model's answer to it, and the answer that the C must give."""

    def __init__(self, model: nn.Module, narrow: NarrowChain, most: int, int8: bool, fold: bool) -> None:
        steps = max(1, min(most, GOLDEN_STEPS, max(2, GOLDEN_NUMBERS // narrow.width)))
        self.x = golden_input(narrow, steps)
        self.exact = forward(model, narrow, self.x)
        self.computed = answer(narrow, self.x).astype(np.float32)
        if not np.isfinite(self.exact).all():
            raise ValueError(
                "The model's answer to small random inputs is not finite; its weights are too large."
            )
        if not np.allclose(self.computed, self.exact, rtol=1e-3, atol=1e-4):
            raise ValueError(BESIDES)
        if int8:
            self.computed = answer(rounded(narrow, fold), self.x).astype(np.float32)
        self.expected = self.computed if int8 else self.exact

    def errors(self) -> tuple[float, float]:
        """Largest absolute error, and the same relative to the largest answer."""
        error = float(np.abs(self.computed - self.exact).max(initial=0))
        return error, error / max(float(np.abs(self.exact).max(initial=0)), 1e-30)

    def text(self) -> str:
        return (
            "/* What goes in, and what must come out. */\n\n#include <stdint.h>\n\n"
            f"#define GOLDEN_STEPS {len(self.x)}\n#define GOLDEN_ANSWERS {len(self.expected)}\n\n"
            + declaration(
                "static const {} golden_x",
                self.x.astype(np.int32 if self.x.ndim == 1 else np.float32).reshape(-1),
            )
            + declaration("static const {} golden_y", self.expected.reshape(-1))
        )


def golden_input(narrow: NarrowChain, steps: int) -> NDArray[Any]:  # (T, n_inputs) or ids (T,)
    """The same for every export of a model; of words, every other one is a kept one."""
    generator = np.random.default_rng(0)
    if not narrow.chain.words:
        return generator.standard_normal((steps, narrow.n_inputs), np.float32)
    table = narrow.table
    ids = generator.integers(0, table.n_words, steps)
    kept = np.arange(table.n_words) if table.rows is None else np.flatnonzero(table.rows >= 0)
    if len(kept):
        ids[::2] = generator.choice(kept, len(ids[::2]))
    found: NDArray[Any] = narrow.chain.texts(ids)
    return found


def forward(model: nn.Module, narrow: NarrowChain, x: NDArray[Any]) -> NDArray[np.float32]:
    """(T, width), or (1, width) where there is one answer."""
    batch = torch.from_numpy(x).unsqueeze(narrow.chain.batch_axis)
    lengths = narrow.chain.whole(len(x), 1)
    try:
        inspect.signature(model.forward).bind(batch, **lengths)
    except TypeError as error:
        raise ValueError(
            f"golden answers are those of forward(x), but that is {error}. Give it a default, such as None."
        ) from error
    with evaluating(model), torch.no_grad():
        found = [leaf for leaf in leaves(model(batch, **lengths)) if isinstance(leaf, Tensor)]
    rows = 1 if narrow.chain.output_axes == "BC" else len(x)
    if not found or found[0].numel() != rows * narrow.width:
        raise ValueError(BESIDES)
    whole: NDArray[np.float32] = found[0].numpy().reshape(rows, narrow.width)
    return whole
