"""Embeddings that are folded into the layers that read them: a word travels as the number of its row.

    table[row] = W_ih vector[row] + b

Of one-hot vectors the table is the input matrix itself, a column for each word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gatewise.export.c.layers import Rows, recurrent_of, tied
from gatewise.export.c.narrow import keeps_channels
from gatewise.nn.lookup import is_compact
from gatewise.program import operations as ops
from gatewise.program.graph import FLOAT, INT, Node, Program, mapped
from gatewise.runtime.narrow import integers

MOVES = (ops.Permute, ops.Reshape, ops.Expand, ops.Slice, ops.Flip)
REFUSED = (
    "fold_embedding=True: forward() does more with the vectors of {} than give them to a recurrent layer that is "
    "called once; leave it out."
)


@dataclass(frozen=True)
class Fold:
    """What is folded, and the names of the layers that read it."""

    rows: Rows
    readers: tuple[str, ...]


def folded(program: Program, model: nn.Module, wish: bool | None = None) -> tuple[Program, list[Fold]]:
    """The program in which words travel as rows, where that takes fewer bytes or, with wish=True, where it can be.

    Raises:
        ValueError: wish=True, and there are embeddings, but none that can be folded.
    """
    order, users = Program(program.arguments, program.outputs).nodes, program.users()
    layers = [node.op.module for node in order if isinstance(node.op, ops.Recurrent)]
    found: dict[Rows, list[tuple[list[Node], list[str]] | None]] = {}
    for node in order:
        if (rows := rows_of(node, model)) is not None:
            found.setdefault(rows, []).append(followed(node, users, program.results))
    folds, inside = list[Fold](), set[Node]()
    for rows, every in found.items():
        ways = [way for way in every if way is not None]
        fold = Fold(rows, tuple(dict.fromkeys(name for _, names in ways for name in names)))
        once = all(layers.count(name) == 1 for name in fold.readers)
        if len(ways) == len(every) and once and pays(fold, model, wish):
            folds.append(fold)
            inside.update(node for nodes, _ in ways for node in nodes)
    embeddings = [rows.module for rows in found if rows.module]
    if wish and embeddings and not folds:
        raise ValueError(REFUSED.format(embeddings[0]))
    return rebuilt(program, order, inside, model), folds


def rows_of(node: Node, model: nn.Module) -> Rows | None:
    """What is looked up, where a node makes vectors of words."""
    op = node.op
    if isinstance(op, ops.Embed):
        module: Any = model.get_submodule(op.module)
        return Rows(op.module, module.num_embeddings) if is_compact(module) else None
    if isinstance(op, ops.Combine) and op.function == "eq" and node.inputs[1].op == ops.Count():
        (words,), *_, width = node.inputs[1].shape, node.inputs[0].shape[-1]
        hot = node.inputs[0].kind == INT and node.rank == node.inputs[0].rank and isinstance(words, int)
        return Rows("", int(words)) if hot and width == 1 else None
    return None


def followed(
    source: Node, users: Mapping[Node, Sequence[Node]], results: Collection[Node]
) -> tuple[list[Node], list[str]] | None:
    """What hands vectors on, and the layers that read them; None where anything else does."""
    handing, readers = [source], list[str]()
    for current in handing:  # it grows
        for user in users[current]:
            if isinstance(user.op, ops.Recurrent) and current not in user.inputs[1:]:
                readers.append(user.op.module)
            elif hands_on(user.op, current, user):
                handing.append(user)
            else:
                return None
        if current in results:
            return None
    return handing, readers


def hands_on(op: ops.Operation, before: Node, node: Node) -> bool:
    if isinstance(op, ops.Cast):
        return before.kind != FLOAT or node.kind == FLOAT
    return isinstance(op, MOVES) and keeps_channels(op, before, node)


def pays(fold: Fold, model: nn.Module, wish: bool | None) -> bool:
    """Fewer rows than components. Of one-hot vectors nothing speaks against it; a matrix that another layer shares
    takes no bytes of its own."""
    if not fold.rows.module or wish is not None:
        return bool(fold.readers) and (wish is not False or not fold.rows.module)
    module: Any = model.get_submodule(fold.rows.module)
    read = (recurrent_of(model.get_submodule(name), name) for name in fold.readers)
    live = sum(len(integers(layer.layer(0, d).slots)) for layer in read for d in range(layer.num_directions))
    return bool(fold.readers) and live < module.weight.shape[1] and not tied(model, module)


def rebuilt(program: Program, order: Sequence[Node], inside: Collection[Node], model: nn.Module) -> Program:
    new: dict[Node, Node] = {}
    for node in order:
        inputs = tuple(new[source] for source in node.inputs)
        if isinstance(node.op, ops.Input):
            new[node] = node
        elif node not in inside:
            new[node] = Node(node.op, inputs, node.shape, node.kind, node.line)
        else:
            rows = rows_of(node, model)
            op, inputs = (node.op, inputs) if rows is None else (rows, inputs[:1])
            new[node] = Node(op, inputs, (*node.shape[:-1], 1), INT, node.line)
    outputs = mapped(lambda leaf: new[leaf] if isinstance(leaf, Node) else leaf, program.outputs)
    return Program(program.arguments, outputs, program.absent, program.unread)
