"""torch.jit.script asks a module to prepare itself; ours say that they cannot, and what can be done instead."""

from __future__ import annotations

from typing import Any, NoReturn


def refuse_to_be_scripted(layer: Any) -> NoReturn:
    """Their forward() takes tensors and packed sequences, states or none: TorchScript has no such types."""
    raise NotImplementedError(
        f"{type(layer).__name__} cannot be scripted: its forward() takes more kinds of arguments than TorchScript "
        "knows. Trace the model, torch.jit.trace(model, x), or export it, torch.export.export(model, (x,)); a trace "
        "takes any number of steps and sequences."
    )


class Unscriptable:
    """Mixin of modules that torch.jit.script cannot take."""

    __prepare_scriptable__ = refuse_to_be_scripted
