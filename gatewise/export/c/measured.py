"""How far an export is from the compact model, on sequences of the user."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatewise.export.c.golden_program import arrays, by_name, chosen, from_example
from gatewise.export.c.rounded import rounded_model
from gatewise.nn.lookup import evaluating
from gatewise.program.graph import leaves
from gatewise.program.ways import programs
from gatewise.runtime.evaluate import evaluate


def errors_on(example: Any, model: nn.Module, int8: bool, fold: bool) -> tuple[float, float]:
    """Largest |C - model| over the answers to the example, and the same relative to the largest answer.

    C with int8 weights is the compact model with rounded ones; with float32 it differs from torch by the rounding of
    sums alone, as the same network in double precision does.
    """
    given = arguments(example, model)
    exact = answer(model, given)
    computed = answer(rounded_model(model, fold), given) if int8 else in_double(model, given)
    if not exact.isfinite().all():
        raise ValueError("example: the model's answer to it is not finite.")
    error = float((computed - exact).abs().max())
    return error, error / max(float(exact.abs().max()), 1e-30)


def in_double(model: nn.Module, given: Sequence[Any]) -> Tensor:
    """The answer in double precision; by its program where forward() itself makes float32 of what it is given."""
    try:
        return answer(copy.deepcopy(model).double(), [x.double() if is_float(x) else x for x in given])
    except ValueError:
        program = chosen(programs(model, tuple(given)), model, tuple(given))
        found = arrays(evaluate(program, model, by_name(program, from_example(program, model, tuple(given)))))
        return torch.from_numpy(found[0]).double()


def arguments(example: Any, model: nn.Module) -> list[Any]:
    """What forward() is called with: a batch, or a tuple of its arguments, such as (batch, lengths)."""
    given = example if isinstance(example, tuple) else (example,)
    device = next(model.parameters()).device
    found = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in given]
    found = [x.to(device) if isinstance(x, Tensor) else x for x in found]
    if not found or not isinstance(found[0], Tensor):
        raise ValueError(
            f"example is of type {type(example).__name__}; expected a batch as forward() takes it, tensor or NumPy "
            "array, or a tuple of the arguments of forward()."
        )
    if not found[0].numel():
        raise ValueError(f"example of shape {tuple(found[0].shape)} holds no sequence.")
    return [x.float() if is_float(x) else x for x in found]


def is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def answer(model: nn.Module, given: Sequence[Any]) -> Tensor:
    try:
        with evaluating(model), torch.no_grad():
            found = [leaf for leaf in leaves(model(*given)) if isinstance(leaf, Tensor)]
    except Exception as error:  # forward() is the user's code
        raise ValueError(f"example: forward() does not take it ({type(error).__name__}: {error}).") from error
    return found[0].double()


def said(example: Any) -> str:
    """`the example, 64 x 128 x 9`"""
    batch = next(leaf for leaf in leaves(example) if isinstance(leaf, Tensor | np.ndarray))
    return f"the example, {' x '.join(map(str, batch.shape))}"
