"""Learn which weights, gates and neurons an LSTM or GRU needs, cut the rest out, run what is left."""

from gatewise import export, nn
from gatewise.compact import compress
from gatewise.export import load, save
from gatewise.report import Report, measure
from gatewise.sparsify import GroupLasso, Variational
from gatewise.structure import Structure

__all__ = [
    "GroupLasso",
    "Report",
    "Structure",
    "Variational",
    "compress",
    "export",
    "load",
    "measure",
    "nn",
    "save",
]
__version__ = "0.1.0.dev0"
