"""Refit: what was removed stays removed, what is left trains as the compact network does."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from chains import CLOSE
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import CELLS, Classifier, LanguageModel, Net, answer, no_grad, randomly_sparse
from noisy import noisy
from sparse_networks import Case, sparse_networks
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import gatewise as gw
from gatewise.sparsify.layers import Posterior, is_variational

IDS = torch.randint(7, (5, 3), generator=torch.Generator().manual_seed(0))


def sparse(**options: Any) -> LanguageModel:
    """A pruned language model: neuron 0 of both layers is read by nobody, a few gates have no weights."""
    torch.manual_seed(0)
    model = LanguageModel(hidden=6, width=5, **options)
    randomly_sparse(model, 0.6)
    gates = model.rnn.weight_hh_l0.shape[0]
    with torch.no_grad():
        for weight in (
            model.rnn.weight_hh_l0,
            model.rnn.weight_ih_l1,
            model.rnn.weight_hh_l1,
            model.fc.weight,
        ):
            weight[:, 0] = 0
        for weight in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0):
            weight[torch.arange(gates) % 5 == 2] = 0
    return model


def trained(model: nn.Module, refit: gw.Refit, optimizer: Any, updates: int = 4, clip: float = 0.1) -> None:
    optimizer = optimizer(model.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(updates):
        words = torch.randint(7, (6, 3), generator=generator)
        loss = nn.functional.cross_entropy(answer(model(words[:-1])).flatten(0, 1), words[1:].flatten())
        optimizer.zero_grad()
        (loss + refit.penalty()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        refit.step()


def output(case: Case) -> Tensor:
    """Without states: those of removed neurons may differ."""
    return said(no_grad(case.model, *case.inputs))


def said(given: Any) -> Tensor:
    first = given[0] if isinstance(given, tuple) else given
    return first.data if isinstance(first, PackedSequence) else first


def sizes(report: gw.Report) -> dict[str, Any]:
    """Every count of what is left, as the paper has it and as a cut has it."""
    return {f"{how} {name}": n for how, one in (("one pass", report), ("cut", report.fixed_point))
            for kind in ("neurons", "gates") for name, n in getattr(one, kind).items()}  # fmt: skip


@pytest.mark.parametrize("levels", ["W", "W+N", "W+G+N"])
@settings(max_examples=20)
@given(data=st.data())
def test_a_variational_network_answers_as_before(levels: str, data: Any) -> None:
    """A refit begins with the network that was evaluated: only z is multiplied in another order; so it trains."""
    net = data.draw(sparse_networks(method=levels, between="none"))
    assume(not isinstance(net.model, Posterior))  # a layer alone cannot be replaced where it stands
    before = output(net)
    refit_or_dense(net.model, "weights")
    assert not is_variational(net.model)
    for training in (False, True):
        torch.testing.assert_close(
            output(Case(net.model.train(training), net.inputs, "", 0)), before, **CLOSE
        )


def refit_or_dense(model: nn.Module, hold: str) -> gw.Refit | None:
    """None where a drawn network has nothing to hold, or is a single layer, and that is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return gw.Refit(model, hold)
        except ValueError as error:
            if "nothing" in str(error) or "is a single layer" in str(error):
                return None
            raise


@pytest.mark.parametrize("hold", ["weights", "structure"])
@given(net=sparse_networks())
def test_nothing_that_was_removed_comes_back(hold: str, net: Case) -> None:
    """Whatever moves all weights at once; and what a cut leaves gives the same answers as the network before it."""
    if net.method == "prune":
        return
    refit = refit_or_dense(net.model, hold)
    if refit is None:
        return
    before = gw.measure(net.model)
    with torch.no_grad():
        for p in net.model.parameters():
            p += torch.randn_like(p)
    refit.step()
    after = gw.measure(net.model)
    assert all(n <= sizes(before)[name] for name, n in sizes(after).items())
    assert hold == "structure" or after.nonzero <= before.nonzero
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = gw.compress(net.model)
    torch.testing.assert_close(said(no_grad(small, *net.inputs)), output(net), **CLOSE)


@pytest.mark.parametrize("optimizer", [
    lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.9),
    lambda ps: torch.optim.AdamW(ps, lr=0.05, weight_decay=0.1),
])  # fmt: skip
@pytest.mark.parametrize("cell", CELLS)
def test_a_masked_network_trains_as_its_compact_one(cell: str, optimizer: Any) -> None:
    """Clipping and moments see what is left alone, so both take the same steps; the zeros of both are held."""
    model = sparse(cell=cell)
    small = gw.compress(model)
    zeros = {name: p == 0 for name, p in model.named_parameters() if p.dim() == 2}
    # Biases of gates that a compact layer stores once are two parameters here, and rows nobody reads are none there.
    for network in (model, small):
        for name, p in network.named_parameters():
            p.requires_grad_("bias" not in name)
    trained(model, gw.Refit(model), optimizer)
    trained(small, gw.Refit(small), optimizer)
    torch.testing.assert_close(answer(no_grad(small, IDS)), answer(no_grad(model, IDS)), **CLOSE)
    for name, p in model.named_parameters():
        assert name not in zeros or not p[zeros[name]].any()
    assert not torch.equal(sparse(cell=cell).fc.weight, model.fc.weight)


def test_held_weights_are_zero_after_any_step() -> None:
    """Also where an optimizer moves weights without a gradient."""
    model = sparse()
    refit = gw.Refit(model)
    with torch.no_grad():
        for p in model.parameters():
            p += 1
    refit.step()
    left = sparse()
    for (name, p), q in zip(model.named_parameters(), left.parameters()):
        assert torch.equal(p != 0, q != 0) or "bias" in name


def test_structure_fills_between_what_is_kept() -> None:
    """Every weight from a kept input to a live gate, and no other: as many as the compact layers have."""
    model = sparse()
    before, refit = gw.compress(model), gw.Refit(model, hold="structure")
    trained(model, refit, lambda ps: torch.optim.SGD(ps, lr=0.1), updates=2, clip=9.0)
    after = gw.compress(model)
    for (name, p), q in zip(after.named_parameters(), before.parameters()):
        assert p.shape == q.shape
        assert p.all() or "weight" not in name
    assert any(not q.all() for q in before.parameters())


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_what_was_cut_of_a_compact_network_stays_cut(cell: str) -> None:
    """A compact network may be cut once more; its zeros stand for removed neurons then, not for weights to fill."""
    small = gw.compress(sparse(cell=cell))
    budget = gw.Budget(gw.GroupLasso(small, group=0.01), neurons=5, steps=1)
    budget.step()
    before, refit = gw.compress(small), gw.Refit(small, hold="structure")
    trained(small, refit, lambda ps: torch.optim.SGD(ps, lr=0.1), updates=2, clip=9.0)
    after = gw.compress(small)
    assert sum(gw.measure(small).neurons.values()) == 5
    assert [p.shape for p in after.parameters()] == [p.shape for p in before.parameters()]
    assert all(p.all() for name, p in after.named_parameters() if "weight" in name)


def test_a_shared_matrix_fills_where_both_layers_let_it() -> None:
    """A word without a vector stays without one, though the softmax reads and writes its row."""
    torch.manual_seed(0)
    model = LanguageModel(hidden=4, width=4, tied=True)
    with torch.no_grad():
        model.emb.weight[2] = 0
        model.fc.weight[5, 1] = 0
        model.fc.weight[:, 3] = 0
    refit = gw.Refit(model, hold="structure")
    assert refit.held.keys() == {"emb.weight"}
    expected = torch.zeros(7, 4, dtype=torch.bool)
    expected[2] = expected[:, 3] = True
    assert torch.equal(refit.held["emb.weight"], expected)


def test_a_shared_matrix_with_variables_of_words_is_two() -> None:
    """z of the words belongs to the embedding alone; without them the matrix stays one."""
    for vocabulary, tied in (((), True), (["emb"], False)):
        torch.manual_seed(0)
        model = LanguageModel(hidden=4, width=4, tied=True).eval()
        noisy(model, vocabulary=vocabulary)
        before = answer(no_grad(model, IDS))
        gw.Refit(model)
        assert (model.emb.weight is model.fc.weight) == tied
        torch.testing.assert_close(answer(no_grad(model, IDS)), before, **CLOSE)


@pytest.mark.parametrize("method", ["lasso", "variational"])
def test_a_refit_goes_on_from_a_file(method: str) -> None:
    """Model and refit from their state_dicts take the steps that they would have taken."""
    ends = []
    for cut_off in (False, True):
        model = sparse()
        if method == "variational":
            noisy(model)
        refit = gw.Refit(model)
        trained(model, refit, lambda ps: torch.optim.SGD(ps, lr=0.1))
        if cut_off:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "refit": refit.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            model = LanguageModel(hidden=6, width=5)
            if method == "variational":
                gw.Variational(model, n_train=10)
            refit = gw.Refit(model, state=saved["refit"])
            model.load_state_dict(saved["model"])
        trained(model, refit, lambda ps: torch.optim.SGD(ps, lr=0.1))
        ends.append(model.state_dict())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


def test_a_state_of_another_model_is_refused() -> None:
    state = gw.Refit(sparse()).state_dict()
    with pytest.raises(ValueError, match=r"has the shape .* Build the model as it was"):
        gw.Refit(LanguageModel(hidden=5, width=5), state=state)
    with pytest.raises(ValueError, match=r"rnn\.weight_ih_l1: is no matrix of the model"):
        gw.Refit(
            LanguageModel(hidden=6, width=5, layers=1), state={"rnn.weight_ih_l1": torch.zeros(24, 6) > 0}
        )


def test_a_dense_model_is_refused() -> None:
    """There is nothing to hold; the row of padding was zero from the start, and a new posterior keeps all."""
    padded = Classifier()
    padded.emb = nn.Embedding(9, 3, padding_idx=0)
    noisy_one = Classifier()
    gw.Variational(noisy_one, n_train=10, log_sigma=-9.0)
    for model in (Classifier(), padded, noisy_one):
        with pytest.raises(ValueError, match=r"is dense, so there is nothing to hold: train it on"):
            gw.Refit(model)
    assert is_variational(noisy_one)  # nothing was changed before it was refused


def test_a_structure_that_holds_nothing_is_refused() -> None:
    model = Classifier()
    with torch.no_grad():
        model.rnn.weight_hh_l0[0, 0] = 0
    with pytest.raises(
        ValueError, match=r'no gate, neuron or input was removed, and 1 zero would.*hold="weights"'
    ):
        gw.Refit(model, hold="structure")
    with pytest.raises(ValueError, match="hold='gates' is not one of weights, structure"):
        gw.Refit(model, hold="gates")


def test_the_penalty_is_zero_and_joins_any_loop() -> None:
    refit = gw.Refit(sparse())
    penalty = refit.penalty()
    assert penalty == 0
    penalty.backward()
    with torch.no_grad():
        assert not refit.penalty().requires_grad


def test_the_variational_sparsifier_says_that_it_is_over() -> None:
    model = LanguageModel()
    sparsifier = noisy(model)
    gw.Refit(model)
    with pytest.raises(RuntimeError, match=r"is no longer variational but .*gatewise\.Refit"):
        sparsifier.penalty()


def test_a_refit_that_nobody_has_any_more_holds_nothing() -> None:
    """Its hooks stay at the parameters, and must not bind the next one."""
    model = sparse()
    first = gw.Refit(model)
    held = int(first.held["fc.weight"].sum())
    del first
    second = gw.Refit(model, hold="structure")
    assert int(second.held["fc.weight"].sum()) < held
    answer(model(IDS)).sum().backward()
    assert int((model.fc.weight.grad == 0).sum()) < held


def test_zeros_of_frozen_matrices_are_held_and_copies_are_free() -> None:
    """Whoever writes into a frozen matrix: what the refit holds is zero after a step, as what a budget holds is."""
    model = sparse()
    model.fc.weight.requires_grad_(False)
    zero, refit = model.fc.weight == 0, gw.Refit(model)
    with torch.no_grad():
        model.fc.weight += 1
    refit.step()
    assert torch.equal(model.fc.weight == 0, zero)
    twin = copy.deepcopy(model)
    torch.save(model, io.BytesIO())  # warns of hooks that it cannot write, if nobody told it
    answer(twin(IDS)).sum().backward()


@pytest.mark.parametrize("cell", CELLS)
def test_a_settled_network_is_saved(cell: str, tmp_path: Any) -> None:
    """Masked, with z_h beside the weights: the file gives the same answers."""
    torch.manual_seed(0)
    model = LanguageModel(cell=cell).eval()
    noisy(model)
    gw.Refit(model)
    gw.save(model, tmp_path / "model")
    again = gw.load(tmp_path / "model", into=LanguageModel(cell=cell)).eval()
    torch.testing.assert_close(answer(no_grad(again, IDS)), answer(no_grad(model, IDS)), rtol=0, atol=0)


def test_a_computed_weight_costs_its_layer_only() -> None:
    """What torch.nn.utils.prune made zero stays it anyway; the zeros of other layers are held as ever."""
    model = Net(lambda m, x: m.fc(m.b(m.a(x)[0])[0]), a=nn.GRU(2, 3), b=nn.GRU(3, 3), fc=nn.Linear(3, 2))
    nn.utils.prune.random_unstructured(model.a, "weight_hh_l0", amount=0.5)
    with torch.no_grad():
        model.fc.weight[0] = 0
    with pytest.warns(UserWarning, match=r"^a: its zeros are not held, because its weight_hh_l0 is computed"):
        refit = gw.Refit(model)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 2, 2)).square().sum().backward()
    optimizer.step()
    refit.step()
    assert list(refit.held) == ["fc.weight"]
    assert not model.fc.weight[0].any()
