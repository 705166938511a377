"""What Budget turns of a GroupLasso: the factor of every group, and that of L1."""

from __future__ import annotations

import torch
from torch import Tensor

from gatewise.budget.units import Kept, Layer, Units
from gatewise.nn.lookup import cell_of
from gatewise.sparsify import GroupLasso
from gatewise.sparsify.dispatch import matrix_stats
from gatewise.sparsify.held import Held


class LassoHandle:
    """Strength of a unit: its norm over the median norm of its kind in its layer when the budget was made.

    Layers are compared by what became of them: how long a column is that reads a neuron differs from layer to layer.
    After listen() it is what the loss would change without the unit, which is comparable as it is.
    """

    most = 1024.0  # how hard units that have to go are pushed: lambda fits the loss, seldom the optimizer

    def __init__(self, sparsifier: GroupLasso, by_neuron: bool) -> None:
        self.sparsifier, self.model, self.readers = sparsifier, sparsifier.model, sparsifier.readers
        self.held = Held()  # once the choice is final
        self.heard: Tensor | None = None  # (groups,) squared changes of the loss, added up over batches
        self.by_neuron, self.gated = by_neuron, sparsifier.levels == "W+G+N"
        layers: list[Layer] = []
        gates, neurons, at = [], [], 0  # their places among the groups of all layers
        for block in sparsifier.blocks:
            cell = cell_of(self.model.get_submodule(block.module))
            assert cell is not None
            layer = Layer(block.name, cell.n_gates, block.width, block.name in sparsifier.staying)
            n = layer.gates * layer.width if self.gated else 0
            if not (by_neuron and layer.stays):
                layers.append(layer)
                gates.append(torch.arange(at, at + n))
                neurons.append(torch.arange(at + n, at + n + layer.width))
            at += n + layer.width
        self.units = Units(layers)
        if layers:
            self.neurons = torch.cat(neurons)
            # Without groups of gates these are as their neurons.
            self.gates = torch.cat(gates) if self.gated else self.neurons[self.units.owner]
            self.reference = torch.cat([median_of_each(*pair) for pair in self.by_layer(*self.norms())])

    def parameters(self) -> dict[str, Tensor]:
        return dict(zip(self.sparsifier.matrices, self.sparsifier.current()))

    def norms(self) -> tuple[Tensor, Tensor]:  # (all gates,), (all neurons,)
        rows, columns, absolute = matrix_stats([p.detach() for p in self.parameters().values()])
        plan = self.sparsifier.plan.on(absolute.device, absolute.dtype)
        return self.parts(self.of_all(plan.summed(rows, columns).sqrt()))

    def of_all(self, groups: Tensor) -> Tensor:
        """With 0 for units that have no group."""
        every = groups.new_zeros(len(self.sparsifier.there))
        every[self.there(every)] = groups
        return every

    @torch.no_grad()
    def listen(self) -> None:
        """heard += (sum of w dL/dw over the weights of a unit)^2: what the loss changes without it, to first order"""
        parameters = self.parameters()
        if frozen := [name for name, p in parameters.items() if not p.requires_grad]:
            raise ValueError(
                f"{', '.join(frozen)}: frozen, so the loss does not tell what it would miss of it. Set requires_grad "
                "while you listen, or leave listen() out: then units go by their norm."
            )
        if all(p.grad is None for p in parameters.values()):
            raise ValueError(f"{min(parameters)} has no gradient: call listen() after loss.backward().")
        # A layer of which nothing is left takes no part in the loss, and gets no gradient.
        changes = [torch.zeros_like(p) if p.grad is None else p * p.grad for p in parameters.values()]
        plan = self.sparsifier.plan.on(changes[0].device, changes[0].dtype)
        found = plan.summed([c.sum(1) for c in changes], [c.sum(0) for c in changes]).square()
        self.heard = found if self.heard is None else self.heard + found

    def by_layer(self, gates: Tensor, neurons: Tensor) -> list[tuple[Tensor, Tensor]]:
        return list(self.units.by_layer(gates, neurons).values())

    def there(self, like: Tensor) -> Tensor:
        """Which units have a group: those that an earlier cut took away have none."""
        return self.sparsifier.there.to(like.device)

    def followed_by(self, sparsifier: GroupLasso) -> LassoHandle:
        """The same of what a cut has left: references and factors are those of before."""
        if (
            sparsifier.there.shape != self.sparsifier.there.shape
            or sparsifier.levels != self.sparsifier.levels
        ):
            raise ValueError(
                "The budget was made for other layers or levels than this GroupLasso has: make it for the same ones."
            )
        new, old_plan = LassoHandle(sparsifier, self.by_neuron), self.sparsifier.plan
        if self.units.layers:
            new.reference = self.reference
        factors = torch.ones(len(sparsifier.there), device=old_plan.factors.device)
        factors[self.there(factors)] = old_plan.factors
        sparsifier.plan.factors = factors[new.there(factors)]
        sparsifier.plan.l1_factor = old_plan.l1_factor
        if self.held:
            new.freeze()
        return new

    def capacity(self) -> tuple[int, int]:
        """Gates and neurons that there are."""
        gates, neurons = self.parts(self.sparsifier.there)
        return int(gates.sum()), int(neurons.sum())

    def parts(self, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Values of all groups as those of gates and of neurons."""
        return groups[self.gates.to(groups.device)], groups[self.neurons.to(groups.device)]

    def whole(self, gates: Tensor, neurons: Tensor) -> Tensor:
        """The other way: one value per group, and 1 for those of layers that are not steered."""
        every = neurons.new_ones(len(self.sparsifier.there))
        if self.gated:
            every[self.gates.to(every.device)] = gates
        every[self.neurons.to(every.device)] = neurons
        return every[self.there(every)]

    def strengths(self) -> tuple[Tensor, Tensor]:
        if self.heard is not None:
            return self.parts(self.of_all(self.heard.sqrt()))
        gates, neurons = self.norms()
        usual = self.reference.to(gates).view(-1, 2)  # (layers, 2): of a gate, of a neuron
        gates, neurons = (
            torch.cat([part.flatten() / own[k] for part, own in zip(parts, usual)])
            for k, parts in enumerate(zip(*self.by_layer(gates, neurons)))
        )
        neurons = torch.where(self.units.stays.to(neurons.device), torch.ones_like(neurons), neurons)
        if self.gated:  # a gate is worth no more than who reads its neuron
            gates = gates * neurons.clamp(max=1.0)[self.units.owner.to(gates.device)]
        return gates, neurons

    def press(self, gates: Tensor, neurons: Tensor) -> None:
        factors = self.sparsifier.plan.on(gates.device, self.sparsifier.plan.weights.dtype).factors
        factors.copy_(self.whole(gates, neurons))

    def press_weights(self, factor: Tensor) -> None:
        plan = self.sparsifier.plan.on(factor.device, self.sparsifier.plan.weights.dtype)
        plan.l1_factor.copy_(factor)
        plan.factors.copy_(factor.expand_as(plan.factors))

    def cut(self, kept: Kept) -> None:
        """Set the rows and columns of all groups to zero that do not stay, and hold them there."""
        plan, shapes = self.sparsifier.plan, self.sparsifier.shapes
        stays = self.whole(kept.gates, kept.neurons)
        gone = torch.zeros(len(plan.members) + 1, dtype=torch.bool, device=stays.device)
        gone[plan.groups[~stays].flatten()] = True
        at = gone[:-1].split([size for shape in shapes.values() for size in shape])
        self.held = Held(
            {name: rows[:, None] | columns for name, rows, columns in zip(shapes, at[::2], at[1::2])}
        )
        self.hold()

    def freeze(self) -> None:
        """What is zero now stays zero."""
        self.held = Held({name: p.detach() == 0 for name, p in self.parameters().items()})

    def hold(self) -> None:
        """Between two looks: an optimizer like Adam moves a zero by as much as any other weight."""
        if self.held:
            self.held.apply(self.parameters().__getitem__)

    def weight_scores(self) -> dict[str, Tensor]:
        return {name: p.detach().abs() for name, p in self.parameters().items()}


def median_of_each(*parts: Tensor) -> Tensor:
    """Of what is not zero."""
    return torch.stack([part[part > 0].median() if part.any() else part.new_ones(()) for part in parts])
