"""compress(model), and shrink(model, optimizer) while it trains: zero weights become absent."""

from gatewise.compact.compress import compacted, compress
from gatewise.compact.plain import CompactEmbedding, CompactLinear
from gatewise.compact.recurrent import CompactCell, CompactLayer, CompactRecurrent
from gatewise.compact.shrinking import cut, shrink

__all__ = [
    "CompactCell",
    "CompactEmbedding",
    "CompactLayer",
    "CompactLinear",
    "CompactRecurrent",
    "compacted",
    "compress",
    "cut",
    "shrink",
]
