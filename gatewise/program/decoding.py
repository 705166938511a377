"""gw.nn.greedy_decode: an analysis follows two of its steps, and a program says how to go without it."""

from __future__ import annotations

from typing import Any

import torch

from gatewise.nn.decoding import decoded
from gatewise.program.arithmetic import rule
from gatewise.program.creation import full
from gatewise.program.fits import require
from gatewise.program.layers import BATCH, n_states, needs, state_shapes
from gatewise.program.recorder import node_of
from gatewise.program.shapes import unsqueeze
from gatewise.program.stand_ins import Refused, current


class ReadsItself(Refused):
    """forward() loops for as long as its own answers say."""


@rule("greedy_decode")
def greedy_decode(
    embedding: Any,
    rnn: Any,
    head: Any,
    state: Any,
    *,
    start: Any,
    end: Any,
    longest: Any,
    attention: Any = None,
) -> Any:
    if not current().lenient:
        raise ReadsItself(
            "greedy_decode() runs in torch alone; export the encoder and one step of the decoder as two models, and "
            "loop over the step (docs/export.md, Decoders that read their own answers)"
        )
    needs(state, state_shapes(rnn, (BATCH,)))
    part = state if n_states(rnn) == 1 else state[0]
    needs(part, (rnn.num_layers, BATCH, rnn.hidden_size))
    require(node_of(part).rank == 3)
    symbols: Any = full((node_of(part).shape[1],), start, torch.int64)
    for _ in range(2):  # the second reads what the first left, as all that follow do
        symbols, state = decoded(embedding, rnn, head, symbols, state, attention)
    return unsqueeze(symbols, 1).expand(-1, longest)
