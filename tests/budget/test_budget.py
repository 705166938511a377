"""Budgets: met on small problems however strong the penalty is, also from a file; refused where they cannot be."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE
from networks import LanguageModel, answer, no_grad
from torch import Tensor, nn

import gatewise as gw
from gatewise.budget.asked import MARK
from gatewise.budget.units import Layer, Units, strongest, strongest_of_layers
from gatewise.sparsify.posterior import kl, log_alpha

WORDS, STEPS = 8, 120


def text() -> Tensor:  # (T, B)
    """Each word follows from the two before it, most of the time."""
    generator = torch.Generator().manual_seed(0)
    after = torch.randint(WORDS, (WORDS, WORDS), generator=generator)
    words = [0, 1]
    for _ in range(1500):
        drawn = int(torch.randint(WORDS, (), generator=generator))
        words.append(int(after[words[-1], words[-2]]) if torch.rand((), generator=generator) < 0.9 else drawn)
    return torch.tensor(words[:1500]).view(6, 250).t()


TEXT = text()


def make(
    method: str, strength: float = 2e-3, levels: str = "W+G+N", n_train: int = 30_000, **budget: Any
) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    model = LanguageModel(WORDS, 8, 8, 2)
    sparsifier: Any
    if method == "lasso":
        group = 0.0 if levels == "W" else strength
        sparsifier = gw.GroupLasso(model, levels, l1=1e-5, group=group, threshold=1e-3)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
    else:
        sparsifier = gw.Variational(model, levels, n_train=n_train)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, sparsifier, optimizer, gw.Budget(sparsifier, **{"steps": STEPS} | budget)


def trained(
    model: Any, sparsifier: Any, optimizer: Any, budget: Any, first: int = 0, last: int = STEPS
) -> None:
    rate = 1.0 if isinstance(optimizer, torch.optim.SGD) else 0.02
    for k in range(first, last):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, 2 * (1 - k / STEPS))
        at = k * 10 % (len(TEXT) - 11)
        x, y = TEXT[at : at + 10], TEXT[at + 1 : at + 11]
        loss = nn.functional.cross_entropy(answer(model(x)).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        ((10 if rate == 1.0 else 1) * loss + sparsifier.penalty()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        sparsifier.step()
        budget.step()


def in_band(budget: gw.Budget) -> None:
    assert budget.met
    assert 0.95 * budget.reach <= budget.count()


@pytest.mark.parametrize("strength", [1e-5, pytest.param(5e-2, marks=pytest.mark.long), 0.3])
@pytest.mark.parametrize("wanted", [{"gates": 0.4}, {"neurons": 0.5}, {"weights": 0.6}, {"bytes": 0.6}])
def test_a_lasso_meets_its_budget(wanted: dict[str, float], strength: float) -> None:
    """From penalties that do nothing to those that would leave nothing; and what a cut leaves is the network."""
    model, *rest, budget = make("lasso", strength, **wanted)
    trained(model, *rest, budget)
    in_band(budget)
    report = gw.measure(model)
    said = {
        "gates": sum(report.gates.values()),
        "neurons": sum(report.neurons.values()),
        "weights": report.nonzero,
        "bytes": report.bytes,
    }
    assert said[budget.kind] == budget.count()
    assert str(budget).startswith(f"{budget.kind}: {budget.count():,} of ")
    with torch.no_grad():
        torch.testing.assert_close(answer(gw.compress(model)(TEXT)), answer(model(TEXT)), **CLOSE)


@pytest.mark.parametrize("wanted", [{"gates": 20}, {"neurons": 6}, {"weights": 200}, {"bytes": 1700}])
def test_a_variational_network_meets_its_budget(wanted: dict[str, int]) -> None:
    model, *rest, budget = make("bayes", **wanted)
    trained(model, *rest, budget)
    in_band(budget)
    with torch.no_grad():
        model.eval()
        torch.testing.assert_close(answer(gw.compress(model)(TEXT)), answer(model(TEXT)), **CLOSE)


@pytest.mark.parametrize("method", ["lasso", "bayes"])
def test_gates_that_go_with_their_neuron(method: str) -> None:
    """At W+N four at a time: as many neurons as fit."""
    model, *rest, budget = make(method, levels="W+N", gates=30)
    trained(model, *rest, budget)
    assert budget.count() == 28


def test_weights_alone() -> None:
    model, *rest, budget = make("lasso", levels="W", weights=0.3)
    trained(model, *rest, budget)
    in_band(budget)


def test_once_an_epoch_is_enough() -> None:
    """Then a few looks have to do."""
    model, sparsifier, optimizer, budget = make("lasso", steps=15, gates=0.4)
    idle = type("Idle", (), {"step": lambda self: None})()
    for epoch in range(15):
        trained(model, sparsifier, optimizer, idle, epoch * 10, epoch * 10 + 10)
        budget.step()
    in_band(budget)


def test_what_the_budget_lets_stay_is_not_shrunk_to_nothing() -> None:
    """The same penalty leaves fewer without a budget: 0.05 is far too strong for half of the gates."""
    model, sparsifier, optimizer, budget = make("lasso", 5e-2, gates=0.5)
    free = copy.deepcopy((model, sparsifier, optimizer))
    trained(model, sparsifier, optimizer, budget)
    without = gw.GroupLasso(free[0], l1=1e-5, group=5e-2, threshold=1e-3)
    idle = type("Idle", (), {"step": lambda self: None})()
    trained(free[0], without, torch.optim.SGD(free[0].parameters(), lr=1.0), idle)
    assert sum(gw.measure(free[0]).gates.values()) < budget.target == budget.count()


@pytest.mark.parametrize(("method", "wanted"), [
    ("lasso", {"gates": 0.4}), ("lasso", {"weights": 0.5}), ("bayes", {"neurons": 6}),
])  # fmt: skip
@pytest.mark.parametrize("cut", [pytest.param(4, marks=pytest.mark.long), 60, 100])
def test_a_budget_goes_on_from_a_file(method: str, wanted: dict[str, float], cut: int) -> None:
    """Before, in and after the time in which units have to go: to the bit."""
    whole = make(method, **wanted)
    torch.manual_seed(1)
    trained(*whole)
    first = make(method, **wanted)
    torch.manual_seed(1)
    trained(*first, 0, cut)
    noise = torch.get_rng_state()
    saved = copy.deepcopy([part.state_dict() for part in (first[0], first[2], first[3])])
    second = make(method, **wanted)
    for part, state in zip((second[0], second[2], second[3]), saved):
        part.load_state_dict(state)
    torch.set_rng_state(noise)
    trained(*second, cut, STEPS)
    torch.testing.assert_close(second[0].state_dict(), whole[0].state_dict(), rtol=0, atol=0)
    assert second[3].count() == whole[3].count()


def test_all_ranks_turn_alike() -> None:
    """What it does is a function of the weights and the number of calls: two copies need not talk."""
    ranks = [make("lasso", gates=0.4) for _ in range(2)]
    for rank, seed in zip(ranks, (1, 2)):
        torch.manual_seed(seed)  # as ranks have their own noise
        trained(*rank, 0, 60)
    assert torch.equal(ranks[0][1].plan.factors, ranks[1][1].plan.factors)
    assert len(ranks[0][1].plan.factors.unique()) > 1


def test_factors_of_groups_weigh_their_norms() -> None:
    """penalty = a l1 sum |w| + group sum_g f_g n_g, and its gradient, by autograd in float64."""
    torch.manual_seed(0)
    model = LanguageModel(7, 3, 4).double()
    lasso = gw.GroupLasso(model, l1=0.1, group=0.2)
    lasso.penalty()
    lasso.plan.factors.copy_(torch.rand(len(lasso.plan.factors)))
    lasso.plan.l1_factor.fill_(0.3)
    lasso.penalty().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    matrices = [model.get_parameter(name) for name in lasso.matrices]
    lines = [line for w in matrices for line in (w.square().sum(1), w.square().sum(0))]
    squares = torch.cat([*lines, torch.zeros(1)])[lasso.plan.groups].sum(1)
    expected = 0.03 * sum(w.abs().sum() for w in matrices)
    expected = expected + 0.2 * (lasso.plan.factors * (squares + 1e-8).sqrt()).sum()
    torch.testing.assert_close(lasso.penalty(), expected)
    expected.backward()
    for name, grad in found.items():
        torch.testing.assert_close(model.get_parameter(name).grad, grad)


def test_weights_of_variables_weigh_their_kl() -> None:
    """KL / n + sum (weight - 1) KL(z) / n; a variable at zero has no gradient that is NaN."""
    torch.manual_seed(0)
    model = LanguageModel(7, 3, 4)
    sparsifier = gw.Variational(model, n_train=10)
    before = sparsifier.penalty()
    gw.Budget(sparsifier, gates=0.5, steps=9)
    assert sparsifier.penalty() == before
    name = "rnn.gate_scale_l1"
    mean, log_sigma = model.get_parameter(name), model.get_parameter(name + "_log_sigma")
    with torch.no_grad():
        mean.uniform_(0.1, 2)
        mean[0, 0] = 0
    before = sparsifier.penalty()
    weight = sparsifier.kl_weights[name].uniform_(0, 3)
    more = (weight - 1) * kl(log_alpha(mean, log_sigma))
    torch.testing.assert_close(sparsifier.penalty(), before + more.sum() / 10)
    sparsifier.penalty().backward()
    assert mean.grad.isfinite().all()


def test_units_in_a_row() -> None:
    units = Units([Layer("a", 4, 2), Layer("b", 3, 5)])
    assert (units.n_gates, units.n_neurons) == (23, 7)
    gates = strongest(torch.arange(23.0), 3)
    kept = units.of_gates(gates)
    assert kept.neurons.nonzero().flatten().tolist() == [4, 5, 6]
    by_layer = units.by_layer(kept.gates, kept.neurons)
    assert by_layer["b"][0].tolist()[2] == [False, False, True, True, True]
    assert units.of_neurons(kept.neurons).gates.sum() == 9
    assert strongest(torch.ones(4), 2).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("wanted", "said"), [
    ({}, "Give one of gates, neurons, weights, bytes, not none"),
    ({"gates": 3, "bytes": 9}, "not gates and bytes"),
    ({"gates": 0}, r"gates=0: the network has 64; the budget must be 1 to that"),
    ({"gates": 65}, r"gates=65: the network has 64"),
    ({"gates": 1.5}, r"must be in \(0, 1\]; a number of gates is an int"),
    ({"gates": 0.001}, r"it is 0"),
    ({"gates": "many"}, "must be a number"),
    ({"weights": 40}, r"weights=40 cannot be met: 64 stay, of layers that the sparsifier does not reach"),
    ({"bytes": 30}, r"bytes=30 cannot be met: [\d,]+ stay, with one gate left of every layer"),
    ({"gates": 3, "levels": "W+N"}, r"gates=3 cannot be met: .* a neuron has its 4 gates or none"),
    ({"gates": 9, "steps": 0}, r"steps=0 must be how often"),
    ({"gates": 9, "begin": 0.7}, r"begin=0\.7, end=0\.6 are parts of the training"),
    ({"bytes": 9, "precision": "int4"}, "precision='int4' is not one of float32, int8"),
])  # fmt: skip
def test_budgets_that_cannot_be(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make("lasso", **wanted)


def test_levels_without_groups() -> None:
    for method in ("lasso", "bayes"):
        with pytest.raises(ValueError, match=r'levels="W" has no groups that could go as a whole'):
            make(method, levels="W", gates=0.5)


def test_only_sparsifiers_are_steered() -> None:
    model = LanguageModel()
    with torch.no_grad():
        model.fc.weight[0] = 0
    with pytest.raises(ValueError, match="not Refit"):
        gw.Budget(gw.Refit(model), gates=0.5, steps=3)  # type: ignore[arg-type]


def test_who_ends_elsewhere_is_told() -> None:
    """The KL of the weights alone may leave less than the budget allows: there is nothing to steer back."""
    model, *rest, budget = make("bayes", n_train=300, gates=64)
    with pytest.warns(
        UserWarning, match=r"The budget was 64 gates, and \d+ are left\. More went than had to"
    ):
        trained(model, *rest, budget)


def test_int8_takes_fewer_bytes() -> None:
    small, large = (make("lasso", bytes=0.5, precision=p)[3] for p in ("int8", "float32"))
    assert small.all < 0.6 * large.all


def test_looking_changes_no_answer() -> None:
    """Until the choice is final only the penalty is turned."""
    model, _, _, budget = make("lasso", gates=0.4)
    before = answer(no_grad(model, TEXT))
    for _ in range(int(0.5 * STEPS)):
        budget.step()
    torch.testing.assert_close(answer(no_grad(model, TEXT)), before, rtol=0, atol=0)


def test_a_compact_network_gets_smaller() -> None:
    """Its gates are those that an earlier cut left, and fewer of them stay."""
    torch.manual_seed(0)
    model = LanguageModel(WORDS, 8, 8, 2)
    with torch.no_grad():
        for matrix in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0):
            matrix[:10] = 0
    small = gw.compress(model)
    lasso = gw.GroupLasso(small, l1=1e-5, group=2e-3, threshold=1e-3)
    budget = gw.Budget(lasso, gates=0.5, steps=STEPS)
    assert budget.all == 54
    trained(small, lasso, torch.optim.SGD(small.parameters(), lr=1.0), budget)
    assert budget.count() == budget.target == 27
    with torch.no_grad():
        torch.testing.assert_close(answer(gw.compress(small)(TEXT)), answer(small(TEXT)), **CLOSE)


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ("W+G+N", {"gates": 16}),
        ("W+N", {"neurons": 6}),
        ("W+G+N", {"bytes": 0.7}),
        ("W+G+N", {"weights": 0.4}),
        ("W", {"weights": 0.4}),
    ],
)
def test_a_budget_follows_a_cut(levels: str, wanted: dict[str, Any]) -> None:
    """It is one of the whole network, met by what a cut in between left; who stayed is pushed as before."""
    model, sparsifier, optimizer, budget = make("lasso", levels=levels, **wanted)
    trained(model, sparsifier, optimizer, budget, last=90)
    before = dict(zip(sparsifier.there.nonzero().flatten().tolist(), sparsifier.plan.factors.tolist()))
    numbers = sum(p.numel() for p in model.parameters())
    gw.shrink(model, optimizer)
    if levels != "W":
        assert sum(p.numel() for p in model.parameters()) < numbers
    again = gw.GroupLasso(model, levels, l1=1e-5, group=sparsifier.group, threshold=1e-3)
    budget.follow(again)
    after = dict(zip(again.there.nonzero().flatten().tolist(), again.plan.factors.tolist()))
    assert after == {unit: before[unit] for unit in after}
    trained(model, again, optimizer, budget, first=90)  # would warn if it were not met
    (asked,) = wanted.values()
    assert budget.to_dict()["budget"] == (asked if isinstance(asked, int) else int(asked * budget.all))


def test_only_the_same_groups_can_be_followed() -> None:
    model, sparsifier, _, budget = make("lasso", gates=16)
    with pytest.raises(ValueError, match="other layers or levels"):
        budget.follow(gw.GroupLasso(model, "W+N", group=1e-3))
    model, _, _, budget = make("bayes", gates=16)
    with pytest.raises(ValueError, match="Only a budget of a GroupLasso"):
        budget.follow(sparsifier)


class Handed(nn.Module):
    """An encoder whose last state starts a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = (nn.GRU(5, 8, batch_first=True) for _ in range(2))
        self.fc = nn.Linear(8, 40)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(self.decoder(y, self.encoder(x)[1])[0])


@pytest.mark.parametrize("neurons", [2, 5, 9, 13, 15])
@pytest.mark.parametrize("levels", ["W+N", "W+G+N"])
def test_neurons_that_start_others_are_counted_with_them(levels: str, neurons: int) -> None:
    """Where a decoder starts from its encoder's state, neuron j keeps the encoder's: forgotten, too many stayed."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = Handed()
        budget = gw.Budget(gw.GroupLasso(model, levels, l1=1.0, group=1.0), neurons=neurons, steps=1)
        budget.step()
        assert budget.count() == sum(gw.measure(model).neurons.values())
        assert neurons - 1 <= budget.count() <= neurons


@pytest.mark.parametrize(("levels", "stay"), [("W+N", "neuron"), ("W+G+N", "gate")])
def test_bytes_that_cannot_be_met_are_refused_before_the_training(levels: str, stay: str) -> None:
    """A decoder's last gate keeps a neuron of its encoder: that much stays, and one byte more is met."""
    lasso = gw.GroupLasso(Handed(), levels, l1=1.0, group=1.0)
    with pytest.raises(ValueError, match=f"with one {stay} left of every layer") as refused:
        gw.Budget(lasso, bytes=1, steps=1)
    least = int(str(refused.value).split("met: ")[1].split(" stay")[0].replace(",", ""))
    budget = gw.Budget(lasso, bytes=least + 1, steps=1)
    with pytest.warns(UserWarning, match=f"With one {stay} more there would be more than that"):
        budget.step()
    assert budget.count() <= least + 1


@pytest.mark.parametrize("wanted", [{"bytes": 0.6}, {"gates": 12}, {"weights": 0.4}, {"neurons": 9}])
def test_with_adam_what_has_gone_stays_away_between_two_looks(wanted: dict[str, Any]) -> None:
    """Adam moves a zero by its whole rate: put back at looks alone, the network would never learn to do without."""
    torch.manual_seed(0)
    model = Handed()
    lasso = gw.GroupLasso(model, l1=1e-6, group=1e-4)
    budget = gw.Budget(lasso, steps=400, precision="int8" if "bytes" in wanted else "float32", **wanted)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 4, 5), torch.randn(16, 3, 5)
    target, left = torch.randint(40, (16, 3)), []
    for step in range(400):
        loss = nn.functional.cross_entropy(model(x, y).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        (loss + lasso.penalty()).backward()
        optimizer.step()
        lasso.step()
        budget.step()
        left += [budget.count()] if step > 300 else []
    assert max(left) <= 1.05 * budget.target
    in_band(budget)
    gates = gw.measure(model).gates
    assert min(gates.values()) > 0, "a layer without a gate reads nothing"


def test_every_layer_keeps_a_share() -> None:
    """Half of an even one, however weak it looks; the rest goes to the strongest."""
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3, 9.0, 8.0, 7.0, 6.0])
    assert strongest_of_layers(scores, 4, [4, 4], 0.5).nonzero().flatten().tolist() == [1, 4, 5, 6]
    assert torch.equal(strongest_of_layers(scores, 4, [4, 4], 0.0), strongest(scores, 4))


def test_numbers_of_numpy_are_numbers() -> None:
    """Counts often come out of an array."""
    budget = make("lasso", gates=np.int64(12), steps=np.int32(5))[3]
    assert (budget.target, budget.steps) == (12, 5)
    assert make("lasso", gates=np.float32(0.5))[3].target == 32
    with pytest.raises(ValueError, match="must be a number"):
        make("lasso", gates=np.bool_(True))


def test_bytes_that_end_below_the_band_are_told() -> None:
    """A part of what may be left is gone for nothing: lighter weights, or a unit that would be too large."""
    model, *rest, budget = make("bayes", n_train=300, bytes=0.7)
    with pytest.warns(UserWarning, match=r"The budget was 3,934 bytes, and .* More went than had to"):
        trained(model, *rest, budget)
    model, *rest, budget = make("bayes", bytes=1200)
    with pytest.warns(UserWarning, match=r"The budget was 1,200 bytes, and 5\d\d are left"):
        trained(model, *rest, budget)
    assert budget.met


def unmet(kind: str) -> Any:
    return pytest.warns(
        UserWarning, match=rf"The budget of LanguageModel is [\d,]+ {kind}, and it has [\d,]+\. A"
    )


@pytest.mark.parametrize("carried", [
    lambda model: model, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)),
])  # fmt: skip
@pytest.mark.parametrize(("method", "kind"), [("lasso", "gates"), ("bayes", "neurons"), ("lasso", "bytes")])
def test_compress_says_that_a_budget_is_not_met(method: str, kind: str, carried: Any) -> None:
    """Early stopping and the best checkpoint undo a budget: both leave a model of before it was met."""
    model, *rest, budget = make(method, **{kind: 0.5})
    trained(model, *rest, budget, last=30)
    early = copy.deepcopy(model.state_dict())
    assert not budget.met
    with unmet(kind):
        gw.compress(carried(model))
    trained(model, *rest, budget, first=30)
    assert budget.met
    gw.compress(carried(model))
    model.load_state_dict(early)
    with unmet(kind):
        gw.compress(carried(model))


def test_a_model_with_a_budget_is_still_one_of_torch_alone() -> None:
    """What compress() goes by is pickled with the model, and must not ask for gatewise where that is loaded."""
    model = make("lasso", gates=0.5)[0]
    mark = vars(model)[MARK]
    assert b"gatewise" not in pickle.dumps(mark)
    assert mark["target"] == 32


def test_no_count_is_stale() -> None:
    """Told to step before the optimizer, it said 12 gates of a network that had all of them again."""
    model, _, _, budget = make("lasso", gates=12, steps=1)
    budget.step()
    assert str(budget).startswith("gates: 12 of 64, budget 12")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1e-2)
    assert str(budget).startswith("gates: 64 of 64, budget 12")
    assert budget.to_dict()["left"] == 64
    assert "12 of 64: step 1 of 1>" in repr(budget)
    assert not budget.met


def test_what_a_sparsifier_was_made_with_cannot_be_set() -> None:
    """`sparsifier.group = 1.0` was shown, and ignored."""
    _, lasso, _, budget = make("lasso", gates=12)
    _, bayes, _, _ = make("bayes", gates=12)
    with torch.no_grad():
        lasso.model.fc.weight[0] = 0
    refit = gw.Refit(lasso.model)
    for made, name in (
        (lasso, "group"), (lasso, "l1"), (lasso, "levels"), (lasso, "lam"), (bayes, "n_train"), (bayes, "kl"),
        (budget, "target"), (budget, "gates"), (budget, "steps"), (refit, "hold"),
    ):  # fmt: skip
        with pytest.raises(
            AttributeError, match=rf"{type(made).__name__}\.{name} cannot be set: .* Make another"
        ):
            setattr(made, name, 1.0)
    copy.deepcopy((lasso, bayes, budget, refit))


@pytest.mark.parametrize("part", [0.5, 0.1])
def test_a_shared_matrix_is_counted_once(part: float) -> None:
    """It was taken for one more that the sparsifier does not reach, by its other name: so many too few were left."""
    torch.manual_seed(0)
    model = LanguageModel(hidden=4, width=4, tied=True)
    budget = gw.Budget(gw.GroupLasso(model, group=1e-3), weights=part, steps=1)
    budget.step()
    assert 0.95 * budget.target <= budget.count() <= budget.target
