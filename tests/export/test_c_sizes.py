"""The C of some 70 models takes no more than it did."""

from __future__ import annotations

import json

from sizes_of_c import RECORD, sizes


def test_no_model_takes_more_than_it_did() -> None:
    """A change that pays for one model must not cost another; sizes_of_c.py records smaller ones."""
    before, now = json.loads(RECORD.read_text()), sizes()
    assert before.keys() == now.keys()
    larger = {
        name: (before[name], found)
        for name, found in now.items()
        if found[0] > before[name][0] or found[1] > before[name][1]
    }
    assert not larger
