"""find_readers(): the reader graph of a model, traced or stated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from gatewise.readers.graph import (
    Block,
    Read,
    ReaderGraph,
    find_blocks,
    inner_reads,
    input_matrices,
    output_blocks,
)
from gatewise.readers.trace import Found, input_width, trace_reads
from gatewise.wording import counted

# Who reads a layer: {"rnn": ["fc"]}, or {"rnn": [("fc", 5)]} where fc reads it from its column 5 on.
Stated = Mapping[str, Sequence[str | tuple[str, int]]]


def find_readers(model: nn.Module, readers: Stated | None = None) -> ReaderGraph:
    """The reader graph of a model: found by tracing its forward(), or stated module by module.

    `readers={"rnn": ["fc"]}` says that the output of `rnn` is read by `fc` and by nothing else, where tracing cannot
    tell; what tracing has proven cannot be denied. Blocks whose readers are neither proven nor stated are `exposed`,
    with the reason.
    """
    blocks = find_blocks(model)
    stated = dict(readers or {})
    check_stated(model, stated)
    found = trace_reads(model, blocks)
    reads, exposed, memory = found.reads, found.exposed, found.memory
    believed = set[str]()
    for name, names in stated.items():
        own = {block.name for block in blocks.values() if block.module == name}
        check_not_denied(found, name, own, {reader_of(entry)[0] for entry in names})
        believed |= own & exposed.keys()
        exposed = {block: why for block, why in exposed.items() if block not in own}
        memory = memory - own
        reads = [read for read in reads if read.block not in own]
        reads += stated_reads(model, output_blocks(blocks, name), names)
    reads += inner_reads(model, blocks)
    return ReaderGraph(
        blocks,
        merged(reads),
        exposed,
        frozenset(found.raw),
        frozenset(found.sized),
        frozenset(found.outside),
        frozenset(memory),
        tuple(dict.fromkeys(found.handed)),
        frozenset(found.proven),
        frozenset(believed),
        tuple(found.calls),
    )


def reader_of(entry: str | tuple[str, int]) -> tuple[str, int]:
    """A stated reader and the first of its columns that reads."""
    return (entry, 0) if isinstance(entry, str) else (entry[0], entry[1])


def check_not_denied(found: Found, name: str, own: set[str], stated: set[str]) -> None:
    """What tracing has proven stands, whatever is stated."""
    proven = {read.matrix.rpartition(".")[0] for read in found.reads if read.block in own}
    if denied := sorted(proven - stated):
        raise ValueError(
            f"readers: tracing proves that {name!r} is read by {', '.join(denied)}, which the statement leaves out. "
            f"Add what is missing, or leave {name!r} to tracing."
        )
    for hand in found.handed:
        if hand.source in own:
            raise ValueError(
                f"readers: the last state of {name!r} starts that of {hand.target!r}, which the statement leaves "
                f"out. Leave {name!r} to tracing."
            )
    for block in sorted(own & found.proven.keys()):
        raise ValueError(
            f"readers: {name!r} has a reader that is no layer: {found.proven[block]}. Its neurons cannot be stated "
            f"away; leave {name!r} to tracing, which keeps those that matter."
        )


def merged(reads: Iterable[Read]) -> tuple[Read, ...]:
    """Each read once; where the same columns read a unit in two ways, zero must stay zero in both."""
    keeps: dict[Read, bool] = {}
    for read in reads:
        place = replace(read, keeps_zero=True)
        keeps[place] = keeps.get(place, True) and read.keeps_zero
    return tuple(replace(place, keeps_zero=keep) for place, keep in keeps.items())


def stated_reads(
    model: nn.Module, blocks: Iterable[Block], names: Sequence[str | tuple[str, int]]
) -> list[Read]:
    reads: list[Read] = []
    for name, column in map(reader_of, names):
        for block in blocks:
            for matrix in input_matrices(model.get_submodule(name), name):
                reads.append(Read(matrix, column, block.name, 0, block.width, keeps_zero=True))
            column += block.width
    return reads


def check_stated(model: nn.Module, stated: Stated) -> None:
    """Stated readers must exist, be of a kind with columns, and be as wide as what they read."""
    modules = dict(model.named_modules())
    blocks = find_blocks(model)
    sources = sorted({block.module for block in blocks.values()})
    targets = sorted(name for name in sources if not isinstance(modules[name], nn.Embedding))
    if stated and "" in sources:
        raise ValueError(
            f"readers: the model is a single layer, {type(model).__name__}, and nothing in it reads its output. "
            "Put it in a module with the layers that do."
        )
    for source, names in stated.items():
        if source not in sources:
            raise ValueError(
                f"readers: {source!r} is not a layer with units; the model has {', '.join(sources)}."
            )
        if isinstance(names, str):
            raise ValueError(f"readers: {source!r} must map to a list of names, not to the string {names!r}.")
        width = sum(block.width for block in output_blocks(blocks, source))
        for entry in names:
            check_entry(source, entry)
            name, column = reader_of(entry)
            if name not in targets:
                raise ValueError(
                    f"readers: {name!r}, stated as a reader of {source!r}, is not a layer that can read it; "
                    f"there are {', '.join(targets)}."
                )
            takes = input_width(modules[name])
            whole = takes == width if isinstance(entry, str) else 0 <= column <= takes - width
            if not whole:
                place = f"from column {column} on, " if column else ""
                raise ValueError(
                    f"readers: {name!r} takes {counted(takes, 'input')}, but {source!r} has "
                    f"{counted(width, 'output')}. State only readers of the whole output ({place}as many columns), "
                    f'with their first column where they read more: ("{name}", 0). Or let tracing find the readers.'
                )


def check_entry(source: str, entry: object) -> None:
    kinds = [type(part) for part in entry] if isinstance(entry, tuple) else []
    if not isinstance(entry, str) and kinds != [str, int]:
        raise ValueError(
            f"readers: {source!r} must map to names of layers, or to (name, first column), not {entry!r}."
        )
