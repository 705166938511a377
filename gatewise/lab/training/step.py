"""One update as device operations only, so that it can be captured and replayed as it stands.

    loss = sum(w l) / sum(w) + penalty          or sum(w l) / B + penalty, summed over the window; l with a
                                                teacher's share, if there is one
    clip the norm of all gradients, update, then what the sparsifier does after an update (threshold)

Everything that changes from update to update is a tensor in a fixed place: the number of the batch, the learning
rate, the carried state, the sums of the epoch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gatewise.lab.models import State
from gatewise.lab.training.dropped import DroppedWeights
from gatewise.lab.training.earlier import Teacher
from gatewise.lab.training.feeds import CarriedState, Feed
from gatewise.lab.training.objectives import Objective
from gatewise.lab.training.ranks import Share
from gatewise.sparsify import GroupLasso, Refit, Variational

Sparsifier = GroupLasso | Variational | Refit


class SGD(torch.optim.Optimizer):
    """p = (1 - lr * weight_decay) p - lr * grad, lr a tensor beside them; torch's own reads it on the host."""

    def __init__(self, params: list[nn.Parameter], lr: Tensor, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if group["weight_decay"]:
                        p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.addcmul_(p.grad, group["lr"], value=-1)


def make_optimizer(
    kind: str, params: list[nn.Parameter], lr: Tensor, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Adam with torch's defaults (0.9, 0.999, 1e-8), or plain SGD; the decay is no part of what Adam adapts."""
    if kind == "sgd":
        return SGD(params, lr, weight_decay)
    return torch.optim.AdamW(params, lr=lr, weight_decay=weight_decay, fused=True, capturable=lr.is_cuda)


class TrainStep:
    """Call it once per update. `begin` starts an epoch, `sums` and `bad` tell about it."""

    def __init__(
        self,
        model: nn.Module,
        sparsifier: Sparsifier | None,
        objective: Objective,
        feed: Feed,
        *,
        optimizer: str | torch.optim.Optimizer,
        clip: float | None,
        window_sum: bool,
        device: torch.device,
        teacher: Teacher | None = None,
        dropped: DroppedWeights | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        self.teacher, self.dropped = teacher, dropped or DroppedWeights([])
        self.model, self.sparsifier, self.objective, self.feed = model, sparsifier, objective, feed
        self.clip, self.window_sum = clip, window_sum
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if isinstance(optimizer, str):
            lr = torch.zeros((), device=device)
            optimizer = make_optimizer(optimizer, self.parameters, lr, weight_decay)
        self.optimizer, self.lr = optimizer, optimizer.param_groups[0]["lr"]
        self.k = torch.zeros(1, dtype=torch.int64, device=device)
        self.lrs = torch.zeros(feed.n_batches, device=device)
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, weight, penalty
        self.bad = torch.full((1,), feed.n_batches, dtype=torch.int64, device=device)  # first infinite loss
        self.state = CarriedState(model, feed.batch_size, device) if feed.carries_state else None
        self.ranks = feed.ranks if isinstance(feed, Share) else None
        self.wish = torch.zeros(1, device=device)  # above 0: this rank asks all of them for something
        self.wished = torch.zeros(1, device=device)  # above 0: one of them asked

    def begin(self, lrs: list[float]) -> None:
        """Start of an epoch: first batch, zero state, empty sums; `lrs` is the learning rate of every update."""
        self.lrs.copy_(torch.tensor(lrs))
        self.k.zero_()
        self.sums.zero_()
        self.bad.fill_(self.feed.n_batches)
        for state in self.carried:
            state.zero()

    @property
    def carried(self) -> list[CarriedState]:
        """What goes on from window to window: the network's state, and its teacher's."""
        taught = None if self.teacher is None else self.teacher.state
        return [state for state in (self.state, taught) if state is not None]

    def backward(self, loss: Tensor) -> Tensor:
        """Gradients of loss + penalty, and the penalty."""
        self.optimizer.zero_grad(set_to_none=True)
        if isinstance(self.sparsifier, Variational):
            penalty = self.sparsifier.penalty()
            (loss + penalty).backward()
            return penalty
        loss.backward()
        self.dropped.give_back()
        return self.sparsifier.backward() if isinstance(self.sparsifier, GroupLasso) else loss.new_zeros(())

    def forward(self) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """Of the next batch: the loss to descend, its sum over all targets, their weight, and the state after it."""
        batch = self.feed.fetch(self.k)
        output, after = self.objective.run(
            self.model, batch, None if self.state is None else self.state.given()
        )
        losses = self.objective.losses(output, batch.targets)
        if self.teacher is not None:
            losses = self.teacher.shared(losses, output, batch, self.objective)
        total = (batch.weight * losses).sum()
        weight = batch.weight.sum()
        over = self.feed.batch_size if self.window_sum else weight
        if self.ranks is not None and batch.whole is not None and not self.window_sum:
            over = batch.whole / self.ranks.size  # gradients are averaged over the ranks
        return total / over, total, weight, after

    def __call__(self) -> None:
        self.dropped.draw()
        loss, total, weight, after = self.forward()
        penalty = self.backward(loss)
        finite = (loss + penalty).isfinite()
        if self.ranks is not None:
            told = self.ranks.average(self.parameters, torch.stack([(~finite).float(), self.wish[0]]))
            finite = told[0] == 0
            self.wished.copy_(told[1:])
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        with torch.no_grad():
            self.lr.copy_(self.lrs.index_select(0, self.k)[0])
            self.optimizer.step()
            if isinstance(self.sparsifier, GroupLasso):
                self.sparsifier.step(self.optimizer)  # for its rate, if updates are proximal
            elif self.sparsifier is not None:
                self.sparsifier.step()
            if self.state is not None:
                self.state.keep(after)
            self.sums += torch.stack([value.double() for value in (total, weight, penalty)])
            here = torch.where(finite, self.feed.n_batches, self.k)
            torch.minimum(self.bad, here, out=self.bad)
            self.k += 1
