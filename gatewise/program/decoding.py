"""gw.nn.greedy_decode as one operation of a program."""

from __future__ import annotations

from typing import Any

from torch import nn

from gatewise.nn.decoding import check_decoder
from gatewise.nn.lookup import cell_of, is_embedding, is_linear
from gatewise.program.arithmetic import rule
from gatewise.program.graph import INT
from gatewise.program.layers import BATCH, first_states, is_hooked, n_states, needs, state_shapes
from gatewise.program.operations import Decode
from gatewise.program.recorder import Recorder
from gatewise.program.sizes import Size
from gatewise.program.stand_ins import Impossible, Recorded, Refused


@rule("greedy_decode")
def greedy_decode(
    recorder: Recorder, embedding: Any, rnn: Any, head: Any, state: Any, *, start: Any, end: Any, longest: Any
) -> Recorded:
    if any(isinstance(n, Size) for n in (start, end, longest)):
        raise Refused("greedy_decode() goes by a size that only a call knows; write a number")
    check_decoder(embedding, rnn, head, start, end, longest)
    names = known(recorder, embedding), known(recorder, rnn), known(recorder, head)
    needs(state, state_shapes(rnn, (BATCH,)))
    part = state if n_states(rnn) == 1 else state[0]
    needs(part, (rnn.num_layers, BATCH, rnn.hidden_size))
    node = recorder.node(part)
    if node.rank != 3:
        raise Impossible
    given = first_states(recorder, rnn, state, node.shape[1], alone=False)
    recorder.called.update(names)
    op = Decode(*names, start, end, longest, len(given))
    return recorder.made(op, given, (node.shape[1], longest), INT)


def known(recorder: Recorder, module: nn.Module) -> str:
    """The name of a layer that computes what its class says, and nothing else sees."""
    if id(module) not in recorder.modules:
        raise Refused(f"greedy_decode() runs a {type(module).__name__} that is no part of the model")
    name: str = recorder.modules[id(module)]
    if cell_of(module) is None and not is_linear(module) and not is_embedding(module):
        raise Refused(f"{name} has a forward() of its own")
    if is_hooked(module):
        raise Refused(f"a hook on {name} may see or change it")
    return name
