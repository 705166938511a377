"""What each operation does to the channels of a traced value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gatewise.readers.bare import bare_join, of_numbers, without_units
from gatewise.readers.names import (
    BINARY,
    JOINS,
    KEEPS_ZERO,
    MAY_BE_SAME,
    METADATA,
    MOVES_ZERO,
    PACKS,
    POOLS,
    REDUCTIONS,
    name_of,
)
from gatewise.readers.values import (
    UNKNOWN,
    Bare,
    Channels,
    Impossible,
    Located,
    Number,
    Packed,
    Sized,
    States,
    Value,
    all_constant,
    axes_taken,
    has_units,
    listed,
    plain_index,
    side_by_side,
    within,
    without_zero,
)


class ChannelOperations:
    """What an operation does to the channels of its arguments.

    `on_NAME` answers for the torch function or method NAME, given that its first argument, or a list in its place,
    carries units. It returns what the result carries, or NotImplemented where the operation was not understood; its
    arguments are then exposed.
    """

    strict = True  # what is impossible ends this way through the graph; else it is only not understood

    def expose(self, value: Value, why: str) -> None:
        """Note that something unknown sees the units of a value."""
        raise NotImplementedError

    def assume(self, what: str, choices: tuple[Any, ...]) -> Any:
        """One of the choices, the likeliest first."""
        raise NotImplementedError

    def apply(self, target: Any, args: Any, kwargs: Any) -> Value:
        """What the result of one recorded operation carries."""
        name = name_of(target)
        if target is getattr:
            name, args = str(args[1]), args[:1]
        if not has_units([args, kwargs]):
            if name in PACKS:
                return Packed(UNKNOWN)
            numbers = not isinstance(target, str) and args and all(isinstance(a, int | tuple) for a in args)
            if numbers and target.__module__ == "_operator":
                known = self.attempt(of_numbers, (target, args), {})
            else:
                known = self.attempt(without_units, (name, args, kwargs), {})
            return UNKNOWN if known is NotImplemented else known
        result: Value = NotImplemented
        handler = getattr(self, "on_" + name, None)
        if not args and "input" in kwargs:
            kwargs = dict(kwargs)
            args = (kwargs.pop("input"),)
        if kwargs.get("out") is not None or (name not in BINARY | JOINS and has_units([args[1:], kwargs])):
            pass  # units where no rule below looks for them
        elif handler is not None:
            result = self.attempt(handler, args, kwargs)
        elif name in METADATA:
            result = UNKNOWN
        elif name in KEEPS_ZERO | MAY_BE_SAME:
            result = args[0]
        elif name in MOVES_ZERO:
            result = without_zero(args[0])
        elif name in BINARY:
            result = self.binary(name, (*args, *kwargs.values()))
        elif name in REDUCTIONS:
            result = self.attempt(self.reduce, (name, *args), kwargs)
        elif name in POOLS:
            result = self.pooled(args[0])
        if result is NotImplemented:
            self.expose([args, kwargs], f"{name}() may mix its channels")
            return UNKNOWN
        return result

    def attempt(self, handler: Callable[..., Value], args: Any, kwargs: Any) -> Value:
        try:
            return handler(*args, **kwargs) if takes(handler, args, kwargs) else NotImplemented
        except Impossible:
            if self.strict:
                raise
            return NotImplemented

    @staticmethod
    def pooled(x: Value) -> Value:
        """Of (B, W, T), over time."""
        return x if isinstance(x, Channels) and x.axis == x.rank - 2 else NotImplemented

    def used_up(self, x: Channels, rank: int, why: str) -> Bare:
        self.expose(x, why)
        return Bare(rank, x.width)

    def binary(self, name: str, args: Any) -> Value:
        """Channel by channel: a reader of the result reads both. A single channel is spread over the others."""
        operands = [a for a in args if isinstance(a, Channels)]
        width = max((a.width for a in operands), default=0)
        if len(operands) < sum(has_units(a) for a in args) or (width == 1 and len(operands) < len(args)):
            return NotImplemented
        wide = [a for a in operands if a.width == width and a.axis == a.rank - 1]
        for a in operands:
            if a not in wide:
                self.expose(a, f"{name}() spreads it over other channels")
        if not wide:
            return UNKNOWN
        kind = name.removesuffix("_").removeprefix("i")
        # A zero factor leaves zero, and so does a zero divided by something; a zero divisor does not.
        factors = args if kind == "mul" else args[:1] if kind in ("truediv", "div") else ()
        paths = [(u, zero and any(a is f for f in factors)) for a in wide for u, zero in a.paths]
        # Another tensor may have more axes: then units are still on the last.
        rank = max(a.rank for a in wide)
        return Channels(tuple(paths), rank, rank - 1)

    def on_getitem(self, value: Value, index: Any) -> Value:
        if isinstance(value, tuple | list):
            if not isinstance(index, int | slice):
                return NotImplemented
            return value[within(index, len(value)) if isinstance(index, int) else index]
        if isinstance(value, States):
            return self.state_item(value, index)
        if isinstance(value, Packed) and isinstance(index, int):
            return value.data if index == 0 else UNKNOWN
        if not isinstance(value, Channels):
            return NotImplemented
        items = list(index) if isinstance(index, tuple) else [index]
        items = [0 if isinstance(item, Number) else item for item in items]  # it takes an axis, as any number
        tensors = [item for item in items if not plain_index(item)]
        # One index of unknown kind takes one axis and leaves one, as numbers do and a mask of one axis; or a mask
        # takes two or three, or it is a single number and leaves none. Several together leave one.
        taken, left = self.assume("index", ((1, 1), (2, 1), (3, 1), (1, 0))) if len(tensors) == 1 else (1, 1)
        used = axes_taken(items) + (taken - 1) * bool(tensors)
        if used > value.rank:
            raise Impossible
        at = items.index(Ellipsis) if Ellipsis in items else len(items)
        items[at : at + 1] = [slice(None)] * (value.rank - used)
        rank, axis, position, gathered = 0, -1, 0, False
        for item in items:
            if item is None:
                rank += 1  # a new axis
                continue
            span = 1 if plain_index(item) else taken
            if position <= value.axis < position + span:
                several = len(tensors) > 1 or taken > 1
                if isinstance(item, int) or (several and not plain_index(item)):
                    gone = 1 if isinstance(item, int) else taken * len(tensors) - left
                    return self.used_up(value, value.rank - gone, "some of its channels are taken")
                if not (isinstance(item, slice) and all_constant(item)):
                    return NotImplemented
                value, axis, rank = value.take(item), rank, rank + 1
            elif isinstance(item, slice):
                rank += 1
            elif not isinstance(item, int):
                gathered, rank = True, rank + (0 if gathered else left)
            position += span
        return replace(value, rank=rank, axis=axis)

    def state_item(self, states: States, index: Any) -> Value:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if states.parts and len(rest) > states.parts[0].rank:
            raise Impossible
        if states.cell or states.moved or any(item not in (slice(None), Ellipsis) for item in rest):
            return NotImplemented
        if isinstance(first, int):
            return states.parts[first]
        if isinstance(first, slice) and all_constant(first):
            # A part is not what a layer takes back.
            return replace(states, parts=states.parts[first], module="")
        return NotImplemented

    def reduce(self, name: str, x: Value, dim: Any = None, *rest: Any, **kwargs: Any) -> Value:
        """Over time or the batch, channels stay apart; max and min also return where they were found."""
        dims = kwargs.get("axis", dim)
        if not isinstance(x, Channels) or dims is None:
            return NotImplemented
        over = list(dims) if isinstance(dims, tuple | list) else [dims]
        at = 1 if name in ("std", "var") else 0  # var(dim, unbiased, keepdim)
        keep = kwargs.get("keepdim", rest[at] if len(rest) > at else False)
        if not all(isinstance(d, int) for d in over) or not isinstance(keep, bool):
            return NotImplemented
        gone = [x.axis_of(d) for d in over]
        found_where = name in ("max", "min", "median")
        if x.axis in gone:
            if keep is not False:
                return NotImplemented
            bare = self.used_up(x, x.rank - len(gone), f"{name}() goes over its channels")
            return (bare, UNKNOWN) if found_where else bare
        where = Located(x)
        if name in ("logsumexp", "prod", "std", "var"):
            x = without_zero(x)
        if not keep:
            x = replace(x, rank=x.rank - len(gone), axis=x.axis - sum(d < x.axis for d in gone))
        return (x, where) if found_where else x

    def on_matmul(self, a: Value, b: Value, **kwargs: Any) -> Value:
        """a @ b sums over the last axis of a and the one before the last of b; the last of b stays."""
        self.expose(a, "a matrix product sums over it")
        if not has_units(b):
            return UNKNOWN
        kept = isinstance(b, Channels) and b.axis == b.rank - 1 > 0  # a vector is summed over
        return b if kept else NotImplemented

    def on_bmm(self, a: Value, b: Value) -> Value:
        if any(isinstance(x, Channels) and x.rank != 3 for x in (a, b)):
            raise Impossible
        return self.on_matmul(a, b)

    def on_transpose(self, x: Value, a: int, b: int) -> Value:
        if isinstance(x, States) and not x.cell and {a, b} == {0, 1}:
            if x.parts[0].rank == 2:
                return replace(x, moved=not x.moved)
            self.expose(x, "its channels are turned to the front")
            return Bare(2, sum(part.width for part in x.parts))
        if not isinstance(x, Channels):
            return NotImplemented
        a, b = x.axis_of(a), x.axis_of(b)
        return replace(x, axis=b if x.axis == a else a if x.axis == b else x.axis)

    on_swapaxes = on_transpose

    def on_permute(self, x: Value, *dims: Any) -> Value:
        order = listed(dims)
        if isinstance(x, States) and not x.cell and order == (1, 0, 2):
            if x.parts[0].rank != 2:
                raise Impossible
            return replace(x, moved=not x.moved)
        if not isinstance(x, Channels) or not all(isinstance(d, int) for d in order):
            return NotImplemented
        if len(order) != x.rank:
            raise Impossible
        return replace(x, axis=[x.axis_of(d) for d in order].index(x.axis))

    def on_reshape(self, x: Value, *shape: Any) -> Value:
        """Units stay on the last axis if it keeps its width; moved states flattened to (B, -1) are side by side."""
        sizes = listed(shape)
        if isinstance(x, States) and x.moved and len(sizes) == 2:
            return self.on_cat(list(x.parts), -1)
        if not isinstance(x, Channels) or x.axis != x.rank - 1:
            return NotImplemented
        same = sizes[-1] == x.width or (sizes[-1] == -1 and x.rank == len(sizes) == 2)
        return replace(x, rank=len(sizes), axis=len(sizes) - 1) if same else NotImplemented

    on_view = on_reshape

    def on_flatten(self, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
        if isinstance(x, States) and x.moved and start_dim == 1:
            return self.on_cat(list(x.parts), -1)
        if not isinstance(x, Channels):
            return NotImplemented
        start, end = x.axis_of(start_dim), x.axis_of(end_dim)
        rank = x.rank - (end - start)
        if start == end or not start <= x.axis <= end:
            return replace(x, rank=rank, axis=x.axis - (end - start) * (end < x.axis))
        # Behind the units there may be the single step of a pool.
        if start == x.axis and self.assume("flatten", (True, False)):
            return replace(x, rank=rank)
        return self.used_up(x, rank, "flatten() lays its channels side by side")

    def on_squeeze(self, x: Value, dim: Any = None) -> Value:
        if isinstance(x, States) and not x.cell and not x.moved and dim == 0 and len(x.parts) == 1:
            return x.parts[0]
        if not isinstance(x, Channels) or not x.apart(dim):
            return NotImplemented
        if not self.assume("squeeze", (True, False)):  # an axis of another size than 1 stays
            return x
        return replace(x, rank=x.rank - 1, axis=x.axis - (x.axis_of(dim) < x.axis))

    def on_unsqueeze(self, x: Value, dim: int) -> Value:
        if not isinstance(x, Channels):
            return NotImplemented
        at = within(dim, x.rank + 1)
        return replace(x, rank=x.rank + 1, axis=x.axis + (at <= x.axis))

    def on_cat(self, values: Any, dim: int = 0, **kwargs: Any) -> Value:
        dim = kwargs.get("axis", dim)
        if not isinstance(values, tuple | list):
            return NotImplemented
        tracked = [v for v in values if isinstance(v, Channels)]
        known = [v for v in values if isinstance(v, Channels | Bare)]
        if not tracked or len(known) < len(values):
            return NotImplemented
        like = tracked[0]
        at = like.axis_of(dim)
        if any(v.rank not in (like.rank, None) for v in known):
            raise Impossible
        if len(tracked) < len(known):
            self.expose(tracked, "it is joined with what has no units")
            return bare_join(known, at)
        if any(v.axis != like.axis for v in tracked):
            return NotImplemented
        if at == like.axis:
            return replace(like, paths=side_by_side(tracked))
        if any(v.width != like.width for v in tracked):
            return NotImplemented
        return replace(like, paths=tuple(path for v in tracked for path in v.paths))

    on_concat = on_concatenate = on_cat

    def on_stack(self, values: Any, dim: int = 0) -> Value:
        if not isinstance(values, tuple | list) or not all(isinstance(v, Channels) for v in values):
            return NotImplemented
        return self.on_cat([self.on_unsqueeze(v, dim) for v in values], dim)

    def on_unbind(self, x: Value, dim: int = 0) -> Value:
        """Its parts are what an index takes of a tensor with this axis in front."""
        if not isinstance(x, Channels) or not x.apart(dim):
            return NotImplemented
        return replace(x, axis=x.axis + (x.axis_of(dim) > x.axis))

    def on_gather(self, x: Value, dim: int, index: Value, **kwargs: Any) -> Value:
        """Along time; the index has as many axes as x."""
        if isinstance(x, Channels) and isinstance(index, Sized) and index.rank != x.rank:
            raise Impossible
        return x if isinstance(x, Channels) and x.apart(dim) else NotImplemented

    def on_index_select(self, x: Value, dim: int, index: Value) -> Value:
        return x if isinstance(x, Channels) and x.apart(dim) else NotImplemented

    def on_flip(self, x: Value, *dims: Any) -> Value:
        apart = isinstance(x, Channels) and all(x.apart(d) for d in listed(dims))
        return x if apart else NotImplemented

    def on_masked_fill(self, x: Value, mask: Value, value: Any) -> Value:
        return (x if value == 0 else without_zero(x)) if isinstance(x, Channels) else NotImplemented

    on_masked_fill_ = on_masked_fill

    def on_softmax(self, x: Value, dim: Any = None, **kwargs: Any) -> Value:
        apart = isinstance(x, Channels) and x.apart(dim)
        return without_zero(x) if apart else NotImplemented

    on_log_softmax = on_softmax

    def on_shape(self, x: Value) -> Value:
        if not isinstance(x, Channels):
            return UNKNOWN
        return tuple(x.width if k == x.axis else UNKNOWN for k in range(x.rank))

    def on_size(self, x: Value, dim: Any = None) -> Value:
        shape = self.on_shape(x)
        return shape[within(dim, len(shape))] if isinstance(shape, tuple) and isinstance(dim, int) else shape

    def on_values(self, x: Value) -> Value:
        """`.values` of max(), min() and median() over an axis."""
        return x[0] if isinstance(x, tuple) and len(x) == 2 else NotImplemented

    def on_data(self, x: Value) -> Value:
        return x.data if isinstance(x, Packed) else x

    def on_pack_padded_sequence(self, x: Value, *args: Any, **kwargs: Any) -> Value:
        if not isinstance(x, Channels) or x.axis != x.rank - 1:
            return NotImplemented
        if x.rank != 3:
            raise Impossible
        return Packed(replace(x, rank=2, axis=1))

    def on_pad_packed_sequence(
        self, x: Value, batch_first: Any = False, padding_value: Any = 0.0, total_length: Any = None
    ) -> Value:
        if not isinstance(x, Packed) or not isinstance(x.data, Channels):
            return NotImplemented
        padded = replace(x.data, rank=3, axis=2)
        return padded if padding_value == 0 else without_zero(padded), UNKNOWN


def takes(handler: Callable[..., Value], args: Any, kwargs: Any) -> bool:
    """Whether a call, with names of arguments that a rule may not know, can be handed to it."""
    try:
        inspect.signature(handler).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
