"""A loop over time in a graph of torch.fx: three of its steps, which stand for all (`gatewise.program.loops`)."""

from __future__ import annotations

import ast
import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import fx, nn

from gatewise.program.loops import (
    NOT_PLAIN,
    RECORDED,
    LoopError,
    Path,
    attributes,
    difference,
    flat,
    only_joined,
    spelled,
    statement_of,
)

__all__ = ["RECORDED", "LoopError", "Steps", "carried", "collected", "number", "unknown_sizes"]

# Operations that stand in a graph for what a loop does.


def number(over: Any, loop: int, k: int) -> Any:
    """The number of a step of a loop over something: k here, any elsewhere."""
    raise NotImplementedError


def collected(value: Any, loop: int, k: int) -> Any:
    """What step k added to a list that has one value of every step."""
    raise NotImplementedError


def carried(before: Any, after: Any) -> Any:
    """The tensors that names meant before the last step, and after it, where they are others."""
    raise NotImplementedError


@contextmanager
def unknown_sizes(model: nn.Module) -> Iterator[None]:
    """range() and len() of what is recorded are recorded, in the files that have a forward() of the model."""
    functions = (getattr(type(module), "forward", None) for module in model.modules())  # a script has none
    files = (getattr(inspect.unwrap(f), "__globals__", None) for f in functions if callable(f))
    spaces = {id(space): space for space in files if space is not None}
    own = [space for space in spaces.values() if not str(space.get("__name__")).startswith("torch.")]
    put = [(space, f) for space in own for f in (range, len) if f.__name__ not in space]
    try:
        for space, function in put:
            space[function.__name__] = recorded(function)
        yield
    finally:
        for space, function in put:
            del space[function.__name__]


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        proxy = next((arg for arg in args if isinstance(arg, fx.Proxy)), None)
        if proxy is None:
            return function(*args)
        return proxy.tracer.create_proxy("call_function", function, args, {})

    return call


class Steps:
    """What a `for` statement runs over: steps that it cannot tell apart, with a look at its names before each."""

    def __init__(self, tracer: Any, over: fx.Proxy, loop: int, frame: FrameType) -> None:
        self.tracer, self.over, self.loop, self.frame = tracer, over, loop, frame
        self.function, self.statement = statement_of(frame)
        self.looks: list[dict[Path, Any]] = []
        self.lists: dict[str, list[Any]] = {}  # those that get a value in every step
        self.done = False

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Any:
        try:
            return self.step()
        except StopIteration:
            raise
        except Exception as error:
            known = error if isinstance(error, LoopError) else LoopError(str(error))
            raise self.tracer.refuse(known) from error

    def step(self) -> Any:
        if sys._getframe(2) is not self.frame:
            raise LoopError(NOT_PLAIN)
        k = len(self.looks)
        self.looks.append(self.look(k))
        if k > 1 and (name := difference(*self.looks[-2:])):
            raise LoopError(f"{name} is not the same in every step of a loop over an input")
        if k == RECORDED:
            self.finish()
            raise StopIteration
        t = self.record(number, self.over, self.loop, k)
        return t if self.over.node.target is range else self.record(operator.getitem, self.over, t)

    def record(self, operation: Callable[..., Any], *args: Any) -> Any:
        return self.tracer.create_proxy("call_function", operation, args, {})

    def look(self, k: int) -> dict[Path, Any]:
        """Everything that Python could go by: names in the function, those it takes from its file, the modules."""
        code, outside, local = self.frame.f_code, self.frame.f_globals, dict(self.frame.f_locals)
        if k == 0:
            self.lists = {name: value for name, value in local.items() if type(value) is list and not value}
        elif k == 1:
            self.lists = {name: value for name, value in self.lists.items() if value}
        for name, values in self.lists.items() if k else ():
            if (
                local.pop(name, None) is not values
                or len(values) != k
                or not isinstance(values[-1], fx.Proxy)
            ):
                raise LoopError(f"{name} does not get one tensor in every step of a loop over an input")
        names = {name: outside[name] for name in code.co_names if name in outside} | local
        modules = {name or "self": attributes(m) for name, m in self.tracer.root.named_modules()}
        seen: set[int] = set()
        found, inside = (dict(flat(whole, (), seen)) for whole in (names, modules))
        for path, value in inside.items():
            if isinstance(value, fx.Proxy):
                raise LoopError(f"{spelled(path)} is written in a loop over an input")
        return found | inside

    def finish(self) -> None:
        arguments = {a.arg for a in ast.walk(self.function.args) if isinstance(a, ast.arg)}
        for name, values in self.lists.items():
            known_elsewhere = name in arguments or name in self.frame.f_code.co_freevars
            if known_elsewhere or not only_joined(name, self.function, self.statement):
                why = "is not only appended to in a loop over an input, then joined by torch.stack() or read at [-1]"
                raise LoopError(f"{name} {why}")
            values[:] = [self.record(collected, value, self.loop, k) for k, value in enumerate(values)]
        before, after = self.looks[-2:]
        pairs = [(value, after[path]) for path, value in before.items() if isinstance(value, fx.Proxy)]
        moved = [(a, b) for a, b in pairs if a.node is not b.node]
        self.record(carried, [a for a, _ in moved], [b for _, b in moved])
        self.done = True
        del self.frame, self.looks
