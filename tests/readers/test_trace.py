"""What the tracer follows, what it leaves as it was, and what it says of layers that nobody can follow."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from everyday_patterns import EVERYDAY
from networks import LanguageModel, Net, tagger
from patterns import B, E, H, T, V, emb
from torch import Tensor, nn

import gatewise as gw
from gatewise.readers import find_readers


def own_forward(layer: nn.Linear) -> nn.Linear:
    plain = layer.forward
    layer.forward = lambda x: 3 * plain(x)  # type: ignore[method-assign]
    return layer


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("change", [own_forward, nn.utils.weight_norm, nn.utils.spectral_norm])
def test_a_layer_that_is_not_what_its_class_says_stays(change: Callable[[nn.Module], nn.Module]) -> None:
    """Its forward() was replaced, or its weight is made by a hook: it may read anything, and compress() leaves it."""
    model = tagger(nn.LSTM(E, H), change(nn.Linear(H, 2))).eval()
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, 0] = 0
        with pytest.warns(UserWarning, match=r"rnn\.l0 keeps 1 neuron that "):
            small = gw.compress(model)
        x = torch.randn(T, B, E)
        torch.testing.assert_close(small(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("use", [gw.compress, gw.measure, gw.Engine, find_readers])
def test_a_scripted_module_is_refused(use: Callable[[nn.Module], Any]) -> None:
    model = tagger(nn.LSTM(E, H))
    with pytest.raises(ValueError, match="the model it was made from"):
        use(torch.jit.trace(model, torch.randn(T, B, E)))


def test_a_hook_exposes_its_layer() -> None:
    """A hook may see or change what a layer takes and gives, and nobody can follow it."""
    model = LanguageModel()
    model.rnn.register_forward_hook(lambda module, given, out: (out[0].flip(-1), out[1]))
    graph = find_readers(model)
    assert set(graph.exposed) == {"emb", "rnn.l0", "rnn.l1", "fc"}
    assert graph.memory == {"rnn.l0", "rnn.l1"}
    assert "rnn.weight_ih_l0" in graph.outside


def test_a_hook_of_torch_prune_is_known() -> None:
    """It only puts the masked weight in its place."""
    model = EVERYDAY["dropout"].build()
    nn.utils.prune.random_unstructured(model.fc, "weight", 0.5)
    assert set(find_readers(model).exposed) == {"fc"}


def test_a_model_in_data_parallel_is_followed_inside() -> None:
    assert set(find_readers(nn.DataParallel(LanguageModel())).exposed) == {"module.fc"}


def test_a_bare_layer_is_its_own_answer() -> None:
    graph = find_readers(nn.LSTM(E, H))
    assert set(graph.exposed) == {"l0"}


def test_parameters_used_past_their_layer_are_noted() -> None:
    model = Net(
        lambda m, x: F.linear(m.rnn(m.emb(x))[0], m.emb.weight),
        emb=emb(),
        rnn=nn.GRU(E, E),
        fc=nn.Linear(E, 2),
    )
    graph = find_readers(model)
    assert graph.raw == {"emb.weight"}
    assert "rnn.l0" in graph.exposed


class AsksForTypes(nn.Module):
    """A forward() that looks at types, and packs through the full name of the function."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = emb(), nn.LSTM(E, H), nn.Linear(H, V)

    def forward(self, x: Any, lengths: Any) -> Any:
        vectors = self.emb(x)
        if not isinstance(vectors, Tensor | torch.fx.Proxy):  # raises where Tensor is no longer a type
            raise TypeError("vectors")
        packed = nn.utils.rnn.pack_padded_sequence(vectors, lengths, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])
        return self.fc(out)


def test_tracing_leaves_the_names_of_a_file_alone() -> None:
    """Only the packing functions are wrapped: a file's own `Tensor` is still a type while forward() is traced."""
    graph = find_readers(AsksForTypes())
    assert set(graph.exposed) == {"fc"}
    assert [read.matrix for read in graph.reads_of("rnn.l0")] == ["fc.weight", "rnn.weight_hh_l0"]


@pytest.mark.parametrize("name", "zeros ones empty rand randn".split())
def test_a_factory_takes_sizes_of_the_input_one_by_one(name: str) -> None:
    """A new tensor carries no units, however its size is written; afterwards torch is as it was."""
    make = getattr(torch, name)
    model = Net(
        lambda m, x: m.fc(m.rnn(x)[0] * getattr(torch, name)(x.size(0), x.size(1), H)),
        rnn=nn.LSTM(E, H),
        fc=nn.Linear(H, 2),
    )
    assert set(find_readers(model).exposed) == {"fc"}
    assert getattr(torch, name) is make


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.Dropout1d(0.0)])
def test_what_a_layer_hands_on_in_evaluation_is_its_argument(layer: nn.Module) -> None:
    """To write into it is to write into the output of the recurrent layer, which is read afterwards."""

    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        m.layer(out).sigmoid_()
        return m.fc(out)

    model = Net(forward, rnn=nn.LSTM(E, H), layer=layer, fc=nn.Linear(H, 2))
    assert "another view" in find_readers(model).exposed["rnn.l0"]


def test_a_reason_says_for_which_shape_it_holds() -> None:
    """sum(1) goes over time in a batch; of one sequence without a batch it would go over neurons."""
    model = Net(
        lambda m, x, weights: m.fc(m.rnn(x)[0].sum(1, keepdim=True) * weights),
        rnn=nn.GRU(E, H, batch_first=True),
        fc=nn.Linear(H, 2),
    )
    why = find_readers(model).exposed
    line = r'test_trace\.py, line \d+, "lambda m, x, weights: .*"'
    said = rf"sum\(\) goes over its channels \({line}\) where x has 2 axes.*"
    assert re.fullmatch(said, why["rnn.l0"])
    assert why["fc"].startswith("forward() returns it (")


def test_a_loop_in_a_function_of_another_file_is_followed() -> None:
    """range() is recorded wherever forward() calls it."""

    def every_step(net: Net, x: Tensor) -> Tensor:
        state = None
        for t in range(x.size(0)):
            state = net.rnn(x[t], state)
        return net.fc(state)

    graph = find_readers(Net(every_step, rnn=nn.GRUCell(E, H), fc=nn.Linear(H, 2)))
    assert set(graph.exposed) == {"fc"}
