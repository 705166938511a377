"""What a chain is made of, and why a model is none."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from gatewise.nn.lookup import is_single_step

POOLS = ("mean", "max", "sum")  # over time
WAY_OUT = "gatewise.accelerate(model) speeds up the recurrent layers of any model."
NO_LOOPS = (
    "Cells in any loop but a plain one over time (docs/export.md) run in torch alone; nn.LSTM and nn.GRU also run in "
    "C and ONNX."
)
NO_LAYER = (
    "There is no LSTM or GRU layer that can leave torch (nn.RNN and proj_size cannot), so the model is not a chain "
    "of layers."
)


def way_out(model: nn.Module) -> str:
    """accelerate() leaves cells as they are."""
    return NO_LOOPS if any(map(is_single_step, model.modules())) else WAY_OUT


class ChainError(ValueError):
    """The model is not a chain of layers."""


@dataclass(frozen=True)
class ChainLink:
    """One link of the chain.

    kind: "embedding", "recurrent", "linear": the layer `module`; "one_hot": of `classes` words; "pointwise": the
    function `name`; "affine": scale * x + shift, channel by channel; "layer_norm": (x - mean) / sqrt(var + eps) over
    the channels; "softmax" and "log_softmax" over them; "mean", "max" and "sum" over time; "last_step": the last
    position; "last_state": the last h of the recurrent layer before it, every direction (they differ in the backward
    direction, whose last h is at the first position).
    """

    kind: str
    name: str = ""  # of the layer in the model, or of the function
    module: nn.Module | None = None
    classes: int = 0
    eps: float = 0.0
    scale: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chain:
    """The links, and how the caller's tensors are laid out."""

    links: tuple[ChainLink, ...]
    batch_axis: int  # of the input
    output_axes: str  # "TBC", "BTC", "BC" (one for a sequence), "RC" (rows: time and batch flattened)
    rows_time_first: bool  # order of the rows of "RC"
    squeezed: bool  # the last axis, of width 1, is dropped
    returns_state: bool  # forward() returns (y, state) rather than y, and all layers go on from it
    n_inputs: int  # width of a vector input; 0 for words

    @property
    def words(self) -> bool:
        return self.links[0].kind in ("embedding", "one_hot")
