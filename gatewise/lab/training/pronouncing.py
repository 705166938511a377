"""What a network that pronounces words learns, and by what it is judged.

    learns          cross-entropy of the next phoneme, those before it given (teacher forcing)
    word error      100 * words whose answer is none of their pronunciations / words
    phoneme error   100 * sum of edit distances / sum of lengths, of each word with its nearest pronunciation

The answer is greedy: the network reads its own likeliest phonemes. Stress counts; `_unstressed` is without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatewise.lab.data.pronunciation import END, PAD, UNSTRESSED
from gatewise.lab.models import State
from gatewise.lab.training.feeds import Fed
from gatewise.lab.training.objectives import Kind, Objective

ENDINGS = ("", "_unstressed")


@dataclass(frozen=True)
class Pronouncing(Objective):
    kind: Kind = "phonemes"
    n_sums: ClassVar[int] = 7  # wrong words, edits and phonemes, with stress and without; words
    same: ClassVar[float] = 0.02  # a near tie that turns one phoneme turns a word

    def run(self, model: nn.Module, batch: Fed, state: State | None) -> tuple[Tensor, State | None]:
        """Scores (B, L, V) where there is one pronunciation to learn, else the network's own answers (B, S)."""
        if batch.targets.dim() == 2:
            return model(batch.inputs, batch.mask, batch.targets), None
        return model(batch.inputs, batch.mask), None

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """(B, L); what stands for padding has weight 0."""
        return F.cross_entropy(output.mT, targets, reduction="none")

    def sums(self, output: Tensor, batch: Fed) -> Tensor:
        plain = torch.tensor(UNSTRESSED, device=output.device)
        found = []
        for answers, references in ((output, batch.targets), (plain[output], plain[batch.targets])):
            edits, lengths = nearest(answers, references)
            found += [(edits > 0), edits, lengths]
        values = torch.stack([*found, torch.ones_like(found[1])], dim=-1).double()  # (B, 7)
        return batch.weight.double() @ values

    def judge(self, *sums: float) -> dict[str, float]:
        judged = {}
        for ending, (wrong, edits, phonemes) in zip(ENDINGS, (sums[:3], sums[3:6])):
            judged[f"word_error{ending}"] = 100 * wrong / sums[6]
            judged[f"phoneme_error{ending}"] = 100 * edits / phonemes
        return judged


def nearest(answers: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:  # (B, S), (B, K, R) -> (B,), (B,)
    """Edit distance to the nearest of K pronunciations, the first of equals, and how many phonemes that has.

    An answer is what stands before its first end, a pronunciation what stands before its end; one of padding is none.
    """
    distances = edit_distances(answers, references)
    there = references[..., 0] != PAD  # (B, K)
    lengths = ((references != PAD) & (references != END)).sum(-1)
    best = distances.masked_fill(~there, answers.shape[1] + references.shape[2]).argmin(-1, keepdim=True)
    return distances.gather(1, best)[:, 0], lengths.gather(1, best)[:, 0]


def edit_distances(answers: Tensor, references: Tensor) -> Tensor:  # (B, K)
    """Of each answer to each of its references, by the usual table, row by row.

        d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + (a_i != r_j))

    Along a row the second case makes it j + the smallest c_k - k of all k <= j, c without that case.
    """
    a_lengths = (answers == END).cumsum(-1).eq(0).sum(-1)[:, None, None]
    r_lengths = ((references != PAD) & (references != END)).sum(-1, keepdim=True)
    column = torch.arange(references.shape[-1] + 1, device=answers.device)
    row = column.expand(*references.shape[:2], -1)
    for i in range(answers.shape[1]):
        other = (answers[:, i, None, None] != references).long()
        c = torch.cat([row[..., :1] + 1, torch.minimum(row[..., 1:] + 1, row[..., :-1] + other)], dim=-1)
        c = (c - column).cummin(-1).values + column
        row = torch.where(i < a_lengths, c, row)
    return row.gather(-1, r_lengths)[..., 0]
