"""compress(model): makes zero weights absent."""

from gatewise.compact.compress import compacted, compress
from gatewise.compact.plain import CompactEmbedding, CompactLinear
from gatewise.compact.recurrent import CompactCell, CompactLayer, CompactRecurrent

__all__ = [
    "CompactCell",
    "CompactEmbedding",
    "CompactLayer",
    "CompactLinear",
    "CompactRecurrent",
    "compacted",
    "compress",
]
