"""Follows every unit of every layer through the programs of forward() to the matrices that read it.

A unit ends at a matrix that reads it (`Read`), at the caller, or where nobody can say who needs it: then its layer is
*exposed*, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gatewise.nn.lookup import cell_of, is_embedding, is_linear, is_single_step
from gatewise.program import operations as ops
from gatewise.program.graph import Node, unshaped
from gatewise.program.made_up import Call
from gatewise.program.ways import Recording, recordings, why_not
from gatewise.readers.graph import Block, HandOver, Read, as_reads, input_matrices, joined, output_blocks
from gatewise.readers.units import Lost, Trail, followed


@dataclass(frozen=True)
class Found:
    """What forward() does with units and parameters."""

    reads: list[Read] = field(default_factory=list)
    exposed: dict[str, str] = field(default_factory=dict)  # block -> why something unknown sees it
    raw: set[str] = field(default_factory=set)  # parameters used past their layers
    sized: set[str] = field(default_factory=set)  # parameters of which only the size is asked for
    outside: set[str] = field(default_factory=set)  # matrices that also read what carries no units
    memory: set[str] = field(default_factory=set)  # blocks whose cell state c something inside forward() sees
    handed: list[HandOver] = field(default_factory=list)  # states of one block that start another
    proven: dict[str, str] = field(default_factory=dict)  # block -> what certainly sees it, and is no matrix
    calls: list[Call] = field(default_factory=list)  # in evaluation


def trace_reads(model: nn.Module, blocks: Mapping[str, Block]) -> Found:
    """Reads found in forward(), and what stands against removing a unit or a column."""
    if cell_of(model) is not None or is_linear(model) or is_embedding(model):
        why = "it is the whole model: its output and state are the answer"
        return Found(exposed=dict.fromkeys(blocks, why), proven=dict.fromkeys(blocks, why))
    prefix, root = unwrapped(model)
    follower = Follower(model, blocks, prefix)
    try:
        made, failure = recordings(root)
        taken = states_taken(made)
        for recording in made:
            follower.follow(recording, taken)
    except Exception as error:  # forward() is the user's code: anything may be raised by recording it
        why = f"forward() could not be traced ({why_not(error)})"
        return Found(exposed=dict.fromkeys(blocks, why), memory=set(blocks))
    found = follower.found
    called = {name for name, block in blocks.items() if block.module in follower.called}
    for name in blocks.keys() - called:
        found.exposed.setdefault(name, "forward() never calls it")
    # A layer that no recorded call reaches may be reached by another one, or from outside, and read anything.
    modules = {name: model.get_submodule(blocks[name].module) for name in sorted(blocks.keys() - called)}
    idle = [name for name, module in modules.items() if not is_embedding(module)]
    why = f"{idle[0]}, which forward() never calls, may read it" if idle else ""
    if failure is not None:
        why = f"not every call of forward() could be traced ({why_not(failure)})"
    if not why and not found.exposed:
        why = "nothing that the model's layers compute is seen in what forward() returns"
    if why:
        for name in blocks:
            found.exposed.setdefault(name, why)
        found.memory.update(blocks)
    return found


def unwrapped(model: nn.Module) -> tuple[str, nn.Module]:
    """The model inside DataParallel or torch.compile, and what the names of its layers begin with."""
    if isinstance(model, DataParallel | DistributedDataParallel):
        return "module.", model.module
    inner = getattr(model, "_orig_mod", None)
    return ("_orig_mod.", inner) if isinstance(inner, nn.Module) else ("", model)


class Follower:
    """Walks programs from inputs to outputs, and keeps the trails of every node."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, Block], prefix: str) -> None:
        self.model, self.prefix, self.by_name = model, prefix, blocks
        self.blocks = list(blocks.values())
        self.starts = np.cumsum([0, *(block.width for block in self.blocks)])[:-1].astype(np.int64)
        self.start_of = {block.name: int(start) for block, start in zip(self.blocks, self.starts)}
        self.found = Found()
        self.called: set[str] = set()
        self.trails: dict[Node, tuple[Trail, ...]] = {}
        self.condition = ""

    def follow(self, recording: Recording, taken: set[str]) -> None:
        program = recording.program
        self.trails, self.condition = {}, assumed_ranks(recording.ranks)
        self.called |= {self.prefix + name for name in recording.called}
        self.found.sized.update(self.prefix + name for name in recording.sized)
        for node in program.nodes:
            self.trails[node] = self.visit(node)
        for before, after in recording.carried:
            if not all_same(self.trails[before], self.trails[after]):
                why = f"a loop moves its channels from step to step ({after.line})"
                self.expose([*self.trails[before], *self.trails[after]], why)
        for node, why in recording.left:
            self.expose(self.trails[node], why)
        states = [node for node in program.results if self.is_state(unshaped(node))]
        others, handed_back = [node for node in program.results if node not in states], list[Node]()
        for node in others:
            self.expose(self.trails[node], f"forward() returns it{at(node)}", proven=True)
        for node in states:
            if not any(map(has_layers, others)):
                why = f"forward() returns nothing else of the model{at(node)}"
                self.expose(self.trails[node], why, proven=True)
            elif module_of(unshaped(node).inputs[0]) not in taken:
                why = "forward() returns its last state, which it does not take as an argument"
                self.expose(self.trails[node], why + at(node))
            else:
                handed_back.append(node)
        if recording.call is not None and not recording.training:
            places = tuple(k for k, leaf in enumerate(program.outputs) if leaf in handed_back)
            self.found.calls.append(replace(recording.call, handed_back=places))

    def is_state(self, node: Node) -> bool:
        """Rather than an answer: h of a single-step cell is its output too, and whoever gets it may look at it."""
        if not isinstance(node.op, ops.LastState):
            return False
        module = self.model.get_submodule(self.prefix + module_of(node.inputs[0]))
        return node.op.part != "h" or not is_single_step(module)

    def visit(self, node: Node) -> tuple[Trail, ...]:
        op = node.op
        if isinstance(op, ops.Parameter):
            self.found.raw.add(self.prefix + op.tensor)
        if isinstance(op, ops.Opaque):
            self.expose_all(node, op.what)
            return ()
        if isinstance(op, ops.Embed | ops.Linear | ops.Recurrent) and not self.has_units(op.module):
            self.expose_all(node, f"{self.prefix + op.module} may mix its channels")
            return ()
        if isinstance(op, ops.Embed):
            self.expose_all(node, f"{self.prefix + op.module} looks for something by it")
            return self.produced(self.prefix + op.module, node)
        if isinstance(op, ops.Linear):
            name = self.prefix + op.module
            self.read(node.inputs[0], joined(name, "weight"), name)
            return self.produced(name, node)
        if isinstance(op, ops.Recurrent):
            return self.recurrent(node, self.prefix + op.module)
        if isinstance(op, ops.LastState) and self.has_units(module_of(node.inputs[0])):
            return self.states(self.prefix + module_of(node.inputs[0]), op.part == "c")
        return self.moved(node)

    def has_units(self, module: str) -> bool:
        """Layers inside one of torch's own modules, attention say, are no blocks."""
        return any(block.module == self.prefix + module for block in self.blocks)

    def moved(self, node: Node) -> tuple[Trail, ...]:
        given = [self.trails[source] for source in node.inputs]
        if not any(given):
            return ()
        try:
            trails = followed(node, given)
        except Lost as why:
            self.expose_all(node, str(why))
            return ()
        for trail in trails:
            if trail.lost:
                self.expose([trail], f"{trail.lost} ({node.line})")
        return tuple(trail for trail in trails if not trail.lost)

    # What ends a trail: a matrix that reads it, or something unknown that sees it.

    def read(self, source: Node, matrix: str, name: str) -> None:
        trails, width = self.trails[source], source.shape[-1]
        # A single unit may be in every column.
        across = [trail for trail in trails if trail.units.shape[-1] != width and trail.units.size > 1]
        for trail in trails:
            rows = np.broadcast_to(trail.units, (*trail.units.shape[:-1], width)).reshape(-1, width)
            for units in rows if trail not in across else ():
                found = as_reads(matrix, units, self.blocks, self.starts, trail.zero, trail.cell)
                self.found.reads.extend(found)
        if across or not trails:
            self.found.outside.add(matrix)
        self.expose(across, f"{name} reads it across another axis")

    def expose_all(self, node: Node, why: str) -> None:
        for source in node.inputs:
            self.expose(self.trails[source], why + at(node))

    def expose(self, trails: Iterable[Trail], why: str, proven: bool = False) -> None:
        for trail in trails:
            names = self.blocks_of(trail.units)
            for name in sorted(names):
                self.found.exposed.setdefault(name, why + self.condition)
                if proven and not self.condition:
                    self.found.proven.setdefault(name, why)
            if trail.cell:
                self.found.memory.update(names)

    def blocks_of(self, units: np.ndarray) -> set[str]:
        found = np.unique(np.searchsorted(self.starts, units[units >= 0], side="right") - 1)
        return {self.blocks[b].name for b in found}

    # Layers.

    def produced(self, name: str, node: Node) -> tuple[Trail, ...]:
        """The output of a layer: its last blocks, side by side on the last axis."""
        own = output_blocks(self.by_name, name)
        units = np.concatenate([np.arange(block.width) + self.start_of[block.name] for block in own])
        return (Trail(units.reshape((*[1] * (node.rank - 1), -1))),)

    def states(self, name: str, cell: bool) -> tuple[Trail, ...]:
        """The last states (L*D, B, H) of a layer. c of a neuron whose z_h is zero need not be zero."""
        own = [block for block in self.blocks if block.module == name]
        units = np.stack([np.arange(block.width) + self.start_of[block.name] for block in own])
        return (Trail(units[:, None], zero=not cell, cell=cell),)

    def recurrent(self, node: Node, name: str) -> tuple[Trail, ...]:
        op = node.op
        assert isinstance(op, ops.Recurrent)
        for matrix in input_matrices(self.model.get_submodule(name), name):
            self.read(node.inputs[0], matrix, name)
        if op.lengths:
            self.expose(self.trails[node.inputs[1]], "it says how long a sequence is")
        self.start(name, node.inputs[len(node.inputs) - op.states :])
        return self.produced(name, node)

    def start(self, name: str, states: Iterable[Node]) -> None:
        """The first states of a layer: its own ones, those of others, handed over, or something else."""
        for k, source in enumerate(states):
            (own,) = self.states(name, cell=k == 1)
            for trail in self.trails[source]:
                if is_same(trail, own):
                    continue
                hands = self.handed_over(trail, own)
                self.found.handed.extend(hands)
                if not hands:
                    self.expose([trail], f"it starts the state of {name}", proven=True)

    def handed_over(self, trail: Trail, own: Trail) -> list[HandOver]:
        """Blocks whose neurons start those of this layer one by one; none if they come in another way."""
        if trail.units.shape != own.units.shape or not (trail.zero or trail.cell):
            return []
        hands = []
        for given, taken in zip(trail.units[:, 0], own.units[:, 0]):
            sources, (target,) = self.blocks_of(given), self.blocks_of(taken)
            if len(sources) != 1 or (given < 0).any():
                return []
            (source,) = sources
            if not np.array_equal(given, self.start_of[source] + np.arange(self.by_name[source].width)):
                return []
            hands.append(HandOver(source, target, trail.cell))
        return hands


def at(node: Node) -> str:
    """Where forward() made it, for the end of a reason."""
    line = str(node.line or "")
    return f" ({line})" if line else ""


def all_same(one: Iterable[Trail], other: Iterable[Trail]) -> bool:
    """Whether two values carry the same units in the same places."""
    a, b = ({(t.units.shape, t.units.tobytes(), t.zero, t.cell) for t in trails} for trails in (one, other))
    return a == b


def is_same(trail: Trail, own: Trail) -> bool:
    """Whether a state is the layer's own, every neuron in its place."""
    alike = trail.cell == own.cell and np.array_equal(trail.units, own.units)
    return alike and (trail.zero or trail.cell)


def has_layers(node: Node) -> bool:
    """Whether some layer takes part in it."""
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        if hasattr(one.op, "module"):
            return True
        waiting += [source for source in one.inputs if source not in seen]
        seen.update(one.inputs)
    return False


def module_of(node: Node) -> str:
    assert isinstance(node.op, ops.Recurrent)
    return node.op.module


def states_taken(made: Iterable[Recording]) -> set[str]:
    """Layers whose state is started by arguments of forward() at which nothing else looks.

    If forward() did, a caller who hands the last state back would have it read there.
    """
    taken, looked_at = set[str](), set[str]()
    for recording in made:
        users = recording.program.users()
        for node in users:
            op = node.op
            if not isinstance(op, ops.Recurrent) or not op.states:
                continue
            given = [unshaped(source) for source in node.inputs[len(node.inputs) - op.states :]]
            if all(isinstance(source.op, ops.Input) for source in given):
                own = all(only_for(source, op.module, users) for source in given)
                (taken if own else looked_at).add(op.module)
    return taken - looked_at


def only_for(source: Node, module: str, users: Mapping[Node, list[Node]]) -> bool:
    return all(
        only_for(user, module, users) if isinstance(user.op, ops.Reshape) else starts(user, source, module)
        for user in users[source]
    )


def starts(user: Node, source: Node, module: str) -> bool:
    """Whether a node is a call of a layer with this first state."""
    op = user.op
    if not isinstance(op, ops.Recurrent) or op.module != module:
        return False
    return source not in user.inputs[: len(user.inputs) - op.states]


def assumed_ranks(ranks: Mapping[str, int]) -> str:
    """For a reason: ` where x has 2 axes`; nothing where it is what it usually has."""
    said = (
        f"{name} has {n} {'axis' if n == 1 else 'axes'}"
        for name, n in ranks.items()
        if not name.startswith("@")
    )
    text = " and ".join(said)
    return f" where {text}" if text else ""


def input_width(module: nn.Module) -> int:
    """The number of columns with which a Linear or recurrent layer reads its input."""
    width: Any = module.in_features if isinstance(module, nn.Linear) else module.input_size
    return int(width)
