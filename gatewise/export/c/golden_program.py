"""Golden vectors of a program: arguments that are made up, what forward() answers to them, and what C must answer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gatewise.export.c.sizes import alone, largest, product
from gatewise.nn.lookup import evaluating
from gatewise.program.calling import bound_example
from gatewise.program.graph import Node, Program, leaves, mapped, only_called_with
from gatewise.program.made_up import described, made_up
from gatewise.program.sizes import Size, at
from gatewise.runtime.arguments import letters_of
from gatewise.runtime.evaluate import evaluate

Array = NDArray[Any]
GOLDEN_STEPS, GOLDEN_NUMBERS = 12, 20_000
TOO_LARGE = "The model's answer to small random inputs is not finite; its weights are too large."
OTHERWISE = "forward() gives something else than what was recorded of it."


class GoldenProgram:
    """One sequence, the compact model's answers to it, and those that the C must give; in the order of results."""

    def __init__(
        self,
        program: Program,
        model: nn.Module,
        most: int,
        rounded: nn.Module | None = None,  # the model whose weights are those that int8 stands for
        example: Any = None,
    ) -> None:
        self.program, self.model, self.rounded = program, model, rounded
        given = self.first_that_runs(most, example)
        self.inputs = {node: given[node].numpy() for node in program.inputs}
        self.letters = letters_of(self.inputs)
        self.exact, plain = answers(program, model, given), self.evaluated(given)
        for got, wanted in zip(plain, self.exact):
            if not np.allclose(got, wanted, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise ValueError(OTHERWISE if np.isfinite(wanted).all() else TOO_LARGE)
        self.computed = plain if rounded is None else answers(program, rounded, given)
        self.expected = self.exact if rounded is None else self.computed

    def first_that_runs(self, most: int, example: Any) -> dict[Node, Tensor]:
        """Arguments that forward() answers with numbers."""
        reasons = ["their sizes depend on each other"]
        for given in candidates(self.program, self.model, most, example):
            try:
                found = answers(self.program, self.model, given)
                evaluate(self.program, self.model, by_name(self.program, given))
            except Exception as error:  # forward() is the user's code
                reasons.append(f"{type(error).__name__}: {error}")
            else:
                if not any(np.isnan(array).any() for array in found):
                    return given
                reasons.append("its answer is NaN")
        raise ValueError(
            f"forward() does not take arguments that were made up ({reasons[:2][-1]}). Give an example= that it does."
        )

    def evaluated(self, given: Mapping[Node, Tensor]) -> list[Array]:
        """The program in double precision."""
        return arrays(evaluate(self.program, self.model, by_name(self.program, given)))

    def errors(self, example: Any = None) -> tuple[float, float]:
        """Largest absolute error, and the same relative to the largest answer.

        C with int8 weights is the compact model with rounded ones; with float32 it differs from torch by the rounding
        of sums alone, as the same network in double precision does. Of whole numbers, symbols say, it is the share of
        sequences in which some are others.
        """
        exact, computed = self.exact, self.computed
        if example is not None:
            exact, computed = self.answers_to(example)
        whole = [(a != b).reshape(len(b), -1).any(1).mean() for a, b in zip(computed, exact) if is_whole(b)]
        pairs = [(a, b) for a, b in zip(computed, exact) if b.dtype.kind == "f" and b.size]
        error = max((float(np.nanmax(np.abs(a - b))) for a, b in pairs), default=0.0)
        largest = max((float(np.nanmax(np.abs(b))) for _, b in pairs), default=0.0)
        share = float(max(whole, default=0.0))
        return max(error, share), max(error / max(largest, 1e-30), share)

    def answers_to(self, example: Any) -> tuple[list[Array], list[Array]]:
        """The model's, and those of the C."""
        batch_of(example)
        given = from_example(self.program, self.model, example)
        try:
            exact = answers(self.program, self.model, given)
        except Exception as error:  # forward() is the user's code
            raise ValueError(
                f"example: forward() does not take it ({type(error).__name__}: {error})."
            ) from error
        if any(np.isnan(array).any() for array in exact):
            raise ValueError("example: the model's answer to it is not finite.")
        rounded = self.rounded
        return exact, self.evaluated(given) if rounded is None else answers(self.program, rounded, given)


def batch_of(example: Any) -> Tensor | Array:
    """The first argument of an example, or of its parts."""
    tensors = [leaf for leaf in leaves(example) if isinstance(leaf, Tensor | np.ndarray)]
    if not tensors:
        raise ValueError(
            f"example is of type {type(example).__name__}; expected a batch as forward() takes it, tensor or NumPy "
            "array, or a tuple of the arguments of forward()."
        )
    if 0 in tensors[0].shape:
        raise ValueError(f"example of shape {tuple(tensors[0].shape)} holds no sequence.")
    return tensors[0]


def said(example: Any) -> str:
    """`the example, 64 x 128 x 9`"""
    return f"the example, {' x '.join(map(str, batch_of(example).shape))}"


def is_whole(answer: Array) -> bool:
    """Whether it is whole numbers, a row for every sequence."""
    return answer.dtype.kind != "f" and answer.ndim > 0 and answer.size > 0


def chosen(every: list[Program], model: nn.Module, example: Any) -> Program:
    """The way to call forward() that the example shows; without one, that with the fewest arguments."""
    given = {name for name, value in bound_example(model, example).items() if value is not None}
    fitting = [program for program in every if program.holds_for(given)]
    if not fitting:
        raise ValueError(only_called_with(given, every))
    return min(fitting, key=lambda program: len(given ^ set(program.arguments)))


def candidates(program: Program, model: nn.Module, most: int, example: Any) -> Iterator[dict[Node, Tensor]]:
    """Arguments of one sequence: vectors and ids at random, and for other whole numbers what may be a length.

    Their sizes are those of the example, where its answers are not too many.
    """
    free = [size for node in program.inputs for size in node.shape if isinstance(size, Size)]
    names = frozenset[str]().union(*(size.letters for size in free))
    usual = dict.fromkeys(names, 1) | {"B": 1}
    tried = [] if example is None else [usual | sizes_of(program, model, example) | {"B": 1}]
    for steps in (GOLDEN_STEPS, 2):
        tried.append(
            usual | {name: max(n, 1) for name, n in (("T", steps), ("S", steps - 3)) if name in names}
        )
    for sizes in tried:
        sizes |= {name: min(most, n) for name, n in sizes.items()}
        longest = max(sizes.values())
        if (
            sum(product([largest(alone(n), longest) for n in node.shape]) for node in program.results)
            <= GOLDEN_NUMBERS
        ):
            break
    fits = all(at(size, sizes) > 0 for size in free)
    for other in (sizes.get("T", 1), 1, 0) if fits else ():
        generator = np.random.default_rng(0)
        found = {
            node: made_up(described(node, program), model, sizes, other, generator) for node in program.inputs
        }
        yield found
    if example is not None:
        yield first_sequence(from_example(program, model, example), most)


def from_example(program: Program, model: nn.Module, example: Any) -> dict[Node, Tensor]:
    """The arguments of an example call, by node."""
    args = example if isinstance(example, tuple) else (example,)
    named = inspect.signature(model.forward).bind_partial(*args).arguments
    given: dict[Node, Tensor] = {}
    for name, expected in program.arguments.items():
        if name not in named:
            raise ValueError(f"example: forward() needs {name!r}, too; give a tuple of its arguments.")
        for node, value in zip(leaves(expected), leaves(named[name]), strict=True):
            tensor = torch.as_tensor(value)
            given[node] = tensor.float() if tensor.is_floating_point() else tensor
    return given


def sizes_of(program: Program, model: nn.Module, example: Any) -> dict[str, int]:
    """The letters in an example's shapes; none where they fit no recording, which is said where it is called."""
    try:
        return letters_of({n: t.numpy() for n, t in from_example(program, model, example).items()})
    except (TypeError, ValueError):
        return {}


def first_sequence(given: Mapping[Node, Tensor], most: int) -> dict[Node, Tensor]:
    """One sequence of a batch, as far as it fits."""
    found = {}
    for node, tensor in given.items():
        for axis, size in enumerate(node.shape):
            if isinstance(size, Size):
                tensor = tensor.narrow(axis, 0, 1 if str(size) == "B" else min(most, tensor.shape[axis]))
        found[node] = tensor.clamp(max=most) if node.kind == "int" and node.rank == 1 else tensor
    return found


def by_name(program: Program, given: Mapping[Node, Tensor]) -> dict[str, Any]:
    return {name: mapped(lambda node: given[node], value) for name, value in program.arguments.items()}


def answers(program: Program, model: nn.Module, given: Mapping[Node, Tensor]) -> list[Array]:
    with evaluating(model), torch.no_grad():
        named = by_name(program, given)
        unread = dict.fromkeys({*program.unread, *required(model)} - named.keys(), torch.zeros(1))
        return arrays(model(**unread, **named))[: len(program.results)]


def required(model: nn.Module) -> list[str]:
    """The arguments that forward() must be given."""
    parameters = inspect.signature(model.forward).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]


def arrays(value: Any) -> list[Array]:
    return [np.asarray(leaf) for leaf in leaves(value) if isinstance(leaf, Tensor | np.ndarray | np.generic)]
