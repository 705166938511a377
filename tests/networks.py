"""Small networks and slow, obvious operations on them, shared by the tests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.nn.lookup import cell_of, ending
from gatewise.readers import Block, ReaderGraph

CELLS = ["LSTM", "GRU"]
TORCH = {"LSTM": nn.LSTM, "GRU": nn.GRU}
OURS = {"LSTM": gw.nn.LSTM, "GRU": gw.nn.GRU}


class Net(nn.Module):
    """Named layers and a forward() given as a function of (net, *inputs)."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.rule = forward

    def forward(self, x: Any, state: Any = None) -> Any:
        return self.rule(self, x) if self.rule.__code__.co_argcount == 2 else self.rule(self, x, state)


def lstm_net(forward: Callable[..., Any], **layers: nn.Module) -> Net:
    """An LSTM and the Linear that reads it, the batch first, with a forward() of one's own."""
    return Net(forward, rnn=nn.LSTM(3, 4, batch_first=True), fc=nn.Linear(4, 2), **layers)


def tagger(rnn: nn.Module, fc: nn.Module | None = None, emb: nn.Module | None = None) -> Net:
    """A recurrent layer, of numbers or of embedded words, and the Linear that reads all its steps."""
    width = rnn.hidden_size * (2 if rnn.bidirectional else 1)
    layers = {"rnn": rnn, "fc": fc or nn.Linear(width, 2)}
    if emb is None:
        return Net(lambda m, x: m.fc(m.rnn(x)[0]), **layers)
    return Net(lambda m, x: m.fc(m.rnn(m.emb(x))[0]), emb=emb, **layers)


class LanguageModel(nn.Module):
    """Embedding, recurrent stack, softmax matrix; the state goes in and comes back."""

    def __init__(
        self, words: int = 7, width: int = 3, hidden: int = 4, layers: int = 2, cell: str = "LSTM",
        tied: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.emb = nn.Embedding(words, width)
        self.rnn = TORCH[cell](width, hidden, layers, **options)
        self.fc = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), words)
        if tied:
            self.fc.weight = self.emb.weight

    def forward(self, ids: Tensor, state: Any = None) -> Any:
        out, state = self.rnn(self.emb(ids), state)
        return self.fc(out), state


class Classifier(nn.Module):
    """Embedding, recurrent layer, a Linear that reads the last step."""

    def __init__(
        self, words: int = 9, width: int = 3, hidden: int = 4, cell: str = "LSTM", **options: Any
    ) -> None:
        super().__init__()
        self.emb = nn.Embedding(words, width)
        self.rnn = TORCH[cell](width, hidden, **options)
        self.fc = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), 2)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.rnn(self.emb(ids))
        return self.fc(out[-1])


def pair(both: Any) -> tuple[Any, Any]:
    """Unpacked here and not in forward(): at every unpacking fx reads the whole function that it stands in."""
    first, second = both
    return first, second


def parameter(model: nn.Module, name: str) -> Tensor:
    module, _, attribute = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(module), attribute)
    return tensor


def hide(model: nn.Module, graph: ReaderGraph, block: str, unit: int) -> None:
    """Zero every column that is said to read a unit."""
    with torch.no_grad():
        for read in graph.reads_of(block):
            if read.unit <= unit < read.unit + read.width:
                parameter(model, read.matrix)[:, read.column + unit - read.unit] = 0


def disturb(model: nn.Module, block: Block, unit: int) -> None:
    """Change everything that makes a unit what it is: its rows and biases, or its embedding column."""
    module = model.get_submodule(block.module)
    with torch.no_grad():
        if isinstance(module, nn.Embedding):
            module.weight[:, unit] += torch.randn(len(module.weight))
        elif isinstance(module, nn.Linear):
            module.weight[unit] += torch.randn(module.in_features)
            module.bias[unit] += 1
        else:
            cell = cell_of(module)
            assert cell is not None
            assert block.place is not None
            end = ending(module, *block.place)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                rows = cell.split(getattr(module, name + end))[:, unit]
                rows += torch.randn_like(rows)


def answer(output: Any) -> Tensor:
    """What a model is asked for, without the states it hands back."""
    first = output[0] if isinstance(output, tuple) else output
    assert isinstance(first, Tensor)
    return first


def no_grad(model: Any, *args: Any) -> Any:
    with torch.no_grad():
        return model(*args)


def randomly_sparse(model: nn.Module, density: float, *, biases: bool = False) -> nn.Module:
    """Zero a random part of every matrix, and of the biases if asked."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2 or biases:
                p *= torch.rand_like(p) < density
    return model


def twin(model: nn.Module) -> Any:
    return copy.deepcopy(model)


def load(model: nn.Module, values: Mapping[str, Any]) -> None:
    """Write numbers into parameters by name; every other parameter becomes zero."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.as_tensor(values.get(name, 0.0), dtype=p.dtype).expand(p.shape))
