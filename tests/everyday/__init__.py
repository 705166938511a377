"""Everyday models around a recurrent layer, as people write them: name -> a function that makes one and its inputs.

    model, inputs = EVERYDAY["residual sum"]()    # in evaluation, seeded
    small = gw.compress(thinned(model))

Every back end runs all of them, or says why not: `REFUSED[back end][name]` is a part of what it says.
"""

from everyday import attended, joined, padded, pooled, shaped, stateful
from everyday.table import EVERYDAY, thinned

REFUSED: dict[str, dict[str, str]] = {"engine": {}, "onnx": {}, "c": {}}

__all__ = ["EVERYDAY", "REFUSED", "attended", "joined", "padded", "pooled", "shaped", "stateful", "thinned"]
