"""to_onnx(small, "model.onnx"): a compact model as an ONNX graph.

Every layer and direction is one LSTM or GRU node of its own width, which runtimes have fast code for. ONNX has no
word for a constant gate: its row is zero. An output layer that shares its matrix with the embedding reads it from
there, by nodes whose inputs are constants: runtimes compute those once, when they load the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from gatewise.compact import compacted
from gatewise.export.onnx_chain import chain_model
from gatewise.export.onnx_program import program_model
from gatewise.export.onnx_ways import Beside, chosen, with_states, without_states
from gatewise.export.written import put
from gatewise.nn.lookup import is_single_step, why_not_recurrent
from gatewise.program.graph import Program
from gatewise.program.stand_ins import Refused
from gatewise.program.ways import bound_example, programs
from gatewise.runtime.narrow import check_cpu_float32, narrow_chain
from gatewise.runtime.steps import ChainError, way_out

OPSETS = (15, 23)  # Shape with a range; the last one whose operators were tried


def to_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    opset: int = 17,
    states: bool | None = None,
    lengths: bool | None = None,
    example: Any = None,
) -> Path:
    """Write a model, compact or to be compressed, as one .onnx file; checked, and whole or not at all.

    Args:
        states: whether initial states are inputs and last states outputs. None: where forward() returns them.
        lengths: whether the graph takes the length of every sequence. Past its end a recurrent layer gives zeros; the
            last step is that of the sequence, and mean, maximum and sum are over its steps. None: where forward()
            takes them; where it finds them by the padding of texts, so does the graph.
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
    proto = written(model, opset, states, lengths, example)
    onnx.checker.check_model(proto, full_check=True)
    put(target, proto.SerializeToString())
    return target


def written(model: nn.Module, opset: int, states: bool | None, lengths: bool | None, example: Any) -> Any:
    """By the program of forward(). Loops around cells, and lengths or calls beside forward(), are known to chains."""
    ways: list[Callable[[], Any]] = [
        lambda: program_model(*program_of(model, states, lengths, example), opset),
        lambda: chain_model(narrow_chain(model), opset, states, lengths),
    ]
    if any(map(is_single_step, model.modules())):
        ways.reverse()
    try:
        return ways[0]()
    except (Refused, Beside, ChainError) as first:
        try:
            return ways[1]()
        except (Refused, Beside, ChainError) as second:
            why = first if isinstance(second, ChainError) else second
            if isinstance(why, ChainError):
                raise why from None
            raise ChainError(f"{strange_layer(model) or why}. {way_out(model)}") from why


def strange_layer(model: nn.Module) -> str:
    """A recurrent layer that is beyond us, and why; the first line of its own forward() would say less."""
    known = ((name, why_not_recurrent(module)) for name, module in model.named_modules())
    return next((f"{name or 'the model'}: {why}" for name, why in known if why), "")


def program_of(
    model: nn.Module, states: bool | None, lengths: bool | None, example: Any
) -> tuple[nn.Module, Program]:
    """The compact model, and its program as asked for."""
    small = compacted(model)
    check_cpu_float32(small)
    found = programs(small, example)
    shown = {name for name, value in bound_example(small, example).items() if value is not None}
    if states is None and lengths is None:
        found = [p for p in found if set(p.arguments) <= shown and not p.absent & shown] or found
    program = chosen(found, states, lengths)
    if states is None:
        return small, program
    return small, with_states(program, small) if states else without_states(program)
