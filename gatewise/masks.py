"""Where a model's weights and group variables are not zero: all that counting and cutting needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gatewise.layout import Cell
from gatewise.nn.lookup import bias_of, cell_of, check_finite, ending, matrix_of, places_of, weights_of
from gatewise.readers.graph import block_name, find_blocks, joined


@dataclass(frozen=True)
class RecurrentMasks:
    """One layer and direction. True: not zero. A group variable that does not exist is never zero."""

    cell: Cell
    input_matrix: str
    recurrent_matrix: str
    gate: Tensor  # (G, H) z of the gates
    neuron: Tensor  # (H,) z_h
    candidate_moves: (
        Tensor  # (H,) a gate with its recurrent half gated varies even without a product (GRU: b_hn != 0)
    )


@dataclass(frozen=True)
class Masks:
    """Non-zero weights by matrix, and what else decides who is alive."""

    matrix: dict[str, Tensor]  # parameter name -> (rows, columns); columns of a dead z_x are False
    recurrent: dict[str, RecurrentMasks]  # by block
    words: dict[str, Tensor]  # embedding module -> (V,) z of each word
    word_variables: frozenset[str]  # embeddings that have such variables
    zero_outputs: dict[str, Tensor]  # Linear or Embedding -> (width,) units that are zero whatever comes in
    shared: dict[str, str]  # matrix -> the first name of the same parameter


def find_masks(model: nn.Module) -> Masks:
    """The masks of a model as it is evaluated: thresholded means for a variational layer, plain zeros elsewhere."""
    check_finite(model)
    matrix: dict[str, Tensor] = {}
    recurrent: dict[str, RecurrentMasks] = {}
    words: dict[str, Tensor] = {}
    variables: set[str] = set()
    zero_outputs: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name in dict.fromkeys(block.module for block in find_blocks(model).values()):
        module = model.get_submodule(name)
        if isinstance(module, nn.Linear | nn.Embedding):
            weight = joined(name, "weight")
            matrix[weight] = matrix_of(module).detach() != 0
            shared[weight] = first.setdefault(id(module.weight), weight)
            if isinstance(module, nn.Embedding):
                word_scale = getattr(module, "deterministic_word_scale", lambda: None)()
                if word_scale is not None:
                    variables.add(name)
                words[name] = (
                    matrix[weight].new_ones(len(matrix[weight])) if word_scale is None else word_scale != 0
                )
                zero_outputs[name] = ~(matrix[weight] & words[name][:, None]).any(0)
            else:
                bias = bias_of(module)
                biased = False if bias is None else bias.detach() != 0
                zero_outputs[name] = ~(matrix[weight].any(1) | biased)
            continue
        cell = cell_of(module)
        assert cell is not None
        for layer, direction in places_of(module):
            end = ending(module, layer, direction)
            w = weights_of(module, layer, direction)
            names = joined(name, "weight_ih" + end), joined(name, "weight_hh" + end)
            for label, tensor in zip(names, (w.w_ih, w.w_hh)):
                matrix[label] = tensor.detach() != 0
                parameter = getattr(module, label.rpartition(".")[2], None)
                shared[label] = label if parameter is None else first.setdefault(id(parameter), label)
            if w.input_scale is not None:
                matrix[names[0]] = matrix[names[0]] & (w.input_scale != 0)
            hidden = w.w_hh.shape[1]
            every = matrix[names[1]].new_ones(hidden)
            b_hh = None if w.b_hh is None else cell.split(w.b_hh.detach())
            moves = torch.zeros_like(every)
            for k, gate in enumerate(cell.gates):
                if gate in cell.gated_recurrent and b_hh is not None:
                    moves = moves | (b_hh[k] != 0)
            recurrent[block_name(module, name, layer, direction)] = RecurrentMasks(
                cell,
                *names,
                gate=every.expand(cell.n_gates, hidden) if w.gate_scale is None else w.gate_scale != 0,
                neuron=every if w.neuron_scale is None else w.neuron_scale != 0,
                candidate_moves=moves,
            )
    return Masks(matrix, recurrent, words, frozenset(variables), zero_outputs, shared)
