"""Starting values of the task models, as the paper's two code bases have them, or torch.

    uniform           every matrix and the output bias U(-a, a), gate biases 0           (pruning, Wen's code)
    glorot            embedding U(-0.05, 0.05); Wx U(+-sqrt(6 / (I + H))) and Wh orthogonal with gain 1.1, gate by
                      gate; output Glorot uniform; biases 0                              (authors' classification)
    orthogonal        embedding U(-0.05, 0.05); Wx, Wh gate by gate and the output orthogonal; biases 0
                                                                                         (authors' language models)
    torch             embedding N(0, 1); matrices and the output bias U(+-1 / sqrt(inputs)); gate biases 0

The forget gate's bias is set apart: 1, or 0. A GRU has none, and its biases start at 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gatewise.lab.models import TaskModel, stacks_of

INITS = ("uniform", "glorot", "orthogonal", "torch")


@torch.no_grad()
def initialise(model: TaskModel, init: str, init_range: float = 0.1, forget_bias: float = 0.0) -> None:
    """Draw every parameter anew from torch's global generator."""
    if init not in INITS:
        raise ValueError(f"init={init!r} is not one of {', '.join(INITS)}.")
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            bound = init_range if init == "uniform" else 0.05
            if init == "torch":
                nn.init.normal_(module.weight)
            else:
                nn.init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, nn.Linear):
            _output(module, init, init_range)
    for rnn, place in [(stack, place) for stack in stacks_of(model) for place in stack.places()]:
        weights = rnn.weights(*place, 1)
        for gate in rnn.cell.split(weights.w_ih):  # (H, I)
            _matrix(gate, init, init_range, gain=1.0, glorot=True)
        for gate in rnn.cell.split(weights.w_hh):
            _matrix(gate, init, init_range, gain=1.1 if init == "glorot" else 1.0, glorot=False)
        for bias in (weights.b_ih, weights.b_hh):
            if bias is not None:
                bias.zero_()
        if "f" in rnn.cell.gates and weights.b_ih is not None:
            rnn.cell.split(weights.b_ih)[rnn.cell.gates.index("f")] = forget_bias


def _output(layer: nn.Linear, init: str, init_range: float) -> None:
    _matrix(layer.weight, init, init_range, gain=1.0, glorot=True)
    if init in ("uniform", "torch"):
        bound = init_range if init == "uniform" else layer.in_features**-0.5
        nn.init.uniform_(layer.bias, -bound, bound)
    else:
        nn.init.zeros_(layer.bias)


def _matrix(w: Tensor, init: str, init_range: float, gain: float, glorot: bool) -> None:
    if init in ("uniform", "torch"):
        bound = init_range if init == "uniform" else w.shape[1] ** -0.5
        nn.init.uniform_(w, -bound, bound)
    elif init == "glorot" and glorot:
        nn.init.xavier_uniform_(w)
    elif w.device.type != "meta":  # a QR decomposition needs numbers
        nn.init.orthogonal_(w, gain)
