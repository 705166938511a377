"""Who reads whom: whether a neuron can go depends on the columns, in every layer, that read it."""

from gatewise.readers.find import Stated, find_readers
from gatewise.readers.graph import Block, Read, ReaderGraph

__all__ = ["Block", "Read", "ReaderGraph", "Stated", "find_readers"]
