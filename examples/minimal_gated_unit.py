"""A third gated cell in one file: the minimal gated unit, through both sparsifiers and measure()."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.layout import Cell, Squash, State


def mgu_step(
    input_part: Tensor,  # (B, 2, H)
    recurrent_part: Tensor,  # (B, 2, H)
    state: State,  # h: (B, H)
    neuron_scale: Tensor | float,
    squash: Squash,
) -> State:
    """One step of the minimal gated unit (Zhou et al. 2016) in torch's GRU form, with group variables.

    f  = sigmoid((Wx_f x + Wh_f h) * z_f + b_f)
    n  = tanh(z_n * (Wx_n x + f * Wh_n h) + b_in + f * b_hn)
    h' = (1 - f) * h + f * n * z_h
    """
    (h,) = state
    in_f, in_n = input_part.unbind(-2)
    rec_f, rec_n = recurrent_part.unbind(-2)
    f = squash(in_f + rec_f)
    n = torch.tanh(in_n + f * rec_n)
    return ((1 - f) * h + f * n * neuron_scale,)


MGU_CELL = Cell(
    "MGU",
    gates=("f", "n"),
    tanh_gates={"n"},
    n_states=1,
    step=mgu_step,
    gated_recurrent={"n": "f"},  # f multiplies the recurrent half of n
)


class MGU(gw.nn.Recurrent):
    """Constructor, call and parameter names as in `torch.nn.GRU`, with two gates instead of three."""

    cell = MGU_CELL


class Tagger(nn.Module):
    """Says at every step whether the first of three inputs was positive one step before."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.rnn = MGU(3, hidden)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:  # (T, B, 3) -> (T, B)
        out, _ = self.rnn(x)
        return self.fc(out).squeeze(-1)


def train(method: str, steps: int = 400) -> tuple[Tagger, float]:
    """The trained model and its accuracy."""
    model = Tagger()
    sparsifier = (
        gw.GroupLasso(model, l1=1e-4, group=0.01, threshold=1e-2)
        if method == "lasso"
        else gw.Variational(model, n_train=1500, noise="batch")
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        x = torch.randint(2, (6, 32, 3)).float() * 2 - 1
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[1:], (x[:-1, :, 0] > 0).float())
        (loss + sparsifier.penalty()).backward()
        optimizer.step()
        sparsifier.step()
    x = torch.randint(2, (6, 500, 3)).float() * 2 - 1
    with torch.no_grad():
        right = (model.eval()(x)[1:] > 0) == (x[:-1, :, 0] > 0)
    return model, right.float().mean().item()


if __name__ == "__main__":
    for method in ("lasso", "bayes"):
        torch.manual_seed(0)
        model, accuracy = train(method)
        print(f"{method}: accuracy {accuracy:.3f}\n{gw.measure(model)}\n")
