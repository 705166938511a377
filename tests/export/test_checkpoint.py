"""save() and load(): dense, variational and compact models come back bit for bit."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_models import IDS, Tagger, change, sparse, variational
from torch import Tensor, nn

import gatewise as gw
from gatewise.export import CheckpointError
from gatewise.lab.cli import main


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "make",
    [sparse, variational, lambda m: gw.compress(sparse(m)), lambda m: gw.compress(variational(m))],
    ids=["dense", "variational", "compact", "compact of variational"],
)
def test_a_model_of_the_users_class_comes_back(make: Any, tied: bool, tmp_path: Path) -> None:
    """Dense, variational and compact: the same answer bit for bit, the same layers, the same ties."""
    model = make(Tagger(tied=tied))
    gw.save(model, tmp_path)
    fresh = Tagger(tied=tied).eval()
    loaded = gw.load(tmp_path, into=fresh)
    assert loaded is fresh
    assert torch.equal(loaded(IDS), model(IDS))
    assert [type(m) for m in loaded.modules()] == [type(m) for m in model.modules()]
    assert (loaded.fc.weight is loaded.emb.weight) == (model.fc.weight is model.emb.weight)
    for (name, a), (other, b) in zip(model.state_dict().items(), loaded.state_dict().items()):
        assert name == other
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert gw.measure(loaded).to_dict() == gw.measure(model).to_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_file_decides_the_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """Nothing is rounded to the dtype of the model that is loaded into."""
    model = sparse(Tagger()).to(dtype)
    gw.save(model, tmp_path)
    loaded = gw.load(tmp_path, into=Tagger())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values()))


def test_the_file_decides_the_dtype_of_buffers(tmp_path: Path) -> None:
    """1/3 in float64 is not 1/3 in float32, and an integer buffer may have been widened too."""

    def make() -> nn.Module:
        model = Tagger()
        model.register_buffer("third", torch.ones(1) / 3)
        model.register_buffer("count", torch.zeros(1, dtype=torch.int32))
        return model

    model = make().double()
    model.third = torch.ones(1, dtype=torch.float64) / 3
    model.count = torch.tensor([1 << 40])
    gw.save(model, tmp_path)
    loaded = gw.load(tmp_path, into=make())
    for name in ("third", "count"):
        saved, found = getattr(model, name), getattr(loaded, name)
        assert found.dtype == saved.dtype
        assert torch.equal(found, saved)


@pytest.mark.parametrize("make", [sparse, lambda m: gw.compress(sparse(m))], ids=["dense", "compact"])
def test_what_was_frozen_is_frozen_again(make: Any, tmp_path: Path) -> None:
    """Fine-tuning goes on where it was, in layers that the file rebuilds and in those of the user's class."""
    model = Tagger(tied=True)
    for parameter in (model.emb.weight, model.rnn.weight_hh_l1, model.fc.bias):
        parameter.requires_grad_(False)
    model = make(model)
    gw.save(model, tmp_path)
    loaded = gw.load(tmp_path, into=Tagger(tied=True))
    expected = {name: p.requires_grad for name, p in model.named_parameters()}
    assert set(expected.values()) == {True, False}
    assert {name: p.requires_grad for name, p in loaded.named_parameters()} == expected


def test_a_model_that_is_loaded_into_keeps_its_modes(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())).train(), tmp_path)
    into = Tagger().eval()
    into.rnn.train()
    loaded = gw.load(tmp_path, into=into)
    assert (loaded.training, loaded.fc.training, loaded.rnn.training) == (False, False, True)


def test_a_file_without_a_tie_unties(tmp_path: Path) -> None:
    model = sparse(Tagger(tied=False))
    gw.save(model, tmp_path)
    loaded = gw.load(tmp_path, into=Tagger(tied=True))
    assert torch.equal(loaded(IDS), model(IDS))
    assert not torch.equal(loaded.fc.weight, loaded.emb.weight)


def test_a_shared_matrix_is_stored_once(tmp_path: Path) -> None:
    tied, apart = (gw.save(sparse(Tagger(tied=tie), 0.0), tmp_path / str(tie)) for tie in (True, False))
    assert apart.stored_bytes - tied.stored_bytes == 11 * 6 * 4


class Translator(nn.Module):
    """One embedding under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.source = self.target = nn.Embedding(11, 5)
        self.encoder, self.decoder, self.fc = nn.GRU(5, 6), nn.GRU(5, 6), nn.Linear(6, 11)

    def forward(self, ids: Tensor) -> Tensor:
        _, state = self.encoder(self.source(ids))
        out: Tensor = self.fc(self.decoder(self.target(ids), state)[0])
        return out


@pytest.mark.filterwarnings("ignore:.*keeps .* that no known weight reads")
@pytest.mark.parametrize("compact", [True, False])
def test_a_layer_of_two_names_is_one_layer_again(tmp_path: Path, compact: bool) -> None:
    model = sparse(Translator())
    gw.save(gw.compress(model) if compact else model, tmp_path / "m")
    loaded = gw.load(tmp_path / "m", into=Translator()).eval()
    assert loaded.source is loaded.target
    torch.testing.assert_close(loaded(IDS), model(IDS))


@pytest.mark.parametrize("layer", [
    gw.nn.LSTM(3, 4, 2, bidirectional=True), gw.nn.GRU(3, 4, gate_activation="hard_sigmoid"), nn.LSTM(3, 4),
    nn.GRU(3, 2), nn.LSTMCell(3, 4), nn.GRUCell(3, 2, bias=False), nn.Linear(3, 2), nn.Embedding(5, 3),
])  # fmt: skip
def test_layers_need_no_class(layer: nn.Module, tmp_path: Path) -> None:
    """A compressed layer that is the whole model, and gatewise's own dense layers, are rebuilt from the file."""
    x = torch.randint(0, 5, (4, 2)) if isinstance(layer, nn.Embedding) else torch.randn(4, 2, 3)
    x = x[0] if isinstance(layer, nn.RNNCellBase) else x
    own = [layer] if isinstance(layer, gw.nn.Recurrent) else []
    for model in (*own, gw.compress(sparse(layer))):
        gw.save(model, tmp_path)
        torch.testing.assert_close(gw.load(tmp_path)(x), model(x), rtol=0, atol=0)
        assert gw.load(tmp_path).training == model.training
    with pytest.raises(CheckpointError, match="call load\\(\\) without into="):
        gw.load(tmp_path, into=Tagger())


def test_a_class_of_the_package_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class and arguments are in the file; only modules of the package are ever imported."""

    class Shipped(Tagger):
        def config(self) -> dict[str, Any]:
            return {"hidden": 5}

    Shipped.__module__, Shipped.__qualname__ = "gatewise.shipped_for_this_test", "Shipped"
    module = types.ModuleType("gatewise.shipped_for_this_test")
    module.Shipped = Shipped  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    small = gw.compress(sparse(Shipped(5)))
    gw.save(small, tmp_path)
    loaded = gw.load(tmp_path)
    assert type(loaded) is Shipped
    assert torch.equal(loaded(IDS), small(IDS))
    change(tmp_path, **{"class": "os.system", "arguments": {"command": "true"}})
    with pytest.raises(CheckpointError, match="only your program"):
        gw.load(tmp_path)


@pytest.mark.parametrize("bayesian", [False, True], ids=["lasso", "bayes"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("kind", ["WordLM", "CharLM", "TextClassifier", "SeriesModel"])
def test_models_of_the_tasks(kind: str, cell: str, bayesian: bool, tmp_path: Path) -> None:
    """The package's own models need no into=: before the cut and after it, with states and masks."""
    from gatewise.lab import models

    sizes: dict[str, dict[str, Any]] = {
        "WordLM": {"vocabulary": 9, "embedding": 5, "hidden": 6},
        "CharLM": {"vocabulary": 7, "hidden": 5},
        "TextClassifier": {"vocabulary": 9, "outputs": 3, "embedding": 4, "hidden": 6},
        "SeriesModel": {"inputs": 3, "outputs": 2, "hidden": 5, "every_step": True},
    }
    model = getattr(models, kind)(**sizes[kind], cell=cell).eval()
    if bayesian:
        gw.Variational(model, n_train=5, vocabulary=["emb"] if hasattr(model, "emb") else [])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("_log_sigma"):
                    parameter.copy_(torch.where(torch.rand_like(parameter) < 0.6, -9.0, 9.0))
    else:
        sparse(model)
    x = torch.randn(3, 4, 3) if kind == "SeriesModel" else torch.randint(0, 7, (3, 4))
    mask = torch.rand(3, 4) < 0.7 if kind in ("TextClassifier", "SeriesModel") else None
    with torch.no_grad():
        expected = model(x, mask)
        small = gw.compress(model)
        answer = small(x, mask)
        whole, cut = (a[0] if isinstance(a, tuple) else a for a in (expected, answer))
        torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-5)
        for net in (model, small):
            gw.save(net, tmp_path)
            loaded = gw.load(tmp_path)
            assert type(loaded) is type(model)
            assert not loaded.training
            torch.testing.assert_close(loaded(x, mask), net(x, mask), rtol=0, atol=0)


def test_an_accelerated_model_comes_back_compact(tmp_path: Path) -> None:
    model = Tagger().eval()
    gw.save(gw.accelerate(model), tmp_path)
    loaded = gw.load(tmp_path, into=Tagger()).eval()
    torch.testing.assert_close(loaded(IDS), model(IDS))
    torch.testing.assert_close(gw.accelerate(loaded)(IDS), model(IDS), rtol=1e-4, atol=1e-5)


def test_both_sizes_are_reported_and_files_repeat(tmp_path: Path) -> None:
    """The rule looks at numbers alone: the same model gives the same bytes."""
    small = gw.compress(sparse(Tagger(), 0.9))
    saved = gw.save(small, tmp_path / "a")
    gw.save(small, tmp_path / "b")
    assert saved.stored_bytes < saved.dense_bytes == sum(t.nbytes for t in small.state_dict().values())
    assert saved.path.read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    monkeypatch.setattr(torch, "load", None)
    assert isinstance(gw.load(tmp_path, into=Tagger()), Tagger)


def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gatewise measure, compress, export and bench, on a bare layer and on a class of the user's."""
    gw.save(sparse(gw.nn.LSTM(3, 4)), tmp_path / "layer")
    assert main(["measure", str(tmp_path / "layer")]) == 0
    assert "LSTM" in capsys.readouterr().out
    gw.save(sparse(Tagger(), 0.9), tmp_path / "own")
    assert main(["measure", str(tmp_path / "own")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "only your program can build" in said
    assert "--into MODULE:NAME" in said
    module = types.ModuleType("my_models")
    module.Tagger = Tagger  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_models", module)
    assert (
        main(["compress", str(tmp_path / "own"), "-o", str(tmp_path / "small"), "--into", "my_models:Tagger"])
        == 0
    )
    assert "bytes" in capsys.readouterr().out
    options = ["--into", "my_models:Tagger", "--reader", "rnn=fc", "--json"]
    assert main(["measure", str(tmp_path / "small"), *options]) == 0
    small = gw.load(tmp_path / "small", into=Tagger())
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(gw.measure(small).to_dict()))
    for command in (["export", "--c", str(tmp_path / "c")], ["bench", "--seconds", "0", "--steps", "2"]):
        assert main([command[0], str(tmp_path / "small"), *command[1:], *options[:2]]) == 0
    assert "gatewise engine" in capsys.readouterr().out
    assert (tmp_path / "c" / "model.c").is_file()
    assert main(["measure", str(tmp_path / "small"), "--into", "nowhere"]) == 2
    assert main(["measure", str(tmp_path / "small"), "--into", "my_models:Missing"]) == 2
    assert main(["measure", str(tmp_path / "small"), "--reader", "rnn"]) == 2
