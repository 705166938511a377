"""A loop over time, recorded as three of its steps, which stand for all.

    names after a step = body(names before it, number of the step)

Which way Python takes through a body is decided by what is no tensor: counters, None, how long a list is, which names
mean one tensor. Where all that is the same after the first step and after the second, every later step does what the
second one did. So it is compared, and what cannot be seen to stay the same raises. The number of a step is as unknown
as a tensor; a list with a value of every step may only be joined as a whole, or asked for its last one.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import nn

from gatewise.program.arithmetic import RULES
from gatewise.program.fits import within
from gatewise.program.graph import INT
from gatewise.program.operations import Collect, Turn
from gatewise.program.parts import cat, getitem, stack
from gatewise.program.recorder import Recorder, made, node_of
from gatewise.program.shapes import with_axes
from gatewise.program.stand_ins import Recorded, RecordedNumber, Refused, current

RECORDED = (
    3  # steps: one that may find no state yet, one that stands for the rest, and one to see that it does
)
JOINS = ("torch.stack", "torch.cat")
CONTAINERS = (tuple, list, set, frozenset, deque, dict)
# Compared by what they are; all else by which it is, and by what is in it.
VALUES = (int, float, complex, str, bytes, torch.dtype, torch.device, BuiltinFunctionType)
Path = tuple[Any, ...]  # a name, and the way to a part of what it means
NOT_PLAIN = (
    "it takes an input apart other than by a plain `for t in range(x.size(1))`, `for x_t in x.unbind(1)` or "
    "`for x_t in x`"
)


class LoopError(Refused):
    """A loop whose steps may differ."""


class Loop:
    """range(T), or a tensor step by step: what a `for` statement may run over."""

    def __init__(
        self, count: int, item: Callable[[Any], Any], numbers: Callable[[], Any] | None = None
    ) -> None:
        self.count, self.item = count, item
        self.numbers = numbers  # of all steps, where it is a range

    def __iter__(self) -> Iterator[Any]:
        return begun(self.count, self.item, sys._getframe(1))

    def __len__(self) -> int:
        raise current().refuse(LoopError(NOT_PLAIN))

    __reversed__ = __getitem__ = __contains__ = __len__


def begun(count: int, item: Callable[[Any], Any], frame: FrameType) -> Iterator[Any]:
    recorder = current()
    if recorder.loops and not recorder.loops[-1].done:
        why = "a loop over an input runs within another one, or after one that stops before its end"
        raise recorder.refuse(LoopError(why))
    try:
        recorder.loops.append(Turns(recorder, count, item, frame))
    except LoopError as error:
        raise recorder.refuse(error)  # noqa: B904
    steps: Turns = recorder.loops[-1]
    return steps


def over_tensor(x: Any, axis: int, frame: FrameType) -> Iterator[Any]:
    return begun(*steps_of(x, axis), frame)


def steps_of(x: Any, axis: int) -> tuple[int, Callable[[Any], Any]]:
    index = (*[slice(None)] * axis,)
    return node_of(x).shape[axis], lambda t: getitem(x, (*index, t))


class Turns:
    """Turns that a `for` statement cannot tell apart, with a look at its names before each."""

    def __init__(self, recorder: Recorder, count: int, item: Callable[[Any], Any], frame: FrameType) -> None:
        self.recorder, self.count, self.item, self.frame = recorder, count, item, frame
        self.loop = len(recorder.loops)
        self.function, self.statement = statement_of(frame)
        self.looks: list[dict[Path, Any]] = []
        self.lists: dict[str, list[Any]] = {}  # those that get a value in every step
        self.done = False

    @property
    def turn(self) -> tuple[int, int] | None:
        """The loop and its step that runs now."""
        return None if self.done else (self.loop, len(self.looks) - 1)

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> Any:
        try:
            return self.step()
        except StopIteration:
            raise
        except Refused as error:
            raise self.recorder.refuse(error)  # noqa: B904

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
        return self.item(RecordedNumber.of(self.recorder.new(Turn(self.loop, k, self.count), (), (), INT)))

    def look(self, k: int) -> dict[Path, Any]:
        """Everything that Python could go by: names in the function, those it takes from its file, the modules."""
        code, outside, local = self.frame.f_code, self.frame.f_globals, dict(self.frame.f_locals)
        if k == 0:
            self.lists = {name: value for name, value in local.items() if type(value) is list and not value}
        elif k == 1:
            self.lists = {name: value for name, value in self.lists.items() if value}
        for name, values in self.lists.items() if k else ():
            fits = local.pop(name, None) is values and len(values) == k
            if not fits or not isinstance(values[-1], Recorded):
                raise LoopError(f"{name} does not get one tensor in every step of a loop over an input")
        names = {name: outside[name] for name in code.co_names if name in outside} | local
        with torch._C.DisableTorchFunction():  # whoever looks here is not forward()
            modules = {name or "self": attributes(m) for name, m in self.recorder.model.named_modules()}
            seen: set[int] = set()
            found, inside = (dict(flat(whole, (), seen)) for whole in (names, modules))
        for path, value in inside.items():
            if isinstance(value, Recorded):
                raise LoopError(f"{spelled(path)} is written in a loop over an input")
        return found | inside

    def finish(self) -> None:
        arguments = {a.arg for a in ast.walk(self.function.args) if isinstance(a, ast.arg)}
        for name, values in self.lists.items():
            known_elsewhere = name in arguments or name in self.frame.f_code.co_freevars
            if known_elsewhere or not only_joined(name, self.function, self.statement):
                why = "is not only appended to in a loop over an input, then joined by torch.stack() or read at [-1]"
                raise LoopError(f"{name} {why}")
            for k, value in enumerate(values):
                values[k] = Recorded.of(self.recorder.node(value)) if value.is_shaped else value
                values[k].collected = k, self.count
        before, after = self.looks[-2:]
        for path, value in before.items():
            if isinstance(value, Recorded) and value.is_shaped and value.node is not after[path].node:
                self.recorder.carried.append((value.node, after[path].node))
        self.done = True
        del self.frame, self.looks, self.lists, self.item


# Joins of what every step gave.


def every_step(tensors: Any) -> int | None:
    """Of how many steps a list has the values; None for any other list."""
    found = [getattr(v, "collected", (-1, 0)) for v in tensors] if isinstance(tensors, list | tuple) else []
    return found[0][1] if [k for k, _ in found] == [*range(RECORDED)] else None


def collected_stack(tensors: Any, dim: int = 0, **named: Any) -> Any:
    if (count := every_step(tensors)) is None:
        return stack(tensors, dim, **named)
    if not all(value.is_shaped for value in tensors):
        return current().unknown("stack() may mix its channels", tensors)
    like = node_of(tensors[-1])
    axis = within(dim, like.rank + 1)
    shape = (*like.shape[:axis], count, *like.shape[axis:])
    return made(Collect(axis), list(tensors), shape, like.kind)


def collected_cat(tensors: Any, dim: int = 0, **named: Any) -> Any:
    if (count := every_step(tensors)) is None:
        return cat(tensors, dim, **named)
    if not all(value.is_shaped for value in tensors):
        return current().unknown("cat() may mix its channels", tensors)
    axis = within(dim, node_of(tensors[-1]).rank)
    whole = collected_stack(tensors, axis)
    return with_axes(whole, axis, axis + 2, (count * whole.node.shape[axis + 1],))


RULES["iter"] = over_tensor
RULES["steps"] = lambda x, axis: Loop(*steps_of(x, axis))
RULES["stack"] = collected_stack
RULES["cat"] = RULES["concat"] = RULES["concatenate"] = collected_cat


# What is compared.


def statement_of(frame: FrameType) -> tuple[ast.FunctionDef, ast.For]:
    """The `for` statement that a frame is about to begin, and the function that it is in."""
    code = frame.f_code
    try:
        text = "".join(inspect.findsource(code)[0])
    except (OSError, SyntaxError) as error:
        raise LoopError("it has a loop over an input, and its source cannot be read") from error
    return statement_at(code, frame.f_lasti, text)


@functools.lru_cache(64)  # forward() runs several times, and a file may be long
def statement_at(code: CodeType, offset: int, text: str) -> tuple[ast.FunctionDef, ast.For]:
    at = next(i for i in dis.get_instructions(code) if i.offset == offset)
    found = [
        (function, loop)
        for function in ast.walk(source_of(code, text))
        if isinstance(function, ast.FunctionDef)
        for loop in ast.walk(function)
        # The place is that of the statement in Python 3.11, and of what it runs over from 3.12 on.
        if isinstance(loop, ast.For) and at.positions in (place(loop), place(loop.iter))
        # A comprehension that a statement runs over has, in 3.12, the place of its own result.
        if not isinstance(loop.iter, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
    ]
    # Whoever runs a generator has names of its own.
    if at.opname != "GET_ITER" or not found or code.co_flags & inspect.CO_GENERATOR:
        raise LoopError(NOT_PLAIN)
    return found[-1]  # in the innermost function


def source_of(code: CodeType, text: str) -> ast.Module:
    """The file that a function was compiled from, as it was then."""
    try:
        tree, codes = parsed(text)
    except SyntaxError as error:
        raise LoopError("it has a loop over an input, and its source cannot be read") from error
    if not any(same_code(code, other) for other in codes):
        raise LoopError("it has a loop over an input, and its source is another than when it was loaded")
    return tree


@functools.lru_cache(8)  # forward() runs again and again until its shapes are known
def parsed(text: str) -> tuple[ast.Module, list[CodeType]]:
    """A file, and the code of every function in it."""
    tree = ast.parse(text)
    return tree, [*codes_in(compile(tree, "", "exec", dont_inherit=True))]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def same_code(one: CodeType, other: CodeType) -> bool:
    parts = ("co_qualname", "co_firstlineno", "co_code", "co_names", "co_varnames")
    return all(getattr(one, part) == getattr(other, part) for part in parts)


def place(node: ast.expr | ast.stmt) -> dis.Positions:
    return dis.Positions(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


def only_joined(name: str, function: ast.FunctionDef, loop: ast.For) -> bool:
    """Whether a list is appended to and, after the loop, joined as a whole or read at [-1], and nobody asks how long
    it is."""
    fine, inside = set[ast.AST](), set(ast.walk(loop))
    for node in ast.walk(function):
        match node:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name() as used, "append"))):
                fine.add(used)
            case ast.Call(join, [ast.Name() as used, *_]) if (
                ast.unparse(join) in JOINS and node not in inside
            ):
                fine.add(used)
            case ast.Subscript(ast.Name() as used, ast.UnaryOp(ast.USub(), ast.Constant(1)), ast.Load()) if (
                node not in inside
            ):
                fine.add(used)
    # From outs = torch.stack(outs, 1) on, the name means a tensor.
    ends = (
        statement.end_lineno or math.inf
        for statement in function.body
        if isinstance(statement, ast.Assign) and statement.lineno > (loop.end_lineno or math.inf)
        if list(map(ast.unparse, statement.targets)) == [name] and not fine.isdisjoint(ast.walk(statement))
    )
    end = min(ends, default=math.inf)
    uses = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and n.lineno <= end)
    return all(use in fine or not isinstance(use.ctx, ast.Load) for use in uses)


def attributes(module: nn.Module) -> dict[str, Any]:
    """Of a module and of its own classes, without the constants that a tracer puts there."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_tensor_constant")}
    for kind in type(module).__mro__:
        if not kind.__module__.startswith(("torch.", "gatewise.", "builtins")):
            values = {name: value for name, value in vars(kind).items() if not is_code(value)}
            own |= {f"{kind.__name__}.{name}": value for name, value in values.items()}
    return own


def is_code(value: Any) -> bool:
    """Methods, properties and what Python itself keeps in a class: no step of a loop goes by them."""
    return callable(value) or hasattr(type(value), "__get__") or isinstance(value, str | MappingProxyType)


def flat(value: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    """Everything in a value, and where it lies; what lies in two places, in the first."""
    if isinstance(value, torch.Tensor) and not isinstance(value, Recorded):
        yield path, value
        yield (*path, "_version"), value._version  # another one after every write
    elif isinstance(value, np.ndarray):
        yield path, value.tobytes() if value.dtype != object else repr(value)
    elif isinstance(value, (Recorded, nn.Module, type, ModuleType, *VALUES)) or value is None:
        yield path, value
    elif hasattr(type(value), "__next__"):
        raise LoopError(f"{spelled(path)} may give something else in every step of a loop over an input")
    elif id(value) not in seen:
        seen.add(id(value))
        yield path, type(value) if isinstance(value, CONTAINERS) else getattr(value, "__func__", value)
        for key, part in parts_of(value):
            yield from flat(part, (*path, key), seen)


def parts_of(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, CONTAINERS):
        return enumerate(value)
    if isinstance(value, MethodType):
        return [("__self__", value.__self__)]
    closure = value.__closure__ or () if isinstance(value, FunctionType) else ()
    return [*enumerate(map(contents, closure)), *getattr(value, "__dict__", {}).items()]


def contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that means nothing yet
        return None


def difference(one: dict[Path, Any], other: dict[Path, Any]) -> str:
    """What differs between two looks, but for which tensors names mean; empty if nothing."""
    if changed := one.keys() ^ other.keys():
        return spelled(min(changed, key=str))
    tensors: dict[Any, Any] = {}
    for path, a in one.items():
        b = other[path]
        if isinstance(a, Recorded) and isinstance(b, Recorded):
            same = tensors.setdefault(meant(a), meant(b)) is meant(b)
        else:
            same = a is b or (isinstance(a, VALUES) and type(a) is type(b) and a == b)
        if not same:
            return spelled(path)
    return "" if len(set(tensors.values())) == len(tensors) else "which names mean one tensor"


def spelled(path: Path) -> str:
    return ".".join(map(str, path))


def meant(value: Any) -> Any:
    """What a stand-in stands for: its node, or the argument that it is."""
    return getattr(value, "node", None) or value.argument
