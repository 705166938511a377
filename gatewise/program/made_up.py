"""Arguments of a call that are made up, of what a recording says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatewise.program import operations as ops
from gatewise.program.graph import BOOL, FLOAT, Node, Program, leaves, mapped
from gatewise.program.sizes import Size, at

MOVED = (ops.Reshape, ops.Permute, ops.Slice, ops.Expand, ops.Concat, ops.Flip, ops.Pad, ops.Cast)


@dataclass(frozen=True)
class Argument:
    """What an argument of forward() is, or a part of one."""

    shape: tuple[int, ...]
    kind: str
    tables: tuple[str, ...]  # the embeddings that it reaches


UNREAD = Argument((), FLOAT, ())  # forward() may ask whether it is there


@dataclass(frozen=True)
class Call:
    """One way to call forward(): arguments that are given, and what others hold, flags say."""

    arguments: Mapping[str, Any]  # in their structure
    values: Mapping[str, Any]
    handed_back: tuple[
        int, ...
    ] = ()  # places in the answer of states that forward() takes: whoever has them looks at
    # none of their neurons

    def made_up(self, model: nn.Module, steps: int, other: int) -> dict[str, Any]:
        """Arguments for a few sequences of so many steps."""
        free = [n for one in leaves(self.arguments) for n in one.shape if isinstance(n, Size)]
        names = sorted(frozenset[str]().union(*(size.letters for size in free)))
        sizes = {name: max(1, steps - 2) if name[0] == "S" else 4 for name in names} | {"B": 3, "T": steps}
        generator = np.random.default_rng(0)
        given = mapped(lambda one: made_up(one, model, sizes, other, generator), self.arguments)
        return {**self.values, **given}


def call_of(program: Program, unread: Iterable[str], values: Mapping[str, Any]) -> Call:
    """The call that was recorded; of what it did not read, any number will do."""

    def known(node: Node | None) -> Argument:
        return UNREAD if node is None else described(node, program)

    return Call(dict.fromkeys(unread, UNREAD) | mapped(known, program.arguments), values)


def described(node: Node, program: Program) -> Argument:
    return Argument(node.shape, node.kind, tuple(tables_of(node, program)))


def made_up(
    argument: Argument, model: nn.Module, sizes: Mapping[str, int], other: int, generator: Any
) -> Tensor:
    """Vectors and ids at random; whole numbers that are no ids are `other`."""
    shape = tuple(at(size, sizes) for size in argument.shape)
    if argument.kind == FLOAT:
        return torch.from_numpy(generator.standard_normal(shape, np.float32))
    if argument.kind == BOOL:
        return torch.ones(shape, dtype=torch.bool)
    tables: list[Any] = [model.get_submodule(name) for name in argument.tables]
    if not tables:
        return torch.full(shape, other)
    words = min(table.num_embeddings for table in tables)
    ids = generator.integers(0, words, shape)
    rows = getattr(tables[0], "rows", None)
    kept = np.flatnonzero(np.zeros(0) if rows is None else rows.numpy()[:words] >= 0)
    if len(kept):  # of few kept words, a draw would show the biases and little else
        ids.reshape(-1)[::2] = generator.choice(kept, -(-ids.size // 2))
    return torch.from_numpy(ids)


def tables_of(node: Node, program: Program) -> list[str]:
    """The embeddings that an argument reaches."""
    users, seen, waiting, found = program.users(), set[Node](), [node], list[str]()
    while waiting:
        current = waiting.pop()
        for user in users[current]:
            if isinstance(user.op, ops.Embed):
                found.append(user.op.module)
            elif isinstance(user.op, MOVED) and user not in seen:
                seen.add(user)
                waiting.append(user)
    return found
