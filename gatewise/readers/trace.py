"""Follows every channel of every layer's output through forward() to the matrices that read it.

forward() is recorded as a graph of operations on unknown tensors. Each value in it is then described by the units
its channels carry. An operation that keeps channels apart (dropout, relu, a transpose, pooling over time)
passes the description on; Linear, embedding and recurrent layers end it with a Read; anything else *exposes* the
units: someone sees them, and nobody can say who needs them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import fx, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gatewise.nn.lookup import cell_of, is_embedding, is_linear, is_single_step
from gatewise.readers.channels import ChannelOperations
from gatewise.readers.graph import Block, Read, as_reads, input_matrices, joined, output_blocks
from gatewise.readers.lines import line_of, why_not
from gatewise.readers.loops import carried, collected, number
from gatewise.readers.names import POINTWISE_MODULES, POOLING_MODULES, ZERO_MOVING_MODULES, name_of
from gatewise.readers.record import (
    PASSED_ON,
    Recording,
    combinations,
    is_hooked,
    origin,
    recordings,
    rewritten,
)
from gatewise.readers.values import (
    UNKNOWN,
    Bare,
    Channels,
    Impossible,
    Located,
    Number,
    Packed,
    Sized,
    States,
    Value,
    leaves,
    same_units,
    without_zero,
)


@dataclass(frozen=True)
class Found:
    """What forward() does with units and parameters."""

    reads: list[Read] = field(default_factory=list)
    exposed: dict[str, str] = field(default_factory=dict)  # block -> why something unknown sees it
    raw: set[str] = field(default_factory=set)  # parameters used past their layers
    outside: set[str] = field(default_factory=set)  # matrices that also read what carries no units
    memory: set[str] = field(default_factory=set)  # blocks whose cell state c something inside forward() sees

    def add(self, other: Found) -> None:
        self.reads.extend(other.reads)
        for name, why in other.exposed.items():
            self.exposed.setdefault(name, why)
        self.raw.update(other.raw)
        self.outside.update(other.outside)
        self.memory.update(other.memory)


def trace_reads(model: nn.Module, blocks: Mapping[str, Block]) -> Found:
    """Reads found in forward(), and what stands against removing a unit or a column."""
    if cell_of(model) is not None or is_linear(model) or is_embedding(model):
        why = "it is the whole model: its output and state are the answer"
        return Found(exposed=dict.fromkeys(blocks, why))
    prefix, root = unwrapped(model)
    try:
        made, failure = recordings(root)
    except Exception as error:  # forward() is the user's code: anything may be raised by tracing it
        why = f"forward() could not be traced ({why_not(error)})"
        return Found(exposed=dict.fromkeys(blocks, why), memory=set(blocks))
    follower = Follower(model, blocks, prefix)
    for recording in made:
        follower.follow(recording)
    found, called = follower.found, follower.called
    for name in blocks.keys() - called:
        found.exposed.setdefault(name, "forward() never calls it")
    # A layer that no recorded call reaches may be reached by another one, or from outside, and read anything.
    modules = {name: model.get_submodule(blocks[name].module) for name in sorted(blocks.keys() - called)}
    idle = [name for name, module in modules.items() if not is_embedding(module)]
    why = f"{idle[0]}, which forward() never calls, may read it" if idle else ""
    if failure is not None:
        why = f"not every call of forward() could be traced ({why_not(failure)})"
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


class Follower(ChannelOperations):
    """Walks graphs of forward(), each from inputs to outputs, and keeps what every value carries."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, Block], prefix: str) -> None:
        self.model, self.root, self.prefix = model, model.get_submodule(prefix.removesuffix(".")), prefix
        self.found = Found()
        self.called: set[str] = set()
        self.given_state: set[str] = set()  # modules whose initial state is an argument, in some call
        self.blocks = list(blocks.values())
        self.by_name = blocks
        widths = [block.width for block in self.blocks]
        self.starts = (
            np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64)
            if widths
            else np.zeros(0, np.int64)
        )
        self.start_of = {block.name: int(start) for block, start in zip(self.blocks, self.starts)}
        self.values: dict[fx.Node, Value] = {}
        self.node: fx.Node  # that is visited
        self.assumed: dict[str, Any] = {}
        self.choices: dict[str, tuple[Any, ...]] = {}  # what there was to assume, the likeliest first
        self.columns = {
            matrix: input_width(module)
            for name, module in model.named_modules()
            if cell_of(module) is not None or is_linear(module)
            for matrix in input_matrices(module, name)
        }

    def follow(self, recording: Recording) -> None:
        """A graph under every assumption about ranks that may be true; what holds must hold in all of them."""
        whole, tried, possible = self.found, set[frozenset[tuple[str, Any]]](), False
        self.choices = {}
        while untried := [way for way in assumptions(self.choices) if frozenset(way.items()) not in tried]:
            for way in untried:
                tried.add(frozenset(way.items()))
                try:
                    self.walk(recording, way)
                except Impossible:
                    continue
                condition = assumed_ranks(way)
                self.found.exposed.update({name: why + condition for name, why in self.found.exposed.items()})
                whole.add(self.found)
                possible = True
        if not possible:
            self.strict = False
            self.walk(recording, {})
            self.strict = True
            whole.add(self.found)
        self.found = whole

    def walk(self, recording: Recording, assumed: dict[str, Any]) -> None:
        self.values, self.found, self.assumed = {}, Found(), assumed
        for node in recording.graph.nodes:
            self.visit(node)
        for node, attribute in recording.stored.items():
            self.expose(self.values.get(node), f"forward() stores it in {attribute}")

    def assume(self, what: str, choices: tuple[Any, ...]) -> Any:
        # A layer always takes the same.
        question = f"{what} {self.node.target if self.node.op == 'call_module' else self.node.name}"
        self.choices.setdefault(question, choices)
        return self.assumed.get(question, choices[0])

    def visit(self, node: fx.Node) -> None:
        args, kwargs = fx.map_arg(node.args, self.value), fx.map_arg(node.kwargs, self.value)
        self.node = node
        if node.op == "output":
            self.hand_back(args)
            return
        if node.op == "call_module":
            result = self.call_module(node, args, kwargs)
        elif node.op == "placeholder":
            result = UNKNOWN
        elif node.op == "get_attr":
            self.use_parameter(self.prefix + str(node.target), node)
            result = UNKNOWN
        elif node.target in (number, collected, carried):
            result = self.of_loop(node.target, *args)
        else:
            result = self.apply(node.target, args, kwargs)
            joined_list = node.args[0] if node.args and isinstance(node.args[0], list | tuple) else ()
            if any(isinstance(part, fx.Node) and part.target is collected for part in joined_list):
                result = self.of_any_number(args[0], result)
        self.values[node] = result
        if (changed := rewritten(node, self.root, self.values)) is not None:
            base, seen_elsewhere = changed
            if seen_elsewhere:
                why = f"{name_of(node.target)} overwrites it, and another view of it is used later"
                self.expose([self.values[base], result], why)
            self.values[base] = result

    def of_loop(self, target: Any, *args: Value) -> Value:
        """Three steps show all reads if the last one found the units where the one before had found them."""
        if target is carried:
            for before, after in zip(*args):
                if not same_units(before, after):
                    self.expose([before, after], "a loop moves its channels from step to step")
        return args[0] if target is collected else Number()

    def of_any_number(self, steps: Value, result: Value) -> Value:
        """A join of all steps, of which there may be more than were recorded: no matrix reads them side by side."""
        if isinstance(result, Channels) and any(
            not isinstance(step, Channels) or step.width != result.width for step in steps
        ):
            if self.strict:
                raise Impossible
            self.expose(steps, "the steps of a loop are laid side by side")
            return UNKNOWN
        return result

    def use_parameter(self, name: str, node: fx.Node) -> None:
        """A parameter past its layer; asking a Linear or Embedding where its matrix is does not count."""
        module = self.model.get_submodule(name.rpartition(".")[0])
        asked = all(user.target is getattr and user.args[1] in ("device", "dtype") for user in node.users)
        if not asked or cell_of(module) is not None:
            self.found.raw.add(name)

    def value(self, node: fx.Node) -> Value:
        return self.values[node]

    # What ends a channel's way: a matrix that reads it, or something unknown that sees it.

    def read(self, value: Value, matrix: str, why: str) -> None:
        value = value.data if isinstance(value, Packed) else value
        columns = self.columns[matrix]
        if isinstance(value, Channels) and value.axis == value.rank - 1 and value.width == columns:
            for units, zero in value.paths:
                self.found.reads.extend(as_reads(matrix, units, self.blocks, self.starts, zero))
        else:
            # As many columns as units, and yet not the units' axis: under an unlikely assumption that is chance.
            last = isinstance(value, Channels) and value.axis == value.rank - 1
            meant = isinstance(value, Channels | Bare) and value.width == columns
            if self.strict and (last or (meant and self.assumed)):
                raise Impossible
            self.found.outside.add(matrix)
            self.expose(value, why)

    def expose(self, value: Value, why: str) -> None:
        for item in leaves(value):
            if isinstance(item, Packed):
                self.expose(item.data, why)
            elif isinstance(item, States):
                self.expose(item.parts, why)
                if item.cell:
                    self.found.memory.update(self.blocks_of(item.parts))
            elif isinstance(item, Located):
                self.expose(item.units, why)
            elif isinstance(item, Channels):
                line = line_of(self.node) if self.node.op in ("call_function", "call_method") else ""
                for name in sorted(self.blocks_of([item])):
                    self.found.exposed.setdefault(name, f"{why} ({line})" if line else why)

    def blocks_of(self, values: Iterable[Channels]) -> set[str]:
        units = np.concatenate([units for value in values for units, _ in value.paths])
        found = np.unique(np.searchsorted(self.starts, units[units >= 0], side="right") - 1)
        return {self.blocks[b].name for b in found}

    def hand_back(self, value: Value) -> None:
        """What forward() returns is seen by its caller, but for states that it only takes and hands back."""
        for item in leaves(value):
            if not isinstance(item, States):
                self.expose(item, "forward() returns it")
            elif item.module not in self.given_state:
                self.expose(item, "forward() returns its last state, which it does not take as an argument")

    # Layers.

    def call_module(self, node: fx.Node, args: Any, kwargs: Any) -> Value:
        name = self.prefix + str(node.target)
        module = self.model.get_submodule(name)
        kind = type(module).__name__
        x = args[0] if args else kwargs.get("input")
        if is_hooked(module):
            return self.call_hooked(name, [args, kwargs])
        if cell_of(module) is not None:
            return self.call_recurrent(node, name, module, x, args, kwargs)
        if is_linear(module):
            self.read(x, joined(name, "weight"), f"{name} reads it across another axis")
            return self.produced(name, x)
        if is_embedding(module):
            return self.produced(name, UNKNOWN)
        if kind in POINTWISE_MODULES:
            return x
        result = NotImplemented
        if kind in ZERO_MOVING_MODULES:
            result = without_zero(x)
        elif kind in POOLING_MODULES:
            result = self.pooled(x)
        elif kind == "BatchNorm1d":
            result = self.attempt(batch_normed, (x,), {})
        if result is NotImplemented:
            self.expose([args, kwargs], f"{kind} {name!r} may mix its channels")
            return UNKNOWN
        return result

    def call_hooked(self, name: str, given: Value) -> Value:
        """A hook sees and may change what a layer takes and gives."""
        why = f"a hook on {name} may see or change it"
        self.expose(given, why)
        for block in self.blocks:
            if block.module == name:
                self.called.add(block.name)
                self.found.exposed.setdefault(block.name, why)
                self.found.memory.add(block.name)
        self.found.outside.update({matrix for matrix in self.columns if matrix.rpartition(".")[0] == name})
        return UNKNOWN

    def produced(self, name: str, like: Value, ranks: tuple[int, ...] = ()) -> Channels:
        """The output of a layer: its last blocks, side by side on the last axis; its rank that of what it reads.

        `ranks`: those that the layer takes, the likeliest first; a Linear or an embedding takes any.
        """
        known = like.rank if isinstance(like, Channels | Sized | Bare) else None
        rank = self.assume("rank", ranks or (3, 2, 1, 4)) if known is None else known
        if self.strict and ranks and rank not in ranks:
            raise Impossible
        own = output_blocks(self.by_name, name)
        self.called |= {block.name for block in self.blocks if block.module == name}
        units = np.concatenate([np.arange(block.width) + self.start_of[block.name] for block in own])
        return Channels(((units, True),), rank, rank - 1)

    def is_output_of(self, value: Value, name: str) -> bool:
        """Whether a value is exactly the output h of a single-step cell, which its caller hands back."""
        if not isinstance(value, Channels):
            return False
        start, width = self.start_of[name], self.by_name[name].width
        return all(np.array_equal(units, np.arange(start, start + width)) for units, _ in value.paths)

    def call_recurrent(
        self, node: fx.Node, name: str, module: nn.Module, x: Value, args: Any, kwargs: Any
    ) -> Value:
        for matrix in input_matrices(module, name):
            self.read(x, matrix, f"{name} reads it across another axis")
        hx = args[1] if len(args) > 1 else kwargs.get("hx")
        hx_node = node.args[1] if len(node.args) > 1 else node.kwargs.get("hx")
        if hx_node is not None and all(only_starts(n, node.target) for n in leaves(hx_node)):
            self.given_state.add(name)
        for part in leaves(hx):
            returned = isinstance(part, States) and part.module == name
            if not returned and not (is_single_step(module) and self.is_output_of(part, name)):
                self.expose(part, f"it starts the state of {name}")
        cell = cell_of(module)
        assert cell is not None
        if is_single_step(module):
            h = self.produced(name, x, (2, 1))
            return (h, States(name, (h,), cell=True)) if cell.n_states == 2 else h
        packed = isinstance(x, Packed)
        out = self.produced(name, x.data if packed else x, (2,) if packed else (3, 2))
        own = [block for block in self.blocks if block.module == name]
        rank = 2 if packed else out.rank - 1
        parts = tuple(
            Channels(((np.arange(b.width) + self.start_of[b.name], True),), rank, rank - 1) for b in own
        )
        h_n, c_n = States(name, parts, cell=False), States(name, parts, cell=True)
        return (Packed(out) if packed else out), (h_n, c_n) if cell.n_states == 2 else h_n


MOST_ASSUMPTIONS = 64  # about one graph; where there are more, those that differ in one or in all


def assumptions(choices: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """What may be assumed, without what is assumed anyway; that first."""
    ways, number = combinations(choices, MOST_ASSUMPTIONS)
    if number > len(ways):
        most = max(len(options) for options in choices.values())
        for k in range(1, most):
            ways.append({key: options[min(k, len(options) - 1)] for key, options in choices.items()})
    return [{key: value for key, value in way.items() if value != choices[key][0]} for way in ways]


def batch_normed(x: Value) -> Value:
    """Of (B, W) or (B, W, T), channel by channel."""
    if isinstance(x, Channels | Bare) and x.rank not in (2, 3, None):
        raise Impossible
    return without_zero(x) if isinstance(x, Channels) and x.axis == 1 else NotImplemented


def assumed_ranks(way: Mapping[str, Any]) -> str:
    """For a reason: ` where the output of rnn has 2 axes`; nothing where it is what every layer usually gives."""
    ranks = {what.partition(" ")[2]: n for what, n in way.items() if what.startswith("rank ")}
    said = (f"the output of {name} has {n} {'axis' if n == 1 else 'axes'}" for name, n in ranks.items())
    return f" where {' and '.join(said)}" if ranks else ""


def input_width(module: nn.Module) -> int:
    """The number of columns with which a Linear or recurrent layer reads its input."""
    return int(module.in_features if isinstance(module, nn.Linear) else module.input_size)  # type: ignore[arg-type]


SHAPE_ONLY = set("size shape dim device dtype".split())


def only_starts(node: Any, target: Any) -> bool:
    """Whether a node is an argument of forward(), or a part of one, that does nothing but start a layer's state.

    If forward() looked at it elsewhere too, a caller who hands the last state back would have it read there.
    """
    node, path = origin(node)
    if not isinstance(node, fx.Node) or node.op != "placeholder" or not all(isinstance(k, int) for k in path):
        return False
    # The same part of the argument, or one that contains it or lies in it.
    together = (user for other, user in uses(node, ()) if all(a == b for a, b in zip(other, path)))
    return all(user.op == "call_module" and user.target == target for user in together)


def uses(node: fx.Node, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], fx.Node]]:
    """What finally uses an argument, with the part of it that is used; asking for its shape does not count."""
    found: list[tuple[tuple[int, ...], fx.Node]] = []
    for user in node.users:
        if user.target is operator.getitem and user.args[0] is node and isinstance(user.args[1], int):
            found += uses(user, (*path, user.args[1]))
        elif user.target in PASSED_ON:
            found += uses(user, path)
        elif user.target not in SHAPE_ONLY and not (user.target is getattr and user.args[1] in SHAPE_ONLY):
            found.append((path, user))
    return found
