"""Pruning: L1 on weights, group lasso on gates and neurons, and a threshold after every update."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gatewise.groups import Lines, find_groups, group_kinds, grouped_blocks
from gatewise.nn.lookup import check_finite, computed_matrix, is_linear, matrix_names, stored
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.readers.graph import joined, own_matrices
from gatewise.sparsify.checks import (
    Chosen,
    check_choice,
    check_levels,
    check_not_negative,
    chosen_modules,
    why_not_own,
)
from gatewise.sparsify.dispatch import gradient, threshold_, value_and_slopes
from gatewise.sparsify.fixed import Fixed
from gatewise.sparsify.layers import is_variational
from gatewise.sparsify.plan import Plan
from gatewise.sparsify.proximal import rate_of, shrink_, soften_
from gatewise.sparsify.watch import Watch, left_of_matrices
from gatewise.structure import Structure
from gatewise.wording import by_reason, shortened

LOOKS = (
    25,
    4,
)  # updates from one look to the next, and looks in a row: of what is exactly zero little comes back
UPDATES = ("subgradient", "proximal")


class GroupLasso(Fixed):
    """penalty = l1 * sum |w| + group * sum over groups of sqrt(sum of w^2 in the group + 1e-8)

    Groups (see `gatewise.groups`): none at "W", one per neuron at "W+N", one per gate and one per neuron at
    "W+G+N". `step()` follows the optimizer and sets weights below `threshold` to zero; they may grow again. It covers
    every matrix that the penalty reaches: those with L1, and those that hold weights of a group, since slopes alone
    bring no group to exactly zero.

    The paper's lambdas belong to a loss summed over the time window: `loss = T * criterion(...) + penalty()`. Its
    threshold belongs to SGD with a rate that falls far: what is unneeded goes back and forth around zero by the size
    of an update, so the threshold has to be about that, with Adam about the learning rate of the last epochs.

    `update="proximal"`: the penalty has no gradient; instead `step(optimizer)` shrinks all weights and groups in
    closed form by the learning rate times lambda (`gatewise.sparsify.proximal`). Zeros are exact then, with Adam and
    AdamW, too, and need no threshold. The rate is the plain one of the optimizer, also where it adapts its steps.

    A compact network can be sparsified further: groups are made of the rows and columns that it still has, and
    compress() cuts what became zero.

    A layer whose readers tracing does not find has no groups of neurons: its gates and weights are sparsified, and
    one warning says so, and why.

    Args:
        l1, group: lambdas, by default for a mean loss and Adam; there is no group at "W".
        threshold: 1e-4 by default, 0 with proximal updates.
        update: "subgradient", as in the paper, or "proximal".
        layers: recurrent layers whose gates and neurons form groups; all by default.
        l1_layers: layers whose matrices get L1; by default `layers` and the Linear layers that read them, not the
            embedding (the scope of the code behind the paper's pruning rows).
        readers: who reads a layer, where tracing cannot prove it: {"rnn": ["fc"]}.
    """

    def __init__(
        self,
        model: nn.Module,
        levels: str = "W+G+N",
        *,
        l1: float = 1e-4,
        group: float | None = None,
        threshold: float | None = None,
        update: str = "subgradient",
        layers: Sequence[str] | None = None,
        l1_layers: Sequence[str] | None = None,
        readers: Stated | None = None,
    ) -> None:
        check_levels(levels)
        check_choice("update", update, UPDATES)
        if threshold is None:
            threshold = 1e-4 if update == "subgradient" else 0.0
        if group is None:
            group = 0.0 if levels == "W" else 1e-3
        check_not_negative(l1=l1, group=group, threshold=threshold)
        if (levels == "W") != (group == 0):
            hint = (
                "has no groups: use group=0, or levels W+N or W+G+N" if levels == "W" else "needs group > 0"
            )
            raise ValueError(f"levels={levels!r} with group={group} {hint}.")
        if is_variational(model):
            raise ValueError(
                "The model is variational: its layers have a penalty and a threshold of their own. Give GroupLasso a "
                "model that gatewise.Variational has not converted."
            )
        check_finite(model)
        self.model, self.levels, self.readers = model, levels, readers
        self.l1, self.group, self.threshold, self.update = l1, group, threshold, update
        self._stored_as: dict[tuple[str, type], str] = {}  # names of parameters by matrix and kind of layer
        chosen = chosen_modules(model, (), layers)
        recurrent = chosen.modules
        graph = with_computed_readers(model, find_readers(model, readers))
        if l1_layers is None:
            scope = {**recurrent, **linear_readers(model, graph, recurrent)}
        else:
            scope = chosen_modules(model, (nn.Linear, nn.Embedding), l1_layers, "l1_layers").modules
        warn_left(model, graph, chosen, levels, scope if l1_layers is None else None)
        self.blocks = grouped_blocks(graph, recurrent, levels)
        self.staying = {block.name for block in self.blocks} & graph.exposed.keys()  # neurons without groups
        grouped = [name for block in self.blocks for name in own_matrices(model, block)]
        whole = {block.name for block in self.blocks} - self.staying
        grouped += [read.matrix for read in graph.reads if read.block in whole]
        in_scope = matrices_of(scope)
        names = dict.fromkeys([*in_scope, *grouped])
        # A parameter shared by two layers is one parameter: it is penalised and thresholded once.
        first: dict[int, str] = {}
        for name in names:
            first.setdefault(id(self._parameter(name)), name)
        self.matrices = tuple(first.values())
        self.shapes = {name: matrix_shape(self._parameter(name)) for name in self.matrices}
        if not any(rows * columns for rows, columns in self.shapes.values()):
            raise ValueError("Nothing is left of the layers: they have no weight that could be penalised.")
        lines = Lines(self.shapes)
        for name in names:
            module, _, matrix = name.rpartition(".")
            own = stored(model.get_submodule(module), matrix)
            lines.add(name, first[id(self._parameter(name))], own)
        l1_names = {first[id(self._parameter(name))] for name in in_scope}
        groups, self.there = find_groups(model, graph, recurrent, levels, lines)
        l1_of = tuple(l1 * (name in l1_names) for name in self.matrices)
        kinds = group_kinds(model, self.blocks, levels)[self.there]
        self.plan = Plan(group, l1_of, groups, list(self.shapes.values()), kinds)
        self._graph, self._recurrent = graph, tuple(recurrent)
        self._watch = Watch(self._left, *LOOKS)
        self._made = True

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self, name):g}" for name in ("l1", "group", "threshold"))
        named = ", ".join(name or "itself" for name in self._recurrent)
        whose = f"{type(self.model).__name__} ({named})"
        return f"<GroupLasso {self.levels} of {whose}: {numbers}, {self.update} updates>"

    def _left(self) -> dict[str, bool]:
        return left_of_matrices(self.model, self._graph, self._recurrent, self._parameter)

    def _parameter(self, name: str) -> Tensor:
        module, _, matrix = name.rpartition(".")
        try:
            layer = self.model.get_submodule(module)
            place = name, type(layer)
            if place not in self._stored_as:  # once: of a compact layer its lines would be looked up, too
                self._stored_as[place] = stored(layer, matrix).name
            return layer.get_parameter(self._stored_as[place])
        except AttributeError as error:
            raise ValueError(
                f"{name}: was there when this GroupLasso was made, but is not any more ({error}). Make it again, for "
                "the model as it is now."
            ) from error

    def current(self) -> list[Tensor]:
        """The matrices, if they are those that the groups are made of."""
        matrices = [self._parameter(name) for name in self.matrices]
        for matrix, (name, shape) in zip(matrices, self.shapes.items()):
            if matrix.shape != shape:
                raise ValueError(
                    f"{name}: its shape is {tuple(matrix.shape)}, but was {shape} when this GroupLasso was made, so "
                    "its groups are others now, as after compress(). Make the GroupLasso again."
                )
        return matrices

    def penalty(self) -> Tensor:
        """The regulariser, to be added to the loss; its gradient is exact and costs one pass over the matrices.

        With proximal updates it has none: then it only tells.
        """
        if self.update == "proximal":
            with torch.no_grad():
                value = self._value()
            return value.requires_grad_(torch.is_grad_enabled())
        return self._value()

    def _value(self) -> Tensor:
        result = Penalty.apply(self.plan, *self.current())  # type: ignore[no-untyped-call]
        assert isinstance(result, Tensor)
        return result

    @torch.no_grad()
    def backward(self) -> Tensor:
        """`penalty().backward()` in fewer passes: adds to the gradients in place, and returns the value.

        Call it after the backward pass of the loss, once per update, and leave `penalty()` out of the loss:

            loss.backward()
            lasso.backward()
            optimizer.step()
            lasso.step()
        """
        matrices = self.current()
        value, slopes = value_and_slopes(self.plan, [matrix.detach() for matrix in matrices])
        if self.update == "proximal":
            return value
        for k, matrix in enumerate(matrices):
            if matrix.requires_grad:
                matrix.grad = gradient(self.plan, k, matrix.detach(), slopes, added_to=matrix.grad)
        return value

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """w = 0 where |w| < threshold, for every matrix with L1 or groups. Call it after the optimizer's step.

        Proximal updates come before that, and need the optimizer for its learning rate. A frozen matrix stays as it
        is. Warns once when for a hundred updates nothing was left of a layer.
        """
        trained = [matrix.detach() for matrix in self.current() if matrix.requires_grad]
        if trained and self.update == "proximal":
            self._shrink(rate_of(optimizer, dict(zip(self.matrices, self.current()))))
        if trained and self.threshold:
            threshold_(trained, self.threshold)
        if torch.compiler.is_compiling():
            return
        if empty := self._watch.update():
            warnings.warn(
                f"{', '.join(empty)}: {self._watch.how_long} all input weights, or all weights that read the layer, "
                "were zero: it gives every input the same answer. The penalty outweighs the data: "
                f"group={self.group:g}, l1={self.l1:g}, threshold={self.threshold:g}. Begin again with a tenth of "
                "group and l1, or a threshold that is not above the learning rate (Adam) of the last epochs.",
                stacklevel=3,
            )

    def _shrink(self, rate: Tensor | float) -> None:
        """Weights, then gates, then neurons: each by the rate times its lambda."""
        matrices = self.current()
        plan = self.plan.on(matrices[0].device, self.plan.weights.dtype)
        eta = torch.as_tensor(rate, dtype=plan.factors.dtype, device=plan.factors.device)
        for matrix, l1 in zip(matrices, plan.l1):
            if l1 and matrix.requires_grad:
                soften_(matrix.detach(), (eta * l1 * plan.l1_factor).to(matrix.dtype))
        frozen = [not matrix.requires_grad for matrix in matrices]
        for kind in plan.kinds:
            by = eta * plan.group * plan.factors * kind
            shrink_(plan, [matrix.detach() for matrix in matrices], frozen, by)

    def structure(self) -> Structure:
        """What is left: the paper's one-pass count, as keep-masks."""
        return Structure.from_weights(self.model, self.readers)


class Penalty(torch.autograd.Function):
    """l1 sum|w| + group sum_g n_g with n_g = sqrt(sum w^2 + eps); d/dw = l1 sign(w) + w group sum_g 1/n_g.

    Sums of squares over rows and columns are all that the groups need, so the matrices are read once forward and
    once backward, whatever the number of groups.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, *matrices: Tensor) -> Tensor:
        value, slopes = value_and_slopes(plan, matrices)
        ctx.plan = plan
        ctx.save_for_backward(*matrices, slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        *matrices, slopes = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        grads = (
            gradient(ctx.plan, k, w, slopes, scale) if needed[k] else None for k, w in enumerate(matrices)
        )
        return None, *grads


def with_computed_readers(model: nn.Module, graph: ReaderGraph) -> ReaderGraph:
    """Columns that are computed from other parameters cannot be penalised, so who they read stays."""
    exposed = dict(graph.exposed)
    for read in graph.reads:
        name = read.matrix.rpartition(".")[0]
        if read.block not in exposed and (why := why_not_own(model.get_submodule(name))) is not None:
            exposed[read.block] = f"{name} reads it, and {why}"
    return replace(graph, exposed=exposed)


def warn_left(
    model: nn.Module,
    graph: ReaderGraph,
    chosen: Chosen,
    levels: str,
    scope: Mapping[str, nn.Module] | None,  # of L1, where nobody named it
) -> None:
    """One warning for all that is not sparsified: layers, neurons without known readers, and who may read them."""
    own = [block for block in graph.blocks.values() if block.module in chosen.modules and block.place]
    unknown = {block.name: graph.exposed[block.name] for block in own if block.name in graph.exposed}
    said = chosen.said()
    if unknown and levels != "W":
        said += [f"{names}: neurons stay, because {why}." for names, why in by_reason(unknown)]
        said.append(
            f"There {'weights and gates are' if levels == 'W+G+N' else 'only weights are'} sparsified."
        )
    linear = [name for name, module in model.named_modules() if is_linear(module) and name in graph.blocks]
    missing = [name for name in linear if name not in (linear if scope is None else scope)]
    unsure = sorted(unknown.keys() - graph.answers)
    if missing and unsure:
        said.append(
            f"{shortened(missing)} may read {shortened(unsure)}: no L1 is put there without l1_layers=[...]."
        )
    if unsure and (levels != "W" or missing):
        said.append(graph.way_out(unknown).strip())
    if said:
        warnings.warn(" ".join(said), stacklevel=3)


def linear_readers(
    model: nn.Module, graph: ReaderGraph, recurrent: Mapping[str, nn.Module]
) -> dict[str, nn.Module]:
    """The Linear layers that read the chosen recurrent ones: the softmax, usually."""
    found: dict[str, nn.Module] = {}
    for read in graph.reads:
        name = read.matrix.rpartition(".")[0]
        module = model.get_submodule(name)
        if graph.blocks[read.block].module in recurrent and is_linear(module) and not computed_matrix(module):
            found[name] = module
    return found


def matrices_of(modules: Mapping[str, nn.Module]) -> list[str]:
    return [joined(name, matrix) for name, module in modules.items() for matrix in matrix_names(module)]


def matrix_shape(matrix: Tensor) -> tuple[int, int]:
    rows, columns = matrix.shape
    return rows, columns
