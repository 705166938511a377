"""What the files of a run may say, declared: result.json, a line of metrics.jsonl, bench.json, networks.json.

JSON knows no infinity and no NaN: null stands for them.
"""

from __future__ import annotations

from typing import Any

from gatewise.export.saved.schema import (
    Check,
    Optional,
    listed,
    maybe,
    number,
    plain,
    record,
    table,
    text,
    whole,
)

measured = maybe(number())


def counts_of_layers(where: str, value: Any) -> Any:
    """A number, or one for each layer, or for each gate of each layer."""
    return table(counts_of_layers)(where, value) if isinstance(value, dict) else measured(where, value)


def line(where: str, value: Any) -> dict[str, Any]:
    """A line of metrics.jsonl: the epoch, and what was measured in it; `part` tells training from a refit."""
    found: dict[str, Any] = record(epoch=whole(1), part=Optional(text))(where, value)
    return {
        key: item if key == "part" else counts_of_layers(f"{where}.{key}", item)
        for key, item in found.items()
    }


layers = table(number(0))
counts = record(weights=whole(), nonzero=whole(), compression=measured, neurons=layers, gates=layers)
result: Check = record(
    title=Optional(text),
    quality=Optional(maybe(table(measured))),
    counts=Optional(maybe(counts)),
    expect=Optional(maybe(record(compression=Optional(number())))),
    seconds=Optional(measured),
    seed=Optional(whole(-(2**63), 2**64)),
    model_bytes=Optional(maybe(whole())),
    hardware=Optional(maybe(table(plain))),
    data=Optional(record(sizes=Optional(text), note=Optional(text), digest=Optional(maybe(text)))),
    recipe=Optional(table(plain)),
)
bench = listed(record(situation=text, name=text, seconds=number(0), ratio=number(0)))
# Of a folder of results: trained networks that are kept apart from it, in an archive beside the release.
networks = record(asset=text, networks=listed(record(file=text, bytes=whole(), sha256=text)))
