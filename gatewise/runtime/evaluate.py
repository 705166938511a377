"""A program in plain NumPy, node by node, in double precision: the measure of every back end.

answer = evaluate(program, model, {"x": x, "lengths": lengths})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gatewise.nn.cells import SQUASHES
from gatewise.nn.lookup import (
    bias_of,
    cell_of,
    current,
    gate_activation_of,
    is_compact,
    is_single_step,
    matrix_of,
    places_of,
    weights_of,
    word_scale_of,
)
from gatewise.nn.recurrence import affine
from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program, mapped
from gatewise.runtime.arguments import bound, letters_of
from gatewise.runtime.rules import computed

Array = NDArray[Any]
Doubles = NDArray[np.float64]


def evaluate(program: Program, model: nn.Module, given: Mapping[str, Any]) -> Any:
    """What forward() answers to the given arguments, in its own structure, with arrays for tensors."""
    if (node := program.opaque()) is not None:
        raise ValueError(f"{node.line}: {node.op} cannot be run.")
    arrays = bound(program, given, np.float64)
    return Evaluation(program, model, arrays).outputs()


class Evaluation:
    """The values of one call, and the last states of recurrent layers beside them."""

    def __init__(self, program: Program, model: nn.Module, arrays: dict[Node, Array]) -> None:
        self.program, self.model = program, model
        self.letters = letters_of(arrays)
        self.values, self.last = arrays, dict[Node, tuple[Doubles, ...]]()
        with np.errstate(all="ignore"), torch.no_grad():
            for node in program.nodes:
                if node not in self.values:
                    self.values[node] = self.value(node, [self.values[source] for source in node.inputs])

    def outputs(self) -> Any:
        return mapped(
            lambda leaf: np.array(self.values[leaf]) if isinstance(leaf, Node) else leaf, self.program.outputs
        )

    def value(self, node: Node, inputs: list[Array]) -> Array:
        op = node.op
        if isinstance(op, ops.Parameter):
            return parameter(self.model, op.tensor)
        if isinstance(op, ops.Embed):
            return embedding(self.model.get_submodule(op.module))[words(inputs[0], op.module, self.model)]
        if isinstance(op, ops.Linear):
            return linear(self.model.get_submodule(op.module), inputs[0])
        if isinstance(op, ops.Recurrent):
            y, self.last[node] = recurrent(self.model.get_submodule(op.module), op, inputs)
            return y
        if isinstance(op, ops.LastState):
            return self.last[node.inputs[0]]["hc".index(op.part)]
        return computed(node, inputs, self.letters, np.float64)


def parameter(model: nn.Module, name: str) -> Array:
    """A parameter or buffer as it is in evaluation."""
    path, _, own = name.rpartition(".")
    tensor = current(model.get_submodule(path), own)
    assert tensor is not None
    return doubles(tensor) if tensor.is_floating_point() else tensor.detach().cpu().numpy()


def doubles(tensor: torch.Tensor) -> Doubles:
    return tensor.detach().cpu().double().numpy()


def words(ids: Array, name: str, model: nn.Module) -> Array:
    """Word ids; a negative one is not counted from the end."""
    most = int(model.get_submodule(name).num_embeddings)  # type: ignore[arg-type]
    for wrong in ids[(ids < 0) | (ids >= most)].flat:
        raise IndexError(f"{name}: word id {wrong} is outside 0..{most - 1}.")
    return ids


def embedding(module: nn.Module) -> Doubles:
    matrix, scale = matrix_of(module), word_scale_of(module)
    if getattr(module, "max_norm", None) is not None:
        matrix = torch.renorm(matrix, float(module.norm_type), 0, float(module.max_norm))  # type: ignore[arg-type]
    return doubles(matrix if scale is None else matrix * scale[:, None])


def linear(module: nn.Module, x: Array) -> Doubles:
    bias = bias_of(module)
    y: Doubles = x @ doubles(matrix_of(module)).T
    return y if bias is None else y + doubles(bias)


def recurrent(
    module: nn.Module, op: ops.Recurrent, inputs: list[Array]
) -> tuple[Doubles, tuple[Doubles, ...]]:  # (B, T, D*H), each (L*D, B, H)
    """Layer by layer, direction by direction, step by step; sequences stop at their ends."""
    cell = cell_of(module)
    assert cell is not None
    x, batch, steps = inputs[0], *inputs[0].shape[:2]
    hidden, places = int(module.hidden_size), list(places_of(module))  # type: ignore[arg-type]
    given = [torch.from_numpy(np.array(part)) for part in inputs[len(inputs) - op.states :]]
    lengths = torch.from_numpy(np.array(inputs[1])) if op.lengths else torch.full((batch,), steps)
    first = given or [torch.zeros(len(places), batch, hidden, dtype=torch.float64)] * cell.n_states
    below, y, last = torch.from_numpy(np.array(x, np.float64)), list[torch.Tensor](), []
    for place, (layer, direction) in enumerate(places):
        if direction == 0 and y:
            below, y = torch.cat(y, -1), []
        before = [part[place] * still_there(module, layer, direction) for part in first]
        out, state = one(module, layer, direction, below, before, lengths)
        y.append(out)
        last.append(state)
    return torch.cat(y, -1).numpy(), tuple(torch.stack(parts).numpy() for parts in zip(*last))


def still_there(module: nn.Module, layer: int, direction: int) -> torch.Tensor:  # (H,)
    """Neurons that were not removed: what is given as the first state of others counts as zero."""
    if not is_compact(module):
        return torch.ones(int(module.hidden_size))  # type: ignore[arg-type]
    own = module.layer if is_single_step(module) else module.layer(layer, direction)  # type: ignore[operator]
    there: torch.Tensor = own.neuron_scale.new_zeros(own.width).index_fill(0, own.neurons, 1)  # type: ignore
    return there


def one(
    module: nn.Module,
    layer: int,
    direction: int,
    x: torch.Tensor,
    state: list[torch.Tensor],
    lengths: torch.Tensor,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # (B, T, I), each (B, H), (B,) -> (B, T, H), each (B, H)
    """One layer and direction by the equations of its cell."""
    cell, w = cell_of(module), weights_of(module, layer, direction)
    assert cell is not None
    w_ih, w_hh = w.w_ih.double(), w.w_hh.double()
    b_ih, b_hh, z_x, z, z_h = (
        None if t is None else t.double()
        for t in (w.b_ih, w.b_hh, w.input_scale, w.gate_scale, w.neuron_scale)
    )
    squash = SQUASHES[gate_activation_of(module)]
    y = x.new_zeros(*x.shape[:2], state[0].shape[1])
    x = x if z_x is None else x * z_x
    for t in reversed(range(x.shape[1])) if direction else range(x.shape[1]):
        parts = affine(cell, x[:, t], w_ih, b_ih, z), affine(cell, state[0], w_hh, b_hh, z)
        after = cell.step(*parts, tuple(state), 1.0 if z_h is None else z_h, squash)
        there = (t < lengths)[:, None]
        state = [torch.where(there, new, old) for new, old in zip(after, state)]
        y[:, t] = torch.where(there, after[0], 0.0)
    return y, state
