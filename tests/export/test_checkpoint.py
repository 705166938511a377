"""save() and load(): bit for bit, whole or not at all, and every broken file named."""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from torch import Tensor, nn

import gatewise as gw
from gatewise.cli import main
from gatewise.export import CheckpointError, pair
from gatewise.export.storage import decode, encode


class Tagger(nn.Module):
    def __init__(self, hidden: int = 6, tied: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, hidden, padding_idx=0)
        self.rnn = nn.LSTM(hidden, hidden, 2)
        self.fc = nn.Linear(hidden, 11)
        if tied:
            self.fc.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.fc(self.rnn(self.emb(ids))[0])
        return out


IDS = torch.arange(22).view(11, 2) % 11


@torch.no_grad()
def sparse(model: nn.Module, share: float = 0.7) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_(torch.rand_like(parameter) > share)
    return model.eval()


def variational(model: nn.Module) -> nn.Module:
    gw.Variational(model, n_train=3, vocabulary=["emb"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_log_sigma"):
                parameter.copy_(torch.where(torch.rand_like(parameter) < 0.5, -9.0, 9.0))
    return model.eval()


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
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


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


def test_a_file_without_a_tie_unties(tmp_path: Path) -> None:
    model = sparse(Tagger(tied=False))
    gw.save(model, tmp_path)
    loaded = gw.load(tmp_path, into=Tagger(tied=True))
    assert torch.equal(loaded(IDS), model(IDS))
    assert not torch.equal(loaded.fc.weight, loaded.emb.weight)


def test_a_shared_matrix_is_stored_once(tmp_path: Path) -> None:
    tied, apart = (gw.save(sparse(Tagger(tied=tie), 0.0), tmp_path / str(tie)) for tie in (True, False))
    assert apart.stored_bytes - tied.stored_bytes == 11 * 6 * 4


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


def test_another_class_needs_into(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    with pytest.raises(
        CheckpointError, match=r"Tagger, which only your program can build.*into=Tagger\(\.\.\.\)"
    ):
        gw.load(tmp_path)


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


@given(rows=st.integers(0, 9), columns=st.integers(0, 9), density=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
       dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))  # fmt: skip
def test_storage_is_bit_exact_and_never_larger(
    rows: int, columns: int, density: float, dtype: torch.dtype
) -> None:
    """Also for -0.0 and NaN; sparse only where it is smaller."""
    matrix = (torch.randn(rows, columns) * (torch.rand(rows, columns) < density)).to(dtype)
    if matrix.numel() > 2:
        matrix.view(-1)[0], matrix.view(-1)[1] = -0.0, float("nan")
    entry, stored = encode("w", matrix)
    back = decode("w", entry, stored)
    assert back.dtype == dtype
    assert back.numpy(force=True).tobytes() == matrix.numpy().tobytes() if dtype != torch.bfloat16 else True
    assert (
        torch.equal(back.view(torch.uint8), matrix.view(torch.uint8))
        if columns
        else back.shape == matrix.shape
    )
    nonzero = (
        int((matrix.view(torch.uint8).view(rows, columns, -1) != 0).any(-1).sum()) if matrix.numel() else 0
    )
    sparse_bytes = nonzero * (matrix.element_size() + 2) + 4 * (rows + 1)
    assert entry.bytes == min(entry.dense_bytes, sparse_bytes)
    assert (entry.form == "sparse") == (sparse_bytes < entry.dense_bytes)


def test_wide_matrices_have_wide_column_ids() -> None:
    matrix = torch.zeros(2, 70_000)
    matrix[1, 69_999] = 1.5
    entry, stored = encode("w", matrix)
    assert stored["w:columns"].dtype == torch.int32
    assert torch.equal(decode("w", entry, stored), matrix)


def test_both_sizes_are_reported_and_files_repeat(tmp_path: Path) -> None:
    """The rule looks at numbers alone: the same model gives the same bytes."""
    small = gw.compress(sparse(Tagger(), 0.9))
    saved = gw.save(small, tmp_path / "a")
    gw.save(small, tmp_path / "b")
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert (config["stored_bytes"], config["dense_bytes"]) == (saved.stored_bytes, saved.dense_bytes)
    assert saved.stored_bytes < saved.dense_bytes
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


class Crash(Exception):
    """The machine stops here."""


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("call", range(6))
def test_a_crash_leaves_the_old_or_the_new_model(
    call: int, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before any write, flush or rename of a save, the folder still loads, and can be saved to again."""
    old, new = sparse(Tagger()), gw.compress(sparse(Tagger(), 0.5))
    if not first:
        gw.save(old, tmp_path)
    calls = 0

    def stopping(inner: Any) -> Any:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > call:
                raise Crash
            return inner(*args, **kwargs)

        return maybe

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping(os.replace))
        patch.setattr(os, "fsync", stopping(os.fsync))
        patch.setattr(pair, "save_file", stopping(pair.save_file))
        with pytest.raises(Crash):
            gw.save(new, tmp_path)
    renamed = call >= 4  # written, flushed, flushed; then the weights are renamed, then the config
    if first and not renamed:
        with pytest.raises(CheckpointError, match="not found"):
            gw.load(tmp_path)
    else:
        expected = new if renamed else old
        assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), expected(IDS))
    newest = sparse(Tagger(), 0.2)
    gw.save(newest, tmp_path)
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), newest(IDS))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_crash_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that begins where another stopped between its renames finishes that one first."""
    models = [sparse(Tagger(), share) for share in (0.1, 0.4, 0.7)]
    gw.save(models[0], tmp_path)
    replace = os.replace
    for model, stop_at in ((models[1], "config.json"), (models[2], "model.safetensors")):

        def stopping(source: Any, target: Any, stop_at: str = stop_at) -> None:
            if Path(target).name == stop_at:
                raise Crash
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stopping)
            with pytest.raises(Crash):
                gw.save(model, tmp_path)
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), models[1](IDS))


def change(folder: Path, **fields: Any) -> None:
    """Edit a config so that it matches its digest: what a program, not an accident, would do."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(config | {"digest": pair.digest(config)}))


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def edit(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"hidden_size": 6', '"hidden_size": 7'))


def swap(folder: Path) -> None:
    """The weights of another model of the same size."""
    gw.save(gw.compress(sparse(Tagger(7))), folder / "other")
    (folder / "model.safetensors").write_bytes((folder / "other/model.safetensors").read_bytes())


def with_weights(folder: Path, **fields: Any) -> None:
    path = folder / "model.safetensors"
    change(folder, weights={"bytes": path.stat().st_size, "sha256": pair.sha256(path)}, **fields)


def not_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 5) + b"hello")
    with_weights(folder)


def bad_index(folder: Path) -> None:
    """Kernels trust index lists, so a list out of range is refused even where every checksum fits."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["rnn.layers.0.neurons"][-1] = 99
    save_file(tensors, path)
    with_weights(folder)


BROKEN: list[tuple[Any, str]] = [
    (truncate, r"model\.safetensors: truncated: \d+ bytes, but config\.json says \d+"),
    (flip, r"model\.safetensors: altered: its SHA-256"),
    (edit, r"config\.json: altered"),
    (swap, r"model\.safetensors: (truncated|too long|altered)"),
    (
        lambda d: (d / "config.json").write_text('{"format": 1,'),
        r"config\.json: not the config of a saved model",
    ),
    (lambda d: (d / "config.json").unlink(), r"config\.json: not found"),
    (lambda d: (d / "model.safetensors").unlink(), r"model\.safetensors: not found"),
    (lambda d: change(d, format=2), r"format 2, but this gatewise reads formats up to 1.*upgrade"),
    (lambda d: change(d, format="new"), r"format new"),
    (lambda d: change(d, modules={}), r"is \(.*\) in the file and \(.*\) in Tagger; build Tagger with"),
    (lambda d: change(d, modules={"rnn": {"kind": "mystery"}}), r"layers cannot be built"),
    (
        lambda d: change(d, modules={"rnn": {"kind": "compact-recurrent", "cell": "MINE"}}),
        r"rnn has the cell MINE, which is not known here; LSTM, GRU.*Import the module that declares it",
    ),
    (lambda d: change(d, tensors={}), r"tensors are in one of the two files only"),
    (not_safetensors, r"not a safetensors file"),
    (bad_index, r"does not ascend within"),
]


@pytest.mark.parametrize(("harm", "message"), BROKEN)
def test_broken_files_are_named(harm: Any, message: str, tmp_path: Path) -> None:
    """One clear error with the file in it, and the model that was to be filled is as it was."""
    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    harm(tmp_path)
    into = Tagger()
    before = {name: tensor.clone() for name, tensor in into.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as caught:
        gw.load(tmp_path, into=into)
    assert str(tmp_path) in str(caught.value)
    torch.testing.assert_close(dict(into.state_dict()), before, rtol=0, atol=0)


def with_gru() -> nn.Module:
    model = Tagger()
    model.rnn = nn.GRU(6, 6, 2)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(("into", "message"), [
    (with_gru, r"rnn is LSTM in the file and GRU in Tagger"),
    (lambda: Tagger(7), r"embedding_dim=6 in the file and 7 in Tagger"),
    (lambda: nn.Linear(2, 2), r"Linear has no layer 'emb'"),
])  # fmt: skip
def test_the_wrong_model_is_refused(into: Any, message: str, tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    with pytest.raises(CheckpointError, match=message):
        gw.load(tmp_path, into=into())


def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": object()}

    with pytest.raises(CheckpointError, match="_extra_state: is dict, not a tensor"):
        gw.save(Odd(2, 2), tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        gw.save(nn.Linear(2, 2), tmp_path / "file")
    with pytest.raises(CheckpointError, match="no such directory"):
        gw.load(tmp_path / "nothing")


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    monkeypatch.setattr(torch, "load", None)
    assert isinstance(gw.load(tmp_path, into=Tagger()), Tagger)


def test_a_read_only_folder_is_loaded_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config under its temporary name is enough; that it cannot be renamed does no harm."""
    model = sparse(Tagger())
    gw.save(model, tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "config.json.tmp")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), model(IDS))


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


@pytest.mark.parametrize("bayesian", [False, True], ids=["lasso", "bayes"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("kind", ["WordLM", "CharLM", "TextClassifier", "SeriesModel"])
def test_models_of_the_tasks(kind: str, cell: str, bayesian: bool, tmp_path: Path) -> None:
    """The package's own models need no into=: before the cut and after it, with states and masks."""
    from gatewise.tasks import models

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


def test_a_load_between_the_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the new model and finishes the second rename; the save that it overtook notices and goes on."""
    old, new = sparse(Tagger()), sparse(Tagger(), 0.3)
    gw.save(old, tmp_path)
    replace, seen = os.replace, []

    def overtaken(source: Any, target: Any) -> None:
        replace(source, target)
        if Path(target).name == "model.safetensors":
            seen.append(gw.load(tmp_path, into=Tagger()))

    monkeypatch.setattr(os, "replace", overtaken)
    gw.save(new, tmp_path)
    for loaded in (*seen, gw.load(tmp_path, into=Tagger())):
        assert torch.equal(loaded(IDS), new(IDS))
    assert len(seen) == 1


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


@pytest.mark.filterwarnings("ignore:.*keeps .* neurons that no known weight reads")
@pytest.mark.parametrize("compact", [True, False])
def test_a_layer_of_two_names_is_one_layer_again(tmp_path: Path, compact: bool) -> None:
    model = sparse(Translator())
    gw.save(gw.compress(model) if compact else model, tmp_path / "m")
    loaded = gw.load(tmp_path / "m", into=Translator()).eval()
    assert loaded.source is loaded.target
    torch.testing.assert_close(loaded(IDS), model(IDS))


def test_who_may_read_one_file_may_read_the_other(tmp_path: Path) -> None:
    gw.save(Tagger(), tmp_path)
    modes = {(tmp_path / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [SafetensorError("No space left"), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("before", [False, True])
def test_what_cannot_be_written_leaves_nothing_new(
    error: Exception, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the message names the folder, the model of before stays, and no folder stays empty."""
    folder, model = tmp_path / "model", Tagger()
    if before:
        gw.save(model, folder)

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(pair, "save_file", full)
    with pytest.raises(CheckpointError, match=r"model: the model could not be written .*No space left"):
        gw.save(Tagger(), folder)
    if before:
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
        assert torch.equal(gw.load(folder, into=Tagger()).fc.weight, model.fc.weight)
    else:
        assert not folder.exists()


def test_an_accelerated_model_comes_back_compact(tmp_path: Path) -> None:
    model = Tagger().eval()
    gw.save(gw.accelerate(model), tmp_path)
    loaded = gw.load(tmp_path, into=Tagger()).eval()
    torch.testing.assert_close(loaded(IDS), model(IDS))
    torch.testing.assert_close(gw.accelerate(loaded)(IDS), model(IDS), rtol=1e-4, atol=1e-5)


def test_a_model_that_is_loaded_into_keeps_its_modes(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())).train(), tmp_path)
    into = Tagger().eval()
    into.rnn.train()
    loaded = gw.load(tmp_path, into=into)
    assert (loaded.training, loaded.fc.training, loaded.rnn.training) == (False, False, True)


def test_time_and_batch_may_not_change_places(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    into = Tagger()
    into.rnn.batch_first = True
    with pytest.raises(CheckpointError, match="rnn has batch_first=False in the file and True in Tagger"):
        gw.load(tmp_path, into=into)
