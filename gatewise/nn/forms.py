"""A layer of ours in the place of another one is of its class too: forward() may ask isinstance(self.rnn, nn.LSTM).

    class CompactLSTM(CompactRecurrent, nn.LSTM)        made here, for whatever class the other layer has

What the layer does comes from its form, `CompactRecurrent`. The other class is asked only for what the form lacks,
and its constructor is never run. It is a real subclass: pickle goes by type(layer), not by what isinstance() sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

Layer = TypeVar("Layer", bound=nn.Module)
MADE: dict[
    tuple[type[nn.Module], type[nn.Module]], type[nn.Module]
] = {}  # a class for a form and another class


class Form(nn.Module):
    """Mixin of layers that take the place of others: variational, settled, compact, accelerated."""

    stands_for: type[nn.Module] = nn.Module  # the class of the layer whose place it has
    carried: tuple[str, ...] = ()  # attributes that it has from there

    def __reduce_ex__(self, protocol: Any) -> Any:
        return blank, (form_of(self), self.stands_for), self.__getstate__()  # type: ignore[no-untyped-call]


def form_of(layer: nn.Module) -> type[nn.Module]:
    """The class of a layer as this package declares it."""
    found: type[nn.Module] = vars(type(layer)).get("form", type(layer))
    return found


def in_place_of(form: type[nn.Module], other: type[nn.Module]) -> type[nn.Module]:
    """The form itself if it is a subclass of the other class, else a class that is a subclass of both."""
    if issubclass(form, other):
        return form
    if (form, other) in MADE:
        return MADE[form, other]
    name = re.sub("(Recurrent|Cell|Linear|Embedding)$", "", form.__name__) + other.__name__
    inside = {"form": form, "stands_for": other, "__module__": form.__module__, "__doc__": form.__doc__}
    return MADE.setdefault((form, other), type(name, (form, other), inside))


def blank(form: type[nn.Module], other: type[nn.Module]) -> nn.Module:
    """For pickle, which cannot find by its name what in_place_of() made."""
    kind = in_place_of(form, other)
    return kind.__new__(kind)


def stand_in(new: Layer, old: nn.Module) -> Layer:
    """`new`, of the class of `old` too, with attributes that the user's class or program gave to `old`."""
    if isinstance(new, Form):
        other = old.stands_for if isinstance(old, Form) else type_before_parametrizations(old)
        new.__class__ = in_place_of(form_of(new), other)  # type: ignore[assignment]
    public = (name for name in vars(old) if not name.startswith("_"))
    names: Iterable[str] = old.carried if isinstance(old, Form) else public
    carried = tuple(name for name in names if not hasattr(new, name))
    for name in carried:
        setattr(new, name, getattr(old, name))
    if isinstance(new, Form) and carried:
        new.carried = carried
    return new
