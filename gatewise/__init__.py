"""Learn which weights, gates and neurons an LSTM or GRU needs, cut the rest out, run what is left."""

from gatewise import nn
from gatewise.compact import compress
from gatewise.report import Report, measure
from gatewise.sparsify import GroupLasso, Variational
from gatewise.structure import Structure

__all__ = ["GroupLasso", "Report", "Structure", "Variational", "compress", "measure", "nn"]
__version__ = "0.1.0.dev0"
