"""How messages and reports say numbers and reasons."""

from collections.abc import Mapping, Sequence


def counted(n: int, thing: str) -> str:
    """`1 neuron`, `2,000 neurons`, `0 classes`."""
    ending = "" if n == 1 else "es" if thing.endswith("s") else "s"
    return f"{n:,} {thing}{ending}"


def by_reason(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """(`a, b`, why) for every reason, with the layers that share it; a model that is a layer has no name."""
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name or "the model")
    return [(", ".join(own), why) for why, own in names.items()]


def shortened(names: Sequence[str], most: int = 4) -> str:
    """`a, b, c, d and 7 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
