"""A word-level language model, and a training loop small enough to read: the user's side of the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab.data.cuts import Windows

State = tuple[Tensor, Tensor]
Tick = Callable[[str], None]  # called after every mini-batch with a word on how it goes


class WordModel(nn.Module):
    """logits = W h + b, h = LSTM(embedding of the words); dropout between the layers, never along time."""

    def __init__(self, n_words: int, width: int, dropout: float = 0.0, init: float = 0.1) -> None:
        super().__init__()
        self.n_words, self.width, self.dropout = n_words, width, nn.Dropout(dropout)
        self.embedding = nn.Embedding(n_words, width)
        self.rnn = gw.nn.LSTM(width, width, num_layers=2, dropout=dropout)
        self.softmax = nn.Linear(width, n_words)
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.uniform_(parameter, -init, init)

    def config(self) -> dict[str, float]:
        """What gw.load() needs to build it again."""
        return {"n_words": self.n_words, "width": self.width, "dropout": self.dropout.p}

    def forward(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:  # (T, B)
        output, state = self.rnn(self.dropout(self.embedding(words)), state)
        return self.softmax(self.dropout(output)), state


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    learning rate of epoch e = rate * decay^max(e - flat, 0), as in the paper's small pruning runs; e = 1, 2, ...
    """

    optimizer: str  # "SGD" or "Adam"
    epochs: int
    rate: float
    flat: int  # epochs before the rate begins to fall
    decay: float
    clip: float = 5.0


Sparsifier = gw.GroupLasso | gw.Variational


def train(
    model: nn.Module,
    text: Windows,
    plan: Plan,
    sparsifier: Sparsifier | None = None,
    tick: Tick = lambda _: None,
) -> Iterator[int]:
    """Yields after each epoch, so that the caller may look at the model; the state is carried between windows."""
    kind = torch.optim.SGD if plan.optimizer == "SGD" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=plan.rate)
    # The paper's lambdas belong to a loss summed over the window; KL / n_train to the mean per word.
    weight = 1 if isinstance(sparsifier, gw.Variational) else text.steps
    for epoch in range(1, plan.epochs + 1):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * plan.decay ** max(epoch - plan.flat, 0)
        state = None
        model.train()
        for words, following in text.windows():
            logits, state = model(words, state)
            state = detached(state)
            nll = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
            loss = weight * nll if sparsifier is None else weight * nll + sparsifier.penalty()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            optimizer.step()
            if sparsifier is not None:
                sparsifier.step()
            tick(f"{math.exp(nll.item()):.0f}")
        yield epoch


@torch.no_grad()
def perplexity(model: nn.Module, text: Windows) -> float:
    """exp(mean of -log p(next word)), over the whole text, with the state carried."""
    was_training = model.training
    model.eval()
    total, state = 0.0, None
    for words, following in text.windows():
        logits, state = model(words, state)
        total += nn.functional.cross_entropy(
            logits.flatten(0, 1), following.flatten(), reduction="sum"
        ).item()
    model.train(was_training)
    return math.exp(total / text.n_targets)


def detached(state: State) -> State:
    h, c = state
    return h.detach(), c.detach()
