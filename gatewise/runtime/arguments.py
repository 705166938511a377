"""The arguments of a call: what was given, as the arrays that a program reads, and the sizes that they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatewise.program.graph import BOOL, INT, Node, Program
from gatewise.program.operations import Input
from gatewise.program.sizes import Size, at

Array = NDArray[Any]
TENSORS = {np.dtype(np.float32): torch.float32, np.dtype(np.int64): torch.int64}
KINDS = {"float": "numbers", INT: "whole numbers", BOOL: "true or false"}


def bound(program: Program, given: Mapping[str, Any], floats: type[Any] = np.float32) -> dict[Node, Array]:
    """Every argument that the program reads, as an array of the node's kind.

    Raises:
        TypeError: an argument is missing, is too much, or is of another structure or kind.
    """
    unknown = sorted(given.keys() - program.arguments.keys())
    if unknown:
        raise TypeError(f"{unknown[0]}: forward() reads {', '.join(program.arguments)} only.")
    arrays: dict[Node, Array] = {}
    for name, expected in program.arguments.items():
        if name not in given:
            raise TypeError(f"{name}: forward() needs it.")
        bind(name, expected, given[name], arrays, floats)
    return arrays


def bind(name: str, expected: Any, given: Any, arrays: dict[Node, Array], floats: type[Any]) -> None:
    """One argument, or its parts one by one."""
    if isinstance(expected, Node):
        arrays[expected] = as_array(name, expected, given, floats)
    elif isinstance(expected, tuple | list | dict):
        keys = list(expected) if isinstance(expected, dict) else list(range(len(expected)))
        fits = isinstance(given, dict) == isinstance(expected, dict) and isinstance(
            given, tuple | list | dict
        )
        if not fits or len(given) != len(keys):
            raise TypeError(f"{name}: expected {len(keys)} parts, as forward() takes them.")
        for key in keys:
            bind(f"{name}.{key}", expected[key], given[key], arrays, floats)


def as_array(name: str, node: Node, given: Any, floats: type[Any]) -> Array:
    array = from_tensor(given, name) if is_tensor(given) else np.asarray(given)
    allowed = {"float": "fiu", INT: "iu", BOOL: "b"}[node.kind]  # where lengths are compared, any numbers do
    if array.dtype.kind not in allowed and not node.as_given:
        raise TypeError(f"{name}: expected {KINDS[node.kind]}, got {array.dtype}.")
    if array.dtype.kind == "f" and floats == np.float32 and array.dtype != floats:
        convert = f"{name}.float()" if is_tensor(given) else f"{name}.astype(np.float32)"
        raise TypeError(f"{name} must be float32, got {array.dtype}; {convert} converts it.")
    kind = {"float": floats, INT: np.int64, BOOL: np.bool_}[node.kind]
    return array if node.as_given else array.astype(kind, copy=False)


def letters_of(arrays: Mapping[Node, Array], may_be_zero: str = "") -> dict[str, int]:
    """The letters in the shapes of arguments, from the shapes that these have; one of them may be 0.

    Raises:
        ValueError: a shape is another one, or two arguments disagree.
    """
    letters: dict[str, int] = {}
    for node, array in arrays.items():
        if array.ndim == node.rank:
            for size, actual in zip(node.shape, array.shape):
                if (
                    isinstance(size, Size)
                    and len(size.letters) == 1
                    and size.terms == {tuple(size.letters): 1}
                ):
                    letters.setdefault(next(iter(size.letters)), actual)
    for node, array in arrays.items():
        expected = tuple(at(size, letters) for size in node.shape) if array.ndim == node.rank else None
        empty = any(not n and str(size) != may_be_zero for size, n in zip(node.shape, array.shape))
        if array.shape != expected or empty:
            assert isinstance(node.op, Input)
            raise ValueError(f"{node.op.argument}: {mismatch(node, array, expected)}")
    return letters


def mismatch(node: Node, array: Array, expected: tuple[int, ...] | None) -> str:
    names = ", ".join(map(str, node.shape))
    said = f"expected shape ({names}{',' if node.rank == 1 else ''}), got {array.shape}"
    if 0 in array.shape:
        return f"{said}, which is empty."
    return f"{said}; with the other arguments it is {expected}." if expected else f"{said}."


def unknown(name: str, known: Sequence[str]) -> TypeError:
    """An argument that there is not."""
    packed = "; where sequences end early, pack them in forward()" if name == "lengths" else ""
    return TypeError(f"{name} is no argument of the engine, which takes {', '.join(known)}{packed}.")


def check_finite(values: Iterable[Any]) -> None:
    """Nothing that is NaN or infinite: it would stay in the state, and in all answers to come."""
    for x in values:
        if (is_tensor(x) or isinstance(x, np.ndarray)) and not bool(
            (x.isfinite() if is_tensor(x) else np.isfinite(x)).all()
        ):
            raise ValueError(
                "x has numbers that are not finite: they would stay in the state, and in every answer from now on. "
                "Put others in their place, or leave the step out."
            )


def is_tensor(x: Any) -> bool:
    """Arrays first: torch's own check takes longer than all others together."""
    return type(x) is not np.ndarray and isinstance(x, torch.Tensor)


def plain_array(x: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """x as an array, where it is one or a tensor of just this shape and type in one piece; else None."""
    array = x
    if type(x) is torch.Tensor:
        if (
            x.dtype is not TENSORS.get(dtype)
            or x.requires_grad
            or not x.is_cpu
            or x.layout is not torch.strided
        ):
            return None
        array = x.numpy()
    elif type(x) is not np.ndarray:
        return None
    plain = array.dtype is dtype and array.shape == shape and array.flags.carray  # carray: aligned, writable
    return array if plain else None


def from_tensor(x: torch.Tensor, name: str = "x") -> Array:
    if not x.is_cpu:
        raise ValueError(f"{name} is on {x.device}; the engine runs on the CPU: {name}.cpu().")
    if x.requires_grad:
        if torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, and the engine has none; use the compact model, or {name}.detach()."
            )
        x = x.detach()
    if x.dtype == torch.bfloat16:
        # NumPy has no such type.
        raise TypeError(f"{name} must be float32, got bfloat16; {name}.float() converts it.")
    array: Array = x.numpy()
    return array
