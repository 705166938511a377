"""The paper's networks: sizes, starting values, and that what a reader sees of them is what the paper counts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gatewise as gw
from gatewise.lab.initial import initialise
from gatewise.lab.models import CharLM, SeriesModel, TaskModel, TextClassifier, WordLM, stack_of
from gatewise.lab.timing import dense_original
from gatewise.readers import find_readers

TINY: dict[str, TaskModel] = {
    "word": WordLM(11, 5, 4, layers=2, dropout=0.3),
    "char": CharLM(7, 4),
    "text": TextClassifier(12, 3, 5, 4),
    "end": SeriesModel(3, 2, hidden=4),
    "steps": SeriesModel(3, 3, True, hidden=4, cell="GRU"),
}


def inputs(name: str) -> Tensor:
    if name in ("end", "steps"):
        return torch.randn(2, 6, 3)
    return torch.randint(7, (6, 2) if name in ("word", "char") else (2, 6))


def answer(model: TaskModel, x: Tensor) -> Tensor:
    out = model(x)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize(
    ("build", "weights"),
    [
        (lambda: TextClassifier(20_003, 1, 300, 128), 6_220_164),
        (lambda: TextClassifier(20_003, 4, 300, 512), 7_665_924),
        (lambda: CharLM(50, 1000), 4_250_000),
        (lambda: WordLM(10_000, 200, 200), 4_640_000),
        (lambda: WordLM(10_000, 1500, 1500), 66_000_000),
    ],
)
def test_sizes_are_the_papers(build, weights: int) -> None:
    """|W| counts matrices, no biases; three of the five totals stand in the authors' logs."""
    with torch.device("meta"):
        model = build()
    assert sum(p.numel() for p in model.parameters() if p.dim() == 2) == weights


@pytest.mark.parametrize("name", TINY)
def test_every_reader_is_proven(name: str) -> None:
    """Without proof no neuron could be removed; only the last layer is exposed, its output being the answer."""
    assert set(find_readers(TINY[name]).exposed) == {"fc"}


@pytest.mark.parametrize("name", [*TINY, "logistic"])
def test_the_dense_original_can_be_timed(name: str) -> None:
    """`gatewise bench` puts torch.nn's stacks in place of ours, and those know no mask."""
    logistic = TextClassifier(12, 3, 5, 4, gate_activation="sigmoid")
    model = TINY.get(name, logistic).eval()
    x = inputs(name)
    assert answer(dense_original(gw.compress(model)), x).shape == answer(model, x).shape


@pytest.mark.parametrize("name", TINY)
def test_config_builds_the_same_network(name: str, tmp_path: Path) -> None:
    """A saved model is rebuilt from its class and config()."""
    model = TINY[name].eval()
    twin = type(model)(**model.config()).eval()
    twin.load_state_dict(model.state_dict())
    x = inputs(name)
    torch.testing.assert_close(answer(twin, x), answer(model, x), rtol=0, atol=0)
    gw.save(gw.compress(model), tmp_path / "m")
    loaded = gw.load(tmp_path / "m").eval()
    assert type(loaded) is type(model)
    torch.testing.assert_close(answer(loaded, x), answer(model, x), rtol=1e-5, atol=1e-6)


def test_an_lstm_has_one_bias_a_gru_two() -> None:
    """With two, plain SGD would move their sum twice as fast as the paper's single one."""
    lstm, gru = WordLM(9, 4, 4), WordLM(9, 4, 4, cell="GRU")
    for name, p in stack_of(lstm).named_parameters():
        second = name.startswith("bias_hh")
        assert p.requires_grad != second
        assert not second or not p.any()
    assert all(p.requires_grad for p in stack_of(gru).parameters())


def test_one_hot_input_picks_a_column() -> None:
    """Wx e_k is column k of Wx, so the input matrix is the embedding of the characters."""
    model = CharLM(7, 4)
    ids = torch.randint(7, (5, 2))
    w = stack_of(model).weights(0, 0, 2)
    rows = torch.eye(7)[ids] @ w.w_ih.mT
    torch.testing.assert_close(rows, w.w_ih.mT[ids], rtol=0, atol=0)
    out, state = model(ids)
    again, _ = model(ids[3:], model(ids[:3])[1])
    torch.testing.assert_close(again, out[3:])
    assert len(state) == 2


def test_padding_on_the_left_changes_nothing() -> None:
    """On masked steps the state stays zero, so a text means the same however much padding stands before it."""
    model = TextClassifier(12, 3, 5, 4).eval()
    ids = torch.randint(3, 12, (2, 6))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, :3] = False
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
    torch.testing.assert_close(model(padded, mask), model(ids), rtol=1e-5, atol=1e-6)


def test_starting_values_of_the_pruning_runs() -> None:
    """U(-a, a) for every matrix and the softmax bias, zero gate biases."""
    model = WordLM(30, 20, 20)
    initialise(model, "uniform", 0.04)
    for name, p in model.named_parameters():
        bound = 0.0 if name.startswith("rnn.bias") else 0.04
        assert p.abs().max() <= bound
        assert bound == 0 or p.abs().max() > 0.9 * bound


def test_starting_values_of_the_classifiers() -> None:
    """Gate by gate: Wx within sqrt(6 / (I + H)), Wh orthogonal with gain 1.1, forget bias 1."""
    model = TextClassifier(12, 1, 30, 20)
    initialise(model, "glorot", forget_bias=1.0)
    rnn = stack_of(model)
    w = rnn.weights(0, 0, 1)
    assert w.b_ih is not None
    assert w.w_ih.abs().max() <= math.sqrt(6 / 50)
    for gate in rnn.cell.split(w.w_hh):
        torch.testing.assert_close(gate @ gate.mT, 1.21 * torch.eye(20), rtol=0, atol=1e-4)
    expected = torch.zeros(4, 20)
    expected[1] = 1
    torch.testing.assert_close(rnn.cell.split(w.b_ih.detach()), expected)
    assert model.emb.weight.abs().max() <= 0.05


def test_starting_values_of_the_language_models() -> None:
    """Orthogonal with gain 1, input and output matrices too."""
    model = CharLM(6, 20)
    initialise(model, "orthogonal")
    rnn = stack_of(model)
    for gate in rnn.cell.split(rnn.weights(0, 0, 1).w_ih):  # (20, 6): orthonormal columns
        torch.testing.assert_close(gate.mT @ gate, torch.eye(6), rtol=0, atol=1e-4)
    torch.testing.assert_close(model.fc.weight @ model.fc.weight.mT, torch.eye(6), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="init='zeros' is not one of"):
        initialise(model, "zeros")


def test_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="cell='RNN' is not one of LSTM, GRU"):
        WordLM(9, 4, 4, cell="RNN")
