"""Budget: how large a network may be; the strength of the penalty follows from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gatewise.budget.asked import PRECISIONS, Asked, absolute, checked_steps, the_one
from gatewise.budget.bayes import VariationalHandle
from gatewise.budget.lasso import LassoHandle
from gatewise.budget.units import Kept, strongest, strongest_of_layers
from gatewise.masks import Masks, find_masks
from gatewise.readers import find_readers
from gatewise.sizes import stored_bytes
from gatewise.sparsify import GroupLasso, Variational
from gatewise.sparsify.checks import check_choice
from gatewise.sparsify.fixed import Fixed
from gatewise.sparsify.held import Held
from gatewise.sparsify.refit import may_fill
from gatewise.structure import reachable
from gatewise.wording import by_reason

LOOKS = 100  # in a training: enough to follow, and few enough to cost nothing
WEAK, USUAL = 0.25, 0.5  # strengths between which a unit that is to stay is let off the penalty
HARD = 0.25  # share of weak ones among those that are to stay at which the penalty of all is too strong
GONE = 0.02  # mean strength of units that have to go at which they are no longer pushed harder
BAND = 0.05  # how far below the budget a network may end
SHARE = 0.5  # of an even share: what every layer keeps at least


class Budget(Fixed):
    """n(t) = budget + (all - budget) (1 - u)^3, with u from 0 to 1 between `begin` and `end` of the training

    At every look the n(t) strongest gates, or neurons, may stay; of each layer at least half as many as if all layers
    gave alike. The others are pushed: their lambda, or the weight of the KL of their variables, grows as long as they
    do not go. Of those that fit the budget itself, the weak ones are let off the penalty, so none dies that may stay;
    where many are weak, it falls for all. From `end` on the choice is final, and the others are held at zero; after
    the last step the network fits.

    Of `weights=` the weakest are set to zero at every look, and held there from `end` on; the penalty falls while
    there are hardly more than may stay. `bytes=` keeps as many gates as fit (`Report.bytes`).

    Call `step()` once per update, or once per epoch, after the sparsifier's. What it does depends on the weights and
    the number of calls alone, so all ranks of a parallel run do the same.

    Args:
        gates, neurons, weights, bytes: one of them, as a number (int) or as a part of what there is (float): live
            gates and kept neurons of the layers that the sparsifier works on, non-zero weights of the whole model as
            `gatewise.measure` counts them, bytes of the numbers in its export. Descriptions of its layers and
            lists of what they keep come on top (`gatewise.sizes`).
        steps: how often step() will be called.
        begin, end: parts of the training. By `end` the learning rate should not have fallen far: what is left has to
            learn to do without the rest.
        precision: of the weights in `bytes`, "float32" or "int8".
    """

    changing = frozenset("handle model graph calls reach push pull kept".split())

    def __init__(
        self,
        sparsifier: GroupLasso | Variational,
        *,
        steps: int,
        gates: float | None = None,
        neurons: float | None = None,
        weights: float | None = None,
        bytes: float | None = None,
        begin: float = 0.1,
        end: float = 0.6,
        precision: str = "float32",
    ) -> None:
        wanted = {"gates": gates, "neurons": neurons, "weights": weights, "bytes": bytes}
        self.kind, asked = the_one(wanted)
        check_choice("precision", precision, PRECISIONS)
        self.by_neuron = self.kind == "neurons" or getattr(sparsifier, "levels", "") != "W+G+N"  # what goes
        self.handle = handle_of(sparsifier, self.by_neuron)
        self.model, self.steps, self.precision = sparsifier.model, checked_steps(steps), precision
        if not 0 <= begin < end <= 1:
            raise ValueError(f"begin={begin}, end={end} are parts of the training: 0 <= begin < end <= 1.")
        self.begin, self.end = begin, end
        self.graph = find_readers(self.model, sparsifier.readers)
        if self.kind != "weights" and not self.handle.units.layers:
            if sparsifier.levels == "W":
                why = 'levels="W" has no groups that could go as a whole. Use levels="W+N" or "W+G+N", or weights=.'
            else:
                blocks = self.graph.blocks.values()
                staying = {
                    b.name: self.graph.exposed[b.name]
                    for b in blocks
                    if b.place and b.name in self.graph.exposed
                }
                said = " ".join(f"{names}: neurons stay, because {why}." for names, why in by_reason(staying))
                why = f"there is no neuron that could go. {said}{self.graph.way_out(staying)}"
            raise ValueError(f"{self.kind}={asked!r}: {why}")
        self.unit = "neuron" if self.by_neuron else "gate"
        self.all = self.everything()
        self.target = absolute(self.kind, asked, self.all)
        self.refuse_impossible()
        layers = tuple(layer.name for layer in self.handle.units.layers)
        self.asked = Asked(self.kind, self.target, layers, precision, sparsifier.readers)
        self.asked.leave_mark(self.model)
        self.reach = self.target  # what fits: gates of whole neurons, or bytes of whole gates, may be fewer
        # Where nothing is trained any more, fewer than the budget may have been there before.
        self.had = self.count() if steps == 1 else self.all
        device = next(self.model.parameters()).device
        self.calls = 0
        self.push, self.pull = (
            torch.ones((), device=device),
            torch.ones((), device=device),
        )  # of who goes, who stays
        self.kept: Kept | None = None  # once the choice is final
        self._made = True

    def __repr__(self) -> str:
        """Without what is left, which str() counts: that may fail, as of weights that are NaN."""
        return f"<Budget {self.kind}={self.target:,} of {self.all:,}: step {self.calls:,} of {self.steps:,}>"

    def __str__(self) -> str:
        step = f"step {self.calls:,} of {self.steps:,}"
        return f"{self.kind}: {self.count():,} of {self.all:,}, budget {self.target:,}; {step}"

    # What there is.

    def everything(self) -> int:
        """All there could be: the network with every unit and weight."""
        units = self.handle.units
        if self.kind in ("gates", "neurons"):
            return self.handle.capacity()[self.kind == "neurons"]
        masks = find_masks(self.model)
        if self.kind == "weights":
            return sum(mask.numel() for name, mask in masks.matrix.items() if masks.shared[name] == name)
        return self.bytes_of(masks, Kept(torch.ones(units.n_gates) > 0, torch.ones(units.n_neurons) > 0))

    def count(self) -> int:
        """What the budget is about, of the network as it is evaluated now."""
        return self.asked.left(find_masks(self.model), self.graph)

    @property
    def met(self) -> bool:
        """Whether the network, as it is evaluated now, has no more than the budget lets it have."""
        return self.count() <= self.target

    def bytes_of(self, masks: Masks, kept: Kept) -> int:
        """If of the steered layers only these were left; they are closed()."""
        recurrent = dict(masks.recurrent)
        layers = self.handle.units.by_layer(kept.gates.cpu(), kept.neurons.cpu())
        for name, (gates, neurons) in layers.items():
            own = recurrent[name]
            recurrent[name] = replace(own, gate=own.gate & gates, neuron=own.neuron & neurons)
        masks = replace(masks, recurrent=recurrent)
        return stored_bytes(masks, reachable(masks, self.graph), self.precision == "int8")

    def refuse_impossible(self) -> None:
        """What cannot be met whatever goes, with the number that can."""
        if self.kind == "weights":
            least = self.out_of_reach(find_masks(self.model))
            rest = "of layers that the sparsifier does not reach (l1_layers=, layers=)"
        elif self.kind == "bytes":
            least = self.bytes_of(find_masks(self.model), self.least())
            rest = f"with one {self.unit} left of every layer: embeddings, output layers and biases"
        elif self.kind == "gates" and self.by_neuron:
            least = min(layer.gates for layer in self.handle.units.layers)
            if self.target < least:
                raise ValueError(
                    f'gates={self.target:,} cannot be met: at levels="W+N" a neuron has its {least} gates or none. '
                    'Ask for as many at least, or use levels="W+G+N".'
                )
            return
        else:
            return
        if self.target <= least:
            raise ValueError(
                f"{self.kind}={self.target:,} cannot be met: {least:,} stay, {rest}. Ask for more than that."
            )

    def least(self) -> Kept:
        """One neuron or gate of every layer. Of a Variational, one in all: what it reads may vanish, too."""
        units = self.handle.units
        sizes = [layer.width * (1 if self.by_neuron else layer.gates) for layer in units.layers]
        if isinstance(self.handle, VariationalHandle):
            sizes = [sum(sizes)]
        firsts = torch.cat([strongest(torch.ones(size), 1) for size in sizes])
        return self.closed(units.of_neurons(firsts) if self.by_neuron else units.of_gates(firsts))

    def listen(self) -> None:
        """Weigh units by what the loss would miss: (sum of w dL/dw over their weights)^2, added up over batches

        Call it after loss.backward() of some batches, without updates, before a step() that cuts at once (steps=1).
        """
        if self.steps != 1 or self.calls:
            raise ValueError("listen() is for a budget that cuts at once: steps=1, and before its step().")
        if self.kind == "weights" or not isinstance(self.handle, LassoHandle):
            raise ValueError(
                "listen() weighs gates and neurons of a GroupLasso. Weights go by their size, and units of a "
                "Variational by their signal-to-noise ratio."
            )
        self.handle.listen()

    # Steering.

    def step(self) -> None:
        """Count the call; at every so many of them look at the network and turn the penalty."""
        self.calls += 1
        early = (
            self.calls <= LOOKS // 10
        )  # a penalty that is far too strong needs no longer to kill everything
        if early or self.calls == self.steps or self.calls % max(1, self.steps // LOOKS) == 0:
            with torch.no_grad():
                self.look()
        self.handle.hold()
        if self.calls == self.steps:
            self.judge()

    def follow(self, sparsifier: GroupLasso) -> None:
        """Go on with the GroupLasso that was made after gatewise.shrink(); the budget stays one of all there was."""
        if not isinstance(self.handle, LassoHandle) or not isinstance(sparsifier, GroupLasso):
            raise ValueError("Only a budget of a GroupLasso can follow another one, after a cut.")
        self.handle = self.handle.followed_by(sparsifier)
        self.model, self.graph = sparsifier.model, find_readers(sparsifier.model, sparsifier.readers)

    @property
    def progress(self) -> float:
        return min(1.0, self.calls / self.steps)

    def curve(self, whole: int, target: int) -> int:
        """n(t), of as many as there are and as may stay."""
        u = min(1.0, max(0.0, (self.progress - self.begin) / (self.end - self.begin)))
        return target + round((whole - target) * (1 - u) ** 3)

    def look(self) -> None:
        if self.kind == "weights":
            self.look_at_weights()
            return
        gates, neurons = self.handle.strengths()
        if self.kept is not None:  # nothing comes back
            gates, neurons = gates * self.kept.gates, neurons * self.kept.neurons
        # Bytes also change as weights between what is kept come and go.
        final = self.choice(gates, neurons) if self.kept is None or self.kind == "bytes" else self.kept
        if self.progress >= self.end:
            self.kept = final if self.kept is None else final & self.kept
            self.handle.cut(self.kept)
        now = self.around(gates, neurons, final)
        self.handle.press(
            self.factors(gates, final.gates, now.gates, self.by_neuron),
            self.factors(neurons, final.neurons, now.neurons, False),
        )
        strengths, stay = (neurons, now.neurons) if self.by_neuron else (gates, now.gates)
        level = (strengths * ~stay).sum() / (~stay).sum().clamp_min(1)
        self.push = torch.where(level > GONE, self.push * 1.25, self.push * 0.8).clamp(1.0, self.handle.most)
        weak = (gates < USUAL).float()[final.gates].mean()
        self.pull = torch.where(weak > HARD, self.pull * 0.7, self.pull * 1.1).clamp(2.0**-20, 1.0)

    def choice(self, gates: Tensor, neurons: Tensor) -> Kept:
        """What may stay in the end: the strongest, as many as fit."""
        masks = find_masks(self.model) if self.kind == "bytes" else None
        # What the budget counts is never more than it; of other units all might fit.
        counted = self.kind == ("neurons" if self.by_neuron else "gates")
        most = self.target if counted else len(neurons if self.by_neuron else gates)
        found, reach = self.top(gates, neurons, most), self.target
        fits, breaks = 1, most
        if self.size(masks, found) > self.target:
            while breaks - fits > 1:
                middle = (fits + breaks) // 2
                small = self.size(masks, self.top(gates, neurons, middle)) <= self.target
                fits, breaks = (middle, breaks) if small else (fits, middle)
            found = self.top(gates, neurons, fits)
            reach = self.size(masks, found)
        if self.kept is None:  # later nothing comes back, however much would fit
            self.reach = reach
        return found

    def size(self, masks: Masks | None, kept: Kept) -> int:
        """Bytes, where masks are given; else gates or neurons."""
        if masks is not None:
            return self.bytes_of(masks, kept)
        return int((kept.neurons if self.kind == "neurons" else kept.gates).sum())

    def top(self, gates: Tensor, neurons: Tensor, n: int) -> Kept:
        """The n strongest gates with their neurons, or neurons with all their gates."""
        units = self.handle.units
        if self.by_neuron:
            widths = [layer.width for layer in units.layers]
            return self.closed(units.of_neurons(strongest_of_layers(neurons, n, widths, SHARE)))
        sizes = [layer.gates * layer.width for layer in units.layers]
        return self.closed(units.of_gates(strongest_of_layers(gates, n, sizes, SHARE)))

    def closed(self, kept: Kept) -> Kept:
        """With the neurons that start one that stays: an encoder's, whose last states a decoder takes as they are."""
        layers = {
            name: own for name, (_, own) in self.handle.units.by_layer(kept.gates, kept.neurons).items()
        }
        hands = [hand for hand in self.graph.handed if {hand.source, hand.target} <= layers.keys()]
        if not hands:
            return kept
        for hand in hands * len(hands):  # a state may be handed on
            layers[hand.source] = layers[hand.source] | layers[hand.target]
        neurons = torch.cat(list(layers.values()))
        return self.handle.units.of_neurons(neurons) if self.by_neuron else Kept(kept.gates, neurons)

    def around(self, gates: Tensor, neurons: Tensor, final: Kept) -> Kept:
        """What may stay for now."""
        if self.kept is not None:
            return final
        stay = final.neurons if self.by_neuron else final.gates
        return self.top(gates, neurons, self.curve(len(stay), int(stay.sum())))

    def factors(self, strengths: Tensor, final: Tensor, now: Tensor, free: bool) -> Tensor:
        """push for those that have to go, 1 for those that need not yet, and less for weak ones that may stay."""
        mercy = ((strengths - WEAK) / (USUAL - WEAK)).clamp(0, 1)
        inside = torch.ones_like(mercy) if free else torch.where(final, mercy, torch.ones_like(mercy))
        return torch.where(now, inside * self.pull, self.push)

    def look_at_weights(self) -> None:
        allowed = self.curve(self.all, self.target)
        if self.progress >= self.begin:
            self.thin(allowed)
        if self.progress >= self.end:
            self.handle.freeze()
        few = self.count() < self.target * (1 + (1 - self.progress) / 2)
        if self.handle.units.layers and not few:
            few = bool((self.handle.strengths()[0] < USUAL).float().mean() > 2 * HARD)
        self.pull = (self.pull * (0.5 if few else 1.5)).clamp(2.0**-20, 1.0)
        self.handle.press_weights(self.pull)

    def thin(self, allowed: int) -> None:
        """Set weights to zero that reach nothing, then the weakest, until as many are left."""
        masks = find_masks(self.model)
        fills = may_fill(self.model, reachable(masks, self.graph))
        parameters = self.handle.parameters()
        for p in parameters.values():
            p.masked_fill_(~fills[id(p)].to(p.device), 0)
        scores = self.handle.weight_scores()
        flat = torch.cat([score.flatten() for score in scores.values()])
        surplus = int((flat > 0).sum()) - (allowed - self.out_of_reach(masks))
        if surplus > 0:
            bound = flat[flat > 0].kthvalue(surplus).values
            for name, score in scores.items():
                parameters[name].masked_fill_(score <= bound, 0)

    def out_of_reach(self, masks: Masks) -> int:
        """Non-zero weights that the sparsifier leaves alone; it reaches a shared matrix by any of its names."""
        reached = {masks.shared.get(name, name) for name in self.handle.parameters()}
        own = (mask for name, mask in masks.matrix.items() if masks.shared[name] == name not in reached)
        return sum(int(mask.sum()) for mask in own)

    def judge(self) -> None:
        """Whether it fits; who ends elsewhere is told, with the way out."""
        found = self.count()
        least = self.target if self.kind == "bytes" else self.reach
        if (1 - BAND) * min(least, self.had) <= found <= self.target:
            return
        if found > self.target:
            why = (
                "The layers have weights that nobody steers, or neurons that start those of another layer, or step() "
                "was not the last thing that changed them."
            )
        elif (1 - BAND) * self.reach <= found:
            why = f"With one {self.unit} more there would be more than that."
        elif self.steps == 1:
            why = "With what did not fit went what then reached nothing: ask for as many more."
        else:
            why = "More went than had to: lower the penalty, let it begin later (warm_up=), or train longer."
        warnings.warn(
            f"The budget was {self.target:,} {self.kind}, and {found:,} are left. {why}", stacklevel=3
        )

    # Files.

    def state_dict(self) -> dict[str, Any]:
        """How far it is, what it has chosen, and how it has turned the penalty."""
        state: dict[str, Any] = {
            "calls": self.calls,
            "reach": self.reach,
            "push": self.push.clone(),
            "pull": self.pull.clone(),
            "turned": self.turned(),
        }
        if self.kept is not None:
            state |= {"gates": self.kept.gates.clone(), "neurons": self.kept.neurons.clone()}
        if isinstance(self.handle, LassoHandle):
            if self.handle.units.layers:
                state["reference"] = self.handle.reference.clone()
            state["held"] = dict(self.handle.held)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.calls, self.reach = state["calls"], state["reach"]
        self.push.copy_(state["push"])
        self.pull.copy_(state["pull"])
        self.kept = (
            Kept(state["gates"].to(self.push.device), state["neurons"].to(self.push.device))
            if "gates" in state
            else None
        )
        if "reference" in state:
            assert isinstance(self.handle, LassoHandle)
            self.handle.reference.copy_(state["reference"])
        if isinstance(self.handle, LassoHandle):
            self.handle.held = Held(state["held"])
        for name, tensor in self.turned().items():
            tensor.copy_(state["turned"][name])

    def turned(self) -> dict[str, Tensor]:
        sparsifier = self.handle.sparsifier
        if isinstance(sparsifier, Variational):
            return sparsifier.kl_weights
        return {"factors": sparsifier.plan.factors, "l1_factor": sparsifier.plan.l1_factor}

    def to_dict(self) -> dict[str, Any]:
        return {"of": self.kind, "all": self.all, "budget": self.target, "left": self.count()}


def handle_of(sparsifier: GroupLasso | Variational, by_neuron: bool) -> LassoHandle | VariationalHandle:
    """What turns it; `by_neuron`: neurons go as a whole, so layers whose neurons stay take no part."""
    if isinstance(sparsifier, GroupLasso):
        return LassoHandle(sparsifier, by_neuron)
    if isinstance(sparsifier, Variational):
        return VariationalHandle(sparsifier, by_neuron)
    raise ValueError(
        f"A budget steers gatewise.GroupLasso or gatewise.Variational, not {type(sparsifier).__name__}."
    )
