"""Two layers whose outputs are joined: in place, by name, as operands that are no summands."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from patterns import two_heads


def add_in_place(a: Any, b: Any) -> Any:
    a.add_(b)
    return a


def add_to_another_name(a: Any, b: Any) -> Any:
    name = a
    a += b
    return name


def add_to_a_view(a: Any, b: Any) -> Any:
    a[:2].add_(b[:2])
    return a


def multiply_and_look_at_a_view(a: Any, b: Any) -> Any:
    view = a.transpose(0, 1)
    a.mul_(b)
    return view.transpose(0, 1)


def change_a_relu(a: Any, b: Any) -> Any:
    F.relu(a, inplace=True)
    return a + b


def add_into_a_third(a: Any, b: Any) -> Any:
    return torch.add(a.detach(), b.detach(), out=torch.empty_like(a))


JOINED = {
    "the sum of two layers at different times": two_heads(lambda a, b: torch.cat([a, b], 1)),
    "a sum in place": two_heads(add_in_place),
    "a sum in place, under another name": two_heads(add_to_another_name),
    "a sum in place of a part": two_heads(add_to_a_view, "rnn.l0", "top.l0"),
    "a product in place, under a view": two_heads(multiply_and_look_at_a_view, "rnn.l0", "top.l0"),
    "relu in place": two_heads(change_a_relu),
    "operands by name": two_heads(lambda a, b: torch.add(a, other=b)),
    "the first operand by name": two_heads(lambda a, b: torch.tanh(input=a) + b),
    "an exponent": two_heads(lambda a, b: a.abs().pow(b), "rnn.l0", "top.l0"),
    "a bound": two_heads(lambda a, b: a.clamp(min=b)),
    "written into a third": two_heads(add_into_a_third, "rnn.l0", "top.l0"),
    "variance, unbiased": two_heads(lambda a, b: torch.cat([a.var(0, True), b.var(0, True)])),
}
