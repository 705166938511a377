"""A program as a chain: embedding or one-hot, recurrent and linear layers, normalisations, pointwise functions, with
an answer for every step, for the last one, or of a mean, maximum or sum over time.

Chains run in one call of the kernels. The engine runs any other program as the graph it is; so the search ends at
whatever is not plainly a link, and where forward() is told how long its sequences are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from gatewise.compact import CompactCell
from gatewise.nn.lookup import cell_of
from gatewise.program import operations as ops
from gatewise.program.graph import INT, Node, Program, unshaped
from gatewise.runtime.chained import NO_LAYER, POOLS, Chain, ChainError, ChainLink
from gatewise.runtime.evaluate import parameter
from gatewise.runtime.links import LINKS
from gatewise.runtime.path import OnPath, States, axis_of

LAYOUTS = ("TBC", "BTC", "BC", "RC")


def find_chain(model: nn.Module, ways: Sequence[Program]) -> Chain:
    """The chain that a model computes, in every way to call it.

    Raises:
        ChainError: forward() does something that a chain cannot.
    """
    if all(cell_of(module) is None for module in model.modules()):
        raise ChainError(NO_LAYER)
    finders = [Finder(model, way) for way in ways]
    chain, *others = (finder.chain() for finder in finders)
    for way, other in zip(ways[1:], others):
        if other != chain:
            missing = ", ".join(sorted(way.absent))
            raise ChainError(f"forward() is another function when it is called without {missing}.")
    callable_as = [way.arguments.keys() for way in ways if not way.unread]
    for way in ways:
        if way.arguments.keys() not in callable_as:
            missing = ", ".join(sorted(way.unread))
            raise ChainError(
                f"forward() could not be recorded without {missing}, of which it asks whether it is there."
            )
    return replace(
        chain,
        links=tuple(map(as_layer, chain.links)),
        returns_state=chain.returns_state and not any(finder.begins_anew for finder in finders),
    )


def as_layer(link: ChainLink) -> ChainLink:
    """A cell in a loop is a layer."""
    return replace(link, module=link.module.as_layer()) if isinstance(link.module, CompactCell) else link


def states_taken(program: Program) -> set[str]:
    """Arguments that are first states of layers, or have them as parts."""
    layers = [(node, node.op.states) for node in program.nodes if isinstance(node.op, ops.Recurrent)]
    given = [unshaped(source) for node, n in layers for source in node.inputs[len(node.inputs) - n :]]
    return {node.op.argument.partition(".")[0] for node in given if isinstance(node.op, ops.Input)}


class Finder:
    """Follows one program from its first input to its answer."""

    def __init__(self, model: nn.Module, program: Program) -> None:
        self.model, self.program = model, program
        self.takes_states = bool(states_taken(program))
        self.x: Any = next(iter(program.arguments.values()), None)
        self.values: dict[Node, OnPath | States] = {}
        self.begins_anew = (
            False  # two directions that read no state, where another layer goes on from its own
        )
        self.where = "forward()"

    def chain(self) -> Chain:
        axes = tuple(map(axis_of, self.x.shape)) if isinstance(self.x, Node) else ()
        if {*axes[:2]} != {"B", "T"} or axes[2:] != (() if self.x.kind == INT else ("C",)):
            raise self.no("its first argument is no batch of sequences of words or vectors")
        known = states_taken(self.program)
        for name, given in self.program.arguments.items():
            if given is not self.x and name not in known:
                raise self.no(f"it takes {name!r} beside its sequences")
        self.values[self.x] = OnPath((), axes)
        for node in self.program.nodes:
            if node is not self.x and any(source in self.values for source in node.inputs):
                self.where = str(node.line)
                self.values[node] = self.follow(node)
        self.where = "forward()"
        return self.finish()

    def follow(self, node: Node) -> OnPath | States:
        """What a node makes of values on the path."""
        if (link := LINKS.get(type(node.op))) is None:
            raise self.no(f"{node.op.name} is no link of a chain")
        return link(self, node, node.op)

    # What links ask for.

    def no(self, why: str) -> ChainError:
        return ChainError(f"{self.where}: {why}, so the model is not a chain of layers.")

    def at(self, node: Node) -> OnPath:
        value = self.values.get(node)
        if not isinstance(value, OnPath):
            raise self.no("it reads a state, or what does not come from the input alone")
        return value

    def then(self, x: OnPath, link: ChainLink) -> OnPath:
        """x and one link more."""
        return replace(x, links=(*x.links, link))

    def numbers(self, node: Node) -> Any:
        """What a call does not change; None if one does."""
        if isinstance(node.op, ops.Constant):
            return node.op.values.astype(np.float64)
        return parameter(self.model, node.op.tensor) if isinstance(node.op, ops.Parameter) else None

    # The answer.

    def finish(self) -> Chain:
        outputs, results = self.program.outputs, self.program.results
        alone = isinstance(outputs, Node)
        if not results or not (alone or (type(outputs) in (tuple, list) and outputs[0] is results[0])):
            raise self.no("it returns its answer in a structure of its own")
        answer, states = self.values.get(results[0]), [self.values.get(node) for node in results[1:]]
        whole = [s for s in states if isinstance(s, States) and len(s.places) == s.whole]
        moved = any(not isinstance(node.op, ops.LastState) for node in results[1:])
        if not isinstance(answer, OnPath) or moved or len(whole) < len(states) or (not alone and not states):
            raise self.no("it returns anything but the answer of a chain, and perhaps its states")
        if all(link.kind != "recurrent" for link in answer.links):
            raise self.no("no recurrent layer leads to its answer")
        if states and any(link.kind in POOLS for link in answer.links):
            # forward() would pool every piece of a sequence by itself, engine and C all of them together.
            raise self.no("the state that it returns does not say what was pooled before")
        return self.described(answer, bool(states))

    def described(self, answer: OnPath, returns_state: bool) -> Chain:
        squeezed = "C" not in answer.axes
        layout = "".join(answer.axes) + "C" * squeezed
        if layout not in LAYOUTS:
            raise self.no(f"it returns its answer with the axes {layout}, not {', '.join(LAYOUTS)}")
        return Chain(
            answer.links,
            batch_axis=list(map(axis_of, self.x.shape)).index("B"),
            output_axes=layout,
            rows_time_first=not answer.rows or answer.rows[0][0] == "T",
            squeezed=squeezed,
            returns_state=returns_state,
            n_inputs=sum(self.x.shape[2:]),
        )
