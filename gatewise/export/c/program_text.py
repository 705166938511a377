"""NAME.c and NAME.h of a program, written for the name `model`: what their templates are filled with."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gatewise.export.c import functions
from gatewise.export.c.arrays import HEADER_BYTES, MAGIC, VERSION
from gatewise.export.c.body import POOLS, Body, placed
from gatewise.export.c.program import Function
from gatewise.export.c.sizes import in_c, letters_of, variable
from gatewise.export.c.text import helpers, rendered

ERRORS = {
    "BAD_STEPS": "a size outside 1..MODEL_BLOCK, or too small for a window or a slice",
    "BAD_WORD": "a word id that no embedding has",
    "BAD_LENGTH": "a length outside 1..steps",
    "BAD_INDEX": "a place outside the values that are looked up",
}


def source(function: Function, title: str, file: bytes | None, inside: bool) -> str:
    """NAME.c. Structs point to constants; of loaded weights only compute() knows where they lie, so it makes them."""
    body, loaded = function.body, file is not None
    constants = body.arrays.macros() + "\n"
    if not loaded:
        structs = "".join(f"static const {struct}\n\n" for struct in body.structs.found)
        constants = body.arrays.declarations() + structs
    lines, tests = computing(function, loaded), checks(function, loaded)
    if any("floor_div(" in line for line in (*lines, *tests)):
        body.call("floor_div")
    return rendered(
        "model.c",
        title=title,
        inside=inside,
        includes=sorted(body.includes),
        constants=constants,
        helpers=[helper(name) for name in body.helpers],
        given=given(function),
        body=lines,
        **of_weights(file),
        reset=reset(function),
        checks=tests,
        given_to=given_to(function, "m"),
        goes_on=function.goes_on,
        steps=steps_of(function),
        pieces=piece(function),
        step_given=step_given(function),
        step_call=", ".join(["m", "1", *(a.name for a in function.arguments)]),
    )


def of_weights(file: bytes | None) -> dict[str, Any]:
    """What the loader compares a weight file with; its size is 0 where the weights are constants."""
    if file is None:
        return {"weight_bytes": 0}
    crc = int(np.frombuffer(file, "<u4", 4)[3])
    magic, crc_text = (f"0x{number:08x}u" for number in (MAGIC, crc))
    return {
        "weight_bytes": len(file),
        "magic": magic,
        "version": f"{VERSION}u",
        "crc": crc_text,
        "header_bytes": HEADER_BYTES,
    }


def computing(function: Function, loaded: bool) -> list[str]:
    """The lines of compute()."""
    body, lines = function.body, list[str]()
    if loaded:
        structs = (f"const {struct}" for struct in body.structs.found)
        lines += ["const unsigned char *const weights = m->weights;", *structs]
    if counts_steps(function):
        lines.append(f"const int32_t {variable('D')} = m->done;")
    lines += pointers(body)
    code = [*lines, *(line for statement in body.code for line in statement)]
    lines += [line for statement in body.statements for line in statement]
    if counts_steps(function):
        lines.append(f"m->done += {variable(function.letters[0])};")
    if function.stream is not None:
        lines.append("m->begun = 1;")
    return [*lines, *unused(function, "\n".join(code))]


def pointers(body: Body) -> list[str]:
    """Where buffers begin, and what is remembered."""
    places, _ = placed(body)
    found = []
    for name, place in sorted(places.items(), key=lambda item: int(item[0][1:])):
        kind, _ = body.buffers[name]
        found.append(f"{kind} *const {name} = m->{POOLS[kind]}{f' + {place}' if place else ''};")
    offset = 0
    for k, floats in enumerate(body.kept):
        found.append(f"float *const s{k} = m->state{f' + {offset}' if offset else ''};")
        offset += floats
    return found


def counts_steps(function: Function) -> bool:
    """Whether a value is numbered by its step."""
    text = "\n".join(line for statement in function.body.code for line in statement)
    return bool(re.search(rf"\b{variable('D')}\b", text))


def reset(function: Function) -> list[str]:
    return [*(f"m->{name} = 0;" for name in counters(function))] or ["(void)m;"]


def steps_of(function: Function) -> str:
    return "" if function.stream is None else variable(function.stream.time)


def piece(function: Function) -> str:
    """Arguments of compute() for n steps from t on; answers of a whole sequence come with the last. Empty where
    compute() takes all at once."""
    if function.stream is None:
        return ""
    parts = ["m", "n"]
    for a in function.arguments:
        if function.every_step(a):
            place = f"{a.name} + (size_t)t{f' * {a.width}' if a.width != 1 else ''}"
            parts.append(place if a.reads else f"{a.name} ? {place} : NULL")
        else:
            parts.append(a.name if a.reads else f"t + n < {steps_of(function)} ? NULL : {a.name}")
    return ", ".join(parts)


def step_given(function: Function) -> str:
    return ", ".join(["model_state *m", *(a.declared for a in function.arguments)])


def helper(name: str) -> str:
    return helpers().get(name) or functions.body(name)


def unused(function: Function, text: str) -> list[str]:
    """Arguments that nothing reads."""
    names = ["m", *map(variable, function.letters), *(a.name for a in function.inputs)]
    return [f"(void){name};" for name in names if not re.search(rf"\b{name}\b", text)]


def given(function: Function) -> str:
    sizes = [f"int32_t {variable(letter)}" for letter in function.letters]
    return ", ".join(["model_state *m", *sizes, *(a.declared for a in function.arguments)])


def given_to(function: Function, state: str) -> str:
    return ", ".join([state, *map(variable, function.letters), *(a.name for a in function.arguments)])


def call(function: Function) -> str:
    """How it is run, for the README."""
    if function.goes_on:
        return f"model_step({', '.join(['&state', *(a.name for a in function.arguments)])});"
    return f"model_run({given_to(function, '&state')});"


def checks(function: Function, loaded: bool) -> list[str]:
    lines = ["if (!m->weights) return MODEL_NOT_LOADED;"] if loaded else []
    for letter in function.letters:
        name = variable(letter)
        most = f" || {name} > MODEL_BLOCK" if function.stream is None else ""
        lines.append(f"if ({name} < 1{most}) return MODEL_BAD_STEPS;")
    made_of = {in_c(size): None for a in function.inputs for size in a.value.shape if letters_of(size)}
    for size in made_of.keys() - set(map(variable, function.letters)):
        lines.append(f"if ({size} < 1) return MODEL_BAD_STEPS;")
    for a in function.inputs:
        if a.name in function.body.checks:
            loop = f"for (int32_t k = 0; k < {in_c(a.value.count)}; k++)"
            wrong = f"{a.name}[k] < 0 || {a.name}[k] >= {function.body.checks[a.name]}"
            lines += [loop, f"    if ({wrong}) return MODEL_BAD_WORD;"]
    return lines


def buffers(function: Function) -> dict[str, tuple[str, int]]:
    """Fields of the state struct: name -> type, entries."""
    _, sizes = placed(function.body)
    found = {"memory": ("float", sizes["memory"]), "numbers": ("int32_t", sizes["numbers"])}
    found |= {
        "scratch": ("float", max(function.body.scratch, 1)),
        "state": ("float", sum(function.body.kept)),
    }
    return {name: field for name, field in found.items() if field[1]}


def counters(function: Function) -> list[str]:
    """Whether a sequence has begun, and how many steps it has had."""
    return ["begun"] * (function.stream is not None) + ["done"] * counts_steps(function)


def header(function: Function, title: str, file: bytes | None) -> str:
    """NAME.h."""
    fields = [f"{kind} {name}[{size}];" for name, (kind, size) in buffers(function).items()]
    fields += [f"int32_t {name};" for name in counters(function)]
    errors = {"BAD_STEPS", *function.body.errors}
    return rendered(
        "model.h",
        title=title,
        streams=function.stream is not None,
        goes_on=function.goes_on,
        block=function.body.most,
        widths=widths(function),
        weight_bytes=of_weights(file)["weight_bytes"],
        errors={name: said for name, said in ERRORS.items() if name in errors},
        fields=["const unsigned char *weights;", *fields] if file else fields,
        sizes=[f"{variable(letter)}: {letter}" for letter in function.letters],
        inputs=[a.said for a in function.inputs],
        outputs=[a.said for a in function.outputs],
        given=given(function),
        step_given=step_given(function),
    )


def widths(function: Function) -> list[str]:
    """How many numbers an argument has, of a step where it has steps; of words also how many there are."""
    lines = []
    for a in function.arguments:
        free = {letter for size in a.value.shape for letter in letters_of(size)}
        of = " a step" if function.every_step(a) else "" if not free else " for a size of 1"
        lines.append(f"#define MODEL_WIDTH_{a.name.upper()} {a.width} /* numbers of {a.name}{of} */")
        if a.reads and a.name in function.body.checks:
            words = function.body.checks[a.name]
            lines.append(f"#define MODEL_WORDS_{a.name.upper()} {words} /* its ids run from 0 to one less */")
    return lines
