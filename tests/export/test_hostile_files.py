"""A file is not trusted, even where its sum is right: sizes, types and lists are checked before any is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from mutants import loaded
from saved_models import IDS, Tagger, change, sparse
from torch import nn

import gatewise as gw
from gatewise.export import CheckpointError
from gatewise.export.saved.file import packed, read_file
from gatewise.lab.models import WordLM


def words(**options: Any) -> nn.Module:
    return sparse(WordLM(**{"vocabulary": 11, "embedding": 6, "hidden": 6, "layers": 2} | options), 0.6)


def edited(model: nn.Module, folder: Path, change: Any) -> Path:
    """The model's file after change(config, tensors), with the sum that then is right."""
    file = gw.save(model, folder).path
    config, stored = read_file(file)
    change(config, stored)
    file.write_bytes(packed(stored, config, file))
    return file


def set_in(*path: Any) -> Any:
    """change() of one value in the config: its keys, then the value."""
    *keys, last, value = path

    def change(config: Any, _: Any) -> None:
        for key in keys:
            config = config[key]
        config[last] = value

    return change


def sparse_and_wide(config: Any, tensors: Any) -> None:
    """Eight bytes of row starts stand for two billion zeros."""
    config["sparse"]["fc.weight"] = [1, 2 * 10**9]
    tensors.pop("fc.weight", None)
    empty, starts = torch.zeros(0), torch.zeros(2, dtype=torch.int32)
    tensors |= {
        "fc.weight:values": empty,
        "fc.weight:columns": empty.to(torch.int32),
        "fc.weight:starts": starts,
    }


def narrow_and_none(config: Any, tensors: Any) -> None:
    """What is said to be int64 in fewer bytes is not there."""
    config["narrow"].append("nothing")


@pytest.mark.parametrize("change", [
    set_in("arguments", "hidden", 15_000),
    set_in("arguments", "vocabulary", 2**31),
    set_in("arguments", "layers", 100_000),
    set_in("arguments", "layers", 10**30),
    set_in("modules", "rnn", "hidden_size", 15_000),
    set_in("modules", "rnn", "num_layers", 10**6),
    sparse_and_wide,
])  # fmt: skip
@pytest.mark.parametrize("into", [False, True])
def test_a_small_file_takes_little_memory(change: Any, into: bool, tmp_path: Path) -> None:
    """However large the model is that it describes: 11 kB took 10 GB."""
    file = edited(words(), tmp_path, change)
    if into and change.__closure__ and "arguments" in change.__closure__[0].cell_contents:
        return  # the caller's model has its own
    with pytest.raises(CheckpointError):
        loaded(file, words() if into else None)


def test_a_sparse_model_of_any_size_is_loaded_into_one(tmp_path: Path) -> None:
    """The way out of the refusal: who builds the model says how large it may be."""
    large = nn.Linear(20_000, 2_000)
    with torch.no_grad():
        large.weight.zero_()
    gw.save(large, tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 20_000
    back = gw.load(tmp_path, into=nn.Linear(20_000, 2_000))
    assert torch.equal(back.weight, large.weight)


def without(*names: str) -> Any:
    def change(config: Any, tensors: Any) -> None:
        for name in names:
            for stored in [key for key in tensors if key.partition(":")[0] == name]:
                del tensors[stored]
            config["sparse"].pop(name, None)

    return change


def shorter(name: str) -> Any:
    """An index list without its last number; its matrix stays."""

    def change(config: Any, tensors: Any) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return change


def reads_a_removed_neuron(config: Any, tensors: Any) -> None:
    kept = tensors["rnn.layers.0.neurons"].tolist()
    gone = next(j for j in range(6) if j not in kept)
    inputs = tensors["rnn.layers.1.inputs"]
    others = [j for j in inputs.tolist() if j != gone]
    others[next((k for k, j in enumerate(others) if j > gone), -1)] = gone
    tensors["rnn.layers.1.inputs"] = torch.tensor(sorted(others), dtype=inputs.dtype)


@torch.no_grad()
def with_a_gap() -> nn.Module:
    """Neuron 2 of the lower layer is read by nobody, so it is removed."""
    model = words()
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and name.startswith("rnn"):
            weight.copy_(torch.randn_like(weight))
    model.rnn.weight_hh_l0[:, 2] = 0
    model.rnn.weight_ih_l1[:, 2] = 0
    return gw.compress(model)


@pytest.mark.parametrize(("change", "message"), [
    (shorter("rnn.layers.0.neurons"), r"rnn: 'slots' is torch\.int64 \(20,\), not a list of at most 16 indices"),
    (shorter("rnn.layers.1.recurrent"), r"weight_hh is \(\d+, \d+\) in the file"),
    (shorter("rnn.layers.0.slots"), r"weight_hh is \(\d+, \d+\) in the file"),
    (reads_a_removed_neuron, r"rnn\.layers\.1 reads neuron 2 of the level below, which was removed"),
    (set_in("modules", "rnn", "gate_activation", "relu"), r"rnn\.gate_activation must be one of sigmoid"),
    (set_in("modules", "rnn", "dropout", float("nan")), r"rnn\.dropout must be a finite number from 0 to 1"),
    (set_in("modules", "rnn", "hidden_size", 7), r"rnn: its layers are not 2 x 1 layers of 7 neurons"),
    (set_in("modules", "rnn", "layers", 0, "width", 7), r"rnn: its layers are not"),
    (set_in("modules", "rnn", "num_layers", 1), r"rnn: its layers are not 1 x 1 layers"),
    (set_in("modules", "rnn", "num_layers", 10**30), r"rnn\.num_layers must be a whole number"),
    (set_in("modules", "rnn", "bidirectional", True), r"rnn: its layers are not 2 x 2 layers"),
    (set_in("modules", "rnn", "bias", False), r"rnn\.layers\.0\.bias is in the file, but not in WordLM"),
])  # fmt: skip
def test_a_model_that_contradicts_itself(change: Any, message: str, tmp_path: Path) -> None:
    """torch and the engine would make different networks of it, or none."""
    file = edited(with_a_gap(), tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        loaded(file)


@pytest.mark.parametrize(("change", "message"), [
    (set_in("sparse", 7), "it.sparse must be an object, not 7"),
    (set_in("narrow", ["fc.bias"]), "'fc.bias' is torch.float32, not an int64 in fewer bytes"),
    (narrow_and_none, "there is no tensor 'nothing'"),
    (set_in("sparse", {"fc.bias": [1, 2]}), "there is no tensor 'fc.bias:(values|columns|starts)'"),
    (set_in("attached", [7]), r"it.attached\[0\] must be a text, not 7"),
    (set_in("modules", []), "it.modules must be an object, not a list"),
    (set_in("sparse", "fc.weight", [float("inf"), 2]), r"sparse.fc.weight\[0\] must be a whole number"),
    (set_in("shared", {"fc.weight": "emb.weight"}), r"shared\.fc\.weight names 'emb\.weight', which is no other"),
    (set_in("frozen", ["nothing"]), "nothing is frozen in the file, but no parameter of WordLM"),
    (set_in("class", "gatewise.lab.models.Nothing"), "has no attribute 'Nothing'"),
    (set_in("class", "gatewise.nothing.WordLM"), "No module named"),
    (set_in("class", "gatewise.nn.LSTM"), "only your program can build"),
    (set_in("class", 3), "it.class must be a text, not 3"),
    (set_in("provenance", [1]), None),
    (set_in("modules", "rnn", "layers", None), r"rnn\.layers must be a list"),
    (without("rnn.layers.0.weight_ih"), "weight_ih"),
    (without("fc.bias"), "fc.bias is in WordLM, but not in the file"),
])  # fmt: skip
def test_odd_configs(change: Any, message: str | None, tmp_path: Path) -> None:
    """Whatever stands where something else should: one CheckpointError that names the place."""
    file = edited(gw.compress(words()), tmp_path, change)
    if message is None:
        loaded(file)  # who wrote it is told, not used
        return
    with pytest.raises(CheckpointError, match=message):
        loaded(file)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, '{"format": ' + "9" * 5_000 + "}", "7", "[]", ""]
)
def test_a_config_that_is_none(text: str, tmp_path: Path) -> None:
    file = gw.save(nn.Linear(2, 2), tmp_path).path
    file.write_bytes(safetensors.torch.save({"w": torch.ones(2)}, {"gatewise": text}))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: is no file that gatewise\.save\(\) wrote"
    ):
        gw.load(tmp_path)


def test_a_format_that_is_no_number_is_refused_with_any_provenance(tmp_path: Path) -> None:
    for version, provenance in ((2, [1]), (True, None), (0, {}), ("1", "x")):
        gw.save(nn.Linear(2, 2), tmp_path)
        change(tmp_path, format=version, provenance=provenance)
        with pytest.raises(CheckpointError, match=f"format {version}, but this gatewise reads"):
            gw.load(tmp_path)


def test_buffers_that_share_their_memory_are_filled(tmp_path: Path) -> None:
    """An expanded buffer has one place for many numbers; the file has a number for each."""
    model = Tagger()
    model.register_buffer("shift", torch.arange(3.0))
    gw.save(model, tmp_path)
    into = Tagger()
    into.register_buffer("shift", torch.zeros(1).expand(3))
    assert torch.equal(gw.load(tmp_path, into=into).shift, torch.arange(3.0))


def test_a_model_without_memory_is_filled(tmp_path: Path) -> None:
    """Built on the meta device it takes the tensors as they are; a buffer that no file has is named."""
    model = gw.compress(sparse(Tagger()))
    gw.save(model, tmp_path)
    with torch.device("meta"):
        into, other = Tagger(), Tagger()
        other.register_buffer("own", torch.zeros(2), persistent=False)
    assert torch.equal(gw.load(tmp_path, into=into)(IDS), model(IDS))
    with pytest.raises(CheckpointError, match="own: is on the meta device, and the file does not have it"):
        gw.load(tmp_path, into=other)
