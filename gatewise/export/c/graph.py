"""What to_c() writes of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from gatewise.export.c.fold import folded
from gatewise.export.c.golden_program import GOLDEN_STEPS, GoldenProgram, chosen, said, sizes_of
from gatewise.export.c.narrow import narrowed
from gatewise.export.c.program import Function, refuse_opaque, write_function
from gatewise.export.c.program_check import check_text, golden_text, main_text
from gatewise.export.c.program_text import buffers, call, counters, header, source
from gatewise.export.c.rounded import rounded_layers
from gatewise.export.c.simplified import simplified, unpadded
from gatewise.export.c.stream import stream_of
from gatewise.export.c.text import renamed
from gatewise.program.graph import Program
from gatewise.program.operations import Embed, Linear, Operation, Recurrent
from gatewise.wording import counted

# Below these a network is faster for kernels of its own and, having only the code that it runs, not larger.
SPECIALISED_BYTES, SPECIALISED_CALLS = 128 << 10, 2
LONGEST = 128  # of every size that a call chooses


@dataclass(frozen=True)
class CModel:
    """The text of NAME.c and NAME.h, what they need, and what `#define`s say about the model."""

    source: str
    header: str
    weight_file: bytes | None
    flash_bytes: int  # constant data without code; of the weight file, if there is one, without its header
    ram_bytes: int  # sizeof(NAME_state) where a pointer has 4 bytes
    call: str  # how it is run, for the README
    texts: Mapping[str, str]  # golden.h, check.c, main.c
    specialised: bool  # the kernels are compiled inside NAME.c


def program_model(
    model: nn.Module, ways: list[Program], name: str, title: str, int8: bool, block: int | None, file_above: int,
    fold: bool | None, specialise: bool | None, example: Any,
) -> tuple[CModel, tuple[float, float], str]:  # fmt: skip
    """The C of a compact model's forward(), how far it is from it, and on what that was measured.

    Raises:
        ValueError: forward() does something that there is no C for; with the line.
    """
    program = chosen(ways, model, example)
    refuse_opaque(program)
    check_layers(program, model)
    free = unpadded(program)
    of_one = program if stream_of(free, model) is None else free
    by_row, folds = folded(simplified(of_one, model, int8), model, fold)
    small, narrow = narrowed(by_row, model, int8)
    stream = stream_of(small, model)
    longest = max([LONGEST, *sizes_of(program, model, example).values()]) if example is not None else LONGEST
    most = block or (longest if stream is None else 1)
    function = write_function(small, model, most, int8, narrow, stream)
    rounded = rounded_layers(model, folds) if int8 else None
    golden = GoldenProgram(program, model, most if stream is None else GOLDEN_STEPS, rounded, example)
    steps = golden.letters.get("T", 1)
    measured_on = f"one random sequence of {counted(steps, 'step')}" if example is None else said(example)
    return written(function, golden, name, title, file_above, specialise), golden.errors(example), measured_on


def specialised(function: Function, wish: bool | None, loaded: bool) -> bool:
    """Whether kernels are compiled for the sizes of this network: with constants alone, and few calls of them."""
    nbytes = function.body.arrays.nbytes
    if wish and loaded:
        raise ValueError(
            f"specialise=True: {nbytes:,} bytes of constants are a weight file, of which a compiler knows nothing; "
            "raise file_above, or leave it out."
        )
    if wish is not None or loaded:
        return bool(wish)
    lines = [line for statement in function.body.code for line in statement]
    calls = sum("run_layer(" in line or "run_words(" in line or "gw_product(" in line for line in lines)
    return nbytes <= SPECIALISED_BYTES and calls <= SPECIALISED_CALLS


def layers_of(op: Operation) -> tuple[str, ...]:
    return (op.module,) if isinstance(op, Embed | Linear | Recurrent) else ()


def check_layers(program: Program, model: nn.Module) -> None:
    for name in dict.fromkeys(name for node in program.nodes for name in layers_of(node.op)):
        module = model.get_submodule(name)
        for own, tensor in (*module.named_parameters(), *module.named_buffers()):
            if not tensor.isfinite().all():
                raise ValueError(f"{name}.{own} is not finite, and NaN or infinity is not exported.")


def written(
    function: Function, golden: GoldenProgram, name: str, title: str, file_above: int, specialise: bool | None
) -> CModel:
    arrays, structs = function.body.arrays, function.body.structs
    file = arrays.file() if arrays.nbytes > file_above else None
    inside = specialised(function, specialise, file is not None)
    fields = buffers(function)
    texts = {
        "golden.h": golden_text(function, golden),
        "check.c": check_text(function, golden),
        "main.c": main_text(function, golden),
    }
    return CModel(
        source=renamed(source(function, title, file, inside), name),
        header=renamed(header(function, title, file), name),
        weight_file=file,
        flash_bytes=arrays.nbytes + structs.nbytes,
        ram_bytes=4
        * (sum(size for _, size in fields.values()) + len(counters(function)) + (file is not None)),
        call=renamed(call(function), name),
        texts={path: renamed(text, name) for path, text in texts.items()},
        specialised=inside,
    )
