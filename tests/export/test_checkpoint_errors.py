"""Every broken file and every wrong model is named, and the model that was to be filled is as it was."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from saved_models import Tagger, change, sparse
from torch import nn

import gatewise as gw
from gatewise.export import CheckpointError
from gatewise.export.saved.file import packed, read_file


def bytes_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def write(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)


def flip(folder: Path) -> None:
    data = bytearray(bytes_of(folder))
    data[-3] ^= 1
    write(folder, data)


def change_layer(folder: Path, name: str, **fields: Any) -> None:
    modules = read_file(folder / "model.safetensors")[0]["modules"]
    change(folder, modules=modules | {name: modules[name] | fields})


def bad_index(folder: Path) -> None:
    """Kernels trust index lists, so a list out of range is refused even where the sum fits."""
    config, tensors = read_file(folder / "model.safetensors")
    tensors["rnn.layers.0.neurons"][-1] = 99
    write(folder, packed(tensors, config, folder))


NOT_OURS = r"model\.safetensors: is no file that gatewise\.save\(\) wrote, or was truncated or altered"
BROKEN: list[tuple[Any, str]] = [
    (lambda d: write(d, bytes_of(d)[:-7]), NOT_OURS),
    (lambda d: write(d, bytes_of(d) + b"x"), NOT_OURS),
    (lambda d: write(d, bytes_of(d)[:50]), NOT_OURS),
    (lambda d: write(d, b""), NOT_OURS),
    (lambda d: write(d, struct.pack("<Q", 5) + b"hello"), NOT_OURS),
    (lambda d: write(d, struct.pack("<Q", 2**40) + b"hello"), r"a header of 1,099,511,627,776 bytes"),
    (lambda d: write(d, safetensors.torch.save({"w": torch.ones(2)})), r"its metadata have no 'gatewise'"),
    (flip, r"model\.safetensors: altered: its contents do not have the SHA-256"),
    (
        lambda d: write(d, bytes_of(d).replace(b'hidden_size\\": 6', b'hidden_size\\": 7')),
        r"altered: its contents",
    ),
    (lambda d: (d / "model.safetensors").unlink(), r"model\.safetensors: there is no such file"),
    (lambda d: change(d, format=2), r"format 2, but this gatewise reads formats up to 1.*upgrade"),
    (lambda d: change(d, format="new"), r"format new"),
    (lambda d: change(d, modules={}), r"build Tagger with"),
    (lambda d: change(d, modules={"rnn": {"kind": "mystery"}}), r"layers cannot be built"),
    (
        lambda d: change_layer(d, "rnn", cell="MINE"),
        r"rnn\.cell is 'MINE', which is not known here; LSTM, GRU.*Import the module that declares it",
    ),
    (lambda d: change_layer(d, "rnn", num_layers=99), r"rnn\.num_layers is 99, but there are \d+ tensors"),
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


def test_files_beside_are_named(tmp_path: Path) -> None:
    gw.save(gw.compress(sparse(Tagger())), tmp_path / "compressed")
    with pytest.raises(
        CheckpointError, match=r"no such file\. There is compressed\.safetensors beside it\.$"
    ):
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
    with pytest.raises(CheckpointError, match=r"no such file\. gatewise\.save\(model, path\) makes one"):
        gw.load(tmp_path / "nothing")
