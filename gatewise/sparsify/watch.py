"""Layers of which nothing is left, noticed while they train: what noise hides, evaluation would show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import ending, places_of, stored
from gatewise.readers import Read, ReaderGraph
from gatewise.readers.graph import block_name, own_matrices
from gatewise.sparsify.layers import LOG_SIGMA, RecurrentPosterior
from gatewise.sparsify.posterior import kept

EVERY = 100  # updates from one look to the next, so that the device is waited for once in so many
IN_A_ROW = 5  # looks: a layer may sink and come back


class Watch:
    """Which layers had something left once, and nothing for some looks in a row: they say the same to every input.

    The first look is before training, because a layer may begin with nothing: only what was there can go.
    """

    def __init__(
        self, left: Callable[[], Mapping[str, bool]], every: int = EVERY, in_a_row: int = IN_A_ROW
    ) -> None:
        self.left, self.every, self.in_a_row = left, every, in_a_row
        self.updates, self.told = 0, False
        self.empty_for: dict[str, int] = {}  # looks since there was something left, of layers that ever had
        self.look()

    def update(self) -> list[str]:
        """Count an update; the layers that have become and stayed empty, once."""
        self.updates += 1
        if self.told or self.updates % self.every or is_capturing():
            return []
        self.look()
        empty = [name for name, looks in self.empty_for.items() if looks >= self.in_a_row]
        self.told = bool(empty)
        return empty

    def look(self) -> None:
        for name, some in self.left().items():
            if some or name in self.empty_for:
                self.empty_for[name] = 0 if some else self.empty_for[name] + 1

    @property
    def how_long(self) -> str:
        return f"for the last {self.in_a_row * self.every} of {self.updates:,} updates"


def left_of_posteriors(model: nn.Module) -> dict[str, bool]:
    """By layer: some m^2 / sigma^2 of its w_ih and some of its z_h is above the threshold, in some direction.

    Wide layers or a large log sigma may begin below it.
    """
    left: dict[str, bool] = {}
    for path, module in model.named_modules():
        for layer, direction in places_of(module) if isinstance(module, RecurrentPosterior) else ():
            name = block_name(module, path, layer, 0)
            left[name] = left.get(name, False) or anything_left(module, layer, direction)
    return left


@torch.no_grad()
def left_of_matrices(
    model: nn.Module, graph: ReaderGraph, modules: Collection[str], matrix: Callable[[str], Tensor]
) -> dict[str, bool]:
    """By layer: some input weight is not zero, and some weight outside the layer that reads it, in some direction.

    Who reads it may not be known; then its input weights alone tell.
    """
    left: dict[str, bool] = {}
    for block in graph.blocks.values():
        if block.place is None or block.module not in modules:
            continue
        module = model.get_submodule(block.module)
        own = own_matrices(model, block)
        reads = [r for r in graph.reads_of(block.name) if r.matrix not in own]
        heard = block.name in graph.exposed or not reads
        heard = heard or any(bool((columns_of(model, r, matrix) != 0).any()) for r in reads)
        some = bool((matrix(own[0]) != 0).any())
        name = block_name(module, block.module, block.place[0], 0)
        left[name] = left.get(name, False) or (heard and some)
    return left


def columns_of(model: nn.Module, read: Read, matrix: Callable[[str], Tensor]) -> Tensor:
    """What a matrix still has of the columns of one read."""
    path, _, name = read.matrix.rpartition(".")
    columns, last = stored(model.get_submodule(path), name).columns, read.column + read.width
    if columns is None:
        return matrix(read.matrix)[:, read.column : last]
    return matrix(read.matrix)[:, (columns >= read.column) & (columns < last)]


def never_moved(log_sigmas: Sequence[Tensor]) -> bool:
    """Whether all have gradients and are still as they were made, one number each: no optimizer has them."""
    return all(p.grad is not None and bool((p == p.flatten()[:1]).all()) for p in log_sigmas)


def is_capturing() -> bool:
    """A CUDA graph that is being captured must not read the host; replays call nothing here."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def anything_left(module: nn.Module, layer: int, direction: int) -> bool:
    end = ending(module, layer, direction)
    for name in ("weight_ih" + end, "neuron_scale" + end):
        mean, log_sigma = getattr(module, name, None), getattr(module, name + LOG_SIGMA, None)
        if mean is None or log_sigma is None:
            continue
        finite = (mean.sum() + log_sigma.sum()).isfinite()  # NaN is another trouble
        if finite and not kept(mean, log_sigma, module.snr_threshold).any():  # type: ignore[arg-type]
            return False
    return True
