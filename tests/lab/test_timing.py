"""gatewise bench and gatewise export: the same answer first, then the clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from chains import WORDS, build
from everyday import compressed
from networks import tagger
from torch import nn

import gatewise as gw
from gatewise.lab import timing
from gatewise.lab.cli import main
from gatewise.lab.timing import dense_original, race, ratio, same_answers, take_turns
from gatewise.nn.lookup import cell_of

pytest.importorskip("gatewise.runtime._native", reason="the C kernels are not built")

OPTIONS = WORDS | {
    "batch_first": True,
    "second": True,
    "between": "relu",
    "take": "last",
    "scores": "softmax",
    "bayes": True,
}


def test_turns() -> None:
    """Blocks of twenty calls and five before them, one contender after the other; a clock that nobody waits for."""
    said: list[str] = []
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-3
        return now[0]

    times = take_turns({name: lambda n=name: said.append(n) for name in "ab"}, seconds=0, clock=clock)
    assert said[4:] == (["a"] * 25 + ["b"] * 25) * 6
    assert [len(found) for found in times.values()] == [5, 5]
    assert times["a"] == pytest.approx([1e-3 / 20] * 5)
    assert ratio([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]) == 2


def test_a_block_of_slow_calls_has_fewer_of_them() -> None:
    """Two calls of 20 ms in 50 ms; one of what takes longer."""
    now, said = [0.0], [0, 0]

    def call(k: int, seconds: float) -> None:
        now[0] += seconds
        said[k] += 1

    slow = {"a": lambda: call(0, 0.02), "b": lambda: call(1, 0.09)}
    times = take_turns(slow, seconds=0, clock=lambda: now[0])
    assert said == [2 + 6 * 2, 2 + 6 * 1]
    assert times["a"] == pytest.approx([0.02] * 5)


def test_the_engine_has_as_many_threads_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def turns(contenders: Mapping[str, Any], seconds: float) -> dict[str, list[float]]:
        seen.append((contenders["gatewise engine"].func.threads, torch.get_num_threads()))
        return {name: [1.0] for name in contenders}

    monkeypatch.setattr(timing, "take_turns", turns)
    race(gw.compress(nn.LSTM(3, 4)), steps=3, batch=2, threads=2)
    assert seen == [(2, 2)] * 3


def test_contenders_must_agree() -> None:
    with pytest.raises(AssertionError, match="b against a"):
        same_answers({"a": lambda: torch.zeros(2), "b": lambda: (torch.ones(2), None)})


@pytest.mark.parametrize(
    "options", [{}, {"gate_activation": "hard_sigmoid"}, {"packs": "cut", "take": "all"}], ids=str
)
def test_race(options: dict[str, str]) -> None:
    """Every contender in every situation, the dense original as one of them; torch's threads are as before."""
    case = build(1, OPTIONS | options)
    before = torch.get_num_threads()
    timings = race(case.small, steps=3, batch=2, threads=before + 1, seconds=0)
    assert torch.get_num_threads() == before
    assert len(timings) == 3 * 5
    assert {t.situation for t in timings} == {"one step", "3 steps", "3 steps of 2"}
    assert all(t.seconds > 0 and t.ratio > 0 for t in timings)


@pytest.mark.parametrize(("name", "situations"), [("words and tags", 3), ("convolution and pool", 2)])
def test_race_of_a_graph(name: str, situations: int) -> None:
    """With random arguments of every kind; windows of three steps have no answer to one."""
    timings = race(compressed(name)[0], steps=9, batch=2, seconds=0)
    assert len(timings) == situations * 5
    assert all(t.seconds > 0 and t.ratio > 0 for t in timings)


def test_the_dense_original_has_the_original_sizes() -> None:
    case = build(2, OPTIONS)
    dense = dense_original(case.small)
    assert cell_of(dense.rnn) is not None
    assert isinstance(dense.rnn, nn.LSTM)
    sizes = (dense.emb.weight.shape, dense.rnn.weight_hh_l1.shape, dense.fc.weight.shape)
    assert sizes == ((5, 3), (16, 4), (3, 4))
    without: Any = dense_original(gw.compress(tagger(nn.LSTM(2, 3), nn.Linear(3, 2, bias=False))))
    assert without.fc.bias is None


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(1)
    small = gw.compress(nn.LSTM(3, 4))
    gw.save(small, tmp_path / "model")
    target = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "model"), "--onnx", str(target), "--no-states"]) == 0
    assert "model.onnx" in capsys.readouterr().out
    x = torch.randn(5, 2, 3)
    (y,) = onnxruntime.InferenceSession(str(target)).run(None, {"input": x.numpy()})  # as forward() calls it
    with torch.no_grad():
        np.testing.assert_allclose(y, small(x)[0], rtol=1e-4, atol=1e-5)
    assert main(["export", str(tmp_path / "model"), "--onnx", str(target), "--lengths"]) == 1
    assert "forward() takes no lengths; pack" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "model")]) == 2
    capsys.readouterr()
    options = ["--steps", "3", "--batch", "2", "--seconds", "0"]
    assert main(["bench", str(tmp_path / "model"), *options, "--json"]) == 0
    timings = json.loads(capsys.readouterr().out)
    assert {t["name"] for t in timings} >= {"torch dense", "torch compact", "gatewise engine"}
    assert main(["bench", str(tmp_path / "model"), *options]) == 0
    assert "gatewise engine" in capsys.readouterr().out
