"""model_card(model, ...): what whoever gets a model has to know: data, licence, quality, structure, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from gatewise.report import Report, measure, show

CARD = "MODEL_CARD.md"  # beside a model; README.md is its owner's
UNSTATED = "Not stated."


def model_card(
    model: nn.Module | Report,
    *,
    title: str,
    use: str = "",
    data: str = "",
    licence: str = "",
    quality: Mapping[str, float] | None = None,
    seeds: Sequence[int] = (),
    training: str = "",
    limits: Sequence[str] = (),
) -> str:
    """Markdown with a section for each argument; what is left out is said to be not stated.

        text = gw.export.model_card(small, title="Door sensor", data="40 hours, two doors", licence="CC BY 4.0")
        Path("MODEL_CARD.md").write_text(text)

    Counts and bytes are those of the model, as `gatewise.measure` has them.

    Args:
        use: what the model is for: its inputs, and what its outputs mean.
        data: what it was trained and judged on.
        licence: of the data, and so of the weights.
        quality: by name, with the split in it: {"test accuracy": 0.97}.
        seeds: those that quality and structure come from.
        training: method, time and machine.
        limits: what is known to be missing or wrong.
    """
    report = model if isinstance(model, Report) else measure(model)
    sections = {
        "Use": use,
        "Data": data,
        "Licence": licence,
        "Quality": quality_lines(quality or {}, seeds),
        "Structure": structure_lines(report),
        "Training": training,
        "Limits": "\n".join(f"- {limit}" for limit in limits),
    }
    parts = [f"## {name}\n\n{text or UNSTATED}" for name, text in sections.items()]
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def quality_lines(quality: Mapping[str, float], seeds: Sequence[int]) -> str:
    rows = [f"| {name} | {value:.5g} |" for name, value in quality.items()]
    table = ["| measure | value |", "| --- | --- |", *rows] if rows else [UNSTATED]
    listed = ", ".join(map(str, seeds))
    said = f"Of {'one run, seed' if len(seeds) == 1 else 'runs with the seeds'} {listed}." if seeds else ""
    return "\n".join([*table, *(["", said] if said else [])])


def structure_lines(report: Report) -> str:
    """The counts after the cut, layer by layer, and what they take."""
    after = report.fixed_point
    rows = [
        f"| {name} | {layer.kind} | {layer.nonzero:,} of {layer.weights:,} | {blank(layer.neurons)} | "
        f"{blank(None if layer.gates is None else sum(layer.gates.values()))} |"
        for name, layer in after.layers.items()
    ]
    head = ["| layer | kind | weights left | neurons | live gates |", "| --- | --- | --- | --- | --- |"]
    size = f"{report.bytes:,} bytes of float32, {report.bytes_int8:,} of int8"
    return "\n".join([*head, *rows, "", f"Compression {show(after.compression)}; {size} as C source."])


def blank(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
