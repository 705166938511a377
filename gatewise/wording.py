"""How messages and reports say numbers."""


def counted(n: int, thing: str) -> str:
    """`1 neuron`, `2,000 neurons`, `0 classes`."""
    ending = "" if n == 1 else "es" if thing.endswith("s") else "s"
    return f"{n:,} {thing}{ending}"
