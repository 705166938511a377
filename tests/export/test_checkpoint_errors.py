"""Every broken file and every wrong model is named, and the model that was to be filled is as it was."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_models import Tagger, change, sparse
from torch import nn

import gatewise as gw
from gatewise.export import CheckpointError


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
    change(
        folder,
        weights={"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
        **fields,
    )


def change_layer(folder: Path, name: str, **fields: Any) -> None:
    modules = json.loads((folder / "config.json").read_text())["modules"]
    change(folder, modules=modules | {name: modules[name] | fields})


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
        lambda d: change_layer(d, "rnn", cell="MINE"),
        r"rnn has the cell MINE, which is not known here; LSTM, GRU.*Import the module that declares it",
    ),
    (lambda d: change(d, tensors={}), r"rnn\.num_layers is 2, but there are 0 tensors"),
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


def test_the_folder_above_a_model_names_it(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())), tmp_path / "compressed")
    with pytest.raises(CheckpointError, match=r"holds no saved model\. There is one in .*compressed\.$"):
        gw.load(tmp_path)


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


def test_a_class_is_not_a_model(tmp_path: Path) -> None:
    gw.save(Tagger(), tmp_path)
    with pytest.raises(
        TypeError, match=r"into=<class '.*Tagger'> is not a model; build one.*into=MyModel\(\.\.\.\)"
    ):
        gw.load(tmp_path, into=Tagger)  # type: ignore[arg-type]


def test_time_and_batch_may_not_change_places(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    into = Tagger()
    into.rnn.batch_first = True
    with pytest.raises(CheckpointError, match="rnn has batch_first=False in the file and True in Tagger"):
        gw.load(tmp_path, into=into)


def test_another_class_needs_into(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())), tmp_path)
    with pytest.raises(
        CheckpointError, match=r"Tagger, which only your program can build.*into=Tagger\(\.\.\.\)"
    ):
        gw.load(tmp_path)


def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": object()}

    with pytest.raises(CheckpointError, match="_extra_state: is dict, not a tensor"):
        gw.save(Odd(2, 2), tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is no directory"):
        gw.save(nn.Linear(2, 2), tmp_path / "file")
    with pytest.raises(CheckpointError, match="no such directory"):
        gw.load(tmp_path / "nothing")
