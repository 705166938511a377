"""train.shrink_every: the network that trains gets smaller, its function does not change, nor does a kill matter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_corpora import tiny
from tiny_runs import cut_off, lines, numbers, options

from gatewise.lab import recipe
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.schema import Recipe, RecipeError
from gatewise.lab.training import trainer
from gatewise.lab.training.trainer import train

# Tiny networks that lose gates and neurons epoch by epoch, but not all.
WIDE = ["model.init=uniform", "model.init_range=0.3"]
LASSO = ["sparsify.method=group-lasso", "sparsify.group=1e-3", "sparsify.threshold=0.27", "train.epochs=4"]
BAYES = ["sparsify.method=variational", "sparsify.log_sigma=-1.5", "sparsify.snr_threshold=0.5"]
METHODS = {"lasso": LASSO, "bayes": BAYES}
MOMENTS = {(1, 14), (1, 39), (1, 60), (2, 26), (2, 52)}  # of being cut off; --long has more


def shrinking(task: str, method: str, folder: Path, *more: str) -> Recipe:
    few = ["sparsify.threshold=0.2"] if (task, method) == ("csv", "lasso") else []  # or nothing is left
    return tiny(task, folder, *METHODS[method], *WIDE, "train.shrink_every=1", *few, *more)


def size(run: trainer.Run) -> int:
    return sum(p.numel() for p in run.model.parameters())


@pytest.mark.parametrize("task", ["words", "char-ptb", "csv", "npz"])
def test_a_cut_changes_no_quality(
    task: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation right before and right after; the network has fewer numbers, and the saved one the same quality."""
    sizes: list[tuple[int, int]] = []
    original = trainer.Run.shrink

    def watched(self: trainer.Run, last: bool) -> str:
        before, quality = size(self), self.evaluators["valid"]()
        told = original(self, last)
        assert self.evaluators["valid"]() == pytest.approx(quality, rel=1e-4)
        assert bool(told) == (size(self) < before)
        sizes.append((before, size(self)))
        return told

    monkeypatch.setattr(trainer.Run, "shrink", watched)
    result = train(shrinking(task, "lasso", folder), options(tmp_path, folder))
    assert sum(after < before for before, after in sizes) >= 1, sizes
    assert [after for _, after in sizes[:-1]] == [before for before, _ in sizes[1:]]
    again, _ = evaluate_saved(tmp_path, data_dir=folder)
    for name in again.keys() & result["quality"].keys():
        assert result["quality"][name] == pytest.approx(again[name], rel=1e-4)


@pytest.mark.parametrize(
    ("every", "after"),
    [
        pytest.param(every, after, marks=[pytest.mark.long] * ((every, after) not in MOMENTS))
        for every in (1, 2)
        for after in (0, 9, 12, 14, 25, 26, 39, 45, 52, 60)
    ],
)
def test_cut_off_anywhere_the_numbers_are_the_same(
    every: int, after: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With moments, dropout and a refit: what was cut, and what has to be seen again before a cut, is in the file."""
    more = [f"train.shrink_every={every}", "model.dropout=0.2", "refit.epochs=2", "refit.lr=0.01"]
    row = shrinking("words", "lasso", folder, *more)
    whole = train(row, options(tmp_path / "whole", folder))
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), after, monkeypatch)
    torch.manual_seed(99)
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert numbers(resumed) == numbers(whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.parametrize("method", ["lasso", "bayes"])
@pytest.mark.parametrize("task", ["words", "csv"])
def test_a_refit_begins_compact(
    task: str, method: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a variational network, too: cut once, with the quality that [train] ended with; and it may be killed."""
    more = ["refit.epochs=2", "refit.optimizer=sgd", "refit.lr=1e-30", "refit.keep=last"]
    row = shrinking(task, method, folder, *more, *(["train.keep=best"] if method == "bayes" else []))
    result = train(row, options(tmp_path / "whole", folder))
    for name, value in result["before_refit"]["quality"].items():
        assert result["quality"][name] == pytest.approx(value, rel=1e-4)
    made: list[bool] = []
    original = trainer.Run.finish

    def finish(self: trainer.Run, epoch: int) -> dict[str, object]:
        made.append(any(getattr(module, "is_compact", False) for module in self.model.modules()))
        return original(self, epoch)

    epochs = 1 if method == "bayes" else 4
    updates = len(lines(tmp_path / "whole")) and lines(tmp_path / "whole")[0]["updates"]
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), updates * epochs + 1, monkeypatch)
    monkeypatch.setattr(trainer.Run, "finish", finish)
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert made == [True]
    assert numbers(resumed) == numbers(result)


@pytest.mark.parametrize("after", [13, 27, 40, 55])
def test_a_budget_goes_on_after_a_cut(
    after: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts the whole network, is met by what is left of it, and its factors survive cuts and a kill."""
    method = ["sparsify.method=group-lasso", "sparsify.group=1e-3", "train.lr=0.01", "train.epochs=5"]
    row = tiny("words", folder, *method, *WIDE, "train.shrink_every=1", "budget.gates=10")
    sizes: list[int] = []
    original = trainer.Run.shrink

    def watched(self: trainer.Run, last: bool) -> str:
        told = original(self, last)
        sizes.append(size(self))
        return told

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Run, "shrink", watched)
        whole = train(row, options(tmp_path / "whole", folder))
    assert sizes[-1] < sizes[0]
    assert whole["budget"] == {"of": "gates", "all": 32, "budget": 10, "left": 10}
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), after, monkeypatch)
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert numbers(resumed) == numbers(whole)
    assert resumed["budget"] == whole["budget"]


@pytest.mark.parametrize(("changes", "message"), [
    (["sparsify.method=none", "train.shrink_every=2"], "does nothing with sparsify.method"),
    ([*BAYES, "train.shrink_every=2"], r"Set refit\.epochs, too"),
    ([*LASSO, "train.shrink_every=2", "train.keep=best"], r"Set train\.keep = 'last'"),
    ([*LASSO, "train.shrink_every=-1"], "should be greater than or equal to 0"),
])  # fmt: skip
def test_what_cannot_be_shrunk(changes: list[str], message: str, folder: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny("words", folder, *changes)


def test_rows_of_the_paper_do_not_shrink() -> None:
    """They are as they were; those with a refit or a budget go beyond the paper."""
    loaded = [recipe.load(name) for name in recipe.names()]
    rows = [one for one in loaded if not one.refit.epochs and not one.budget.wanted()]
    assert not any(one.train.shrink_every for one in rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_smaller_network_is_captured_anew(folder: Path, tmp_path: Path) -> None:
    """With and without a graph the run ends alike; the last graph is one of the compact network, and of its refit."""
    ends = []
    for graph in (True, False):
        row = shrinking("words", "lasso", folder, "refit.epochs=2", "refit.lr=0.01")
        chosen = trainer.Options(tmp_path / str(graph), folder, "cuda", quiet=True, graph=graph)
        result = train(row, chosen)
        assert result["graph"] == graph
        ends.append(result["quality"]["test_ppl"])
    assert ends[0] == pytest.approx(ends[1], rel=1e-2)
