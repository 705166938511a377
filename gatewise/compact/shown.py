"""What a compact layer shows under the names of the parameters that it no longer has: to be read, not to be written.

`rnn.weight_hh_l0` has its original shape, with zeros where something was cut, and follows the layer's own parameters,
gradients included. It is made anew whenever somebody asks, so what would be written into it would be lost.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gatewise.nn.forms import Form
from gatewise.nn.lookup import ending, is_single_step, places_of
from gatewise.nn.recurrence import Weights

PARTS = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}


class Shown(Tensor):
    """A tensor that refuses to be changed, and views of it, `.data` and `.detach()` among them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(args[0] if writes(func.__name__) else kwargs.get("out"), Shown):
            raise RuntimeError(
                "A parameter that a compact layer shows in its original shape cannot be changed: it is made anew "
                "whenever it is asked for. Change those that the layer has, layer.named_parameters(), or those of "
                "the model before compress()."
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            memory = {storage(a) for a in args if isinstance(a, Shown)}
            return tree_map(lambda part: unchanged(part, memory), result)


def storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def unchanged(value: Any, memory: set[int]) -> Any:
    """What has its numbers in one of these places, as something that nobody can write into."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value.as_subclass(Shown) if isinstance(value, Tensor) and storage(value) in memory else value


def writes(name: str) -> bool:
    """Whether a method changes its tensor: fill_(), x[0] = 1, x += 1, and x.data = y or x.requires_grad = False."""
    if name.startswith("__i"):
        return hasattr(operator, name) and name not in ("__index__", "__inv__", "__invert__")
    return name in ("__set__", "__setitem__") or (name.endswith("_") and not name.endswith("__"))


class Showing(Form):
    """Mixin of compact layers: parameters of the layer that they stand for, by name."""

    def deterministic(self, layer: int, direction: int) -> Weights:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        found = place_of(self, name) if name.startswith(("weight_", "bias_")) else None
        if found is None:
            return nn.Module.__getattr__(self, name)
        label, place = found
        with torch._C.DisableTorchFunction():  # while forward() is recorded, too
            whole: Tensor | None = getattr(self.deterministic(*place), PARTS[label])
            return None if whole is None else whole.as_subclass(Shown)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(("weight_", "bias_")) and place_of(self, name) is not None:
            raise AttributeError(
                f"{name} cannot be set: a compact layer has smaller parameters in its place, "
                f"{', '.join(own for own, _ in self.named_parameters())}. Set those, or {name} before compress()."
            )
        super().__setattr__(name, value)


def place_of(layer: nn.Module, name: str) -> tuple[str, tuple[int, int]] | None:
    """`weight_hh` and (1, 0) for `weight_hh_l1`, if a layer as it was has such a parameter."""
    has_biases = layer.bias or is_single_step(layer)  # a cell without them says None
    labels = [label for label in PARTS if name.startswith(label) and (label[0] == "w" or has_biases)]
    named = ((label, place) for label in labels for place in places_of(layer))
    return next((pair for pair in named if pair[0] + ending(layer, *pair[1]) == name), None)
