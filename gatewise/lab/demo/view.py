"""What the demo shows on a terminal: progress while it trains, one table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gatewise.report import show


class View:
    """Progress bars on a terminal, nothing where the output is a file or a pipe."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or Console(quiet=quiet)

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", highlight=False)

    @contextmanager
    def training(self, title: str, batches: int) -> Iterator[Callable[[str], None]]:
        columns = (
            TextColumn("{task.description:>20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("perplexity of the batch {task.fields[now]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(title, total=batches, now="")
            yield lambda now: progress.update(task, advance=1, now=now)

    def result(self, result: dict[str, Any], title: str) -> None:
        """The table, then where the files are."""
        table = Table(title=f"Word-level language model, {title}", title_justify="left", title_style="bold")
        for k, name in enumerate(("", "dense", "sparse", "compressed")):
            table.add_column(name, justify="left" if k == 0 else "right")
        for row in rows(result):
            table.add_row(*row)
        self.console.print(table)
        difference, pictures = result["largest_difference"], result["pictures"]
        self.console.print(
            f"The compressed network answers as the sparse one does (largest difference of a logit {difference:.0e})."
        )
        self.console.print(
            f"Picture of the gates: {pictures[0]}   compressed model: {result['files']['compressed']['path']}"
        )
        self.console.print(f"Explore it neuron by neuron, in a browser: {result['page']}")
        self.console.print(f"{result['seconds']:.0f} s in all.")


def rows(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The table as text: a name and a value for the dense, the sparse and the compressed network."""
    ppl, dense, sparse = result["perplexity"], result["dense"], result["sparse"]
    after = sparse["fixed_point"]
    columns = (dense, sparse, after)
    for split in ("valid", "test"):
        yield (
            f"perplexity, {'validation' if split == 'valid' else split}",
            *(f"{ppl[name][split]:.2f}" for name in ("dense", "sparse", "compressed")),
        )
    yield "weights that are not zero", *(f"{counts['nonzero']:,}" for counts in columns)
    yield "compression", *(show(counts["compression"]) for counts in columns)
    for layer in dense["neurons"]:
        yield f"{layer}  neurons", *(str(counts["neurons"][layer]) for counts in columns)
        yield f"{layer}  live gates", *(str(counts["gates"][layer]) for counts in columns)
        for gate in dense["layers"][layer]["gates"]:
            yield f"        {gate}", *(str(counts["layers"][layer]["gates"][gate]) for counts in columns)
    sizes = {name: f"{entry['bytes'] / 1000:,.0f} kB" for name, entry in result["files"].items()}
    yield "size on disk", sizes["dense"], "", sizes["compressed"]
    times = {name: f"{t:,.0f} us" for name, t in result["microseconds_per_word"].items() if t is not None}
    yield "time of a word, torch", times["dense"], "", times["compressed"]
    yield "time of a word, C engine", "", "", times.get("engine", "not built")
