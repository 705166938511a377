"""Golden vectors of a chain: the sequence that goes in, and the file that has it and its answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.export.c.arrays import declaration
from gatewise.runtime.narrow import NarrowChain


def golden_text(
    x: NDArray[Any], answer: NDArray[Any]
) -> str:  # x: (T, n_inputs) or ids (T,); answer: (n, width)
    x = x.astype(np.int32 if x.ndim == 1 else np.float32)
    return (
        "/* What goes in, and what must come out. */\n\n#include <stdint.h>\n\n"
        f"#define GOLDEN_STEPS {len(x)}\n#define GOLDEN_ANSWERS {len(answer)}\n\n"
        + declaration("static const {} golden_x", x.reshape(-1))
        + declaration("static const {} golden_y", answer.astype(np.float32).reshape(-1))
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
