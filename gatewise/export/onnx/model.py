"""to_onnx(small, "model.onnx"): a compact model as an ONNX graph.

Every layer and direction is one LSTM or GRU node of its own width, which runtimes have fast code for. ONNX has no
word for a constant gate: its row is zero. An output layer that shares its matrix with the embedding reads it from
there, by nodes whose inputs are constants: runtimes compute those once, when they load the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn

from gatewise.export.onnx.program import program_model
from gatewise.export.onnx.ways import chosen, with_states, without_states
from gatewise.export.written import write_atomic
from gatewise.program.calling import bound_example, required
from gatewise.program.graph import Program, only_called_with
from gatewise.runtime.chained import ChainError
from gatewise.runtime.narrow import recorded, shippable

OPSETS = (18, 23)  # axes are inputs of all reductions; the last one whose operators were tried


def to_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    opset: int = 18,
    states: bool | None = None,
    lengths: bool | None = None,
    example: Any = None,
) -> Path:
    """Write a model, compact or to be compressed, as one .onnx file; checked, and whole or not at all.

    Args:
        states: whether initial states are inputs and last states outputs. None: where forward() returns them.
        lengths: whether the graph takes the lengths that forward() takes; False: all sequences are as long as x.
            None: where forward() takes them.
        example: the arguments of one call, where forward() does not say what its inputs look like.

    Raises:
        ChainError: forward() does what ONNX cannot; the message has its line.
        ImportError: the package onnx is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("to_onnx() needs the package onnx: pip install gatewise[onnx]") from error
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise ValueError(f"opset={opset}: expected one from {OPSETS[0]} to {OPSETS[1]}.")
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(
            f"{target} is a folder; ONNX is written into a file, {target / 'model.onnx'} say."
        )
    proto = program_model(*program_of(model, states, lengths, example), opset)
    onnx.checker.check_model(proto, full_check=True)
    write_atomic(target, proto.SerializeToString())
    return target


def program_of(
    model: nn.Module, states: bool | None, lengths: bool | None, example: Any
) -> tuple[nn.Module, Program]:
    """The compact model, and its program as asked for."""
    small = shippable(model)
    found = recorded(small, example)
    shown = {name for name, value in bound_example(small, example).items() if value is not None}
    every, found = found, [p for p in found if p.unread <= shown]
    if states is None and lengths is None:
        fitting = [p for p in found if set(p.arguments) <= shown and p.holds_for(shown)]
        found = fitting if required(small) <= shown else fitting or found
    if not found:
        raise ChainError(f"{only_called_with(shown, every)} example= of such a call exports that.")
    program = chosen(found, states, lengths)
    if states is None:
        return small, program
    return small, with_states(program, small) if states else without_states(program)
