"""`gatewise figures` and `gatewise report` on finished runs of every kind of task."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_corpora import tiny

import gatewise as gw
from gatewise.lab.analyse import lag_curves
from gatewise.lab.cli import main
from gatewise.lab.data.corpus import load_data
from gatewise.lab.data.language import from_texts
from gatewise.lab.finished.explore import distinct, facts
from gatewise.lab.finished.opened import (
    AT_ONCE,
    lags_of,
    names_of,
    open_run,
    validation_batches,
)
from gatewise.lab.models import CharLM
from gatewise.lab.training.trainer import Options, train


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One small finished run for each way in which words, inputs and outputs have names."""
    out = tmp_path_factory.mktemp("runs")
    lasso = ["sparsify.method=group-lasso", "sparsify.group=1e-3"]
    for name, task, more in (
        ("bayes", "word-ptb", []),
        ("lasso", "word-ptb", lasso),
        ("chars", "char-ptb", []),
        ("news", "agnews", []),
        ("numbers", "npz", []),
    ):
        train(tiny(task, folder, *more), Options(out / name, folder, "cpu", quiet=True))
    return {path.name: path for path in out.iterdir()}


def embedded(path: Path) -> list[dict[str, Any]]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)
    assert found is not None
    data = json.loads(found[1])["runs"]
    assert isinstance(data, list)
    return data


@pytest.mark.parametrize("name", ["bayes", "lasso", "chars", "news", "numbers"])
def test_a_page_for_every_kind_of_task(
    name: str, runs: dict[str, Path], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "report.html"
    arguments = ["report", str(runs[name]), "-o", str(out), "--data-dir", str(folder), "--lags", "5"]
    assert main([*arguments, "--sequences", "3"]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    (run,) = embedded(out)
    result = json.loads((runs[name] / "result.json").read_text())
    facts = {fact["label"]: fact for fact in run["facts"]}
    # The summary is the paper's count, the map below what a cut leaves: each says which.
    assert {"neurons, as the paper counts", "live gates, as the paper counts"} <= facts.keys()
    assert facts["weights left"]["value"] == f"{result['counts']['nonzero']:,}"
    assert run["title"] == result["title"]
    kept = [len(layer["neurons"]) for layer in run["layers"]]
    assert kept == list(result["counts"]["fixed_point"]["neurons"].values())
    assert all(layer["lag"]["lags"] == 5 for layer in run["layers"] if layer["neurons"])
    assert run["history"][0]["series"][0]["x"] == [1]


def test_words_have_their_names(runs: dict[str, Path], folder: Path) -> None:
    row = load_data(tiny("word-ptb", folder), folder)
    assert names_of(row) == (list(row.vocabulary.symbols), list(row.vocabulary.symbols))
    news = load_data(tiny("agnews", folder), folder)
    symbols, outputs = names_of(news)
    assert symbols[:3] == ["<pad>", "<start>", "<unk>"]
    assert symbols[3:] == list(news.words)
    assert outputs == ["World", "Sports", "Business", "Sci/Tech"]
    assert names_of(load_data(tiny("imdb", folder), folder))[1] == ["positive"]
    assert names_of(load_data(tiny("npz", folder), folder)) == (None, None)


def test_two_runs_in_one_page_and_in_one_figure(
    runs: dict[str, Path], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, data = [str(runs["bayes"]), str(runs["lasso"])], ["--data-dir", str(folder), "--lags", "4"]
    assert main(["report", *both, "-o", str(tmp_path / "two.html"), *data]) == 0
    assert len(embedded(tmp_path / "two.html")) == 2
    capsys.readouterr()
    assert main(["figures", *both, "-o", str(tmp_path / "figures"), *data]) == 0
    printed = capsys.readouterr().out.split()
    names = {"gates", "gates-15", "lag", "training", "histogram", "size"}
    assert {Path(path).name for path in printed} == {f"{n}.{end}" for n in names for end in ("png", "svg")}
    assert all(Path(path).stat().st_size > 1000 for path in printed)
    text = (tmp_path / "figures" / "histogram.svg").read_text()
    assert "log alpha" in text  # the checkpoint of a Bayesian run has the posterior


def test_figures_of_one_run_lie_beside_it(
    runs: dict[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figures", str(runs["lasso"]), "--data-dir", str(folder), "--lags", "0"]) == 0
    captured = capsys.readouterr()
    assert "it takes two or more finished runs" in captured.err
    assert (runs["lasso"] / "figures" / "gates.png").is_file()
    assert not (runs["lasso"] / "figures" / "lag.png").exists()
    assert "norm of a gate" in (runs["lasso"] / "figures" / "histogram.svg").read_text()


def without_model(run: Path, copied: Path) -> Path:
    """As stored runs are whose model was not kept."""
    shutil.copytree(run, copied, ignore=shutil.ignore_patterns("model.safetensors", "checkpoint.pt"))
    return copied


def test_a_run_that_is_only_compared_needs_no_model(
    runs: dict[str, Path], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its curves and its size lie in metrics.jsonl and result.json."""
    other = without_model(runs["lasso"], tmp_path / "lasso")
    out = tmp_path / "figures"
    assert main(["figures", str(runs["bayes"]), str(other), "-o", str(out), "--lags", "0"]) == 0
    assert capsys.readouterr().err == ""
    for name in ("gates", "training", "size"):
        assert (out / f"{name}.png").is_file()
    title = json.loads((other / "result.json").read_text())["title"]
    assert all(title in (out / f"{name}.svg").read_text() for name in ("training", "size"))


def test_the_first_run_without_a_model_says_what_is_left_out(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = without_model(runs["lasso"], tmp_path / "lasso")
    assert main(["figures", str(alone)]) == 0
    captured = capsys.readouterr()
    assert "no gates, no lag curves and no histogram" in captured.err
    assert "model.safetensors: is not there" in captured.err
    assert "train it again, --overwrite. Or name a run that has its model first" in captured.err
    assert {Path(path).stem for path in captured.out.split()} == {"training"}
    assert main(["report", str(alone), "-o", str(tmp_path / "r.html")]) == 1  # a page is about the model


def test_a_bayesian_run_without_its_posterior_has_no_threshold_line(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """Its threshold is one of log alpha; group lasso's, which every recipe has, decided nothing."""
    copied = tmp_path / "bayes"
    shutil.copytree(runs["bayes"], copied, ignore=shutil.ignore_patterns("checkpoint.pt"))
    for run, said in ((copied, True), (runs["lasso"], False)):
        assert main(["figures", str(run), "-o", str(tmp_path / "figures"), "--lags", "0"]) == 0
        text = (tmp_path / "figures" / "histogram.svg").read_text()
        assert "norm of a gate" in text
        assert ("no threshold: all but zero is kept" in text) == said


def test_without_the_data_the_rest_is_shown(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "own"
    shutil.copytree(runs["lasso"], copied)
    text = (copied / "recipe.toml").read_text()
    missing = f'task = "words"\npath = "{tmp_path / "no-such.txt"}"'
    (copied / "recipe.toml").write_text(text.replace('task = "word-ptb"', missing))
    (copied / "bench.json").write_text(
        json.dumps([{"situation": "one step", "name": "engine", "seconds": 3.5e-6, "ratio": 40.0}])
    )
    assert main(["report", str(copied), "-o", str(tmp_path / "r.html")]) == 0
    assert "no words and no lag curves, because the data are missing" in capsys.readouterr().err
    (run,) = embedded(tmp_path / "r.html")
    assert run["layers"][0]["lag"] is None
    assert {"label": "one step, engine", "value": "3.5 us", "note": "40.0x"} in run["facts"]


def test_a_model_saved_by_hand(tmp_path: Path) -> None:
    gw.save(gw.compress(CharLM(7, hidden=5)), tmp_path / "mine")
    assert main(["report", str(tmp_path / "mine"), "-o", str(tmp_path / "mine.html")]) == 0
    (run,) = embedded(tmp_path / "mine.html")
    assert run["title"] == "mine"
    assert run["missing"] == "without the data: no words, no lag curves"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "no-such-run"], 1, "no-such-run.safetensors: there is no such file"),
        (["figures", "no-such-run"], 1, "no-such-run.safetensors: there is no such file"),
        (["report", "a", "b", "c"], 2, "two runs at most"),
        (["report"], 2, "Missing argument"),
    ],
)
def test_errors_are_sentences(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    text = capsys.readouterr().err
    assert said in " ".join(text.split())
    assert "Traceback" not in text


@pytest.mark.parametrize("command", ["figures", "report"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"Example: gatewise {command} runs/" in " ".join(capsys.readouterr().out.split())


def test_sequences_are_spread_over_the_validation_text() -> None:
    text = "".join(chr(97 + k % 20) for k in range(600)) + "\n"
    corpus = from_texts(text, text, text, "char")
    ((ids,),) = validation_batches(corpus, lags=10, n=5)
    assert ids.shape == (16, 5)
    assert ids[:, 0].tolist() == corpus.valid[:16].tolist()
    assert ids[:, -1].tolist() == corpus.valid[-16:].tolist()
    ((whole,),) = validation_batches(corpus, lags=1000, n=5)
    assert whole.shape == (len(corpus.valid), 1)  # the whole text is shorter than that


def test_batches_change_no_curve() -> None:
    torch.manual_seed(0)
    text = "abcdefg" * 60
    corpus = from_texts(text, text[::-1], text, "char")
    model = CharLM(len(corpus.vocabulary), hidden=4)
    batches = validation_batches(corpus, lags=6, n=AT_ONCE + 4)
    assert [ids.shape[1] for (ids,) in batches] == [AT_ONCE, 4]
    alone = [(row,) for (ids,) in batches for row in ids.split(1, dim=1)]
    one_by_one = lag_curves(model, alone, lags=6)["rnn.l0"]
    together = lags_of(model, corpus, 6, AT_ONCE + 4)["rnn.l0"]
    torch.testing.assert_close(together.norms, one_by_one.norms)


def test_numbers_that_json_does_not_have(runs: dict[str, Path], tmp_path: Path) -> None:
    """A run whose weights are all zero has an infinite compression, and two runs of a title keep their folders."""
    shutil.copytree(runs["chars"], tmp_path / "again")
    result = json.loads((runs["chars"] / "result.json").read_text())
    result["counts"]["compression"] = result["quality"]["test_bpc"] = None
    (tmp_path / "again" / "result.json").write_text(json.dumps(result))
    assert main(["report", str(runs["chars"]), str(tmp_path / "again"), "-o", str(tmp_path / "r.html"),
                 "--lags", "0"]) == 0  # fmt: skip
    first, second = embedded(tmp_path / "r.html")
    facts = {fact["label"]: fact["value"] for fact in second["facts"]}
    assert (facts["compression"], facts["bits per character, test"]) == ("infinite", "infinite")
    assert first["title"].endswith("/chars)")
    assert second["title"].endswith("/again)")


def test_the_papers_numbers_stand_beside_ours(runs: dict[str, Path]) -> None:
    """Those it has for the row, and no others; sizes are bytes of float32."""
    run = open_run(runs["chars"])
    expect = {"test_bpc": 1.425, "compression": 9.8, "neurons": [404], "live_gates": [1563, 7]}
    run.result["expect"] = expect
    run.result["counts"]["weights"] = 250_000
    notes = {fact.label: fact.note for fact in facts(run)}
    assert notes["bits per character, test"] == "paper: 1.425"
    assert notes["bits per character, validation"] == ""
    assert notes["compression"] == "paper: 9.80x"
    assert notes["neurons, as the paper counts"] == "paper: 404"
    assert notes["live gates, as the paper counts"] == "paper: 1563\N{EN DASH}7"
    assert notes["model file"] == "1.0 MB of dense matrices"


def test_an_unfinished_run_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["chars"], tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="the run is not finished"):
        open_run(tmp_path / "run").model  # noqa: B018


def test_runs_of_one_title_keep_names_of_their_own() -> None:
    """A name that two runs share would be one curve."""
    where = [("A", "x/run"), ("A", "y/run"), ("B", "x/run")]
    runs: Any = [SimpleNamespace(title=title, folder=Path(path)) for title, path in where]
    assert distinct(runs) == ["A (x/run)", "A (y/run)", "B"]


def test_a_model_of_your_own_class_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--into builds it, for the figures and for the page; without it the message names the option."""
    (tmp_path / "my_tagger.py").write_text(
        "from torch import nn\n"
        "class Tagger(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.rnn, self.fc = nn.LSTM(3, 4), nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.rnn(x)[0])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    gw.save(gw.compress(importlib.import_module("my_tagger").Tagger().eval()), "own")
    assert main(["report", "own"]) == 1
    assert "--into" in capsys.readouterr().err
    assert main(["report", "own", "--into", "my_tagger:Tagger"]) == 0
    (run,) = embedded(tmp_path / "report.html")
    assert [len(layer["neurons"]) for layer in run["layers"]] == [4]
    assert main(["figures", "own", "--into", "my_tagger:Tagger"]) == 0
    assert (tmp_path / "figures" / "gates.png").is_file()
