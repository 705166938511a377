"""The first updates of the large word model, in plain torch: whether the network survives them.

    python reproduction/large_start.py                  # as in Wen's code: clip 10
    python reproduction/large_start.py --clip 5
    python reproduction/large_start.py --warm-up 600    # the learning rate rises to 1 over 600 updates

SGD with learning rate 1 on the loss summed over 35 steps, forget bias 0, weights from U(-0.04, 0.04). No line of it
runs through gatewise's layers, kernels or trainer; only the text comes from its reader. Prints loss per word, norm of
the gradient before clipping and the mean |h| of the last layer: output gates that shut show as |h| near 0. An update
takes two to three seconds on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from gatewise.lab import recipe as recipes
from gatewise.lab.data.corpus import load_data

HIDDEN, WORDS, BATCH, STEPS = 1500, 10_000, 20, 35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clip", type=float, default=10.0)
    parser.add_argument(
        "--warm-up", type=int, default=1, help="updates over which the learning rate rises to 1"
    )
    parser.add_argument("--dropout", type=float, default=0.65, help="0.65 dense, 0.4 sparse")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    ids = load_data(recipes.load("ptb-word-large-original"), arguments.data_dir).train
    length = len(ids) // BATCH
    streams = ids[: length * BATCH].view(BATCH, length).t()
    embedding, output = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS)
    rnn, drop = nn.LSTM(HIDDEN, HIDDEN, 2, dropout=arguments.dropout), nn.Dropout(arguments.dropout)
    for module in (embedding, rnn, output):
        for name, parameter in module.named_parameters():
            if "bias_" in name:  # the LSTM's: one of the two is trained, as in a network that has one
                nn.init.zeros_(parameter).requires_grad_("_ih_" in name)
            else:
                nn.init.uniform_(parameter, -0.04, 0.04)
    trained = [p for module in (embedding, rnn, output) for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    state = None
    for k in range(arguments.updates):
        window = streams[k * STEPS : (k + 1) * STEPS + 1]
        h, state = rnn(drop(embedding(window[:-1])), state)
        state = tuple(part.detach() for part in state)
        loss = nn.functional.cross_entropy(output(drop(h)).flatten(0, 1), window[1:].flatten())
        optimizer.zero_grad()
        (STEPS * loss).backward()
        norm = nn.utils.clip_grad_norm_(trained, arguments.clip)
        optimizer.param_groups[0]["lr"] = min(1.0, (k + 1) / arguments.warm_up)
        optimizer.step()
        if k < 10 or k % 10 == 9:
            print(
                f"update {k + 1:4d}  loss {loss:6.3f}  gradient {norm:6.1f}  |h| {h.detach().abs().mean():.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
