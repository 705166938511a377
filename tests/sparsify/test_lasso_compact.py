"""Group lasso on compact networks: the groups of the network as it was, of what is left of them; and a second cut."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from chains import CLOSE
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Classifier, LanguageModel, Net, answer, parameter, randomly_sparse
from test_lasso import naive_penalty
from torch import Tensor, nn

import gatewise as gw
from gatewise.nn.lookup import matrix_of, places_of, stored, weights_of
from gatewise.readers.graph import find_blocks


class Loop(nn.Module):
    """A loop over time around a cell."""

    def __init__(self, kind: type[nn.LSTMCell | nn.GRUCell]) -> None:
        super().__init__()
        self.rnn, self.fc, self.pair = kind(3, 4), nn.Linear(4, 2), kind is nn.LSTMCell

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in x:
            state = self.rnn(step, state)
            outputs.append(self.fc(state[0] if self.pair else state))
        return torch.stack(outputs)


MODELS = {
    "LSTM": lambda: LanguageModel(),
    "GRU": lambda: LanguageModel(cell="GRU"),
    "bidirectional": lambda: LanguageModel(bidirectional=True),
    "tied": lambda: LanguageModel(width=4, tied=True),
    "LSTMCell": lambda: Loop(nn.LSTMCell),
    "GRUCell": lambda: Loop(nn.GRUCell),
}
networks = st.fixed_dictionaries(
    {
        "name": st.sampled_from(sorted(MODELS)),
        "density": st.sampled_from([0.15, 0.4, 1.0]),
        "seed": st.integers(0, 2**20),
    }
)
options = st.sampled_from([("W", 0.0), ("W+N", 0.7), ("W+G+N", 0.7)])


def cut(name: str, density: float, seed: int) -> tuple[nn.Module, nn.Module]:
    """A sparse network in its original shape, without what a cut removes, and its compact form."""
    torch.manual_seed(seed)
    model = randomly_sparse(MODELS[name]().double(), density)
    small = gw.compress(model)
    with torch.no_grad():
        for path in {block.module for block in find_blocks(model).values()}:
            dense, compact = model.get_submodule(path), small.get_submodule(path)
            if isinstance(dense, nn.Linear | nn.Embedding):
                dense.weight.copy_(matrix_of(compact))
                continue
            for place in places_of(dense):
                for own, other in zip(*(vars(weights_of(m, *place)).values() for m in (dense, compact))):
                    if own is not None and own.dim() == 2:
                        own.copy_(other)
    return model, small


@settings(max_examples=12)
@given(network=networks, how=options)
def test_the_groups_are_those_of_the_whole_network(network: dict[str, Any], how: tuple[str, float]) -> None:
    """The penalty of the whole network, whose cut weights are zero, but for groups of which nothing is there."""
    (levels, group), l1 = how, 0.3
    model, small = cut(**network)
    shapes = [p.numel() for name, p in small.named_parameters() if "weight" in name and "emb" not in name]
    if not any(shapes):
        with pytest.raises(ValueError, match="Nothing is left of the layers"):
            gw.GroupLasso(small, levels, l1=l1, group=group)
        return
    whole, lasso = (gw.GroupLasso(m, levels, l1=l1, group=group) for m in (model, small))
    expected = naive_penalty(model, levels, l1, group, list(whole.matrices), None)
    gone = len(whole.plan.groups) - len(lasso.plan.groups)
    torch.testing.assert_close(lasso.penalty(), expected - group * 1e-4 * gone, rtol=1e-6, atol=1e-9)
    lasso.penalty().backward()
    lasso.backward()
    slopes = torch.autograd.grad(2 * expected, [parameter(model, name) for name in whole.matrices])
    for name, slope in zip(whole.matrices, slopes):
        path, _, matrix = name.rpartition(".")
        own = stored(small.get_submodule(path), matrix)
        found = small.get_submodule(path).get_parameter(own.name).grad
        torch.testing.assert_close(found, slope[own.rows][:, own.columns], rtol=1e-6, atol=1e-9)


@settings(max_examples=12)
@given(network=networks)
def test_a_second_cut_keeps_the_function(network: dict[str, Any]) -> None:
    """step() zeroes more of what is left, and only what cannot reach the output goes."""
    _, small = cut(**network)
    try:
        lasso = gw.GroupLasso(small, l1=0.1, group=0.1, threshold=0.3)
    except ValueError:
        return
    lasso.step()
    less = gw.compress(small)
    x = torch.randint(7, (5, 3)) if hasattr(small, "emb") else torch.randn(5, 2, 3).double()
    with torch.no_grad():
        torch.testing.assert_close(answer(less.eval()(x)), answer(small.eval()(x)), **CLOSE)
    assert sum(gw.measure(less).gates.values()) == sum(gw.measure(small).fixed_point.gates.values())


def test_training_on_cuts_further() -> None:
    """The loop of the README on a compact network brings whole gates to zero, and compress() takes them."""
    torch.manual_seed(0)
    small = gw.compress(randomly_sparse(LanguageModel(hidden=8), 0.5))
    before = sum(gw.measure(small).gates.values())
    lasso = gw.GroupLasso(small, l1=1e-3, group=2e-2, threshold=1e-2)
    optimizer = torch.optim.Adam(small.parameters(), lr=1e-2)
    ids = torch.tensor([[0, 1, 2, 3, 4], [4, 5, 6, 0, 1]]).t()
    for _ in range(60):
        scores = small(ids[:-1])[0]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), ids[1:].flatten()) + lasso.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lasso.step()
    less = gw.compress(small)
    torch.testing.assert_close(answer(less(ids)), answer(small(ids)), **CLOSE)
    assert sum(p.numel() for p in less.parameters()) < sum(p.numel() for p in small.parameters())
    assert 0 < sum(gw.measure(less).gates.values()) < before


def outer(model: nn.Module) -> Net:
    return Net(lambda m, x: m.inner(x), inner=model)


def test_a_lasso_from_before_the_cut_says_so() -> None:
    """Its groups are those of matrices that are gone: one sentence, not an attribute that is missing inside."""
    model = outer(randomly_sparse(Classifier(), 0.4))
    lasso = gw.GroupLasso(model, l1=0.1, group=0.1)
    model.inner = gw.compress(model.inner)
    for call in (lasso.penalty, lasso.step):
        with pytest.raises(ValueError, match=r"inner\.\w+\.weight.*: its shape is .* as after compress\(\)"):
            call()
    model.inner = nn.Identity()
    with pytest.raises(ValueError, match="was there when this GroupLasso was made, but is not any more"):
        lasso.step()


def test_a_posterior_from_before_the_cut_says_so() -> None:
    model = outer(Classifier())
    sparsifier = gw.Variational(model, n_train=10)
    whole = copy.deepcopy(model.inner)
    model.inner = gw.compress(whole.eval())
    for call in (sparsifier.penalty, sparsifier.step):
        with pytest.raises(RuntimeError, match=r"inner\.emb: is no longer variational but CompactEmbedding"):
            call()
    model.inner = whole
    model.inner.fc = gw.compress(nn.Sequential(nn.Linear(4, 2)))[0]
    with pytest.raises(RuntimeError, match=r"inner\.fc: is no longer variational but CompactLinear"):
        sparsifier.penalty()


def test_variational_takes_no_compact_layers() -> None:
    """Neither recurrent ones nor the others, whose matrices have lost rows that a posterior would need."""
    small = gw.compress(randomly_sparse(Classifier(), 0.4))
    with pytest.raises(ValueError, match=r"emb, rnn, fc: it is compact already, .* gatewise\.GroupLasso"):
        gw.Variational(small, n_train=10)
    with pytest.raises(ValueError, match=r"rnn: it is compact already"):
        gw.Variational(small, n_train=10, layers=["rnn"])
