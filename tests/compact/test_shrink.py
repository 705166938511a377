"""shrink: the network that trains gets smaller, and neither its function nor what its optimiser remembers changes."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from chains import CLOSE
from hypothesis import assume, given
from hypothesis import strategies as st
from networks import LanguageModel, answer, randomly_sparse
from sparse_networks import sparse_networks
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import gatewise as gw
from gatewise.nn.lookup import stored
from gatewise.readers.graph import find_blocks

OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "Adam": lambda ps: torch.optim.Adam(ps, amsgrad=True),
    "AdamW": lambda ps: torch.optim.AdamW(ps, weight_decay=0.1),
    "fused": lambda ps: torch.optim.Adam(ps, fused=True),
    "ASGD": lambda ps: torch.optim.ASGD(ps, t0=0.0),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, momentum=0.5, centered=True),
}


def pruned(cell: str = "LSTM", frozen: bool = True, width: int = 5, tied: bool = False) -> LanguageModel:
    """Neuron 0 of both layers is read by nobody, some gates have no weights; an LSTM trains one of its biases."""
    torch.manual_seed(0)
    model = LanguageModel(cell=cell, hidden=6, width=width, tied=tied)
    randomly_sparse(model, 0.6)
    with torch.no_grad():
        for layer in ("l0", "l1"):
            hh = getattr(model.rnn, f"weight_hh_{layer}")
            hh[:, 0] = 0
            for weight in (hh, getattr(model.rnn, f"weight_ih_{layer}")):
                weight[torch.arange(len(hh)) % 5 == 2] = 0
        model.rnn.weight_ih_l1[:, 0] = 0
        model.fc.weight[:, 0] = 0
    for name, bias in model.rnn.named_parameters():
        if cell == "LSTM" and frozen and name.startswith("bias_hh"):
            nn.init.zeros_(bias.requires_grad_(False))
    return model


def update(model: nn.Module, sparsifier: Any, optimizer: torch.optim.Optimizer, seed: int) -> float:
    words = torch.randint(7, (6, 3), generator=torch.Generator().manual_seed(seed))
    loss = nn.functional.cross_entropy(answer(model(words[:-1])).flatten(0, 1), words[1:].flatten())
    optimizer.zero_grad()
    (loss + sparsifier.penalty()).backward()
    optimizer.step()
    sparsifier.step()
    return loss.item()


def said(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Every tensor of the answer."""
    found: list[Tensor] = []

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, PackedSequence):
            found.append(value.data)
        else:
            for part in value or ():
                walk(part)

    walk(model(*inputs))
    return found


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@given(data=st.data())
def test_it_is_the_network_that_compress_makes(cell: str, data: Any) -> None:
    """compress() is exact; what shrink() leaves answers alike, and no matrix is larger than that of the other."""
    case = data.draw(sparse_networks(cell=cell, method="zeros"))
    assume(case.options["shape"] != "bare")  # a layer by itself has no place where another could be put
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of neurons that stay, as in every cut
        small = gw.compress(case.model)
        expected = said(small, case.inputs)
        gw.shrink(case.model)
        torch.testing.assert_close(said(case.model, case.inputs), expected, **CLOSE)
    for name in dict.fromkeys(block.module for block in find_blocks(small).values()):
        for ours, other in zip(*(m.get_submodule(name).parameters() for m in (case.model, small))):
            if getattr(case.model.get_submodule(name), "is_compact", False):
                assert ours.shape == other.shape


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("cell", "tied"), [("LSTM", False), ("GRU", False), ("LSTM", True)])
def test_no_moment_of_a_kept_weight_changes(cell: str, tied: bool, kind: str) -> None:
    """Where every moment is set to its own weight, it is that weight after the cut, too, wherever both have gone."""
    model = pruned(cell, width=6 if tied else 5, tied=tied)
    optimizer = OPTIMIZERS[kind]([p for p in model.parameters() if p.requires_grad])
    refit = gw.Refit(model)
    update(model, refit, optimizer, 0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if cell == "GRU" and name.startswith("rnn.bias_hh"):
                p[: 2 * len(p) // 3] = 0  # what is added to the first bias of r and u
            for key, value in optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    optimizer.state[p][key] = p.clone()
    steps = {float(state["step"]) for state in optimizer.state.values() if "step" in state}
    before = sum(p.numel() for p in model.parameters())
    gw.shrink(model, optimizer)
    gw.shrink(model, optimizer)  # and of a compact one
    assert sum(p.numel() for p in model.parameters()) < before
    assert (model.fc.weight is model.emb.weight) == tied
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in optimizer.state} == trained
    for p, state in optimizer.state.items():
        moments = [v for v in state.values() if isinstance(v, Tensor) and v.dim()]
        assert moments
        for moment in moments:
            torch.testing.assert_close(moment, p.detach(), rtol=0, atol=0)
        if steps:
            assert {float(state["step"])} == steps


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_it_trains_on_as_the_masked_network_does(cell: str, kind: str) -> None:
    """A masked network whose zeros are held is the oracle, loss by loss; without biases of which two become one."""
    masked = pruned(cell)
    if cell == "GRU":
        for name, p in masked.named_parameters():
            p.requires_grad_(not name.startswith("rnn.bias"))
    optimizer = OPTIMIZERS[kind]([p for p in masked.parameters() if p.requires_grad])
    refit = gw.Refit(masked)
    for seed in range(3):
        update(masked, refit, optimizer, seed)
    model, other = copy.deepcopy((masked, optimizer))
    left = gw.shrink(model, other)
    assert sum(int(own.keep_neurons.sum()) for own in left.recurrent().values()) < 12
    again = gw.Refit(model)
    for seed in range(3, 7):
        expected = update(masked, refit, optimizer, seed)
        assert update(model, again, other, seed) == pytest.approx(expected, rel=1e-4)


def test_a_sparsifier_goes_on_after_a_cut() -> None:
    """GroupLasso of what is left: it trains, sparsifies further, and is cut once more; a full circle."""
    model = pruned()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    counts = [sum(p.numel() for p in model.parameters())]
    for _ in range(2):
        lasso = gw.GroupLasso(model, l1=1e-3, group=0.002, threshold=0.02)
        for seed in range(30):
            update(model, lasso, optimizer, seed)
        report = gw.measure(model)
        gw.shrink(model, optimizer)
        assert gw.measure(model).gates == report.fixed_point.gates
        counts.append(sum(p.numel() for p in model.parameters()))
    assert counts[0] > counts[1] > counts[2]


def test_what_is_to_stay_stays() -> None:
    """keep= of before the weights went: nothing goes; and the structures' union is what either has."""
    model = pruned()
    whole = gw.Structure.from_weights(LanguageModel(hidden=6, width=5))
    shapes = [p.shape for p in model.parameters()]
    assert gw.shrink(model, keep=whole).recurrent()["rnn.l0"].keep_neurons.all()
    assert [p.shape for p in model.parameters()] == shapes
    gw.shrink(model)
    assert [p.shape for p in model.parameters()] != shapes


def test_what_is_whole_stays_as_it_is() -> None:
    """A layer of which nothing goes keeps its class, its parameters and the kernels of torch."""
    torch.manual_seed(0)
    model = LanguageModel(hidden=6, width=5)
    rnn, parameters = model.rnn, list(model.parameters())
    gw.shrink(model)
    assert model.rnn is rnn
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


def test_names_of_parameters_follow() -> None:
    """torch lets an optimiser know names; they are those of the parameters beside them."""
    model = pruned()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    gw.shrink(model, optimizer)
    (group,) = optimizer.param_groups
    assert group["param_names"] == [
        name for name, _ in model.named_parameters() if name in group["param_names"]
    ]
    assert all(
        model.get_parameter(n) is p for n, p in zip(group["param_names"], group["params"], strict=True)
    )


def adafactor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters())


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


@pytest.mark.parametrize("make", [adafactor, lbfgs])
def test_a_state_that_cannot_be_cut_is_refused_by_name(make: Any) -> None:
    """And nothing has happened then: neither to the model nor to the optimiser."""
    model = pruned(frozen=False)
    optimizer = make(model)
    if make is adafactor:
        update(model, gw.Refit(model), optimizer, 0)
    before, state = list(model.parameters()), optimizer.state_dict()
    with pytest.raises(ValueError, match=rf"(?i){make.__name__} .*cannot be cut.*Use one whose state"):
        gw.shrink(model, optimizer)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert optimizer.state_dict().keys() == state.keys()
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], before, strict=True))


def test_who_was_variational_is_cut_before_its_optimiser_is_made() -> None:
    """z_h goes into the columns then, and moments of before belong to other weights."""
    torch.manual_seed(0)
    model = LanguageModel(hidden=6, width=5)
    gw.Variational(model, n_train=100)
    with pytest.raises(ValueError, match=r"variational.*Make a gatewise\.Refit of it first"):
        gw.shrink(model)
    with torch.no_grad():
        model.rnn.neuron_scale_l0[:2] = 0
        model.fc.weight[:, 1] = 0
    refit = gw.Refit(model)
    optimizer = torch.optim.Adam(model.parameters())
    words = torch.randint(7, (6, 3))
    expected = answer(copy.deepcopy(model)(words))
    fresh = copy.deepcopy(model)
    gw.shrink(fresh, torch.optim.Adam(fresh.parameters()))
    torch.testing.assert_close(answer(fresh(words)), expected, **CLOSE)
    update(model, refit, optimizer, 0)
    with pytest.raises(ValueError, match=r"rnn: was variational.*right after gatewise\.Refit"):
        gw.shrink(model, optimizer)


def test_structures_from_before_a_cut_are_refused() -> None:
    """What is gone cannot be kept."""
    model = pruned()
    before = gw.Structure.from_weights(LanguageModel(hidden=6, width=5))
    gw.shrink(model)
    with pytest.raises(ValueError, match=r"keep= has \d+ of its rows or columns.*after the last cut"):
        gw.shrink(model, keep=before)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.LSTM(3, 4), "single layer and cannot be replaced in place"),
        (nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), gw.nn.GRU(3, 4)), "max_norm=1.0"),
    ],
)
def test_what_cannot_be_replaced(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw.shrink(model)


def test_stored_lines_ascend() -> None:
    """Lines are found among those of an earlier cut by bisection."""
    model = pruned("GRU")
    gw.shrink(model)
    for matrix in ("weight_ih_l0", "weight_hh_l1"):
        own = stored(model.rnn, matrix)
        assert all((line.diff() > 0).all() for line in (own.rows, own.columns))


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_every_form_is_the_same_after_a_cut(cell: str, tmp_path: Any) -> None:
    """Masked, shrunk, trained on, compressed, in the engine and from a file: one function before, one after."""
    model = pruned(cell).eval()
    words = torch.randint(7, (6, 3), generator=torch.Generator().manual_seed(0))
    expected = answer(model(words))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    gw.shrink(model, optimizer)
    torch.testing.assert_close(answer(model(words)), expected, **CLOSE)
    update(model.train(), gw.Refit(model), optimizer, 0)
    with torch.no_grad():
        expected = answer(model.eval()(words))
        assert not torch.allclose(expected, answer(pruned(cell)(words)))
        small = gw.compress(model)
        gw.save(model, tmp_path / "shrunk")
        loaded = gw.load(tmp_path / "shrunk", into=LanguageModel(cell=cell, hidden=6, width=5)).eval()
        for form in (small, loaded):
            torch.testing.assert_close(answer(form(words)), expected, **CLOSE)
        torch.testing.assert_close(gw.Engine(model)(words)[0], expected, **CLOSE)


@pytest.mark.parametrize(("cell", "frozen"), [("GRU", "bias_hh"), ("LSTM", "bias_hh"), ("LSTM", "bias_ih")])
def test_a_frozen_bias_stays_frozen(cell: str, frozen: str) -> None:
    """A GRU's b_hn, which r multiplies, trained again. Where a sum moves, it moves as its trained half did."""
    masked = pruned(cell, frozen=False)
    for name, p in masked.named_parameters():
        p.requires_grad_(not name.startswith(f"rnn.{frozen}"))
    small = copy.deepcopy(masked)
    gw.shrink(small)
    gw.shrink(small)  # of a compact layer, too
    for model in (masked, small):
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.5)
        refit = gw.Refit(model)
        for seed in range(5):
            update(model, refit, optimizer, seed)
    words = torch.arange(7)[:, None]
    torch.testing.assert_close(answer(small(words)), answer(masked(words)), **CLOSE)


def test_a_bias_that_would_be_half_frozen_is_refused() -> None:
    """Of a GRU's b_ih a part is added to b_hh and another is not: one parameter cannot be trained in part."""
    model = pruned("GRU")
    model.rnn.bias_ih_l1.requires_grad_(False)
    with pytest.raises(ValueError, match=r"rnn\.bias_ih_l1 is frozen and rnn\.bias_hh_l1 is not"):
        gw.shrink(model)
    small = gw.compress(model)
    assert not small.rnn.layers[1].bias.requires_grad
    assert small.rnn.layers[1].bias_gated.requires_grad
