"""What to_c() writes of a model that is no chain of layers: its program."""

from __future__ import annotations

from typing import Any

from torch import nn

from gatewise.export.c.chain import CModel
from gatewise.export.c.golden_program import GOLDEN_STEPS, GoldenProgram, chosen, rounded_layers, said
from gatewise.export.c.narrow import narrowed
from gatewise.export.c.program import Function, refuse_opaque, write_function
from gatewise.export.c.program_check import check_text, golden_text, main_text
from gatewise.export.c.program_text import buffers, call, counters, header, source
from gatewise.export.c.stream import stream_of
from gatewise.export.c.text import renamed
from gatewise.program.graph import Program
from gatewise.program.operations import Decode, Embed, Linear, Operation, Recurrent
from gatewise.wording import counted

LONGEST = 128  # of every size that a call chooses


def program_model(
    model: nn.Module, ways: list[Program], name: str, title: str, int8: bool, block: int | None, file_above: int,
    example: Any,
) -> tuple[CModel, tuple[float, float], str]:  # fmt: skip
    """The C of a compact model's forward(), how far it is from it, and on what that was measured.

    Raises:
        ValueError: forward() does something that there is no C for; with the line.
    """
    program = chosen(ways, model, example)
    refuse_opaque(program)
    check_layers(program, model)
    small, narrow = narrowed(program, model, int8)
    stream = stream_of(small, model)
    most = block or (LONGEST if stream is None else 1)
    function = write_function(small, model, most, int8, narrow, stream)
    rounded = rounded_layers(model) if int8 else None
    golden = GoldenProgram(program, model, most if stream is None else GOLDEN_STEPS, rounded, example)
    steps = golden.letters.get("T", 1)
    measured_on = f"one random sequence of {counted(steps, 'step')}" if example is None else said(example)
    return written(function, golden, name, title, file_above), golden.errors(example), measured_on


def layers_of(op: Operation) -> tuple[str, ...]:
    if isinstance(op, Decode):
        return op.embedding, op.module, op.head, *([op.query] if op.query else [])
    return (op.module,) if isinstance(op, Embed | Linear | Recurrent) else ()


def check_layers(program: Program, model: nn.Module) -> None:
    for name in dict.fromkeys(name for node in program.nodes for name in layers_of(node.op)):
        for own, tensor in model.get_submodule(name).named_parameters():
            if not tensor.isfinite().all():
                raise ValueError(f"{name}.{own} is not finite, and NaN or infinity is not exported.")


def written(function: Function, golden: GoldenProgram, name: str, title: str, file_above: int) -> CModel:
    arrays, structs = function.body.arrays, function.body.structs
    file = arrays.file() if arrays.nbytes > file_above else None
    fields = buffers(function)
    texts = {
        "golden.h": golden_text(function, golden),
        "check.c": check_text(function, golden),
        "main.c": main_text(function, golden),
    }
    return CModel(
        source=renamed(source(function, title, file), name),
        header=renamed(header(function, title, file), name),
        weight_file=file,
        flash_bytes=arrays.nbytes + structs.nbytes,
        ram_bytes=4
        * (sum(size for _, size in fields.values()) + len(counters(function)) + (file is not None)),
        call=renamed(call(function), name),
        example="answers the golden sequence",
        texts={path: renamed(text, name) for path, text in texts.items()},
    )
