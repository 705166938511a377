"""Where a model's weights and group variables are not zero: all that counting and cutting needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gatewise.layout import Cell
from gatewise.nn.lookup import (
    at_rest,
    bias_of,
    cell_of,
    check_finite,
    ending,
    matrix_of,
    places_of,
    weights_of,
    word_scale_of,
)
from gatewise.nn.recurrence import Weights
from gatewise.readers.graph import block_name, find_blocks, joined


@dataclass(frozen=True)
class RecurrentMasks:
    """One layer and direction. True: not zero. A group variable that does not exist is never zero."""

    cell: Cell
    input_matrix: str
    recurrent_matrix: str
    gate: Tensor  # (G, H) z of the gates
    neuron: Tensor  # (H,) z_h
    incoming: Tensor  # (G, H) some weight of the row, whether or not z_x lets its input through
    moves: Tensor  # (G, H) varies with the gate that multiplies its recurrent half (GRU: b_hn != 0)


@dataclass(frozen=True)
class Masks:
    """Non-zero weights by matrix, and what else decides who is alive; on the CPU."""

    matrix: dict[str, Tensor]  # parameter name -> (rows, columns); columns of a dead z_x are False
    recurrent: dict[str, RecurrentMasks]  # by block
    words: dict[str, Tensor]  # embedding module -> (V,) z of each word
    word_variables: frozenset[str]  # embeddings that have such variables
    biased: dict[str, Tensor]  # Linear -> (width,) outputs with a bias
    zero_outputs: dict[str, Tensor]  # Linear or Embedding -> (width,) units that are zero whatever comes in
    shared: dict[str, str]  # matrix -> the first name of the same parameter


def find_masks(model: nn.Module) -> Masks:
    """The masks of a model as it is evaluated: thresholded means for a variational layer, plain zeros elsewhere."""
    check_finite(model)
    with at_rest(model):
        return read_masks(model)


def read_masks(model: nn.Module) -> Masks:
    matrix: dict[str, Tensor] = {}
    recurrent: dict[str, RecurrentMasks] = {}
    words: dict[str, Tensor] = {}
    variables: set[str] = set()
    biased: dict[str, Tensor] = {}
    zero_outputs: dict[str, Tensor] = {}
    names = FirstNames()
    for name in dict.fromkeys(block.module for block in find_blocks(model).values()):
        module = model.get_submodule(name)
        if isinstance(module, nn.Linear | nn.Embedding):
            weight = joined(name, "weight")
            matrix[weight] = nonzero(matrix_of(module))
            names.add(weight, module.weight)
            if isinstance(module, nn.Embedding):
                word_scale = word_scale_of(module)
                if word_scale is not None:
                    variables.add(name)
                every_word = torch.ones(len(matrix[weight]), dtype=torch.bool)
                words[name] = every_word if word_scale is None else nonzero(word_scale)
                zero_outputs[name] = ~(matrix[weight] & words[name][:, None]).any(0)
            else:
                bias = bias_of(module)
                no_bias = torch.zeros(len(matrix[weight]), dtype=torch.bool)
                biased[name] = no_bias if bias is None else nonzero(bias)
                zero_outputs[name] = ~(matrix[weight].any(1) | biased[name])
            continue
        for layer, direction in places_of(module):
            end = ending(module, layer, direction)
            w = weights_of(module, layer, direction)
            own = recurrent_masks(module, w, joined(name, "weight_ih" + end), joined(name, "weight_hh" + end))
            recurrent[block_name(module, name, layer, direction)] = own
            for label, tensor in ((own.input_matrix, w.w_ih), (own.recurrent_matrix, w.w_hh)):
                matrix[label] = nonzero(tensor)
                names.add(label, getattr(module, label.rpartition(".")[2], None))
            if w.input_scale is not None:
                matrix[own.input_matrix] &= nonzero(w.input_scale)
    return Masks(matrix, recurrent, words, frozenset(variables), biased, zero_outputs, names.first)


def recurrent_masks(
    module: nn.Module, w: Weights, input_matrix: str, recurrent_matrix: str
) -> RecurrentMasks:
    cell = cell_of(module)
    assert cell is not None
    every = torch.ones(cell.n_gates, w.w_hh.shape[1], dtype=torch.bool)
    moves = torch.zeros_like(every)
    if w.b_hh is not None:
        for gate in cell.gated_recurrent:
            k = cell.gates.index(gate)
            moves[k] = nonzero(cell.split(w.b_hh)[k])
    return RecurrentMasks(
        cell,
        input_matrix,
        recurrent_matrix,
        gate=every if w.gate_scale is None else nonzero(w.gate_scale),
        neuron=every[0] if w.neuron_scale is None else nonzero(w.neuron_scale),
        incoming=cell.split(nonzero(w.w_ih).any(1) | nonzero(w.w_hh).any(1)),
        moves=moves,
    )


def nonzero(tensor: Tensor) -> Tensor:
    return (tensor.detach() != 0).cpu()


class FirstNames:
    """The first name under which each parameter was met."""

    def __init__(self) -> None:
        self.first: dict[str, str] = {}
        self.by_id: dict[int, str] = {}
        # A tensor made for the look-up must live on, or its id would be given again.
        self.held: list[object] = []

    def add(self, name: str, parameter: object) -> None:
        self.held.append(parameter)
        self.first[name] = name if parameter is None else self.by_id.setdefault(id(parameter), name)
