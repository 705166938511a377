"""SparsifierCallback: a sparsifier, and a budget, in a Trainer of Lightning (`pip install "gatewise[lightning]"`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from gatewise.budget import Budget
from gatewise.report import measure
from gatewise.sparsify import GroupLasso


class SparsifierCallback(Callback):
    """gradient of an update = mean over its micro-batches + gradient of penalty();  step() after the update

        Trainer(callbacks=[SparsifierCallback(lambda net: gw.GroupLasso(net, group=1e-3), budget={"gates": 200})])

    The sparsifier is made before the optimizers are configured and the strategy wraps the model, because it may add
    parameters. The gradient of the penalty joins once per update: after accumulation, unscaling and the exchange
    between ranks, before clipping. So `training_step` stays as it is, and the loss that it logs has no penalty in it.

    What sparsifier and budget know is in Lightning's checkpoints. Counts are logged at the end of an epoch as
    `gates`, `neurons` and `compression`, and the last penalty as `penalty`. A budget is met at the end of training:
    the callback warns where EarlyStopping ended it before, or where a ModelCheckpoint chose a network from before.

    Args:
        make: model -> sparsifier, such as `gw.Refit` or `lambda net: gw.Variational(net, n_train=50_000)`.
        budget: arguments of `gw.Budget`, but for `steps`, which the trainer knows: {"gates": 0.25}.
        module: name of the submodule that is sparsified; the whole LightningModule by default.
        log_every: epochs between counts; 0: none.
    """

    def __init__(
        self,
        make: Callable[[nn.Module], Any],
        *,
        budget: Mapping[str, Any] | None = None,
        module: str = "",
        log_every: int = 1,
    ) -> None:
        self.make, self.module, self.log_every = make, module, log_every
        self.wanted = dict(budget) if budget is not None else None
        self.sparsifier: Any = None
        self.budget: Budget | None = None
        self._updates = 0
        self._restored: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Convert the model, once, before optimizers and ranks see it; a second fit() goes on with the same."""
        model = pl_module.get_submodule(self.module)
        if stage == "fit" and (self.sparsifier is None or self.sparsifier.model is not model):
            self.sparsifier, self.budget = self.make(model), None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"{type(self).__name__}: there are {len(trainer.optimizers)} optimizers, and one update must have "
                "one. Use one optimizer with parameter groups, or call penalty() and step() yourself."
            )
        if self.wanted is not None and self.budget is None:
            self.budget = Budget(self.sparsifier, steps=updates_of(trainer), **self.wanted)
        for name, part in (("sparsifier", self.sparsifier), ("budget", self.budget)):
            if name in self._restored and part is not None:
                part.load_state_dict(self._restored.pop(name))
        self._updates = trainer.global_step

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient of the penalty; by hand, so that hooks of DistributedDataParallel do not hear of it."""
        if isinstance(self.sparsifier, GroupLasso):
            self.log("penalty", self.sparsifier.backward())
            return
        with torch.enable_grad():
            penalty = self.sparsifier.penalty()
        self.log("penalty", penalty.detach())
        if penalty.grad_fn is None:  # a refit
            return
        trained = [p for p in self.sparsifier.model.parameters() if p.requires_grad]
        for parameter, grad in zip(trained, torch.autograd.grad(penalty, trained, allow_unused=True)):
            if grad is not None:
                parameter.grad = grad.to(parameter) if parameter.grad is None else parameter.grad.add_(grad)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._updates:  # still accumulating
            return
        self._updates = trainer.global_step
        if getattr(self.sparsifier, "update", "") == "proximal":
            self.sparsifier.step(trainer.optimizers[0])
        else:
            self.sparsifier.step()
        if self.budget is not None:
            self.budget.step()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.log_every and (trainer.current_epoch + 1) % self.log_every == 0:
            report = measure(self.sparsifier.model, self.sparsifier.readers)
            counts = {"gates": sum(report.gates.values()), "neurons": sum(report.neurons.values())}
            self.log_dict({**counts, "compression": report.compression})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.budget is None or not trainer.is_global_zero:
            return
        if not self.budget.met:
            warnings.warn(
                f"Training ended before the budget was met ({self.budget}). Train to its end, without EarlyStopping.",
                stacklevel=2,
            )
        for path in {getattr(chosen, "best_model_path", "") for chosen in trainer.checkpoint_callbacks}:
            if not Path(path).is_file():
                continue
            saved = torch.load(path, map_location="cpu", mmap=True, weights_only=False)  # by this very run
            left = saved["callbacks"].get(self.state_key, {}).get("left", 0)
            if left > self.budget.target:
                warnings.warn(
                    f"{path}: the network that ModelCheckpoint chose has {left:,} {self.budget.kind}, of which the "
                    f"budget lets {self.budget.target:,} stay. It is from before that was met: take the last one.",
                    stacklevel=2,
                )

    def state_dict(self) -> dict[str, Any]:
        parts = {"sparsifier": self.sparsifier, "budget": self.budget}
        state = {name: part.state_dict() for name, part in parts.items() if hasattr(part, "state_dict")}
        return state if self.budget is None else {**state, "left": self.budget.count()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until training starts: only then is the number of updates known, which a budget needs."""
        self._restored = dict(state_dict)


def updates_of(trainer: Trainer) -> int:
    steps = trainer.estimated_stepping_batches
    if steps != int(steps):
        raise ValueError(
            "a budget goes by the number of updates, and this trainer has no end. Give it max_epochs or max_steps."
        )
    return int(steps)
