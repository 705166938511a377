"""gw.nn.greedy_decode as one operation of a program."""

from __future__ import annotations

from typing import Any

from torch import nn

from gatewise.nn.decoding import Attention, check_decoder
from gatewise.nn.lookup import cell_of, is_embedding, is_linear
from gatewise.program.arithmetic import rule
from gatewise.program.fits import matched, unified
from gatewise.program.graph import INT, Node
from gatewise.program.layers import BATCH, TIME, first_states, is_hooked, n_states, needs, state_shapes
from gatewise.program.operations import Decode
from gatewise.program.recorder import Recorder
from gatewise.program.sizes import Size
from gatewise.program.stand_ins import Impossible, Recorded, Refused, current


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
) -> Recorded:
    recorder: Recorder = current()
    if any(isinstance(n, Size) for n in (start, end, longest)):
        raise Refused("greedy_decode() goes by a size that only a call knows; write a number")
    check_decoder(embedding, rnn, head, start, end, longest, attention)
    names = known(recorder, embedding), known(recorder, rnn), known(recorder, head)
    query, seen = looked_at(recorder, attention, head)
    needs(state, state_shapes(rnn, (BATCH,)))
    part = state if n_states(rnn) == 1 else state[0]
    needs(part, (rnn.num_layers, BATCH, rnn.hidden_size))
    node = recorder.node(part)
    if node.rank != 3:
        raise Impossible
    for looked in seen:
        unified(looked.shape[0], node.shape[1])
    given = first_states(rnn, state, node.shape[1], alone=False)
    recorder.called.update(names)
    op = Decode(*names, start, end, longest, len(given), query)
    return recorder.made(op, (*seen, *given), (node.shape[1], longest), INT)


def looked_at(
    recorder: Recorder, attention: Attention | None, head: nn.Linear
) -> tuple[str, tuple[Node, ...]]:
    """The layer that asks, keys (B, T, A) and votes (B, T, V)."""
    if attention is None:
        return "", ()
    if attention.mask is not None:
        if not recorder.lenient:
            raise Refused("greedy_decode() looks only where the mask of its attention says")
        recorder.unknown("it says which steps count", [attention.mask])
    query, widths = known(recorder, attention.query), (attention.query.out_features, head.out_features)
    recorder.called.add(query)
    for value, width in zip((attention.keys, attention.votes), widths):
        needs(value, (BATCH, TIME, width))
    keys, votes = recorder.node(attention.keys), recorder.node(attention.votes)
    for node, width in zip((keys, votes), widths):
        if node.rank != 3:
            raise Impossible
        matched(node.shape[2], width)
        unified(node.shape[1], keys.shape[1])
    return query, (keys, votes)


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
