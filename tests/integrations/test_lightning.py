"""SparsifierCallback in Lightning's own Trainer gives the numbers of the loop that the documentation shows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gatewise as gw

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that Lightning imports
    pl = pytest.importorskip("lightning.pytorch")
    from gatewise.integrations.lightning import SparsifierCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # advice about workers and loggers
EPOCHS, RATE = 3, 0.02


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class Task(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        return cross_entropy(self(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=RATE)


def batches() -> DataLoader[Any]:
    x = torch.randn(24, 6, 3, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, (x[..., 0].sum(1) > 0).long()), batch_size=6)


def lasso(model: nn.Module) -> gw.GroupLasso:
    return gw.GroupLasso(model, l1=1e-3, group=5e-3, threshold=1e-2)


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    usual = {"max_epochs": EPOCHS, "accelerator": "cpu", "devices": 1, "logger": False}
    options = {**usual, "enable_checkpointing": False, **options}
    return pl.Trainer(
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def by_hand(accumulate: int, clip: float | None, budget: dict[str, Any] | None) -> nn.Module:
    """The loop of docs/how-to/own-loop.md."""
    model = Task().net
    sparsifier = lasso(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    loader = batches()
    steered = gw.Budget(sparsifier, steps=EPOCHS * len(loader) // accumulate, **budget) if budget else None
    for _ in range(EPOCHS):
        for k, (x, y) in enumerate(loader, 1):
            (cross_entropy(model(x), y) / accumulate).backward()
            if k % accumulate == 0:
                sparsifier.penalty().backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                sparsifier.step()
                if steered is not None:
                    steered.step()
    return model


def close(found: nn.Module, expected: nn.Module) -> None:
    for (name, a), b in zip(found.named_parameters(), expected.parameters()):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, 0.5)])
def test_the_numbers_of_a_plain_loop(accumulate: int, clip: float | None, tmp_path: Path) -> None:
    """Once per update, before clipping, whatever is accumulated; counts and penalty are logged."""
    task, budget = Task(), {"gates": 8}
    callback = SparsifierCallback(lasso, budget=budget, module="net")
    run = trainer(tmp_path, callback, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    run.fit(task, batches())
    close(task.net, by_hand(accumulate, clip, budget))
    report = gw.measure(task.net)
    assert run.logged_metrics["gates"] == sum(report.gates.values()) <= 8
    assert run.logged_metrics["neurons"] == sum(report.neurons.values())
    assert run.logged_metrics["penalty"] > 0


class Halfway(pl.Callback):
    """A checkpoint after the second epoch; the random numbers of the third are those of the run that wrote it."""

    def __init__(self, folder: Path) -> None:
        self.file, self.random = folder / "half.ckpt", folder / "random.pt"

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.file)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2 and batch_idx == 0:
            if self.random.exists():
                torch.set_rng_state(torch.load(self.random))
            else:
                torch.save(torch.get_rng_state(), self.random)


def test_a_resumed_fit_ends_alike(tmp_path: Path) -> None:
    """The checkpoint has the warm-up of the sparsifier and the choice of the budget."""

    def fit(start: Path | None) -> tuple[Task, SparsifierCallback]:
        task, options = Task(), {"n_train": 1000, "noise": "batch", "warm_up": (0, 10)}
        make = lambda model: gw.Variational(model, **options)  # noqa: E731
        callback = SparsifierCallback(make, budget={"gates": 0.5}, module="net")
        trainer(tmp_path, callback, Halfway(tmp_path)).fit(task, batches(), ckpt_path=start)
        return task, callback

    whole, one = fit(None)
    resumed, other = fit(tmp_path / "half.ckpt")
    close(resumed.net, whole.net)
    assert one.budget is not None
    assert other.budget is not None
    assert str(one.budget.state_dict()) == str(other.budget.state_dict())


@pytest.mark.parametrize("make", [lasso, lambda m: gw.GroupLasso(m, l1=2.0, group=2.0, update="proximal")])
def test_bfloat16_and_proximal_updates(make: Any, tmp_path: Path) -> None:
    """Weights stay float32 under autocast, and so does the penalty; zeros are exact."""
    task = Task()
    trainer(tmp_path, SparsifierCallback(make, module="net"), precision="bf16-mixed").fit(task, batches())
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in task.net.parameters())
    assert (task.net.gru.weight_ih_l0 == 0).any()


def test_a_refit_follows(tmp_path: Path) -> None:
    """A second fit, with gw.Refit for the sparsifier: zeros stay, the rest moves; then the cut is exact."""
    task = Task()
    trainer(tmp_path, SparsifierCallback(lasso, budget={"neurons": 4}, module="net")).fit(task, batches())
    before = {name: p.detach().clone() for name, p in task.net.named_parameters()}
    trainer(tmp_path, SparsifierCallback(gw.Refit, module="net")).fit(task, batches())
    for name, p in task.net.named_parameters():
        if "weight" in name:
            assert (p[before[name] == 0] == 0).all()
            assert not torch.equal(p, before[name])
    x = torch.randn(2, 5, 3)
    task.net.eval()
    torch.testing.assert_close(gw.compress(task.net)(x), task.net(x))


class Once(pl.Callback):
    """Ends training after the first epoch, as EarlyStopping may."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = True


def test_training_that_ends_early_does_not_meet_its_budget(tmp_path: Path) -> None:
    """48 of 48 gates were shipped where 8 were asked, and nobody said so."""
    task = Task()
    callback = SparsifierCallback(lasso, budget={"gates": 8}, module="net")
    with pytest.warns(
        UserWarning, match=r"ended before the budget was met \(gates: \d+ of 24, budget 8; step 4 of 12"
    ):
        trainer(tmp_path, callback, Once()).fit(task, batches())
    with pytest.warns(UserWarning, match="The budget of Net is 8 gates, and it has"):
        gw.compress(task)


@pytest.mark.parametrize(("mode", "told"), [("max", True), ("min", False)])
def test_the_best_checkpoint_may_be_from_before_the_budget_was_met(
    mode: str, told: bool, tmp_path: Path
) -> None:
    """What validation likes best is a network of which nothing has gone yet: here that of the most gates."""
    callback = SparsifierCallback(lasso, budget={"gates": 8}, module="net")
    chosen = pl.callbacks.ModelCheckpoint(tmp_path, monitor="gates", mode=mode)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer(tmp_path, callback, chosen, enable_checkpointing=True).fit(Task(), batches())
    assert any("the network that ModelCheckpoint chose has" in str(w.message) for w in said) == told


def test_what_cannot_be(tmp_path: Path) -> None:
    class Two(Task):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.net.parameters(), lr=0.1) for _ in range(2)], []

        automatic_optimization = False

    with pytest.raises(ValueError, match="there are 2 optimizers"):
        trainer(tmp_path, SparsifierCallback(lasso, module="net")).fit(Two(), batches())


def test_two_ranks_have_one_network(tmp_path: Path) -> None:
    """Each rank has half of the data; weights are the same on both, as sparse as asked for."""
    pytest.importorskip("torch.distributed")
    task = Task()
    callback = SparsifierCallback(lasso, budget={"gates": 8}, module="net")
    trainer(tmp_path, callback, Compared(tmp_path), devices=2, strategy="ddp_fork").fit(task, batches())
    ours, theirs = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(a, b) for a, b in zip(ours.values(), theirs.values()))
    model = Net()
    model.load_state_dict(ours)
    assert sum(gw.measure(model).gates.values()) <= 8


class Compared(pl.Callback):
    """Leaves the weights of each rank behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        torch.save(pl_module.net.state_dict(), self.folder / f"{trainer.global_rank}.pt")
