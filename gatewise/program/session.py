"""While forward() is recorded: calls of layers, packing, range() and len() lead to the recorder."""

from __future__ import annotations

import builtins
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.utils.rnn as packing
from torch import nn

from gatewise.program import along, decoding, parts, products  # noqa: F401  for their rules
from gatewise.program.arithmetic import RULES
from gatewise.program.creation import counted
from gatewise.program.graph import leaves, mapped
from gatewise.program.layers import PACKING, is_hooked, leaf_of
from gatewise.program.loops import NOT_PLAIN, Loop
from gatewise.program.operations import Opaque
from gatewise.program.recorder import Recorder
from gatewise.program.sizes import Size, same
from gatewise.program.stand_ins import NoCall, Recorded, Refused, current, running

# torch's own modules that go by values and sizes inside, or whose weights nobody else may read.
CLOSED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder,
          nn.TransformerDecoder, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # fmt: skip


@contextmanager
def recording(
    model: nn.Module, shapes: Mapping[str, Any], letters: Mapping[str, int], lenient: bool
) -> Iterator[Recorder]:
    """In this thread, and until the end of the block."""
    recorder = Recorder(model, RULES, shapes, letters, lenient)
    usual_call, usual_range, usual_len = nn.Module.__call__, builtins.range, builtins.len

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if running() is not recorder or id(module) not in recorder.modules:
            return usual_call(module, *args, **kwargs)
        return called(recorder, module, functools.partial(usual_call, module), args, kwargs)

    class Range(metaclass=RangeType):
        def __new__(cls, *args: Any) -> Any:
            if any(isinstance(n, Size | Recorded) for n in args):
                return loop_over(*args)
            return usual_range(*args)

    def length(value: Any) -> Any:
        if isinstance(value, Recorded) and value.is_shaped:
            return recorder.node(value).shape[0]
        try:
            return usual_len(value)
        except TypeError as error:
            raise NoCall(str(error)) from None

    packers = {getattr(packing, name): REDIRECTS[name].__code__ for name in PACKING}
    patched = [(nn.Module, "__call__", call), (builtins, "range", Range), (builtins, "len", length)]
    with recorder, replaced([*patched, *((packer, "__code__", code) for packer, code in packers.items())]):
        yield recorder


@contextmanager
def replaced(attributes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in attributes]
    try:
        for owner, name, value in attributes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def called(recorder: Recorder, module: nn.Module, usual: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The call of a module: one operation, or what its forward() does."""
    leaf, name = leaf_of(module), recorder.modules[id(module)]
    seen = is_hooked(module) and module is not recorder.model
    if seen and not recorder.lenient:
        raise recorder.refuse(Refused(hooked(recorder, module)))
    if leaf is None and isinstance(module, CLOSED):
        kind = type(module).__name__
        if not recorder.lenient:
            raise recorder.refuse(Refused(f"{kind} {name!r} is not an operation that a program has"))
        return recorder.unknown(f"{kind} {name!r} may mix its channels", [args, kwargs])
    if seen:
        args, kwargs = watched(recorder, module, args), watched(recorder, module, kwargs)
    if leaf is None:
        result = (module.forward if seen else usual)(*args, **kwargs)
    else:
        recorder.called.add(name)
        with torch._C.DisableTorchFunction():
            result = leaf(name, module, *args, **kwargs)
    return watched(recorder, module, result) if seen else result


def loop_over(*args: Any) -> Loop:
    """range() of sizes: the number of a step, from where and by how much it says."""
    recorder = current()
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    if any(isinstance(n, Recorded) for n in args) or isinstance(step, Size) or step < 1:
        why = "a loop runs as often, or an index is as large, as an input says"
        raise recorder.refuse(Refused(NOT_PLAIN if not isinstance(step, Recorded) and step < 1 else why))

    def number(t: Any) -> Any:
        scaled = t if step == 1 else RULES["mul"](t, step)
        return scaled if same(start, 0) else RULES["add"](scaled, start)

    count = -((start - stop) // step)
    return Loop(count, number, lambda: number(counted(count)))


class RangeType(type):
    """isinstance(x, range) goes on working."""

    def __instancecheck__(cls, value: Any) -> bool:
        return type(value).__name__ == "range"


def hooked(recorder: Recorder, module: nn.Module) -> str:
    name = recorder.modules.get(id(module)) or type(module).__name__
    return f"a hook on {name} may see or change it"


def watched(recorder: Recorder, module: nn.Module, values: Any) -> Any:
    """A hook sees, and may change, what a layer takes and gives."""

    def seen(leaf: Any) -> Any:
        if not isinstance(leaf, Recorded) or not leaf.is_shaped:
            return leaf
        node = recorder.node(leaf)
        recorder.opaque.append(recorder.new(Opaque(hooked(recorder, module)), (node,), node.shape, node.kind))
        return Recorded.of(recorder.opaque[-1])

    return mapped(seen, values)


def redirect(name: str) -> Callable[..., Any]:
    """A function whose code can stand in place of torch's, by whatever name a file imported that."""
    space: dict[str, Any] = {}
    source = (
        "def stand_in(*args, **kwargs):\n"
        "    from gatewise.program.session import packed_call\n"
        f"    return packed_call({name!r}, args, kwargs)\n"
    )
    exec(compile(source, __file__, "exec"), space)
    found: Callable[..., Any] = space["stand_in"]
    return found


def copied_function(function: Any) -> FunctionType:
    """The same function, whatever becomes of the code of the first."""
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


REDIRECTS: dict[str, Any] = {name: redirect(name) for name in PACKING}
USUAL = {name: copied_function(getattr(packing, name)) for name in PACKING}


def packed_call(name: str, args: Any, kwargs: Any) -> Any:
    recorder = running()
    if recorder is None:  # another thread
        return USUAL[name](*args, **kwargs)
    with torch._C.DisableTorchFunction():
        return PACKING[name](*args, **kwargs)


@contextmanager
def untouched(model: nn.Module, stored: list[tuple[Recorded, str]]) -> Iterator[None]:
    """Takes out of a model what recording puts into it, and names where it was."""
    modules = list(model.named_modules())
    before = [(name, m, dict(vars(m)), contents(m)) for name, m in modules]
    try:
        yield
    finally:
        for name, module, attributes, inside in before:
            for key, value in list(vars(module).items()):
                if value is not attributes.get(key) or key in inside:
                    where = f"{name}.{key}" if name else key
                    stored += [(leaf, where) for leaf in leaves(value) if isinstance(leaf, Recorded)]
            vars(module).clear()
            vars(module).update(attributes)
            for key, kept in inside.items():
                attributes[key].clear()
                (attributes[key].extend if isinstance(kept, list) else attributes[key].update)(kept)


def contents(module: nn.Module) -> dict[str, Any]:
    return {key: copy.copy(value) for key, value in vars(module).items() if type(value) in (list, dict, set)}
