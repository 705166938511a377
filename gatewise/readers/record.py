"""forward() as graphs of operations on unknown tensors, one for every way in which it can be called.

torch.fx runs forward() once with proxies in place of tensors, and takes the branch that this call takes. So it is run
with every optional argument given and left out, in training and in evaluation; what holds must hold in all of them.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.prune import BasePruningMethod

from gatewise.nn.lookup import cell_of, is_embedding, is_linear
from gatewise.readers.channels import ALLOCATES, leaves
from gatewise.readers.graph import joined

PACKING = (
    torch.nn.utils.rnn.pack_padded_sequence,
    torch.nn.utils.rnn.pad_packed_sequence,
    torch.nn.utils.rnn.pack_sequence,
    torch.nn.utils.rnn.pad_sequence,
)
AUGMENTED = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor imatmul".split()
MOST_OPTIONAL = 3  # arguments of which every combination is tried


@dataclass(frozen=True)
class Recording:
    """One graph of forward()."""

    graph: fx.Graph
    absent: frozenset[str]  # optional arguments that were left out
    stored: dict[fx.Node, str]  # what forward() stores in its modules, and where: the next call may read it


class Recorded(fx.Proxy):
    """A proxy that tells `a += b` from `a = a + b`: other names of a see the first."""


def augmented(name: str) -> Callable[[Recorded, Any], fx.Proxy]:
    def write(self: Recorded, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return write


for _name in AUGMENTED:
    setattr(Recorded, f"__{_name}__", augmented(_name))


class LayerTracer(fx.Tracer):
    """Records forward(), with the layers we know as single operations."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=PACKING)
        # Also where forward() writes nn.utils.rnn.pack_padded_sequence; the module's other names, such as Tensor,
        # must stay what they are.
        self._autowrap_search.append(torch.nn.utils.rnn)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = cell_of(m) is not None or is_linear(m) or is_embedding(m)
        return known or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Recorded(node, self)


def recordings(model: nn.Module, modes: Sequence[bool] = (False, True)) -> list[Recording]:
    """Every way to call forward() that can be traced, arguments given first. `modes`: evaluation, training.

    Raises:
        Exception: whatever tracing raised first, if no way can be traced.
    """
    made: list[Recording] = []
    seen: set[str] = set()
    failure: Exception | None = None
    for mode, absent in itertools.product(modes, left_out(model)):
        stored: dict[fx.Node, str] = {}
        try:
            with untouched(model, stored):
                for module in model.modules():
                    module.training = mode
                graph = LayerTracer().trace(model, concrete_args=dict.fromkeys(absent) if absent else None)
        except Exception as error:  # forward() is the user's code: anything may be raised by tracing it
            failure = failure or error
            continue
        if (text := f"{graph} {sorted(stored.values())}") not in seen:
            seen.add(text)
            made.append(Recording(graph, frozenset(absent), stored))
    if not made:
        assert failure is not None
        raise failure
    return made


def left_out(model: nn.Module) -> list[tuple[str, ...]]:
    """The sets of arguments, None by default, to leave out: all combinations of a few, else one, none, all."""
    parameters = inspect.signature(model.forward).parameters.values()
    optional = [p.name for p in parameters if p.default is None]
    sizes = range(len(optional) + 1) if len(optional) <= MOST_OPTIONAL else (0, 1, len(optional))
    return [names for n in sizes for names in itertools.combinations(optional, n)]


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


def name_of(target: Any) -> str:
    """relu, for torch.relu, F.relu and the method."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook may see or change what goes in or comes out, other than torch's own for pruned weights."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return not all(isinstance(hook, BasePruningMethod) for hook in hooks)


# Operations that write into their argument.


def overwritten(node: fx.Node, module: nn.Module | None = None) -> fx.Node | None:
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


def seen_elsewhere(node: fx.Node, base: fx.Node, separate: Callable[[fx.Node], bool]) -> bool:
    """Whether what `node` writes into `base` shows in another value that is used later: a view of it, its origin.

    `separate`: whether the result of a node shares no memory with its arguments.
    """
    order = {other: place for place, other in enumerate(node.graph.nodes)}
    shared, waiting = {base}, [base]
    while waiting:
        one = waiting.pop()
        near = [*([] if separate(one) else one.all_input_nodes), *(u for u in one.users if not separate(u))]
        for other in near:
            if other not in shared and order[other] < order[node]:
                shared.add(other)
                waiting.append(other)
    return any(order[user] > order[node] for other in shared - {base} for user in other.users)
