"""A program as C: one function with an argument for every input and output of forward(), for one sequence.

What travels as memory, what is computed on the fly and how layers are called is in values, operations, along and
layers; `program_text` has the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gatewise.export.c import along, operations, pieces
from gatewise.export.c.body import C_KINDS, Body
from gatewise.export.c.layers import Ints, Layers, Rows
from gatewise.export.c.operations import shape_of
from gatewise.export.c.sizes import in_c, is_one, letters_of, product
from gatewise.export.c.stream import begins_with_argument
from gatewise.export.c.values import Value, copied, indented, stored
from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program
from gatewise.runtime.streaming import MOVING, Stream

WRITE = operations.WRITE | along.WRITE
MAPPED = {"tanh": "GW_F_TANH", "sigmoid": "GW_F_SIGMOID"}
DIRECT = (ops.Linear, ops.Softmax, ops.LastState)
# Names of C that an argument must not have: words of the language, and what the function itself uses.
RESERVED = set(
    "auto break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "a b c g k m n p t steps status failed error main model weights NULL INFINITY NAN".split()
)


@dataclass(frozen=True)
class Argument:
    """An input or output of the function: its name, the value behind the pointer, and the node."""

    name: str
    node: Node
    value: Value
    reads: bool

    @property
    def declared(self) -> str:
        return f"{'const ' if self.reads else ''}{C_KINDS[self.node.kind]} *{self.name}"

    @property
    def said(self) -> str:
        """`x: float (steps, 3)`"""
        shape = ", ".join(map(str, self.node.shape))
        return f"{self.name}: {self.node.kind} ({shape})"

    @property
    def width(self) -> int:
        """Entries of one step, or of all where there is no time."""
        return int(product([1 if letters_of(size) else size for size in self.value.shape]))


@dataclass(frozen=True)
class Function:
    """A program written as the body of a function."""

    program: Program
    body: Body
    letters: tuple[str, ...]  # what a call says about sizes, besides B = 1
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    stream: Stream | None  # None: it reads whole sequences

    @property
    def goes_on(self) -> bool:
        """Whether a call goes on where the last one ended; else it begins anew, perhaps with a state it is given."""
        return self.stream is not None and not begins_with_argument(self.program)

    def every_step(self, argument: Argument) -> bool:
        """Whether an argument has entries for every step of a stream."""
        return self.stream is not None and self.stream.flows[argument.node].kind == MOVING

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return (*self.inputs, *self.outputs)


def write_function(
    program: Program,
    model: nn.Module,
    most: int,
    int8: bool,
    narrow: Mapping[Node, Ints],
    stream: Stream | None,
) -> Function:
    """The statements that compute all results of a program, for sizes up to `most`; `narrow` is what narrow.py found.

    Raises:
        ValueError: an operation has no C; with the line of forward().
    """
    body = Body(most, int8)
    inputs, outputs = arguments(program)
    layers = Layers(model, body, {a.name: a.value.count for a in inputs}, narrow)
    values: dict[Node, Value] = {argument.node: argument.value for argument in inputs}
    users, results = program.users(), set(program.results)
    moved = set[Node]()
    for a in outputs:
        path = to_direct(a.node, users, program)
        if path:
            body.direct[path[-1]] = stored(a.name, shape_of(path[-1]), path[-1].kind)
            moved.update(path[:-1])
    for node in (node for node in order(program) if node not in values and node not in moved):
        body.at(node.line)
        given, readers = [values[source] for source in node.inputs], [*users[node], *({node} & results)]
        values[node] = written(node, given, layers, readers, stream)
    body.at(None)
    for argument in (argument for argument in outputs if argument.node not in body.direct.keys() | moved):
        body.say(f"if ({argument.name})", *indented(copied(argument.value, values[argument.node])))
    letters = {name for argument in inputs for size in argument.value.shape for name in letters_of(size)}
    in_order = tuple(sorted(letters, key=lambda name: (name != "T", name)))
    return Function(program, body, in_order, inputs, outputs, stream)


def to_direct(node: Node, users: Mapping[Node, list[Node]], program: Program) -> list[Node]:
    """From an answer back to what is computed in the caller's memory, through other shapes of it; empty: it is not.

    So are scores, which may be as many as there are words, and last states.
    """
    path = [node]
    alone = not users[node] and program.results.count(node) == 1
    while alone and lies_alike(path[-1]):
        path += path[-1].inputs
        alone = len(users[path[-1]]) == 1 and path[-1] not in program.results
    return path if alone and isinstance(path[-1].op, DIRECT) else []


def lies_alike(node: Node) -> bool:
    """Whether its numbers lie in memory as those of its input do."""
    if not isinstance(node.op, ops.Permute):
        return isinstance(node.op, ops.Reshape)
    order = [k for k in node.op.order if not is_one(shape_of(node.inputs[0])[k])]
    return order == sorted(order)


def refuse_opaque(program: Program) -> None:
    node = program.opaque()
    if node is not None:
        assert isinstance(node.op, ops.Opaque)
        where = f"{node.line}: " if node.line else ""
        raise ValueError(f"{where}{node.op.what} has no C; gw.accelerate(model) still runs it.")


def order(program: Program) -> list[Node]:
    """What results need, each node behind its inputs."""
    return Program(program.arguments, program.outputs).nodes


def written(
    node: Node, given: list[Value], layers: Layers, readers: list[Node], stream: Stream | None
) -> Value:
    """The value of a node; a result stands among its own readers."""
    op, goes_on = node.op, stream is not None and node in stream.remembering
    try:
        if isinstance(op, ops.Embed):
            return layers.embed(node, given)
        if isinstance(op, Rows):
            return layers.rows(node, given)
        if isinstance(op, ops.Linear):
            return layers.linear(node, given)
        if isinstance(op, ops.Recurrent):
            wants_y = not all(isinstance(reader.op, ops.LastState) for reader in readers)
            return layers.recurrent(node, given, wants_y, remembers=goes_on)
        if isinstance(op, ops.LastState):
            return layers.last_state(node)
        if isinstance(op, ops.Parameter):
            return layers.parameter(op.tensor, shape_of(node), node.kind)
        if isinstance(op, ops.Map) and op.function in MAPPED and all(map(reads_memory, readers)):
            return mapped(layers.body, op, given[0])
        write = pieces.WRITE if stream is not None and node in stream.special else WRITE
        made = write[type(op)](layers.body, op, node, given)
    except NotImplementedError as error:
        where = f"{node.line}: " if node.line else ""
        raise ValueError(f"{where}{op.name} {error} has no C; gw.accelerate(model) still runs it.") from error
    # What several read is computed once.
    return layers.body.plain(made) if len(readers) > 1 else made


def reads_memory(reader: Node) -> bool:
    return isinstance(reader.op, ops.Linear | ops.Recurrent | ops.Reduce)


def mapped(body: Body, op: ops.Map, value: Value) -> Value:
    """The kernels' own function, which needs no libm, of numbers that must lie in memory in any case."""
    source, made = body.whole(value), body.room(value.shape)
    count, begin, to = in_c(value.count), source.leaves[0].begin, made.leaves[0].base
    body.say(f"gw_map({MAPPED[op.function]}, (size_t)({count}), {begin}, {to});")
    return made


# Arguments.


def arguments(program: Program) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    taken: set[str] = set()
    inputs = []
    for node in program.inputs:
        assert isinstance(node.op, ops.Input)
        inputs.append(argument(c_argument(node.op.argument, taken), node, reads=True))
    outputs = [
        argument(c_argument(name, taken), node, reads=False) for name, node in named(program.outputs, "")
    ]
    return tuple(inputs), tuple(outputs)


def argument(name: str, node: Node, reads: bool) -> Argument:
    return Argument(name, node, stored(name, shape_of(node), node.kind), reads)


def c_argument(name: str, taken: set[str]) -> str:
    found = re.sub(r"\W", "_", name)
    if not found or found[0].isdigit():
        found = f"y_{found}" if found else "y"
    if re.fullmatch(r"[vsijk]\d+|n_\w+|p_\w+|length\d+|gw\w*|GW\w*", found):
        found = f"the_{found}"
    while found in RESERVED | taken:
        found += "_"
    taken.add(found)
    return found


def named(value: Any, name: str) -> list[tuple[str, Node]]:
    """Results and where they stand in what forward() returns: `mean`, `0_h`."""
    if isinstance(value, Node):
        return [(name, value)]
    parts: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, tuple | list):
        parts = list(zip(getattr(value, "_fields", range(len(value))), value))
    return [pair for key, part in parts for pair in named(part, f"{name}_{key}" if name else str(key))]
