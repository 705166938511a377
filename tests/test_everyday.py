"""Everyday models: cut, they answer as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from everyday import EVERYDAY, compressed, thinned


@pytest.mark.parametrize("name", EVERYDAY)
def test_compress_keeps_the_answers_of_everyday_models(name: str) -> None:
    model, inputs = EVERYDAY[name]()
    small, _ = compressed(name)
    thinned(model)
    with torch.no_grad():
        expected, answer = model(*inputs), small(*inputs)
    if name == "state in and out":  # states of removed neurons are zero on output
        expected = (expected[0], tuple(e * (a != 0) for e, a in zip(expected[1], answer[1])))
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
    assert size(small) < size(model)


def size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
