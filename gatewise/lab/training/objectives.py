"""What a task minimises and by what it is judged.

    words       cross-entropy in nats            ppl      = exp(mean)        lower is better
    characters  cross-entropy in nats            bpc      = mean / log 2     lower
    classes     cross-entropy in nats            accuracy = 100 * hits / n   higher
    numbers     squared error, mean over outputs mse                         lower

    phonemes    cross-entropy in nats            word_error, see pronouncing  lower

Two classes may share one score s: P(class 1) = sigmoid(s). With clip_probabilities = p the probability of the target
is held in [p, 1 - p] before the logarithm, as in the authors' classification code; outside there is no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatewise.lab.models import State
from gatewise.lab.training.feeds import Fed

Kind = Literal["words", "characters", "classes", "numbers", "phonemes"]
QUALITY = {
    "words": "ppl",
    "characters": "bpc",
    "classes": "accuracy",
    "numbers": "mse",
    "phonemes": "word_error",
}


@dataclass(frozen=True)
class Objective:
    kind: Kind
    clip_probabilities: float = 0.0
    n_sums: ClassVar[int] = 3  # loss, hits, weight
    # Relative: TF32 may turn a few answers of a classifier, or the third digit of a perplexity.
    same: ClassVar[float] = 3e-3

    @property
    def quality(self) -> str:
        """By which epochs and runs are chosen."""
        return QUALITY[self.kind]

    @property
    def higher_is_better(self) -> bool:
        return self.kind == "classes"

    def judge(self, *sums: float) -> dict[str, float]:
        """All qualities by name, from sums over a whole split."""
        loss, hits, weight = sums
        mean = loss / weight
        if self.kind == "words":
            mean = math.exp(mean) if mean < 700 else math.inf
        elif self.kind == "characters":
            mean = mean / math.log(2)
        elif self.kind == "classes":
            mean = 100 * hits / weight
        return {self.quality: mean}

    def run(self, model: nn.Module, batch: Fed, state: State | None) -> tuple[Tensor, State | None]:
        """Output and last state of a task model; those without a mask are language models."""
        if batch.mask is not None:
            return model(batch.inputs, batch.mask), None
        output, after = model(batch.inputs, state)
        return output, after

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """One loss per target: (T, B), (B,) or (B, T)."""
        if self.kind == "numbers":
            return (output - targets).square().mean(-1)
        if self.kind != "classes":
            return F.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="none").view(
                targets.shape
            )
        if output.shape[-1] == 1:
            log_p = F.logsigmoid(output[:, 0] * (2 * targets - 1))
        else:
            log_p = output.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        p = self.clip_probabilities
        return -(log_p.clamp(math.log(p), math.log1p(-p)) if p else log_p)

    def differences(self, output: Tensor, wanted: Tensor) -> Tensor:
        """One loss per target, in the shape of `losses`, where the target is another network's output."""
        if self.kind == "numbers":
            return self.losses(output, wanted)
        if output.shape[-1] == 1:
            p, score = wanted[..., 0].sigmoid(), output[..., 0]
            return F.binary_cross_entropy_with_logits(score, p, reduction="none")
        return -(wanted.softmax(-1) * output.log_softmax(-1)).sum(-1)

    def sums(self, output: Tensor, batch: Fed) -> Tensor:  # (n_sums,) float64
        """What a split adds up, without gradients; a tensor, so that nothing waits for the device."""
        losses, weight = self.losses(output, batch.targets), batch.weight
        hits = torch.zeros_like(losses)
        if self.kind == "classes":
            answer = output[:, 0] > 0 if output.shape[-1] == 1 else output.argmax(-1)
            hits = (answer == batch.targets).to(losses.dtype)
        # float64: a sum over a whole split loses digits in float32.
        added = (losses, hits, torch.ones_like(losses))
        return torch.stack([(weight * values).sum(dtype=torch.float64) for values in added])
