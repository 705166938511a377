"""Learn which weights, gates and neurons an LSTM or GRU needs, cut the rest out, run what is left."""

from gatewise import export, nn
from gatewise.compact import compress
from gatewise.export import load, save
from gatewise.report import Report, measure
from gatewise.runtime.accelerate import accelerate
from gatewise.runtime.engine import Engine
from gatewise.sparsify import GroupLasso, Variational
from gatewise.structure import Structure

__all__ = [
    "Engine",
    "GroupLasso",
    "Report",
    "Structure",
    "Variational",
    "accelerate",
    "compress",
    "export",
    "load",
    "measure",
    "nn",
    "save",
]
__version__ = "0.1.0.dev0"
