"""A model card says what it was told, counts for itself, and names what nobody stated."""

from __future__ import annotations

import torch
from torch import nn

import gatewise as gw
from gatewise.export.card import UNSTATED


def test_a_card_has_every_section() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight[0] = 0
    card = gw.export.model_card(
        model, title="Door", licence="CC BY 4.0", quality={"accuracy, test": 0.97}, seeds=[3]
    )
    sections = {part.split("\n")[0]: part for part in card.split("## ")[1:]}
    assert card.startswith("# Door\n")
    assert list(sections) == ["Use", "Data", "Licence", "Quality", "Structure", "Training", "Limits"]
    assert {name for name, text in sections.items() if UNSTATED in text} == {
        "Use",
        "Data",
        "Training",
        "Limits",
    }
    assert "CC BY 4.0" in sections["Licence"]
    assert "| accuracy, test | 0.97 |" in sections["Quality"]
    assert "Of one run, seed 3." in sections["Quality"]
    assert "| 0 | Linear | 3 of 6 |" in sections["Structure"]
    assert gw.export.model_card(gw.measure(model), title="Door").split("## ")[5] == sections["Structure"]
