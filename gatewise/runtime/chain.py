"""A program as a chain: embedding or one-hot, recurrent and linear layers, normalisations, pointwise functions, with
an answer for every step, for the last one, or of a mean, maximum or sum over time.

Chains run in one call of the kernels. The engine runs any other program as the graph it is; so the search ends at
whatever is not plainly a link. Engine and C end every recurrent layer at the length of its sequence and give zeros
behind it. Where forward() knows lengths, nothing else that lies there may reach the answer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from gatewise.compact import CompactCell
from gatewise.nn.lookup import cell_of
from gatewise.program import operations as ops
from gatewise.program.graph import INT, Node, Program, unshaped
from gatewise.program.sizes import Size
from gatewise.runtime.chained import NO_LAYER, POOLS, Chain, ChainError, ChainLink
from gatewise.runtime.ends import Ends, axis_of
from gatewise.runtime.evaluate import parameter
from gatewise.runtime.links import LINKS
from gatewise.runtime.path import OnPath, States

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
        if other != (chain.without_lengths if chain.lengths in way.absent else chain):
            missing = ", ".join(sorted(way.absent))
            raise ChainError(f"forward() is another function when it is called without {missing}.")
    callable_as = [way.arguments.keys() for way in ways if not way.unread]
    for way in ways:
        if way.arguments.keys() not in callable_as:
            missing = ", ".join(sorted(way.unread))
            raise ChainError(
                f"forward() could not be recorded without {missing}, of which it asks whether it is there."
            )
    optional = any(chain.lengths in way.absent for way in ways)
    return replace(
        chain,
        links=tuple(map(as_layer, chain.links)),
        needs_lengths=bool(chain.lengths) and not optional,
        returns_state=chain.returns_state and not any(finder.begins_anew for finder in finders),
        unread=unread(model, chain, ways),
    )


def as_layer(link: ChainLink) -> ChainLink:
    """A cell in a loop is a layer."""
    return replace(link, module=link.module.as_layer()) if isinstance(link.module, CompactCell) else link


def unread(model: nn.Module, chain: Chain, ways: Sequence[Program]) -> str:
    """An argument of forward() that is no input, length or state of the chain; empty if there is none."""
    known = {chain.lengths} | {argument for way in ways for argument in states_taken(way)}
    _, *others = inspect.signature(model.forward).parameters.values()
    named = (p.name for p in others if p.default in (None, p.empty) and p.kind is p.POSITIONAL_OR_KEYWORD)
    return next((name for name in named if name not in known), "")


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
        self.padded: ChainError | None = None  # what reads padding, which it may not where there are lengths
        self.begins_anew = (
            False  # two directions that read no state, where another layer goes on from its own
        )
        self.where = "forward()"

    def chain(self) -> Chain:
        axes = tuple(map(axis_of, self.x.shape)) if isinstance(self.x, Node) else ()
        if {*axes[:2]} != {"B", "T"} or axes[2:] != (() if self.x.kind == INT else ("C",)):
            raise self.no("its first argument is no batch of sequences of words or vectors")
        self.ends = Ends(self.x)
        self.values[self.x] = OnPath((), axes)
        for node in self.program.nodes:
            if node is not self.x and any(source in self.values for source in node.inputs):
                self.where = str(node.line)
                if (value := self.follow(node)) is not None:
                    self.values[node] = value
        self.where = "forward()"
        return self.finish()

    def follow(self, node: Node) -> OnPath | States | None:
        """What a node makes of values on the path; None for what is only looked at where it is used."""
        if node.inputs[0] is self.x and self.ends.holds(node):
            return None
        if (link := LINKS.get(type(node.op))) is None:
            raise self.no(f"{node.op.name} is no link of a chain")
        return link(self, node, node.op)

    # What links ask for.

    def no(self, why: str) -> ChainError:
        return ChainError(f"{self.where}: {why}, so the model is not a chain of layers.")

    def reads_padding(self, why: str) -> None:
        self.padded = self.padded or self.no(why)

    def at(self, node: Node) -> OnPath:
        value = self.values.get(node)
        if not isinstance(value, OnPath):
            raise self.no("it reads a state, or what does not come from the input alone")
        return value

    def then(self, x: OnPath, link: ChainLink) -> OnPath:
        """x and one link more, which works on padding, too."""
        self.check_alike(x)
        stays = x.padding is None or link.keeps_zero
        return replace(x, links=(*x.links, link), padding=x.padding if stays else math.nan)

    def check_alike(self, x: OnPath) -> None:
        if not x.alike:
            raise self.no("behind the ends of sequences there is what a mask put there")

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
        self.check_alike(answer)
        if answer.has_time and answer.padding is None:
            self.reads_padding("its answer has steps for the padding behind sequences, too")
        if not all(state.ended for state in whole):
            self.reads_padding("the state that it returns is that behind the padding")
        if self.ends.source is not None and self.padded is not None:
            raise self.padded
        return self.described(answer, results[0].shape, bool(states))

    def described(self, answer: OnPath, shape: tuple[int, ...], returns_state: bool) -> Chain:
        squeezed = "C" not in answer.axes
        layout = "".join(answer.axes) + "C" * squeezed
        if layout not in LAYOUTS:
            raise self.no(f"it returns its answer with the axes {layout}, not {', '.join(LAYOUTS)}")
        source = self.ends.source
        letters = {name for size in shape if isinstance(size, Size) for name in size.letters}
        return Chain(
            answer.links,
            batch_axis=list(map(axis_of, self.x.shape)).index("B"),
            output_axes=layout,
            rows_time_first=not answer.rows or answer.rows[0][0] == "T",
            squeezed=squeezed,
            returns_state=returns_state,
            n_inputs=sum(self.x.shape[2:]),
            lengths=source.op.argument if isinstance(source, Node) else "",  # type: ignore[attr-defined]
            pad=source if isinstance(source, int) else None,
            least=self.ends.least,
            cut=any(name.startswith("L") for name in letters),
        )
