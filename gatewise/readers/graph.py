"""Who reads whom: which columns of which matrices read each neuron, embedding component and Linear output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from gatewise.nn.lookup import cell_of, ending, is_embedding, is_linear, is_single_step, places_of
from gatewise.program.made_up import Call


@dataclass(frozen=True)
class Block:
    """A bank of units whose values others read: one recurrence (layer and direction), an Embedding, a Linear."""

    name: str  # "rnn.l0", "rnn.l1_reverse", "emb", "fc"
    module: str
    width: int
    place: tuple[int, int] | None = None  # (layer, direction) of a recurrence


@dataclass(frozen=True)
class Read:
    """Columns `column .. column + width` of a matrix read units `unit .. unit + width` of a block."""

    matrix: str  # parameter name, "fc.weight"
    column: int
    block: str
    unit: int
    width: int
    keeps_zero: bool  # a unit that is always zero reaches the matrix as zero (relu, not sigmoid)
    cell: bool = False  # it reads c of the neurons, which is not zero where their h is


@dataclass(frozen=True)
class HandOver:
    """The last state of one block starts that of another, neuron by neuron: it is needed where the other is."""

    source: str
    target: str
    cell: bool  # c rather than h: a neuron whose h is always zero may have one


@dataclass(frozen=True)
class ReaderGraph:
    """All blocks of a model, who reads them, and which are seen by something that cannot be named."""

    blocks: Mapping[str, Block]
    reads: tuple[Read, ...]
    exposed: Mapping[str, str] = field(default_factory=dict)  # block -> why its readers are not all known
    raw: frozenset[str] = frozenset()  # parameters that forward() uses past the layer that owns them
    sized: frozenset[str] = frozenset()  # parameters whose size it asks for, which a cut changes
    outside: frozenset[str] = frozenset()  # matrices that also read, in some call, what carries no units
    memory: frozenset[str] = frozenset()  # blocks whose c is seen inside forward(), whatever became of h
    handed: tuple[HandOver, ...] = ()
    answers: frozenset[str] = frozenset()  # blocks that a caller certainly sees
    believed: frozenset[str] = frozenset()  # blocks whose readers were stated where tracing could not tell
    calls: tuple[Call, ...] = field(default=(), compare=False, repr=False)  # that were traced, in evaluation

    @property
    def raw_of(self) -> dict[str, str]:
        """Module -> one of its parameters that forward() uses past it."""
        return {raw.rpartition(".")[0]: raw for raw in sorted(self.raw)}

    @property
    def kept_whole(self) -> dict[str, str]:
        """The same, and those whose size it asks for: these modules stay in their original shape."""
        return {name.rpartition(".")[0]: name for name in sorted(self.sized | self.raw)}

    def reads_of(self, block: str) -> list[Read]:
        return [read for read in self.reads if read.block == block]

    def reads_by(self, matrix: str) -> list[Read]:
        return [read for read in self.reads if read.matrix == matrix]

    def way_out(self, blocks: Iterable[str]) -> str:
        """What would let neurons go that stay because something unknown may read them; empty if nothing would."""
        modules = dict.fromkeys(self.blocks[name].module for name in blocks if name not in self.answers)
        if not modules:
            return ""
        stated = f'"{next(iter(modules))}": [...]' + (", ..." if len(modules) > 1 else "")
        return f" State their readers if you know them: readers={{{stated}}}."


def find_blocks(model: nn.Module) -> dict[str, Block]:
    """Every bank of units in the model, by name."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"{type(model).__name__}: a scripted or traced module has no layers that could be followed or cut. Give "
            "the model it was made from, and trace the result: torch.jit.trace(small, x)."
        )
    found: list[Block] = []
    closed = [joined(name, "") for name, module in model.named_modules() if is_closed(module)]
    for name, module in model.named_modules():
        if name.startswith(tuple(closed)):
            continue
        if cell_of(module) is not None:
            hidden = int(module.hidden_size)
            for layer, direction in places_of(module):
                found.append(
                    Block(block_name(module, name, layer, direction), name, hidden, (layer, direction))
                )
        elif is_linear(module):
            found.append(Block(name, name, module.out_features))
        elif is_embedding(module):
            found.append(Block(name, name, module.embedding_dim))
    return {block.name: block for block in found}


def is_closed(module: nn.Module) -> bool:
    """One of torch's own modules with layers inside, whose weights it uses as it likes: attention, transformers."""
    if cell_of(module) is not None or is_linear(module) or is_embedding(module):
        return False
    bases = [kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.modules")]
    return not {nn.Sequential, nn.ModuleList, nn.ModuleDict} & set(bases) and bases != [nn.Module]


def block_name(module: nn.Module, name: str, layer: int, direction: int) -> str:
    """`rnn.l0`, `rnn.l1_reverse`; a single-step cell is one block and keeps its own name."""
    return name if is_single_step(module) else joined(name, ending(module, layer, direction)[1:])


def joined(module: str, parameter: str) -> str:
    """Dotted name of something inside a module; the model itself has the empty name."""
    return f"{module}.{parameter}" if module else parameter


def output_blocks(blocks: Mapping[str, Block], module: str) -> list[Block]:
    """The blocks that make up a module's output, in the order of its channels: the last layer, every direction."""
    own = [block for block in blocks.values() if block.module == module]
    last = max((block.place[0] for block in own if block.place), default=0)
    return [block for block in own if block.place is None or block.place[0] == last]


def input_matrices(module: nn.Module, name: str) -> list[str]:
    """The matrices whose columns read a module's input."""
    if cell_of(module) is None:
        return [joined(name, "weight")]
    return [
        joined(name, "weight_ih" + ending(module, layer, direction))
        for layer, direction in places_of(module)
        if layer == 0
    ]


def own_matrices(model: nn.Module, block: Block) -> tuple[str, str]:
    """The input and the recurrent matrix of a recurrence."""
    assert block.place is not None
    end = ending(model.get_submodule(block.module), *block.place)
    return joined(block.module, "weight_ih" + end), joined(block.module, "weight_hh" + end)


def inner_reads(model: nn.Module, blocks: Mapping[str, Block]) -> list[Read]:
    """What a recurrent layer reads of itself: each neuron's recurrent columns, and the next layer's input columns."""
    reads: list[Read] = []
    for block in blocks.values():
        if block.place is None:
            continue
        module = model.get_submodule(block.module)
        layer, direction = block.place
        reads.append(Read(own_matrices(model, block)[1], 0, block.name, 0, block.width, keeps_zero=True))
        for above, side in places_of(module):
            if above == layer + 1:
                matrix = joined(block.module, "weight_ih" + ending(module, above, side))
                reads.append(
                    Read(matrix, direction * block.width, block.name, 0, block.width, keeps_zero=True)
                )
    return reads


def as_reads(
    matrix: str,
    units: np.ndarray,
    blocks: Sequence[Block],
    starts: np.ndarray,
    keeps_zero: bool,
    cell: bool = False,
) -> list[Read]:
    """Reads for a matrix whose column c reads the unit with global number units[c] (-1: none), run by run."""
    of_block = np.where(units < 0, -1, np.searchsorted(starts, units, side="right") - 1)
    goes_on = (np.diff(units) == 1) & (np.diff(of_block) == 0)
    reads: list[Read] = []
    for run in np.split(np.arange(len(units)), np.flatnonzero(~goes_on) + 1):
        c, b = int(run[0]), int(of_block[run[0]])
        if b >= 0:
            first = int(units[c] - starts[b])
            reads.append(Read(matrix, c, blocks[b].name, first, len(run), keeps_zero, cell))
    return reads
