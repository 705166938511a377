"""programs(model): forward() recorded in every way in which it can be called in evaluation."""

from __future__ import annotations

import builtins
import copy
import inspect
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.utils.rnn as packing
from torch import nn

from gatewise.nn.lookup import evaluating
from gatewise.program import along, creation, parts, products, sizes  # noqa: F401  for their rules
from gatewise.program.arithmetic import RULES
from gatewise.program.graph import FLOAT, Program, leaves, mapped
from gatewise.program.layers import PACKING, Packed, is_hooked, leaf_of
from gatewise.program.lines import line_of_error
from gatewise.program.recorder import Assume, Impossible, NeedsShape, Recorded, Recorder, Refused, as_input
from gatewise.program.sizes import Size, Undecided, letter, replaced, settled

MOST_WAYS = 64  # to call forward(); where there are more, one argument at a time leaves the first
MOST_TRIES = 400  # recordings of one way, with other shapes of its arguments
GIVEN = object()  # an argument that is recorded
ONE_AT_A_TIME = threading.RLock()


def programs(model: nn.Module, example: Any = None) -> list[Program]:
    """One program for every way to call forward(): optional arguments given first, then left out.

    `example`, the arguments of one call, says how many axes they have. What can be recorded in no way is refused,
    with the line of forward() and the reason.
    """
    with ONE_AT_A_TIME, evaluating(model):
        made: list[Program] = []
        failure: Exception | None = None
        for way in ways(model):
            try:
                made.append(record(model, way, example))
            except Exception as error:  # forward() is the user's code: anything may be raised by running it
                failure = failure or error
    if made:
        return made
    assert failure is not None
    where = line_of_error(failure)
    raise Refused(f"{where}: {told(failure)}" if where else told(failure)) from failure


def told(error: Exception) -> str:
    if isinstance(error, Undecided):
        return f"it asks whether {error}, which calls answer differently"
    said = str(error).strip()
    return said.splitlines()[0][:200] if said else type(error).__name__


def ways(model: nn.Module) -> list[dict[str, Any]]:
    """What arguments hold, by name: GIVEN, or None where they are left out; flags and others as by default."""
    choices: dict[str, Sequence[Any]] = {}
    for p in inspect.signature(model.forward).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if p.default is None:
            choices[p.name] = [GIVEN, None]
        elif p.default is p.empty:
            choices[p.name] = [GIVEN]
    if math.prod(map(len, choices.values())) <= MOST_WAYS:
        return [dict(zip(choices, values)) for values in itertools.product(*choices.values())]
    first = {name: values[0] for name, values in choices.items()}
    return [first, *(first | {name: v} for name, values in choices.items() for v in values[1:])]


def record(model: nn.Module, way: Mapping[str, Any], example: Any = None) -> Program:
    """One way, under the first assumption about the arguments' shapes that can be."""
    known = bound_example(model, example)
    tries = itertools.count()

    def attempt(shapes: dict[str, Any], letters: dict[str, int]) -> Program:
        if next(tries) > MOST_TRIES:
            raise Refused("its arguments could have too many shapes; give example=")
        try:
            return recorded(model, way, shapes, letters)
        except Assume as found:
            return attempt(shapes, letters | {found.name: found.size})
        except NeedsShape as asked:
            failure: Exception | None = None
            unlikely: Program | None = None
            for candidate in fitting(asked.candidates, known.get(asked.argument)):
                try:
                    made = attempt(shapes | {asked.argument: (candidate, asked.kind)}, letters)
                    if not asked.guessed or is_likely(made):
                        return made
                    unlikely = unlikely or made
                except (Refused, Undecided) as error:
                    if not asked.guessed:
                        raise
                    failure = failure or error
                except Exception as error:  # impossible, or forward() itself refuses it
                    failure = failure or error
            if unlikely is not None:
                return unlikely
            raise failure or Impossible("no shape of its arguments fits") from None

    try:
        return attempt({}, {})
    except Impossible as error:
        raise Refused(f"{line_of_error(error)}: shapes do not fit, whatever the arguments are") from error


def is_likely(program: Program) -> bool:
    """Whether no value has its sequences along two axes, and no argument is as wide as another is long: such programs
    come of an argument that is taken for one with another axis."""
    twice = any([str(size) for size in node.shape].count("B") > 1 for node in program.nodes)
    free = [size for node in program.inputs for size in node.shape if isinstance(size, Size)]
    return not twice and all(
        str(size) in size.letters or all(n[0] == "C" for n in size.letters) for size in free
    )


def bound_example(model: nn.Module, example: Any) -> dict[str, Any]:
    """The arguments of an example call by name, those in tuples as `state.0`."""
    if example is None:
        return {}
    args = mapped(as_tensor, example if isinstance(example, tuple) else (example,))
    found = dict(inspect.signature(model.forward).bind_partial(*args).arguments)
    return dict(flat(found))


def as_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, tuple | list):
            yield name, value
            yield from flat({f"{name}.{k}": part for k, part in enumerate(value)})
        else:
            yield name, value


def fitting(candidates: list[Any], example: Any) -> list[Any]:
    """Candidates with as many axes as the example has."""
    if isinstance(example, torch.Tensor):
        fits = [c for c in candidates if is_shape(c) and len(c) == example.dim()] or candidates
        return [tuple(n if is_free(n) else size for n, size in zip(c, example.shape)) for c in fits]
    if isinstance(example, tuple | list):
        return [c for c in candidates if not is_shape(c) and len(c) == len(example)] or candidates
    return candidates


def is_free(size: int) -> bool:
    """Rather than a width, which an example shows."""
    return not isinstance(size, Size) or not any(name.startswith("C") for name in size.letters)


def is_shape(candidate: Any) -> bool:
    """Rather than a tuple of candidates."""
    return all(isinstance(n, int) for n in candidate)


def recorded(
    model: nn.Module, way: Mapping[str, Any], shapes: Mapping[str, Any], letters: Mapping[str, int]
) -> Program:
    """forward(), run once; twice with other stand-ins for sizes, so that one which enters as a number shows."""
    first = run(model, way, shapes, letters)
    with sizes.other_stand_ins():
        second = run(model, way, shapes, letters)
    if constants(first) != constants(second) or str(first) != str(second):
        raise Refused("it computes with a size as with a plain number")
    return first


def constants(program: Program) -> list[bytes]:
    return [node.op.values.tobytes() for node in program.nodes if node.op.name == "Constant"]  # type: ignore[attr-defined]


def run(
    model: nn.Module, way: Mapping[str, Any], shapes: Mapping[str, Any], letters: Mapping[str, int]
) -> Program:
    arguments = {name: argument(name, shapes, letters) for name, value in way.items() if value is GIVEN}
    left_out = frozenset(name for name, value in way.items() if value is None)
    if is_hooked(model):
        raise Refused(
            f"a hook on the model ({type(model).__name__}) may see or change what goes in or comes out"
        )
    stored: list[str] = []
    with untouched(model, stored), recording(model, letters) as recorder:
        result = model(**arguments, **dict.fromkeys(left_out))
        outputs = mapped(lambda leaf: as_output(recorder, leaf), result)
    if recorder.refused is not None:
        raise recorder.refused
    if stored:
        raise Refused(f"it stores a tensor of the call in {stored[0]}, for the next call to read")
    nodes = mapped(
        lambda leaf: leaf.node if isinstance(leaf, Recorded) and leaf.is_shaped else None, arguments
    )
    program = Program(
        {name: node for name, node in nodes.items() if leaves(node) != [None]}, outputs, left_out
    )
    for node in program.nodes:
        node.kind = node.kind or FLOAT
    return program


def argument(name: str, shapes: Mapping[str, Any], letters: Mapping[str, int]) -> Any:
    """What stands for an argument, as far as its shape is known."""
    if name not in shapes:
        return Recorded.given(name)
    candidate, kind = shapes[name]
    if not is_shape(candidate):
        return tuple(part_of(f"{name}.{k}", part, shapes, letters, kind) for k, part in enumerate(candidate))
    return part_of(name, candidate, shapes, letters, kind)


def part_of(
    name: str, candidate: Any, shapes: Mapping[str, Any], letters: Mapping[str, int], kind: Any
) -> Any:
    if candidate is None:
        return argument(name, shapes, letters)
    own = {"T": letter(time_of(name, shapes))}
    shape = tuple(settled(replaced(n, own), letters) for n in candidate)
    return as_input(name, shape, kind)


def time_of(name: str, shapes: Mapping[str, Any]) -> str:
    """T for the first argument that is a sequence; another one may be of another length: S, S2, ..."""
    sequences = [
        other for other, (candidate, _) in shapes.items()
        if is_shape(candidate) and any("T" in n.letters for n in candidate if isinstance(n, Size))
    ]  # fmt: skip
    at = sequences.index(name) if name in sequences else 0
    return "T" if at == 0 else "S" if at == 1 else f"S{at}"


def as_output(recorder: Recorder, leaf: Any) -> Any:
    if type(leaf) is Packed:
        raise Refused("it returns a packed sequence; pad_packed_sequence() gives a tensor")
    if isinstance(leaf, Recorded) and not leaf.is_shaped:
        raise NeedsShape(leaf.argument, [(letter("B"), letter("T"), letter(f"C.{leaf.argument}"))])
    if isinstance(leaf, torch.Tensor):
        return recorder.node(leaf)
    if isinstance(leaf, Size):
        raise Refused("it returns a size")
    if leaf is not None and not isinstance(leaf, bool | int | float | str):
        raise Refused(f"it returns a {type(leaf).__name__}")
    return leaf


# While forward() runs.


@contextmanager
def recording(model: nn.Module, letters: Mapping[str, int]) -> Iterator[Recorder]:
    """Calls of layers, packing, range() and len() are recorded, in this thread."""
    recorder = Recorder(model, RULES, letters)
    usual_call, usual_range, usual_len = nn.Module.__call__, builtins.range, builtins.len

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        leaf = leaf_of(module) if Recorder.running() is recorder and id(module) in recorder.modules else None
        if leaf is None:
            if Recorder.running() is recorder and module is not model and is_hooked(module):
                raise recorder.refuse(Refused(hooked(recorder, module)))
            return usual_call(module, *args, **kwargs)
        if is_hooked(module):
            raise recorder.refuse(Refused(hooked(recorder, module)))
        with without_mode(recorder):
            return leaf(recorder, recorder.modules[id(module)], module, *args, **kwargs)

    class Range(metaclass=RangeType):
        def __new__(cls, *args: Any) -> Any:
            if any(isinstance(n, Size) for n in args):
                raise Recorder.current().refuse(Refused("it loops over an input, step by step"))
            return usual_range(*args)

    def length(value: Any) -> Any:
        return (
            recorder.node(value).shape[0]
            if isinstance(value, Recorded) and value.is_shaped
            else usual_len(value)
        )

    patched = [(nn.Module, "__call__", call), (builtins, "range", Range), (builtins, "len", length)]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patched]
    codes = {name: getattr(packing, name).__code__ for name in PACKING}
    try:
        for owner, name, value in patched:
            setattr(owner, name, value)
        for name in PACKING:
            getattr(packing, name).__code__ = REDIRECTS[name].__code__
        with recorder:
            yield recorder
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        for name, code in codes.items():
            getattr(packing, name).__code__ = code


class RangeType(type):
    """isinstance(x, range) goes on working."""

    def __instancecheck__(cls, value: Any) -> bool:
        return type(value).__name__ == "range"


def hooked(recorder: Recorder, module: nn.Module) -> str:
    name = recorder.modules.get(id(module)) or type(module).__name__
    return f"a hook on {name} may see or change what goes in or comes out"


@contextmanager
def without_mode(recorder: Recorder) -> Iterator[None]:
    """Our own questions to tensors are not the call's."""
    with torch._C.DisableTorchFunction():
        yield


def redirect(name: str) -> Callable[..., Any]:
    """A function whose code can stand in place of torch's, by whatever name a file imported that."""
    space: dict[str, Any] = {}
    source = (
        "def stand_in(*args, **kwargs):\n"
        "    from gatewise.program.ways import packed_call\n"
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
    recorder = Recorder.running()
    if recorder is None:  # another thread
        return USUAL[name](*args, **kwargs)
    with without_mode(recorder):
        return PACKING[name](*args, **kwargs)


@contextmanager
def untouched(model: nn.Module, stored: list[str]) -> Iterator[None]:
    """Takes out of a model what recording puts into it, and names where it was."""
    modules = list(model.named_modules())
    before = [(name, m, dict(vars(m)), contents(m)) for name, m in modules]
    try:
        yield
    finally:
        for name, module, attributes, inside in before:
            for key, value in list(vars(module).items()):
                new = value is not attributes.get(key) or key in inside
                if new and any(isinstance(leaf, Recorded) for leaf in leaves(value)):
                    stored.append(f"{name}.{key}" if name else key)
            vars(module).clear()
            vars(module).update(attributes)
            for key, kept in inside.items():
                attributes[key].clear()
                (attributes[key].extend if isinstance(kept, list) else attributes[key].update)(kept)


def contents(module: nn.Module) -> dict[str, Any]:
    return {key: copy.copy(value) for key, value in vars(module).items() if type(value) in (list, dict, set)}
