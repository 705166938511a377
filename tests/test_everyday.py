"""Everyday models: cut, they answer as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from everyday import EVERYDAY, compressed, thinned

from gatewise.program.graph import leaves


@pytest.mark.parametrize("name", EVERYDAY)
def test_compress_keeps_the_answers_of_everyday_models(name: str) -> None:
    model, inputs = EVERYDAY[name]()
    small, _ = compressed(name)
    thinned(model)
    with torch.no_grad():
        expected, answer = model(*inputs), small(*inputs)
    if name in ("state in and out", "one step of cell"):  # states of removed neurons are zero on output
        state = zip(leaves(expected[1]), leaves(answer[1]))
        expected, answer = [expected[0], *(e * (a != 0) for e, a in state)], leaves(answer)
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
    assert size(small) < size(model)


def size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
