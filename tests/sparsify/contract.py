"""What every sparsifier promises, written once and inherited."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from networks import Classifier, LanguageModel, Net
from torch import nn

import gatewise as gw


class SparsifierContract:
    """Subclass it and say how to `make` yours."""

    def make(self, model: nn.Module, **options: Any) -> Any:
        raise NotImplementedError

    @pytest.fixture(params=["LSTM", "GRU", "bidirectional"])
    def model(self, request: pytest.FixtureRequest) -> nn.Module:
        if request.param == "bidirectional":
            return LanguageModel(bidirectional=True)
        return LanguageModel(cell=request.param)

    def loss(self, model: nn.Module) -> torch.Tensor:
        out, _ = model(torch.randint(7, (5, 3)))
        return out.square().mean()

    @pytest.mark.parametrize("levels", ["W", "W+N", "W+G+N"])
    def test_the_loop_of_the_readme(self, model: nn.Module, levels: str) -> None:
        """penalty() joins the loss, step() follows the optimizer, and every parameter gets a finite gradient."""
        sparsifier = self.make(model, levels=levels)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            penalty = sparsifier.penalty()
            assert penalty.shape == ()
            assert penalty.isfinite()
            (self.loss(model) + sparsifier.penalty()).backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            optimizer.step()
            sparsifier.step()

    def test_looking_does_not_change_anything(self, model: nn.Module) -> None:
        """structure() and penalty() leave parameters and the random state alone."""
        sparsifier = self.make(model)
        before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        sparsifier.structure()
        sparsifier.penalty()
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), random)

    def test_structure_is_what_measure_counts(self, model: nn.Module) -> None:
        sparsifier = self.make(model)
        structure = sparsifier.structure().recurrent()
        report = gw.measure(model)
        assert report.neurons == {name: int(own.keep_neurons.sum()) for name, own in structure.items()}
        assert report.gates == {name: int(own.keep_gates.sum()) for name, own in structure.items()}

    def test_the_penalty_grows_with_what_is_kept(self, model: nn.Module) -> None:
        """Zero weights cost no more than weights, or sparsity would not pay."""
        sparsifier = self.make(model)
        full = sparsifier.penalty()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.dim() == 2 and "log_sigma" not in name:
                    p.zero_()
        assert sparsifier.penalty() < full

    def test_both_penalties_of_one_forward_agree(self, model: nn.Module) -> None:
        """Asking again, or without a forward pass, gives the same number."""
        sparsifier = self.make(model)
        before = sparsifier.penalty()
        self.loss(model)
        torch.testing.assert_close(sparsifier.penalty(), before)
        torch.testing.assert_close(sparsifier.penalty(), before)

    def test_separate_backward_passes(self, model: nn.Module) -> None:
        """Gradients add up the same whether the two terms go back together or one after the other."""
        sparsifier = self.make(model)
        torch.manual_seed(1)
        (self.loss(model) + sparsifier.penalty()).backward()
        together = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        torch.manual_seed(1)
        self.loss(model).backward()
        sparsifier.penalty().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], together)

    def test_a_penalty_after_a_look_without_gradients(self, model: nn.Module) -> None:
        """A forward pass under no_grad must not leave a penalty without gradients behind."""
        sparsifier = self.make(model)
        with torch.no_grad():
            self.loss(model)
            assert not sparsifier.penalty().requires_grad
            self.loss(model)
        sparsifier.penalty().backward()
        assert model.rnn.weight_hh_l0.grad is not None

    def test_a_copy_goes_on_alone(self, model: nn.Module) -> None:
        """deepcopy in the middle of training: the copy computes and trains without touching the original."""
        self.make(model)
        self.loss(model).backward()
        twin = copy.deepcopy(model)
        before = copy.deepcopy(model.state_dict())
        self.loss(twin).backward()
        torch.optim.SGD(twin.parameters(), lr=0.1).step()
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)

    @pytest.mark.parametrize("levels", ["", "G", "w+g+n", "W+G"])
    def test_wrong_levels(self, levels: str) -> None:
        with pytest.raises(ValueError, match=r"is not one of W, W\+N, W\+G\+N"):
            self.make(Classifier(), levels=levels)

    def test_unknown_layer_names(self) -> None:
        with pytest.raises(ValueError, match="'lstm' is not a layer of the model; there are"):
            self.make(Classifier(), layers=["lstm"])
        with pytest.raises(ValueError, match="must be a list of names"):
            self.make(Classifier(), layers="rnn")

    def test_nan_weights(self) -> None:
        model = Classifier()
        with torch.no_grad():
            model.fc.weight[0, 0] = torch.nan
        with pytest.raises(ValueError, match=r"fc\.weight: 1 of 8 values are NaN"):
            self.make(model)

    def test_what_has_no_gates_is_left_out(self) -> None:
        """A recurrent layer that cannot be handled costs a sentence, not the model; asked for by name, an error."""
        for layer, why in [
            (nn.RNN(3, 4), "RNN has no gates"),
            (nn.LSTM(3, 5, proj_size=4), "proj_size=4 .* use proj_size=0 and a Linear after it"),
        ]:
            model = Net(
                lambda m, x: m.fc(m.rnn(m.odd(x)[0])[0]), odd=layer, rnn=nn.GRU(4, 4), fc=nn.Linear(4, 2)
            )
            with pytest.raises(ValueError, match=rf"odd: {why}.*Leave it out of layers=\.$"):
                self.make(model, layers=["odd", "rnn"])
            with pytest.warns(UserWarning, match=rf"^odd: left out, because {why}\.$"):
                sparsifier = self.make(model)
            assert sparsifier.penalty() > 0
            assert type(model.odd) is type(layer)

    def test_what_has_no_gates_can_be_left_out(self) -> None:
        def forward(m: Any, x: Any) -> Any:
            return m.fc(m.rnn(m.odd(x)[0])[0])

        model = Net(forward, odd=nn.RNN(3, 4), rnn=nn.GRU(4, 4), fc=nn.Linear(4, 2))
        self.make(model, layers=["rnn"])
        assert isinstance(model.odd, nn.RNN)

    def test_no_recurrent_layer(self) -> None:
        with pytest.raises(ValueError, match="no LSTM or GRU"):
            self.make(nn.Sequential(nn.Conv1d(2, 2, 1)))

    @pytest.mark.parametrize("weight", ["weight_ih_l0", "weight_hh_l0", "weight_hh_l1_reverse"])
    def test_a_pruned_layer_is_left_out(self, weight: str) -> None:
        """torch.nn.utils.prune computes the weight anew at each call; what we write into it would be lost."""
        layers = {
            "odd": nn.LSTM(3, 2, num_layers=2, bidirectional=True),
            "rnn": nn.GRU(4, 4),
            "fc": nn.Linear(4, 2),
        }
        model = Net(lambda m, x: m.fc(m.rnn(m.odd(x)[0])[0]), **layers)
        nn.utils.prune.random_unstructured(model.odd, weight, amount=0.5)
        why = rf"odd: .*its {weight} is computed from another parameter .*prune\.remove"
        with pytest.raises(ValueError, match=why):
            self.make(model, layers=["odd"])
        with pytest.warns(UserWarning, match=why):
            sparsifier = self.make(model)
        (model(torch.randn(5, 2, 3)).square().sum() + sparsifier.penalty()).backward()
        assert type(model.odd) is nn.LSTM

    def test_a_weight_that_is_made_anew_leaves_its_layer_out(self) -> None:
        """Weight drop: a wrapper takes a parameter away, and puts a tensor in its place that nobody may change."""

        class Dropped(nn.LSTM):
            def __init__(self, *sizes: int) -> None:
                super().__init__(*sizes)
                self.raw = self._parameters.pop("weight_hh_l0")
                self.weight_hh_l0 = self.raw * 1

        model = Net(
            lambda m, x: m.fc(m.rnn(m.odd(x)[0])[0]), odd=Dropped(3, 4), rnn=nn.GRU(4, 4), fc=nn.Linear(4, 2)
        )
        x = torch.randn(5, 2, 3)
        with pytest.warns(UserWarning, match="odd: left out, because its weight_hh_l0 is no parameter"):
            self.make(model).penalty().backward()
        model.eval()
        with pytest.warns(UserWarning, match="odd stays as it is"):
            torch.testing.assert_close(gw.compress(model)(x), model(x))

    def test_a_reader_with_a_parametrisation(self) -> None:
        """Its columns cannot be penalised, so it is left out; the layer that it reads is not."""
        model = Classifier()
        nn.utils.parametrizations.weight_norm(model.fc)
        with pytest.warns(UserWarning, match=r"fc.*its weight is computed from another parameter"):
            sparsifier = self.make(model)
        (model(torch.randint(3, (5, 2))).square().sum() + sparsifier.penalty()).backward()
        assert gw.measure(model).gates["rnn.l0"] > 0
