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
import inspect
import math
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import fx, nn

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


class LoopError(Exception):
    """A loop whose steps may differ."""


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


def statement_of(frame: FrameType) -> tuple[ast.FunctionDef, ast.For]:
    """The `for` statement that a frame is about to begin, and the function that it is in."""
    code = frame.f_code
    at = next(i for i in dis.get_instructions(code) if i.offset == frame.f_lasti)
    tree = source_of(code)
    found = [
        (function, loop)
        for function in ast.walk(tree)
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


def source_of(code: CodeType) -> ast.Module:
    """The file that a function was compiled from, as it was then."""
    try:
        tree = ast.parse("".join(inspect.findsource(code)[0]))
    except (OSError, SyntaxError) as error:
        raise LoopError("it has a loop over an input, and its source cannot be read") from error
    if not any(same_code(code, other) for other in codes_in(compile(tree, "", "exec", dont_inherit=True))):
        raise LoopError("it has a loop over an input, and its source is another than when it was loaded")
    return tree


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
    """Without the constants that a tracer puts there."""
    return {name: value for name, value in vars(module).items() if not name.startswith("_tensor_constant")}


def flat(value: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    """Everything in a value, and where it lies; what lies in two places, in the first."""
    if isinstance(value, torch.Tensor):
        yield path, value
        yield (*path, "_version"), value._version  # another one after every write
    elif isinstance(value, (fx.Proxy, nn.Module, type, ModuleType, *VALUES)) or value is None:
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
    tensors: dict[fx.Node, fx.Node] = {}
    for path, a in one.items():
        b = other[path]
        if isinstance(a, fx.Proxy) and isinstance(b, fx.Proxy):
            same = tensors.setdefault(a.node, b.node) is b.node
        else:
            same = a is b or (isinstance(a, VALUES) and type(a) is type(b) and a == b)
        if not same:
            return spelled(path)
    return "" if len(set(tensors.values())) == len(tensors) else "which names mean one tensor"


def spelled(path: Path) -> str:
    return ".".join(map(str, path))
