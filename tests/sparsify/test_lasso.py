"""Group lasso: the penalty and its gradient against a double loop over groups, and what step() does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from contract import SparsifierContract
from hypothesis import given
from hypothesis import strategies as st
from networks import Classifier, LanguageModel, Net, parameter, randomly_sparse, tagger, twin
from torch import Tensor, nn

import gatewise as gw
from gatewise.nn.lookup import cell_of
from gatewise.readers import find_readers


class TestContract(SparsifierContract):
    def make(self, model: nn.Module, **options: Any) -> Any:
        levels = options.get("levels", "W+G+N")
        return gw.GroupLasso(model, **{"l1": 1e-3, "group": 0.0 if levels == "W" else 1e-2} | options)

    def test_a_layer_without_known_readers_has_no_groups_of_neurons(self) -> None:
        """One layer must not cost the model: its gates go all the same, and one warning says why no neuron does."""
        model = Net(
            lambda m, x: m.fc(m.norm(m.b(m.a(x)[0])[0])),
            a=nn.LSTM(2, 3),
            b=nn.LSTM(3, 4),
            norm=nn.LayerNorm(4),
            fc=nn.Linear(4, 2),
        )
        with pytest.warns(
            UserWarning,
            match=r"^b\.l0: neurons stay, because layer_norm\(\) may mix its channels \(test_lasso\.py, line \d+, .*"
            r'weights and gates are .*State their readers if you know them: readers={"b": \[\.\.\.\]}\.$',
        ) as said:
            lasso = self.make(model)
        assert len(said) == 1
        assert (
            lasso.there.tolist() == [True] * (12 + 3 + 16) + [False] * 4
        )  # gates and neurons of a, then of b
        self.make(model, readers={"b": ["fc"]})


def naive_penalty(
    model: nn.Module, levels: str, l1: float, group: float, scope: list[str], readers: Any
) -> Tensor:
    """Every group written out weight by weight, on the model's own parameters."""
    total = l1 * sum(parameter(model, name).abs().sum() for name in scope)
    if levels == "W":
        return torch.as_tensor(total)
    graph = find_readers(model, readers)
    for block in graph.blocks.values():
        if block.place is None:
            continue
        module = model.get_submodule(block.module)
        cell = cell_of(module)
        assert cell is not None
        end = "" if isinstance(module, nn.RNNCellBase) else "_" + block.name.rpartition(".")[2]
        w_ih, w_hh = getattr(module, "weight_ih" + end), getattr(module, "weight_hh" + end)
        for j in range(block.width):
            rows = [k * block.width + j for k in range(cell.n_gates)]
            gates = [[*w_ih[row], *w_hh[row]] for row in rows]
            columns: list[Tensor] = []
            for read in graph.reads_of(block.name):
                if read.unit <= j < read.unit + read.width:
                    columns += parameter(model, read.matrix)[:, read.column + j - read.unit]
            neuron = columns if levels == "W+G+N" else [*columns, *(w for gate in gates for w in gate)]
            for weights in [*(gates if levels == "W+G+N" else []), neuron]:
                total = total + group * (torch.stack(weights).square().sum() + 1e-8).sqrt()
    return torch.as_tensor(total)


def cell_model(kind: type[nn.Module]) -> nn.Module:
    return Net(lambda m, x: x, rnn=kind(3, 4), fc=nn.Linear(4, 2))


MODELS = {
    "LSTM": lambda: LanguageModel(),
    "GRU": lambda: LanguageModel(cell="GRU"),
    "bidirectional": lambda: LanguageModel(bidirectional=True),
    "tied": lambda: LanguageModel(width=4, tied=True),
    "LSTMCell": lambda: cell_model(nn.LSTMCell),
    "GRUCell": lambda: cell_model(nn.GRUCell),
    "H = 1": lambda: LanguageModel(width=1, hidden=1, layers=1),
}


drawn = given(
    name=st.sampled_from(sorted(MODELS)),
    levels=st.sampled_from(["W", "W+N", "W+G+N"]),
    density=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 2**20),
)


def drawn_lasso(
    name: str, levels: str, density: float, seed: int
) -> tuple[nn.Module, gw.GroupLasso, Callable[[list[str]], Tensor]]:
    """A model, its lasso, and the penalty of some of its matrices by a double loop."""
    torch.manual_seed(seed)
    model = randomly_sparse(MODELS[name]().double(), density)
    readers = {"rnn": ["fc"]} if "Cell" in name else None
    l1, group = 0.3, 0.0 if levels == "W" else 0.7
    lasso = gw.GroupLasso(model, levels, l1=l1, group=group, readers=readers)
    return model, lasso, lambda scope: naive_penalty(model, levels, l1, group, scope, readers)


@drawn
def test_penalty_and_gradient_against_a_double_loop(
    name: str, levels: str, density: float, seed: int
) -> None:
    """Two passes over the matrices give the same number and slopes as writing out every group."""
    model, lasso, naive = drawn_lasso(name, levels, density, seed)
    scope = [n for n, p in model.named_parameters() if p.dim() == 2 and (n != "emb.weight" or name == "tied")]
    expected = naive(scope)
    slopes = torch.autograd.grad(2 * expected, [parameter(model, n) for n in scope])
    (2 * lasso.penalty()).backward()
    torch.testing.assert_close(lasso.penalty(), expected)
    torch.testing.assert_close([parameter(model, n).grad for n in scope], list(slopes))
    assert all(p.grad is None for n, p in model.named_parameters() if n not in scope)


@drawn
def test_backward_adds_the_gradient_of_the_double_loop(
    name: str, levels: str, density: float, seed: int
) -> None:
    """To gradients that are there, in place, and where there is none; frozen matrices count, but get none."""
    model, lasso, naive = drawn_lasso(name, levels, density, seed)
    expected = naive(list(lasso.matrices))
    reached = [parameter(model, n) for n in lasso.matrices]
    slopes = torch.autograd.grad(expected, reached)
    *added, new, frozen = reached
    before = [torch.randn_like(p) for p in added]
    for p, grad in zip(added, before):
        p.grad = grad.clone()
    places = [p.grad.data_ptr() for p in added]
    frozen.requires_grad_(False)
    torch.testing.assert_close(lasso.backward(), expected.detach())
    torch.testing.assert_close([p.grad for p in added], [b + s for b, s in zip(before, slopes)])
    torch.testing.assert_close(new.grad, slopes[-2])
    assert frozen.grad is None
    assert [p.grad.data_ptr() for p in added] == places


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_backward_is_that_of_the_penalty(dtype: torch.dtype) -> None:
    """With sparse gradients and in 16 bits, too, which cannot be added to in place."""
    torch.manual_seed(0)
    both = []
    for in_place in (True, False):
        model = Classifier(words=5)
        model.emb.sparse = True
        lasso = gw.GroupLasso(model.to(dtype), group=0.1, l1_layers=["rnn", "fc", "emb"])
        model.load_state_dict(both[0].state_dict() if both else model.state_dict())
        loss = model(torch.tensor([[0, 1, 1]])).square().sum()
        (loss if in_place else loss + lasso.penalty()).backward()
        if in_place:
            lasso.backward()
        both.append(model)
    for a, b in zip(both[0].parameters(), both[1].parameters()):
        torch.testing.assert_close(a.grad.to_dense(), b.grad.to_dense())


def test_the_formula_in_the_docstring() -> None:
    """One neuron, one input, no readers but itself and one weight: all groups by hand."""
    model = Classifier(words=2, width=1, hidden=1)
    for p in model.parameters():
        nn.init.constant_(p, 2.0)
    lasso = gw.GroupLasso(model, l1=0.1, group=1.0)
    gates, neuron = 4 * (4.0 + 4.0) ** 0.5, (4 * 4.0 + 2 * 4.0) ** 0.5
    torch.testing.assert_close(lasso.penalty(), torch.tensor(0.1 * 2 * (4 + 4 + 2) + gates + neuron))


def test_step_zeroes_what_is_below_the_threshold() -> None:
    """|w| < threshold goes, |w| = threshold stays; biases and the embedding are out of scope."""
    model = Classifier()
    lasso = gw.GroupLasso(model, group=1e-3, threshold=0.1)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.09)
        model.rnn.weight_ih_l0[0] = -0.1
        model.rnn.weight_ih_l0[1] = 0.1
        model.rnn.weight_ih_l0[2] = -0.0999
    lasso.step()
    assert model.rnn.weight_ih_l0[:3, 0].tolist() == [pytest.approx(-0.1), pytest.approx(0.1), 0]
    assert not model.rnn.weight_hh_l0.any()
    assert not model.fc.weight.any()
    for untouched in (model.emb.weight, model.rnn.bias_ih_l0, model.fc.bias):
        assert untouched.all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_threshold_itself_stays_in_every_precision(dtype: torch.dtype) -> None:
    model = Classifier().to(dtype)
    lasso = gw.GroupLasso(model, group=1e-3, threshold=1e-4)
    bound = torch.tensor(1e-4, dtype=dtype)
    with torch.no_grad():
        model.fc.weight[0, 0], model.fc.weight[0, 1] = bound, torch.nextafter(bound, torch.zeros_like(bound))
    lasso.step()
    assert model.fc.weight[0, 0] == bound
    assert model.fc.weight[0, 1] == 0


def test_zeroed_weights_may_grow_again() -> None:
    """No mask is kept: the next update starts from zero like from any other value."""
    model = Classifier()
    lasso = gw.GroupLasso(model, group=1e-3, threshold=10.0)
    lasso.step()
    assert not model.fc.weight.any()
    with torch.no_grad():
        model.fc.weight += 20
    lasso.step()
    assert model.fc.weight.all()


def scope_of(model: nn.Module, **options: Any) -> tuple[set[str], set[str]]:
    """Parameters with L1, and all parameters that the penalty reaches, by the size of its slopes."""
    model.zero_grad()
    gw.GroupLasso(model, l1=1.0, group=1e-3, **options).penalty().backward()
    slopes = {name: p.grad.abs().max() for name, p in model.named_parameters() if p.grad is not None}
    return {name for name, slope in slopes.items() if slope > 0.5}, {
        n for n, slope in slopes.items() if slope > 0
    }


def test_averaged_weights_get_one_more_step() -> None:
    """The average of weights that were sometimes zero is not: one step() on it leaves nothing below the threshold."""
    torch.manual_seed(0)
    model = LanguageModel()
    lasso = gw.GroupLasso(model, l1=1e-2, group=1e-2, threshold=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(20):
        words = torch.randint(7, (5, 3))
        loss = nn.functional.cross_entropy(model(words)[0].flatten(0, 1), words.flatten()) + lasso.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lasso.step()
        average.update_parameters(model)

    def small() -> int:
        matrices = [parameter(model, name).detach().abs() for name in lasso.matrices]
        return sum(int(((w > 0) & (w < 0.1)).sum()) for w in matrices)

    model.load_state_dict(average.module.state_dict())
    assert small() > 10
    lasso.step()
    assert small() == 0


def test_scope_can_be_set() -> None:
    """l1_layers= says whose matrices get L1; groups follow layers=; the embedding is in neither by default."""
    model = Net(
        lambda m, x: m.fc(m.b(m.a(m.emb(x))[0])[0]),
        emb=nn.Embedding(5, 3), a=nn.LSTM(3, 4), b=nn.GRU(4, 4), fc=nn.Linear(4, 5),
    )  # fmt: skip
    a, b, fc = {"a.weight_ih_l0", "a.weight_hh_l0"}, {"b.weight_ih_l0", "b.weight_hh_l0"}, {"fc.weight"}
    assert scope_of(model) == (a | b | fc, a | b | fc)
    assert scope_of(model, layers=["b"]) == (b | fc, b | fc)
    assert scope_of(model, layers=["a"], l1_layers=["emb"]) == (
        {"emb.weight"},
        {"emb.weight", "b.weight_ih_l0"} | a,
    )


def test_a_scope_that_is_not_known_is_said() -> None:
    """L1 is promised to the Linear layers that read the recurrent ones; where these are not known, fc has none."""
    model = Net(
        lambda m, x: m.fc(m.norm(m.rnn(x)[0])), rnn=nn.LSTM(2, 3), norm=nn.LayerNorm(3), fc=nn.Linear(3, 2)
    )
    with pytest.warns(
        UserWarning,
        match=r"^fc may read rnn\.l0: no L1 is put there without l1_layers=\[\.\.\.\]\. State their readers",
    ):
        assert "fc.weight" not in gw.GroupLasso(model, "W").matrices
    # Both ways out are silent, and so is a model whose answer contains the neurons, with every Linear in scope.
    assert "fc.weight" in gw.GroupLasso(model, "W", l1_layers=["rnn", "fc"]).matrices
    assert "fc.weight" in gw.GroupLasso(model, "W", readers={"rnn": ["fc"]}).matrices
    shown = Net(
        lambda m, x: (lambda out: (m.fc(out), out))(m.rnn(x)[0]), rnn=nn.LSTM(2, 3), fc=nn.Linear(3, 2)
    )
    assert "fc.weight" in gw.GroupLasso(shown, "W").matrices


@pytest.mark.parametrize(("levels", "kept"), [("W", 18), ("W+N", 0), ("W+G+N", 0)])
def test_the_threshold_covers_what_the_penalty_reaches(levels: str, kept: int) -> None:
    """A reader without L1 is thresholded with the groups it belongs to, else no neuron would ever go; not at W."""
    model = Classifier(hidden=9)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(5e-5)
    gw.GroupLasso(model, levels, group=0.0 if levels == "W" else 1e-3, l1_layers=["rnn"]).step()
    assert model.fc.weight.count_nonzero() == kept
    assert model.emb.weight.all()
    assert not model.rnn.weight_hh_l0.any()


@pytest.mark.filterwarnings("ignore:rnn.l0, rnn.l1. for the last 100 of")
def test_a_large_penalty_removes_everything_it_reaches() -> None:
    """Plain gradient steps with the threshold reach exact zeros."""
    model = LanguageModel()
    lasso = gw.GroupLasso(model, l1=1e-3, group=0.05, threshold=1e-2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        lasso.penalty().backward()
        optimizer.step()
        lasso.step()
    assert gw.measure(model).neurons == {"rnn.l0": 0, "rnn.l1": 0}
    assert model.emb.weight.abs().min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": "W", "group": 0.1}, "has no groups"),
        ({"levels": "W+N", "group": 0.0}, "needs group > 0"),
        ({"l1": -1.0, "group": 0.1}, "l1=-1.0 must not be negative"),
        ({"group": float("nan")}, "group=nan must be a finite number"),
        ({"group": float("inf")}, "group=inf must be a finite number"),
        ({"group": 0.1, "threshold": float("inf")}, "threshold=inf must be a finite number"),
        ({"group": 0.1, "l1": "1e-5"}, "l1='1e-5' must be a number, not of type str"),
        ({"group": 0.1, "layers": []}, r"layers=\[\] names no layer"),
        ({"group": 0.1, "l1_layers": []}, r"l1_layers=\[\] names no layer"),
        ({"group": 0.1, "layers": ["emb"]}, "layers: 'emb' is of type Embedding, .* there are rnn"),
        ({"group": 0.1, "threshold": -1e-4}, "threshold=-0.0001"),
        ({"group": 0.1, "l1_layers": ["nobody"]}, "l1_layers: 'nobody'"),
        ({"group": 0.1, "readers": {"rnn": ["nobody"]}}, "'nobody'"),
    ],
)
def test_errors_name_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw.GroupLasso(Classifier(), **options)


def test_a_variational_model_is_refused() -> None:
    """A threshold on means would work against theirs, and noise would stay where a mean is zero."""
    model = Classifier()
    gw.Variational(model, n_train=3)
    with pytest.raises(ValueError, match=r"variational.*has not converted"):
        gw.GroupLasso(model, group=0.1)


def test_a_bare_layer_has_no_groups_of_neurons() -> None:
    """Its output is the answer, and nobody in it could be stated as a reader."""
    with pytest.warns(
        UserWarning, match=r"^l0: neurons stay, because it is the whole model.*are sparsified\.$"
    ):
        lasso = gw.GroupLasso(nn.LSTM(3, 4))
    assert int(lasso.there.sum()) == 16
    with pytest.raises(ValueError, match=r"'rnn' is not a layer of the model; there are ''"):
        gw.GroupLasso(nn.LSTM(3, 4), "W", layers=["rnn"])
    gw.GroupLasso(nn.LSTM(3, 4), "W")


def test_a_projection_alone_leaves_nothing_to_sparsify() -> None:
    """Only a model without any LSTM or GRU that could be sparsified is refused, with the reason."""
    alone = Net(lambda m, x: m.fc(m.odd(x)[0]), odd=nn.LSTM(3, 5, proj_size=4), fc=nn.Linear(4, 2))
    with pytest.raises(
        ValueError, match=r"no LSTM or GRU layer to sparsify\. odd: proj_size=4 .*a Linear after it\.$"
    ):
        gw.GroupLasso(alone)


@pytest.mark.parametrize("levels", ["W+N", "W+G+N"])
def test_a_forward_that_cannot_be_followed_costs_neurons_only(levels: str) -> None:
    """Whatever the recorder runs into, and torch raises under it, training goes on; masked and compact agree."""

    def forward(m: Any, x: Any) -> Any:
        kept = [row for row in m.rnn(x)[0].unbind(0) if float(row.detach().numpy().sum()) < 1e9]
        return m.fc(torch.stack(kept))

    model = Net(forward, rnn=nn.LSTM(2, 3), fc=nn.Linear(3, 2))
    x = torch.randn(5, 2, 2)
    with pytest.warns(
        UserWarning, match=r"^rnn\.l0: neurons stay, because forward\(\) could not be traced .*line"
    ) as said:
        lasso = gw.GroupLasso(model, levels, group=30.0, l1=0.0, update="proximal")
    assert len(said) == 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(60):
        optimizer.zero_grad()
        (model(x).square().mean() + lasso.penalty()).backward()
        optimizer.step()
        lasso.step(optimizer)
    report = gw.measure(model)
    assert report.neurons == {"rnn.l0": 3}
    assert (report.gates["rnn.l0"] == 0) == (levels == "W+G+N")
    kept = pytest.warns(UserWarning, match=r"^rnn\.l0 keeps 3 neurons .*could not be traced")
    with kept if levels == "W+G+N" else nullcontext():
        small = gw.compress(model)
    torch.testing.assert_close(small(x), model(x))


def test_budgets_count_what_can_go() -> None:
    """Of b no neuron can: a budget of neurons is one of a's, a budget of gates one of both layers'."""
    model = Net(
        lambda m, x: (lambda y: (m.fc(y), y))(m.b(m.a(x)[0])[0]),
        a=nn.GRU(2, 6),
        b=nn.GRU(6, 4),
        fc=nn.Linear(4, 2),
    )
    with pytest.warns(
        UserWarning, match=r"b\.l0: neurons stay, because forward\(\) returns it .*are sparsified\.$"
    ):
        lasso = gw.GroupLasso(model)
    budget = gw.Budget(lasso, neurons=0.5, steps=1)
    assert (budget.all, budget.target) == (6, 3)
    budget.step()
    assert budget.met
    assert gw.measure(model).neurons == {"a.l0": 3, "b.l0": 4}
    gates = gw.Budget(lasso, gates=10, steps=1)
    assert gates.all == 30
    gates.step()
    assert sum(gw.measure(model).gates.values()) <= 10
    assert gw.measure(model).neurons["b.l0"] == 4
    with pytest.warns(UserWarning, match="neurons stay"):
        alone = gw.GroupLasso(model, layers=["b"])
    with pytest.raises(
        ValueError, match=r"neurons=2: there is no neuron that could go\. b\.l0: neurons stay, because"
    ):
        gw.Budget(alone, neurons=2, steps=1)
    x = torch.randn(5, 2, 2)
    torch.testing.assert_close(gw.compress(model)(x)[0], model(x)[0])


def test_a_layer_of_another_size_is_refused() -> None:
    """Groups are places in the matrices; in others the penalty would be a number about nothing."""
    model = Classifier()
    lasso = gw.GroupLasso(model, group=0.1)
    model.fc = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"fc\.weight: its shape is \(3, 4\), but was \(2, 4\) .*again"):
        lasso.penalty()
    model.fc = nn.Linear(4, 2)
    torch.testing.assert_close(lasso.penalty(), gw.GroupLasso(model, group=0.1).penalty())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("levels", ["W", "W+N", "W+G+N"])
def test_16_bit_weights_have_the_penalty_and_slopes_of_float32(dtype: torch.dtype, levels: str) -> None:
    """Zero groups, where 1e-8 must not vanish, and a sum of |w| that float16 does not reach."""
    model = Classifier(words=5, hidden=60)
    with torch.no_grad():
        model.rnn.weight_ih_l0[0], model.rnn.weight_hh_l0[0] = 0, 0
        model.rnn.weight_hh_l0[:, 1], model.fc.weight[:, 1] = 0, 0
        model.rnn.weight_hh_l0[1:] *= 100
    small, wide = twin(model).to(dtype), twin(model).to(dtype).float()
    penalties = []
    for network in (small, wide):
        lasso = gw.GroupLasso(network, levels, l1=1e-3, group=0.0 if levels == "W" else 10.0)
        penalties.append(lasso.penalty())
        penalties[-1].backward()
    torch.testing.assert_close(*penalties)
    for name, p in wide.named_parameters():
        if p.grad is not None:
            assert parameter(small, name).grad.dtype == dtype
            torch.testing.assert_close(parameter(small, name).grad, p.grad.to(dtype))


def test_step_leaves_frozen_matrices_alone() -> None:
    model = tagger(nn.LSTM(2, 3))
    sparsifier = gw.GroupLasso(model, l1=1e-3, group=1e-2, threshold=9.0)
    model.rnn.weight_ih_l0.requires_grad_(False)
    before = model.rnn.weight_ih_l0.clone()
    sparsifier.step()
    assert torch.equal(model.rnn.weight_ih_l0, before)
    assert not model.rnn.weight_hh_l0.any()
    model.requires_grad_(False)
    sparsifier.step()


def test_l1_is_exact_in_float64() -> None:
    model = tagger(nn.LSTM(2, 3)).double()
    sparsifier = gw.GroupLasso(model, levels="W", l1=0.1, group=0.0)
    expected = 0.1 * sum(parameter(model, name).abs().sum() for name in sparsifier.matrices)
    torch.testing.assert_close(sparsifier.penalty(), expected, rtol=1e-14, atol=0)


def test_only_the_chosen_layers_need_readers() -> None:
    """What reads a behind the norm is not known, and nobody asked for a."""
    model = Net(
        lambda m, x: m.fc(m.b(m.norm(m.a(x)[0]))[0]),
        a=nn.LSTM(2, 3), norm=nn.LayerNorm(3), b=nn.GRU(3, 3), fc=nn.Linear(3, 2),
    )  # fmt: skip
    gw.GroupLasso(model, l1=1e-3, group=1e-2, layers=["b"])


def test_the_default_call_works() -> None:
    """The README begins with it."""
    lasso = gw.GroupLasso(Classifier())
    assert (lasso.levels, lasso.l1, lasso.group, lasso.threshold) == ("W+G+N", 1e-4, 1e-3, 1e-4)
    assert gw.GroupLasso(Classifier(), "W").group == 0


def test_an_encoder_hands_its_state_over() -> None:
    """No matrix reads it, and yet every neuron is known that needs it: both layers are sparsified, or one alone."""
    model = Net(
        lambda m, x: m.fc(m.dec(x, m.enc(x)[1])[0]), enc=nn.GRU(2, 3), dec=nn.GRU(2, 3), fc=nn.Linear(3, 2)
    )
    alone = gw.GroupLasso(model, group=0.1, layers=["dec"]).penalty()
    assert gw.GroupLasso(model, group=0.1).penalty() > alone > 0
