"""Idioms that ask about a layer: what forward() is told of one does not change with the form that the layer has."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import randomly_sparse
from test_drawn_models import Campaign, Drawn
from torch import Tensor, nn

import gatewise as gw
from gatewise.layout import Cell, Squash, State

WORDS, E, H = 7, 3, 5


class OwnLSTM(nn.LSTM):
    """A class of the user's, which computes what its base does and knows more."""

    def __init__(self, hidden: int) -> None:
        super().__init__(E, hidden, batch_first=True)
        self.output_size = hidden

    def described(self) -> str:
        return f"{self.output_size} of {self.weight_hh_l0.shape[0]}"


class Projection(nn.Linear):
    def __init__(self, width: int) -> None:
        super().__init__(width, 2)
        self.output_size = 2


class Words(nn.Embedding):
    output_size = E


def plain_step(a: Tensor, b: Tensor, state: State, z: Tensor | float, squash: Squash) -> State:
    return ((a + b).select(-2, 0).tanh() * z,)


class Plain(gw.nn.Recurrent):
    """h' = tanh(Wx x + Wh h + b): a cell of which torch has no layer with gates."""

    cell = Cell("PLAIN", gates=("n",), tanh_gates={"n"}, n_states=1, step=plain_step)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(E, H, batch_first=True),
    "GRU": lambda: nn.GRU(E, H, batch_first=True),
    "deep LSTM": lambda: nn.LSTM(E, H, 2, batch_first=True, bidirectional=True),
    "GRU without biases": lambda: nn.GRU(E, H, 2, bias=False, batch_first=True),
    "own LSTM": lambda: OwnLSTM(H),
    "LSTM of gatewise": lambda: gw.nn.LSTM(E, H, batch_first=True),
    "GRU of gatewise": lambda: gw.nn.GRU(E, H, batch_first=True, gate_activation="hard_sigmoid"),
    "own cell": lambda: Plain(E, H, batch_first=True),
    "LSTMCell": lambda: nn.LSTMCell(E, H),
    "GRUCell": lambda: nn.GRUCell(E, H, bias=False),
}

CLASSES = (nn.LSTM, nn.GRU, nn.RNN, nn.RNNBase, nn.LSTMCell, nn.GRUCell, nn.RNNCellBase, gw.nn.LSTM, gw.nn.GRU,
           OwnLSTM, Plain)  # fmt: skip
NAMES = """input_size hidden_size num_layers bias batch_first dropout bidirectional proj_size mode flatten_parameters
all_weights weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hh_l1_reverse weight_hh_l9 weight_ih weight_hh
bias_ih bias_hh output_size described training nonlinearity nothing""".split()


def number(value: Any) -> float:
    """What an answer is made of, whatever it is."""
    if isinstance(value, Tensor):
        return float(value.numel() + value.shape[-1] + len(str(value.dtype)) + len(value.device.type))
    return float(
        value if isinstance(value, int | float) else len(str(value)) if isinstance(value, str) else 1
    )


def is_a(kind: type[nn.Module], net: Any) -> bool:
    return isinstance(net.rnn, kind)


def has(name: str, net: Any) -> bool:
    return hasattr(net.rnn, name)


def get(name: str, net: Any) -> Any:
    return getattr(net.rnn, name, None)


def first_parameters(net: Any) -> Any:
    return "all_weights" in dir(net.rnn) and len(net.rnn.all_weights) + len(net.rnn.all_weights[0])


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    **{f"is {kind.__module__}.{kind.__name__}": partial(is_a, kind) for kind in CLASSES},
    **{f"has {name}": partial(has, name) for name in NAMES},
    **{f"get {name}": partial(get, name) for name in NAMES},
    "either": lambda net: isinstance(net.rnn, nn.LSTM | nn.GRU),
    "any layer": lambda net: sum(isinstance(m, nn.RNNBase) for m in net.modules()),
    "directions": lambda net: 2 if getattr(net.rnn, "bidirectional", False) else 1,
    "flattened": lambda net: hasattr(net.rnn, "flatten_parameters") and net.rnn.flatten_parameters() is None,
    "first parameters": first_parameters,
    "where": lambda net: torch.zeros(H, device=next(net.rnn.parameters()).device),
    "described": lambda net: net.rnn.described() if isinstance(net.rnn, OwnLSTM) else "",
    "named": lambda net: "LSTM" in type(net.rnn).__name__,
    "is Linear": lambda net: isinstance(net.fc, nn.Linear) and isinstance(net.fc, Projection),
    "size of Linear": lambda net: net.fc.weight.shape[1] + net.fc.out_features + net.fc.output_size,
    "is Embedding": lambda net: isinstance(net.emb, nn.Embedding) and isinstance(net.emb, Words),
    "size of Embedding": lambda net: len(net.emb.weight) + net.emb.embedding_dim + net.emb.output_size,
}


class Asking(nn.Module):
    """y = fc(layer(emb(ids))) times what the question says."""

    def __init__(self, kind: str, question: str) -> None:
        super().__init__()
        self.emb, self.rnn, self.question = Words(WORDS, E), KINDS[kind](), question
        self.fc, self.last = Projection(H * (2 if kind.startswith("deep") else 1)), nn.Linear(H, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        if hasattr(self.rnn, "num_layers"):
            y, h = self.rnn(x)
            if isinstance(self.rnn, nn.LSTM):
                h = h[0]
            answer = self.fc(y) + self.last(h[-1]).unsqueeze(1)
        else:
            zero = x.new_zeros(x.shape[0], self.rnn.hidden_size)
            state = (zero, zero) if isinstance(self.rnn, nn.LSTMCell) else zero
            for t in range(x.shape[1]):
                state = self.rnn(x[:, t], state)
            h = state[0] if isinstance(self.rnn, nn.LSTMCell) else state
            answer = self.fc(h) + self.last(h)
        told: Tensor = answer * (1 + number(QUESTIONS[self.question](self)))
        return told


def pruned(kind: str, question: str) -> Asking:
    """Without one neuron, one component and a word, and with a constant gate here and there."""
    model = Asking(kind, question)
    randomly_sparse(model, 0.7)
    with torch.no_grad():
        model.fc.weight[:, 1] = 0
        model.last.weight[:, 1] = 0
        for name, p in model.rnn.named_parameters():
            if "weight" in name:
                p[2::H] *= name.startswith("weight_hh")
                p[:, 1] = 0
        model.emb.weight[3] = 0
    return model.eval()


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def variational(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    gw.Variational(twin, n_train=10)
    return twin.eval()


def settled(model: nn.Module) -> nn.Module:
    twin = variational(model)
    gw.Refit(twin)
    return twin


@pytest.mark.filterwarnings("ignore:.*stays as it is.*asks how large")
def test_idioms_that_ask_about_a_layer(
    tmp_path: Path, kernels: list[Path], every: Any, campaign: Any
) -> None:
    """Everybody who asked for an LSTM and was told of something else went the other way, and gave another answer."""
    check = Campaign(tmp_path, kernels)
    ids = torch.tensor([[1, 3, 2, 6]])
    asked = every([(kind, question) for question in QUESTIONS for kind in KINDS], 67)
    for kind, question in asked:
        model = pruned(kind, question)
        expected = number(QUESTIONS[question](model))
        small = gw.compress(model)
        forms = [
            variational(model),
            settled(model),
            small,
            gw.compress(variational(model)),
            gw.compress(small),
        ]
        for form in [*forms, pickle.loads(pickle.dumps(small)), saved(small), copy.deepcopy(small)]:
            assert number(QUESTIONS[question](form)) == expected, (kind, question, form)
        with torch.no_grad():
            torch.testing.assert_close(saved(small)(ids), model(ids))
        check(Drawn(model, (ids,), partial(Asking, kind, question), (kind, question)))
    strange = [kind for kind, _ in asked if kind == "own cell"]  # of which there are no kernels
    assert max(check.refused.values(), default=0) <= len(strange)
    campaign(f"idioms that ask about a layer: {check}")
