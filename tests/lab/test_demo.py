"""The demo in small: the same stages on a narrow network and a little text."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import gatewise as gw
from gatewise.lab.cli import main
from gatewise.lab.data.cuts import Windows
from gatewise.lab.demo import run as demo
from gatewise.lab.demo.model import Plan, WordModel, perplexity, train
from gatewise.lab.demo.run import Settings, read_texts, run_demo
from gatewise.lab.demo.speed import microseconds_per_word
from gatewise.lab.demo.text import paragraphs, python_reference
from gatewise.lab.demo.view import View, rows
from gatewise.runtime.bindings import NativeLibraryError

USUAL = Settings()
TINY = replace(
    USUAL,
    vocabulary=300,
    n_blocks=12,
    width=16,
    threads=1,
    dense=replace(USUAL.dense, epochs=2),
    lasso=replace(USUAL.lasso, epochs=4, flat=2),
    group=2e-2,  # four epochs of little text are few steps to shrink in
    bayes=replace(USUAL.bayes, epochs=1),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("demo")
    return run_demo(TINY, out), out


def test_the_text_is_english_and_no_paragraph_comes_twice() -> None:
    found = paragraphs()
    assert len(found) == len(set(found)) > 1000
    assert sum(" the " in paragraph for paragraph in found) > 500
    data = python_reference(2000)
    assert len(data.vocabulary) == 2000
    assert len(data.train) > 6 * len(data.valid) > 20_000
    unknown = data.vocabulary.ids["<unk>"]
    assert 0 < (data.valid == unknown).float().mean() < 0.1


def test_held_out_paragraphs_are_not_in_the_training_text() -> None:
    """Whole paragraphs are held out: what ends up in one stream is in no other."""
    data = python_reference(vocabulary_size=10**6)
    end = data.vocabulary.ids["<eos>"]

    def pieces(ids: torch.Tensor) -> set[tuple[int, ...]]:
        marks = [-1, *(ids == end).nonzero().flatten().tolist()]
        words = ids.tolist()
        return {tuple(words[a + 1 : b]) for a, b in pairwise(marks) if b - a > 12}

    train, valid, test = pieces(data.train), pieces(data.valid), pieces(data.test)
    unknown = data.vocabulary.ids["<unk>"]
    held_out = [piece for piece in valid | test if unknown not in piece]
    assert len(held_out) > 50
    assert not train & set(held_out)


def test_the_result_holds_together(finished: tuple[dict[str, Any], Path]) -> None:
    result, out = finished
    assert json.loads((out / "result.json").read_text()) == json.loads(json.dumps(result))
    ppl = result["perplexity"]
    assert 1 < ppl["dense"]["valid"] < TINY.vocabulary
    assert ppl["compressed"]["valid"] == pytest.approx(ppl["sparse"]["valid"], rel=1e-4)
    assert ppl["compressed"]["test"] == pytest.approx(ppl["sparse"]["test"], rel=1e-4)
    assert result["largest_difference"] < 1e-4
    assert result["dense"]["neurons"] == {"rnn.l0": 16, "rnn.l1": 16}
    assert result["sparse"]["compression"] > 1.2
    gates = sum(result["sparse"]["gates"].values())
    assert 0 < gates < 128
    assert [entry["gates"] for entry in result["history"]["sparse"]][-1] == gates
    assert len(result["history"]["dense"]) == 2


def test_the_dense_network_is_the_best_epoch(finished: tuple[dict[str, Any], Path]) -> None:
    result, _ = finished
    assert result["perplexity"]["dense"]["valid"] == pytest.approx(min(result["history"]["dense"]))


def test_what_was_saved_is_what_was_measured(finished: tuple[dict[str, Any], Path]) -> None:
    """The compressed network, read back from its file, has the perplexity in the table."""
    result, out = finished
    small = gw.load(out / "compressed")
    assert isinstance(small, WordModel)
    valid = read_texts(TINY).valid
    assert perplexity(small, valid) == pytest.approx(result["perplexity"]["compressed"]["valid"], rel=1e-5)
    assert result["files"]["compressed"]["bytes"] < result["files"]["dense"]["bytes"]


def test_the_clock_ran(finished: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender has a time; where the C part was not built, the engine has none and nothing else changes."""
    result, out = finished
    times = result["microseconds_per_word"]
    assert times["dense"] > 0
    assert times["compressed"] > 0
    small = gw.load(out / "compressed")

    def missing(model: torch.nn.Module) -> None:
        raise NativeLibraryError("not built")

    monkeypatch.setattr(gw, "Engine", missing)
    without = microseconds_per_word(small, small, torch.arange(10))
    assert without["engine"] is None
    assert without["compressed"] is not None


def test_the_folder_has_the_pictures_and_nothing_half_written(finished: tuple[dict[str, Any], Path]) -> None:
    _, out = finished
    names = {path.name for path in out.iterdir()}
    assert names == {"result.json", "gates.png", "gates.svg", "report.html", "dense.safetensors",
                     "compressed.safetensors"}  # fmt: skip
    assert (out / "gates.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_shows_all_three_networks(finished: tuple[dict[str, Any], Path]) -> None:
    result, _ = finished
    table = {name.strip(): values for name, *values in rows(result)}
    assert table["rnn.l0  neurons"][0] == "16"
    assert table["compression"][0] == "1.00x"
    screen = io.StringIO()
    View(Console(file=screen, width=100)).result(result, "group lasso")
    assert f"{result['perplexity']['sparse']['valid']:.2f}" in screen.getvalue()
    assert "gates.png" in screen.getvalue()
    assert "report.html" in screen.getvalue().replace("\n", "")


def test_the_same_seed_gives_the_same_network(finished: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """And the caller's random state and number of threads are left as they were."""
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = run_demo(TINY, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    for key in ("perplexity", "sparse", "history"):
        assert again[key] == finished[0][key]


@pytest.mark.parametrize("method", ["lasso", "bayes", None])
def test_a_penalty_belongs_to_a_sum_or_to_a_mean(method: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group lasso's to the loss summed over a window of T words, KL / n_train to the mean of a word."""
    text, model = Windows(torch.arange(40) % 5, batch_size=2, steps=7), WordModel(5, 4)
    sparsifier, losses = None, []
    if method == "lasso":
        sparsifier = gw.GroupLasso(model, group=1.0)
    elif method == "bayes":
        sparsifier = gw.Variational(model, n_train=9)
    for kind in (gw.GroupLasso, gw.Variational):
        monkeypatch.setattr(kind, "penalty", lambda _: torch.tensor(0.25))
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda *_: torch.tensor(2.0))
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: losses.append(loss.item()))
    list(train(model, text, Plan("SGD", epochs=1, rate=0.0, flat=1, decay=1.0), sparsifier))
    assert losses == [{"lasso": 7 * 2.0 + 0.25, "bayes": 2.25, None: 7 * 2.0}[method]] * len(text)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_the_rate_falls_as_the_plan_says(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, rates = Windows(torch.arange(40) % 5, batch_size=2, steps=19), []
    kind = getattr(torch.optim, optimizer)
    monkeypatch.setattr(kind, "step", lambda self: rates.append(self.param_groups[0]["lr"]))
    list(train(WordModel(5, 4), text, Plan(optimizer, epochs=4, rate=0.8, flat=2, decay=0.5)))
    assert rates == [0.8, 0.8, 0.4, 0.2]


def test_perplexity_carries_the_state() -> None:
    """Windows of five words are no shorter memory than the whole text at once."""
    torch.manual_seed(0)
    ids, model = torch.randint(0, 7, (41,)), WordModel(7, 6, init=1.0)
    whole, parts = (perplexity(model, Windows(ids, 1, steps, "keep")) for steps in (40, 5))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert model.training


def test_the_largest_difference_is_that_of_the_logits() -> None:
    texts, model = read_texts(TINY), WordModel(300, 4)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.softmax.bias[7] += 5e-5
    assert demo.largest_difference(model, model, texts.valid) == 0
    assert demo.largest_difference(model, other, texts.valid) == pytest.approx(5e-5, rel=0.05)
    with torch.no_grad():
        other.softmax.bias[7] += 1e-2
    with pytest.raises(AssertionError, match="not close"):
        demo.largest_difference(model, other, texts.valid)


def test_variational_dropout_starts_from_the_dense_network() -> None:
    texts, dense = read_texts(TINY), WordModel(300, TINY.width)
    settings = replace(TINY, method="bayes", bayes=replace(TINY.bayes, epochs=0))
    model, _ = demo.train_sparse(settings, texts, dense, View(quiet=True))
    for name, tensor in dense.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_the_other_framework(tmp_path: Path) -> None:
    result = run_demo(replace(TINY, method="bayes", dense=replace(TINY.dense, epochs=1)), tmp_path)
    assert result["perplexity"]["compressed"]["valid"] == pytest.approx(
        result["perplexity"]["sparse"]["valid"], rel=1e-4
    )
    with pytest.raises(ValueError, match="method='ridge' is not one of lasso, bayes"):
        run_demo(replace(TINY, method="ridge"), tmp_path)


def test_progress_is_shown_on_a_terminal_only() -> None:
    for terminal in (True, False):
        screen = io.StringIO()
        with View(Console(file=screen, force_terminal=terminal)).training("dense", 2) as tick:
            tick("90")
            tick("80")
        assert ("dense" in screen.getvalue()) == terminal


class Interrupted(View):
    """Presses Ctrl-C in the third mini-batch of the sparse training."""

    def training(self, title: str, batches: int) -> Any:
        self.title, self.count = title, 0
        return super().training(title, batches)

    def press(self) -> None:
        self.count += 1
        if self.title == "group lasso" and self.count == 3:
            raise KeyboardInterrupt


def test_ctrl_c_while_training_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = Interrupted(quiet=True)
    measured = demo.train

    def pressed(*args: Any, **kwargs: Any) -> Any:
        *rest, tick = (*args, kwargs["tick"]) if "tick" in kwargs else args
        return measured(*rest, tick=lambda now: (tick(now), view.press()))

    monkeypatch.setattr(demo, "train", pressed)
    with pytest.raises(KeyboardInterrupt):
        run_demo(TINY, tmp_path, view)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_drawing_leaves_the_old_picture(
    finished: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is half-written when the key is pressed; its old content must still be there afterwards."""
    (tmp_path / "gates.png").write_text("the old one")

    def half(figure: Any, to: Any, **options: Any) -> None:
        to.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", half)
    small = gw.load(finished[1] / "dense")
    with pytest.raises(KeyboardInterrupt):
        demo.draw(small, TINY, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["gates.png"]
    assert (tmp_path / "gates.png").read_text() == "the old one"


def test_quick_is_the_tour_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same method and seed, and less of everything that takes time."""
    asked: list[Settings] = []
    monkeypatch.setattr(demo, "run_demo", lambda settings, out, view: asked.append(settings) or {})
    monkeypatch.setattr(View, "result", lambda *_: None)
    assert main(["demo", "--quick", "--method", "bayes", "--seed", "3", "--out", str(tmp_path)]) == 0
    (quick,) = asked
    assert (quick.method, quick.seed) == ("bayes", 3)
    assert quick.width < USUAL.width
    assert quick.dense.epochs + quick.bayes.epochs < USUAL.dense.epochs
