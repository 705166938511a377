"""What the numbers of gw.GroupLasso do on a small task: six classes of noisy waves on nine channels, a GRU of 32.

    python benchmarks/choose_penalty.py rates        the same penalty with several learning rates of Adam
    python benchmarks/choose_penalty.py updates      subgradient and proximal updates, SGD and Adam, several penalties

Each line is a run of 40 epochs, about 15 seconds on one thread; quality is that of validation.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gatewise as gw

CHANNELS, STEPS, CLASSES, BATCH, EPOCHS = 9, 40, 6, 50, 40


@dataclass(frozen=True)
class Setting:
    optimizer: str
    lr: float
    falling: bool
    group: float
    update: str = "subgradient"
    threshold: float | None = None


class Sensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(CHANNELS, 32, batch_first=True), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


def waves(n: int, seed: int) -> tuple[Tensor, Tensor]:  # (n, STEPS, CHANNELS), (n,)
    """A class is a frequency and a direction among the channels; the phase is drawn, and there is much noise."""
    fixed, drawn = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    direction = 1.5 * F.normalize(torch.randn(CLASSES, 2, CHANNELS, generator=fixed), dim=-1)
    y = torch.randint(CLASSES, (n,), generator=drawn)
    angle = torch.arange(STEPS) * (0.2 + 0.3 * (y % 3))[:, None] + 6.3 * torch.rand(n, 1, generator=drawn)
    both = torch.stack([angle.sin(), angle.cos()], -1)  # (n, STEPS, 2)
    return both @ direction[y] + 1.2 * torch.randn(n, STEPS, CHANNELS, generator=drawn), y


def train(setting: Setting, seed: int) -> tuple[float, gw.Report]:
    """Accuracy on validation, and what is left."""
    (x, y), (x_valid, y_valid) = waves(1500, 1), waves(3000, 2)
    torch.manual_seed(seed)
    model = Sensor()
    lasso = gw.GroupLasso(
        model,
        l1=setting.group / 100,
        group=setting.group,
        update=setting.update,
        threshold=setting.threshold,
    )
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[setting.optimizer]
    optimizer = kind(model.parameters(), lr=setting.lr)
    for epoch in range(EPOCHS):
        if setting.falling:
            optimizer.param_groups[0]["lr"] = setting.lr * (1 - epoch / EPOCHS)
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(model(x[rows]), y[rows]) + lasso.penalty()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            lasso.step(optimizer)
    with torch.no_grad():
        right = (model.eval()(x_valid).argmax(1) == y_valid).float().mean().item()
    return right, gw.measure(model)


def rates() -> list[Setting]:
    tried = ((2e-3, True), (5e-3, True), (1e-2, True), (2e-2, True), (5e-3, False))
    return [Setting("adam", lr, falling, 2.5e-3, threshold=1e-3) for lr, falling in tried]


def updates() -> list[Setting]:
    """Adam's proximal lambdas are larger: its updates have the size of the rate, however small a slope is."""
    tried = {
        ("adam", 5e-3, "subgradient"): (1.5e-3, 2.5e-3, 4e-3),
        ("adam", 5e-3, "proximal"): (0.7, 1.0, 1.2),
        ("sgd", 0.5, "subgradient"): (2.5e-3, 3.5e-3, 5e-3),
        ("sgd", 0.5, "proximal"): (2.5e-3, 3.5e-3, 5e-3),
    }
    return [
        Setting(optimizer, lr, True, group, update, 1e-3 if update == "subgradient" else None)
        for (optimizer, lr, update), groups in tried.items()
        for group in groups
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("rates", "updates"))
    parser.add_argument("--seeds", type=int, default=1, help="means of so many runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of networks of which nothing is left: the table tells
    print("| optimiser | rate | update | group | neurons | live gates | weights left | accuracy |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for s in {"rates": rates, "updates": updates}[args.what]():
        runs = [train(s, seed) for seed in range(args.seeds)]
        neurons, gates = (
            statistics.mean(sum(getattr(report, what).values()) for _, report in runs)
            for what in ("neurons", "gates")
        )
        one_in = statistics.mean(report.compression for _, report in runs)
        accuracy = statistics.mean(right for right, _ in runs)
        rate = f"{s.lr:g}{', falling' if s.falling else ''}"
        print(
            f"| {s.optimizer} | {rate} | {s.update} | {s.group:g} | {neurons:.1f} | {gates:.1f} | "
            f"1 in {one_in:.1f} | {accuracy:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
