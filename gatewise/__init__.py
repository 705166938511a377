"""Learn which weights, gates and neurons an LSTM or GRU needs, cut the rest out, run what is left."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatewise import export, nn
    from gatewise.budget import Budget
    from gatewise.compact import compress, shrink
    from gatewise.export import load, save
    from gatewise.report import Report, measure
    from gatewise.runtime.accelerate import accelerate
    from gatewise.runtime.engine import Engine
    from gatewise.sparsify import GroupLasso, Refit, Variational
    from gatewise.structure import Structure

__all__ = [
    "Budget",
    "Engine",
    "GroupLasso",
    "Refit",
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
    "shrink",
]
__version__ = "0.1.0.dev0"

# Importing torch takes two seconds: `gatewise --help` and a mistyped command should not have to wait for it.
HOMES = {
    "gatewise.budget": ("Budget",),
    "gatewise.compact": ("compress", "shrink"),
    "gatewise.export": ("load", "save"),
    "gatewise.report": ("Report", "measure"),
    "gatewise.runtime.accelerate": ("accelerate",),
    "gatewise.runtime.engine": ("Engine",),
    "gatewise.sparsify": ("GroupLasso", "Refit", "Variational"),
    "gatewise.structure": ("Structure",),
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'gatewise' has no attribute {name!r}")
    home = next((module for module, names in HOMES.items() if name in names), None)
    found = import_module(f"gatewise.{name}") if home is None else getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
