"""forward() as graphs of operations on unknown tensors, one for every way in which it can be called.

torch.fx runs forward() once with proxies in place of tensors, and takes the branch that this call takes. So it is run
with every optional argument given and left out, every flag true and false, in training and in evaluation; what holds
must hold in all of them. What it asks by isinstance() or hasattr(), or of a part of an argument, has one answer here.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import operator
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from gatewise.nn.lookup import cell_of, is_embedding, is_linear
from gatewise.program.graph import leaves
from gatewise.program.ways import same_random_numbers
from gatewise.readers.graph import joined
from gatewise.readers.lines import remember_line
from gatewise.readers.loops import LoopError, Steps, number, unknown_sizes
from gatewise.readers.names import ALLOCATES, MAY_BE_SAME_MODULES, METADATA, name_of

PACKING = (
    torch.nn.utils.rnn.pack_padded_sequence,
    torch.nn.utils.rnn.pad_packed_sequence,
    torch.nn.utils.rnn.pack_sequence,
    torch.nn.utils.rnn.pad_sequence,
)
FACTORIES = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)  # sizes may come one by one
AUGMENTED = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor imatmul".split()
PASSED_ON = ("detach", "contiguous", "to")  # hand on what they are given
MOST_WAYS = 64  # to call forward(); where there are more, one argument at a time leaves the first
GIVEN = object()  # an argument that is recorded as unknown


@dataclass(frozen=True)
class Recording:
    """One graph of forward()."""

    graph: fx.Graph
    absent: frozenset[str]  # optional arguments that were left out
    stored: dict[fx.Node, str]  # what forward() stores in its modules, and where: the next call may read it
    drawn: tuple[str, ...] = ()  # whose random numbers it drew: with others it may go another way


class Recorded(fx.Proxy):
    """A proxy that tells `a += b` from `a = a + b`: other names of a see the first.

    It cannot be looked for in a set or dict, as sizes can, nor, in a loop, be made text, as the number of a step can:
    neither would be what it is in a call.
    """

    tracer: LayerTracer

    def __hash__(self) -> int:
        raise self.tracer.refuse(LoopError("it looks for a tensor or size in a set or dict"))

    def __repr__(self) -> str:
        if self.tracer.in_loop:
            raise self.tracer.refuse(LoopError("it makes text of a tensor or size in a loop over an input"))
        return super().__repr__()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data":  # a graph would not show it
            raise TypeError("Recorded tensors cannot be given other data")
        super().__setattr__(name, value)


class RecordedNumber(Recorded):
    """The number of a step, which isinstance() takes for one."""

    __class__ = int  # type: ignore[assignment]


def augmented(name: str) -> Callable[[Recorded, Any], fx.Proxy]:
    def write(self: Recorded, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return write


for _name in AUGMENTED:
    setattr(Recorded, f"__{_name}__", augmented(_name))


class LayerTracer(fx.Tracer):
    """Records forward(), with the layers we know as single operations."""

    def __init__(self) -> None:
        self.loops: list[Steps] = []
        self.refused: Exception | None = None
        # Factories too: zeros(n, 9) with a recorded n is refused by torch before it asks who records.
        super().__init__(autowrap_functions=PACKING + FACTORIES)
        # Also where forward() writes nn.utils.rnn.pack_padded_sequence or torch.zeros; the modules' other names, such
        # as Tensor, must stay what they are.
        self._autowrap_search += [torch.nn.utils.rnn, torch]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = cell_of(m) is not None or is_linear(m) or is_embedding(m)
        return known or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        remember_line(node)
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return (RecordedNumber if node.target is number else Recorded)(node, self)

    @property
    def in_loop(self) -> bool:
        return bool(self.loops) and not self.loops[-1].done

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Three steps of a loop over what is not known."""
        if self.in_loop:
            why = "a loop over an input runs within another one, or after one that stops before its end"
            raise self.refuse(LoopError(why))
        try:
            self.loops.append(Steps(self, obj, len(self.loops), sys._getframe(2)))
        except LoopError as error:
            raise self.refuse(error) from error
        return self.loops[-1]

    def to_bool(self, obj: fx.Proxy) -> bool:
        try:
            return super().to_bool(obj)
        except fx.proxy.TraceError as error:
            raise self.refuse(error) from error

    def refuse(self, error: Exception) -> Exception:
        """Kept: forward() may catch it and go on."""
        self.refused = self.refused or error
        return error

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        with unknown_sizes(root):
            graph = super().trace(root, concrete_args)
        if self.in_loop:
            raise LoopError("a loop over an input stops before its end")
        if self.refused is not None:
            raise self.refused
        return graph


def recordings(model: nn.Module, inference: bool = False) -> tuple[list[Recording], Exception | None]:
    """Every way to call forward() that can be traced, arguments given first; in inference, without training or flags.

    Also why some way is missing, if one is: it cannot be traced, it may go on otherwise, or there are too many. A
    call that forward() itself refuses is none. If nothing can be traced, what was raised first is raised.
    """
    made: list[Recording] = []
    seen: set[str] = set()
    found, too_many = ways(model, inference)
    failure: Exception | None = None
    for training, way in itertools.product([False] if inference else [False, True], found):
        stored: dict[fx.Node, str] = {}
        try:
            with untouched(model, stored), same_random_numbers() as drawn:
                for module in model.modules():
                    module.training = training
                graph = LayerTracer().trace(model, concrete_args=way or None)
        except Exception as error:  # forward() is the user's code: anything may be raised by tracing it
            if not made or not is_refusal(error):
                failure = failure or error
            continue
        if any(node.op == "call_module" and node.args and node.args[0] is None for node in graph.nodes):
            continue  # a layer that is called with nothing would raise
        if drawn:
            failure = failure or RuntimeError("it draws random numbers, and with others may go another way")
        if (text := f"{graph} {sorted(stored.values())} {drawn}") not in seen:
            seen.add(text)
            absent = frozenset(name for name, value in way.items() if value is None)
            made.append(Recording(graph, absent, stored, tuple(drawn)))
    if failure is not None and not made:
        raise failure
    return made, failure or too_many


def is_refusal(error: Exception) -> bool:
    """Whether forward() itself raised this, as it would with tensors: not torch, and not about our proxies."""
    inner = traceback.extract_tb(error.__traceback__)[-1].filename
    about_proxies = any(word in str(error) for word in ("Proxy", "Recorded"))
    ours = about_proxies or isinstance(error, LoopError)
    return not ours and not Path(inner).is_relative_to(Path(torch.__file__).parent)


def ways(model: nn.Module, inference: bool) -> tuple[list[dict[str, Any]], Exception | None]:
    """What arguments hold, by name; those that are not there are given. And that some are missing, if so.

    An argument that is None by default is given or left out, a flag true or false (in inference, as by default); any
    other with a default is given, and then has it. One without is given, and, by itself, None.
    """
    choices: dict[str, list[Any]] = {}
    fixed: dict[str, Any] = {}
    required: list[str] = []
    for p in inspect.signature(model.forward).parameters.values():
        if p.default is None:
            choices[p.name] = [GIVEN, None]
        elif isinstance(p.default, bool):
            choices[p.name] = [p.default] if inference else [p.default, not p.default]
        elif p.default is not p.empty:
            fixed[p.name] = p.default
        elif p.kind is p.POSITIONAL_OR_KEYWORD and not inference:
            required.append(p.name)
    found, number = combinations(choices, MOST_WAYS)
    too_many = None
    if number > len(found):
        too_many = ValueError(f"optional arguments can be combined in {number} ways, more than {MOST_WAYS}")
    first = found[0]
    found += [way | fixed for way in found if fixed]
    found += [first | {name: None} for name in required]
    return [{name: value for name, value in way.items() if value is not GIVEN} for way in found], too_many


def combinations(choices: Mapping[str, Sequence[Any]], most: int) -> tuple[list[dict[str, Any]], int]:
    """Every combination of the choices, that of the first ones first, and their number; where there are more than
    `most`, only those that differ from it in one."""
    number = math.prod(len(values) for values in choices.values())
    if number <= most:
        return [dict(zip(choices, values)) for values in itertools.product(*choices.values())], number
    first = {name: values[0] for name, values in choices.items()}
    return [first, *(first | {name: v} for name, values in choices.items() for v in values[1:])], number


@contextmanager
def untouched(model: nn.Module, stored: dict[fx.Node, str]) -> Iterator[None]:
    """Takes out of a model what recording puts into it: states that forward() keeps, constants of the tracer."""
    before = [
        (
            name,
            module,
            dict(vars(module)),
            {k: copy.copy(v) for k, v in vars(module).items() if is_container(v)},
        )
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for name, module, attributes, containers in before:
            for key, value in list(vars(module).items()):
                if value is not attributes.get(key) or key in containers:
                    found = [leaf.node for leaf in leaves(value) if isinstance(leaf, fx.Proxy)]
                    stored |= dict.fromkeys(found, joined(name, key))
            vars(module).clear()
            vars(module).update(attributes)
            for key, contents in containers.items():
                attributes[key].clear()
                (attributes[key].extend if isinstance(contents, list) else attributes[key].update)(contents)


def is_container(value: Any) -> bool:
    return type(value) in (list, dict, set)


# Operations that write into their argument.


def overwritten(node: fx.Node, module: nn.Module | None) -> fx.Node | None:
    """The node whose tensor an operation, or a module with inplace=True, writes into."""
    base = node.args[0] if node.args else node.kwargs.get("input")
    if module is not None:
        writes = bool(getattr(module, "inplace", False))
    elif node.op in ("call_function", "call_method"):
        name = name_of(node.target)
        method = name.endswith("_") and not name.endswith("__")
        # F.relu(x, True): for the functions without such an argument it changes nothing to think that they write.
        asked = node.kwargs.get("inplace") or (name in ALLOCATES and node.args and node.args[-1] is True)
        writes = method or name in AUGMENTED or bool(asked)
        if node.kwargs.get("out") is not None:
            writes, base = True, node.kwargs["out"]
    else:
        writes = False
    return base if writes and isinstance(base, fx.Node) else None


def has_own_memory(node: fx.Node, root: nn.Module, values: Mapping[fx.Node, Any]) -> bool:
    """Whether what a node makes shares no memory with what it is made of; `values` tells tuples from tensors."""
    module = module_of(node, root)
    if module is not None:
        return type(module).__name__ not in MAY_BE_SAME_MODULES and overwritten(node, module) is None
    if node.op not in ("call_function", "call_method"):
        return True
    name = str(node.args[1]) if node.target is getattr else name_of(node.target)
    if name == "getitem":  # of a tuple: one of several tensors
        source = node.args[0]
        return isinstance(source, fx.Node) and isinstance(values[source], tuple | list)
    return name in METADATA or (name in ALLOCATES and overwritten(node, None) is None)


def rewritten(node: fx.Node, root: nn.Module, values: Mapping[fx.Node, Any]) -> tuple[fx.Node, bool] | None:
    """The node that stands for another value after `node` wrote into it, and whether that shows in a third one that
    is used later: a view of it, its origin. None where nothing that is known of a value changes."""
    base = overwritten(node, module_of(node, root))
    if base is None or values[base] == values[node]:
        return None
    order = {other: place for place, other in enumerate(node.graph.nodes)}

    def near(one: fx.Node) -> list[fx.Node]:
        """Nodes that may share memory with one, as its arguments or as its users."""
        below = [] if has_own_memory(one, root, values) else one.all_input_nodes
        return [*below, *(user for user in one.users if not has_own_memory(user, root, values))]

    shared, waiting = {base}, [base]
    while waiting:
        for other in near(waiting.pop()):
            if other not in shared and order[other] < order[node]:
                shared.add(other)
                waiting.append(other)
    later = (user for other in shared - {base} for user in other.users if order[user] > order[node])
    return base, any(later)


def is_written(node: fx.Node, root: nn.Module, values: Mapping[fx.Node, Any]) -> bool:
    """Whether an operation so far, of those that have a value, writes into a node or into a view of it."""
    waiting = [node]
    while waiting:
        base = waiting.pop()
        for user in base.users:
            if user in values and overwritten(user, module_of(user, root)) is base:
                return True
            if user in values and not has_own_memory(user, root, values):
                waiting.append(user)
    return False


def module_of(node: fx.Node, root: nn.Module) -> nn.Module | None:
    return root.get_submodule(str(node.target)) if node.op == "call_module" else None


def origin(node: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a node is a part of, perhaps detached, and the indices that lead to the part."""
    path: tuple[Any, ...] = ()
    while isinstance(node, fx.Node) and node.op != "placeholder":
        if node.target is operator.getitem:
            path = (node.args[1], *path)
        elif node.target not in PASSED_ON:
            break
        node = node.args[0]
    return node, path
