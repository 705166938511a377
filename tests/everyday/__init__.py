"""Everyday models around a recurrent layer, as people write them: name -> a function that makes one and its inputs.

    model, inputs = EVERYDAY["residual sum"]()    # in evaluation, seeded
    small, inputs = compressed("residual sum")    # with zeros, and cut

Every back end runs all of them, or says why not: `REFUSED[back end][name]` is a part of what it says.
"""

from everyday import attended, decoded, joined, padded, pooled, shaped, stateful  # noqa: F401  for their models
from everyday.table import EVERYDAY, compressed, thinned

REFUSED: dict[str, dict[str, str]] = {"engine": {}, "onnx": {}, "c": {}}

__all__ = ["EVERYDAY", "REFUSED", "compressed", "thinned"]
