"""A program: forward() as a small graph of operations, from its arguments to what it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gatewise.program.operations import Constant, Full, Input, Opaque, Operation, Reshape, Unpack
from gatewise.program.sizes import Size
from gatewise.program.source import SourceLine

FLOAT, INT, BOOL = "float", "int", "bool"


@dataclass(eq=False)
class Node:
    """One value: what computes it, its shape (some sizes only a call knows), and where it was written."""

    op: Operation
    inputs: tuple[Node, ...]
    shape: tuple[int, ...]
    kind: str = FLOAT
    line: SourceLine | None = None
    turn: tuple[int, int] | None = None  # the loop over time in which it was made, and which of its steps
    number: int = 0
    as_given: bool = (
        False  # an argument that forward() only hands on: its kind is that of a call, whatever `kind` is
    )

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        said = ", ".join([*(f"%{i.number}" for i in self.inputs), *settings(self.op)])
        shape = ", ".join(map(str, self.shape))
        where = f"    # {self.line}" if self.line else ""
        return f"%{self.number} = {self.op.name}({said}) -> {self.kind}({shape}){where}"


@dataclass(frozen=True)
class Program:
    """forward() in one way to call it.

    `arguments` maps every given argument to its node, or to tuples, lists and dicts of nodes where it has parts;
    `outputs` is what forward() returns, in its own structure, with nodes for tensors and everything else as it is.
    """

    arguments: dict[str, Any]
    outputs: Any
    absent: frozenset[str] = frozenset()  # optional arguments that were left out
    unread: frozenset[str] = frozenset()  # those that were given, and may have been asked about, but not read
    effects: tuple[Node, ...] = ()  # what forward() leaves elsewhere: stored in a module, seen by a hook

    def holds_for(self, given: Collection[str]) -> bool:
        """Whether it is of calls with these arguments: forward() may ask of each optional one whether it is there."""
        return self.unread <= set(given) and self.absent.isdisjoint(given)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(leaf for leaf in leaves(self.arguments) if isinstance(leaf, Node))

    @property
    def results(self) -> tuple[Node, ...]:
        return tuple(leaf for leaf in leaves(self.outputs) if isinstance(leaf, Node))

    @property
    def nodes(self) -> list[Node]:
        """All nodes that a result needs, each behind its inputs and the node that binds its letters, numbered so."""
        found: dict[Node, None] = {}
        for node in (*self.inputs, *self.results, *self.effects):
            visit(node, found, {})
        # The first one with a letter: another may read what it gives.
        binding = {name: node for node in reversed(found) for name in bound_by(node)}
        if binding:
            unordered, found = found, {}
            for node in unordered:
                visit(node, found, binding)
        for number, node in enumerate(found):
            node.number = number
        return list(found)

    def users(self) -> dict[Node, list[Node]]:
        """For every node, those that read it."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in found:
            for source in dict.fromkeys(node.inputs):
                found[source].append(node)
        return found

    def opaque(self) -> Node | None:
        """The first node that no back end can run."""
        return next((node for node in self.nodes if isinstance(node.op, Opaque)), None)

    def __str__(self) -> str:
        lines = [str(node) for node in self.nodes]
        told = mapped(lambda leaf: Shown(f"%{leaf.number}") if isinstance(leaf, Node) else leaf, self.outputs)
        return "\n".join([*lines, f"return {told}"])


def called_with(programs: Iterable[Program]) -> str:
    """`x or x, mask`: what each of the ways to call forward() is given."""
    return " or ".join(dict.fromkeys(", ".join([*p.arguments, *sorted(p.unread)]) for p in programs))


def only_called_with(given: Iterable[str], programs: Iterable[Program]) -> str:
    """Why a call cannot be answered that is of none of these ways."""
    asked = (
        f"could not be recorded with {', '.join(given)} given, only" if given else "could be recorded only"
    )
    return f"forward() {asked} with {called_with(programs)}."


class Shown(str):
    """Text without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def visit(node: Node, found: dict[Node, None], binding: Mapping[str, Node]) -> None:
    """Add a node behind what it reads; without recursion, because programs may be long."""
    waiting = [(node, False)]
    while waiting:
        current, ready = waiting.pop()
        if current in found:
            continue
        if ready:
            found[current] = None
        else:
            bound = [binding[name] for name in letters_in(current) if name in binding] if binding else []
            before = [*current.inputs, *(other for other in bound if other is not current)]
            waiting.append((current, True))
            waiting.extend((source, False) for source in reversed(before))


def bound_by(node: Node) -> frozenset[str]:
    """The letter of a longest length."""
    size = node.shape[1] if isinstance(node.op, Unpack) else 0
    return (
        frozenset(name for name in size.letters if name[0] == "L") if isinstance(size, Size) else frozenset()
    )


def letters_in(node: Node) -> frozenset[str]:
    """Letters in the shape of a node and in what its operation says."""
    sizes = (*node.shape, *(getattr(node.op, own.name) for own in fields(node.op)))
    return frozenset(name for size in sizes if isinstance(size, Size) for name in size.letters)


def settings(op: Operation) -> Iterator[str]:
    """What an operation says of itself, without what is as usual."""
    for own in fields(op):
        value = getattr(op, own.name)
        if value != own.default if not isinstance(op, Constant) else True:
            usual = isinstance(op, Input | Constant)
            yield str(value) if usual else f"{own.name}={value}"


def unshaped(node: Node) -> Node:
    """What a value was before it got another shape: a state with axes of size 1 more or less."""
    while isinstance(node.op, Reshape):
        (node,) = node.inputs
    return node


def filling(node: Node) -> float | None:
    """The one number that a tensor has everywhere, if forward() wrote it down."""
    if isinstance(node.op, Full):
        return node.op.value
    values = node.op.values if isinstance(node.op, Constant) else None
    same = values is not None and values.size > 0 and bool((values == values.flat[0]).all())
    return float(values.flat[0]) if same else None  # type: ignore[union-attr]


def substituted(program: Program, others: Mapping[Node, Node]) -> Program:
    """The program with other nodes for some, and without the arguments that these were."""
    copies = dict(others)
    for node in program.nodes:
        copies[node] = copies.get(node) or copied(node, tuple(copies[source] for source in node.inputs))
    outputs = mapped(lambda leaf: copies[leaf] if isinstance(leaf, Node) else leaf, program.outputs)
    left = {name: given for name, given in program.arguments.items() if not others.keys() & {*leaves(given)}}
    effects = tuple(copies[node] for node in program.effects)
    return replace(program, arguments=left, outputs=outputs, effects=effects)


def copied(node: Node, inputs: tuple[Node, ...]) -> Node:
    """A node that reads others; itself where they are the same."""
    return node if inputs == node.inputs else Node(node.op, inputs, node.shape, node.kind, node.line)


def leaves(value: Any) -> list[Any]:
    """What is inside nested tuples, lists and dicts."""
    if isinstance(value, dict):
        return leaves(list(value.values()))
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple | list) else [value]


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with every leaf changed; named tuples and other kinds of dict stay what they are."""
    if isinstance(value, dict):
        changed = {key: mapped(function, part) for key, part in value.items()}
        return changed if type(value) is dict else rebuilt_dict(value, changed)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(function, part) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(function, part) for part in value)
    return function(value)


def rebuilt_dict(like: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    try:
        return type(like)(changed)
    except TypeError:  # a defaultdict, say, wants something else first
        return changed
