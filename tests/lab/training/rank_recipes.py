"""Runs that are made by one process and by two: task, and what changes in its tiny recipe; {runs} is their folder."""

from __future__ import annotations

LASSO = ["sparsify.method=group-lasso", "sparsify.group=3e-3", "train.lr=0.02", "train.epochs=3"]
RECIPES: dict[str, tuple[str, list[str]]] = {
    "lasso": ("words", [*LASSO, "data.batch=4", "train.keep=best"]),
    "sum": ("words", [*LASSO, "data.batch=4", "train.loss=window-sum", "train.clip=5"]),
    "classes": ("csv", [*LASSO, "data.batch=6"]),  # the last batch is not full
    "chunks": ("char-ptb", [*LASSO, "data.batch=4"]),
    "budget": (
        "words",
        [*LASSO, "data.batch=4", "budget.gates=0.5", "sparsify.update=proximal", "refit.epochs=1"],
    ),
    "start": (
        "words",
        ["data.batch=4", "start.run={runs}/lasso", "budget.neurons=2", "refit.epochs=2", "train.lr=0.02"],
    ),
    "bayes": ("words", ["data.batch=4", "train.epochs=5"]),
}
