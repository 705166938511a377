"""compressed == compiled C, over random chains: every sequence, stream, word and form of the weights."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE, Case, build, chains, emptied, packed_chains, three_lengths
from compiled import OPTIONS, Compiled, pointer, run, sequences, variety
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net, tagger
from torch import Tensor, nn

import gatewise as gw
from gatewise.export.c.rounded import rounded_model


@given(case=chains(), block=st.sampled_from([None, 1, 3]))
def test_the_contract(case: Case, block: int | None, kernels: list[Path], tmp_path: Path) -> None:
    """Every sequence alone, at once and step by step, from memory that holds anything."""
    compiled = Compiled(case.small, tmp_path, kernels, block=None if case.model.rnn.bidirectional else block)
    assert compiled.streams != case.model.rnn.bidirectional
    lengths = torch.full((case.model.o["batch"],), case.model.o["steps"])
    for x, expected in zip(sequences(case), case.one_by_one(lengths)):
        whole = compiled.run(compiled.instance(), x)
        np.testing.assert_allclose(whole, expected.numpy().reshape(whole.shape), **CLOSE)
        if compiled.streams:
            state = compiled.instance()
            steps = np.stack([compiled.step(state, part) for part in x])
            np.testing.assert_allclose(steps[-1:] if compiled.final else steps, whole, **CLOSE)


@settings(max_examples=15)
@given(case=packed_chains(layout="same"), lengths=three_lengths)
def test_packing(case: Case, lengths: Tensor, kernels: list[Path], tmp_path: Path) -> None:
    """C reads a sequence as long as it is, and gives what a forward() that packs gives up to its end."""
    compiled = Compiled(case.small, tmp_path, kernels)
    with torch.no_grad():
        expected = case.small(case.x, lengths)
    whole = expected[0] if isinstance(expected, tuple) else expected
    for b, (x, length) in enumerate(zip(sequences(case), lengths.tolist())):
        every = case.model.o["take"] == "all"
        own = whole.select(1 - case.model.time, b)[:length] if every else whole[b]
        got = compiled.run(compiled.instance(), x[:length])
        np.testing.assert_allclose(got, own.numpy().reshape(got.shape), **CLOSE)


def foldable(case: Case, wish: bool | None) -> bool | None:
    """The wish, where a layer reads the vectors of words as they are."""
    between = case.model.first is not None or "input" in case.model.norms
    return None if between else wish


@settings(max_examples=15)
@given(case=chains(steps=5), fold=st.sampled_from([None, True, False]))
def test_int8(case: Case, fold: bool | None, kernels: list[Path], tmp_path: Path) -> None:
    """C computes what its bytes and scales stand for; the report says how far that is from float32."""
    fold = foldable(case, fold)
    compiled = Compiled(case.small, tmp_path, kernels, weights="int8", fold_embedding=fold)
    rounded = Case(case.model, rounded_model(case.small, fold), case.x, None, case.seed)
    lengths = torch.full((case.model.o["batch"],), 5)
    for x, expected in zip(sequences(case), rounded.one_by_one(lengths)):
        whole = compiled.run(compiled.instance(), x)
        np.testing.assert_allclose(whole, expected.numpy().reshape(whole.shape), **CLOSE)
    assert 0 <= compiled.report.max_abs_error < 1


@settings(max_examples=8)
@given(case=chains(steps=5), fold=st.sampled_from([None, True, False]))
def test_the_error_on_an_example_is_that_of_the_c(
    case: Case, fold: bool | None, kernels: list[Path], tmp_path: Path
) -> None:
    """The largest difference that running the C on the same sequences finds."""
    options = {"weights": "int8", "fold_embedding": foldable(case, fold), "example": case.x}
    compiled = Compiled(case.small, tmp_path, kernels, **options)
    lengths = torch.full((case.model.o["batch"],), 5)
    found = [np.zeros(1)]
    for x, expected in zip(sequences(case), case.one_by_one(lengths)):
        got = compiled.run(compiled.instance(), x)
        found.append((got - expected.numpy().reshape(got.shape)).ravel())
    np.testing.assert_allclose(
        compiled.report.max_abs_error, np.abs(np.concatenate(found)).max(), rtol=0.02, atol=1e-5
    )


@settings(max_examples=5)
@given(case=packed_chains(layout="same"), lengths=three_lengths)
def test_an_example_may_have_lengths(case: Case, lengths: Tensor, tmp_path: Path) -> None:
    """As forward() takes them; a model that packs computes nothing behind the end of a sequence."""
    folder = tmp_path / "c"
    long = gw.export.to_c(case.small, folder, weights="int8", example=(case.x, lengths))
    behind = case.x.clone()
    time = case.model.time
    for b, n in enumerate(lengths.tolist()):
        behind.select(1 - time, b)[n:] = 0
    assert (
        long.max_abs_error
        == gw.export.to_c(case.small, folder, weights="int8", example=(behind, lengths)).max_abs_error
    )


def test_what_an_error_was_measured_on_is_named(tmp_path: Path) -> None:
    """Large inputs reach where int8 is far off; a random sequence of small ones does not tell."""
    model = tagger(nn.GRU(3, 40)).eval()
    batch = 30 * torch.randn(50, 4, 3)
    report = gw.export.to_c(model, tmp_path / "random", weights="int8")
    own = gw.export.to_c(model, tmp_path / "own", weights="int8", example=batch.numpy())
    float32 = gw.export.to_c(model, tmp_path / "float", example=batch)
    assert report.max_abs_error < own.max_abs_error
    assert 0 < float32.max_abs_error < 1e-5
    for made, said in ((report, "one random sequence of 12 steps"), (own, "the example, 50 x 4 x 3")):
        assert made.measured_on == said
        assert f"on {said} | {made.max_abs_error:.3g}" in (made.path / "README.md").read_text()
        assert json.loads((made.path / "gatewise.json").read_text())["measured_on"] == said


@pytest.mark.parametrize(("example", "message"), [
    ("x.npy", "example is of type str; expected a batch"),
    ((), "example is of type tuple"),
    (torch.randn(0, 4, 3), r"shape \(0, 4, 3\) holds no sequence"),
    (torch.randn(5, 4, 2), r"example: forward\(\) does not take it \(ValueError: .*input_size is 3"),
    (torch.full((5, 4, 3), torch.nan), "answer to it is not finite"),
])  # fmt: skip
def test_examples_that_are_none(example: Any, message: str, tmp_path: Path) -> None:
    """Nothing is written then."""
    with pytest.raises(ValueError, match=message):
        gw.export.to_c(tagger(nn.GRU(3, 4)), tmp_path / "c", weights="int8", example=example)
    assert not (tmp_path / "c").exists()


def test_int8_is_smaller_and_near(tmp_path: Path) -> None:
    case = build(1, OPTIONS | {"hidden": 40, "words": 50, "density": 1.0, "dead": 0.0})
    exact, rough = (gw.export.to_c(case.small, tmp_path / kind, weights=kind) for kind in ("float32", "int8"))
    assert rough.flash_bytes < 0.4 * exact.flash_bytes
    assert exact.max_abs_error < 1e-5 < rough.max_abs_error
    assert rough.max_rel_error < 0.05
    readme = (tmp_path / "int8" / "README.md").read_text()
    for number in (f"{rough.flash_bytes:,}", f"{rough.ram_bytes:,}", f"{rough.max_abs_error:.3g}"):
        assert number in readme


def test_instances_do_not_meet(kernels: list[Path], tmp_path: Path) -> None:
    """Two streams that take turns are what each is alone; reset() begins anew."""
    case = variety(0)
    compiled = Compiled(case.small, tmp_path, kernels)
    generator = np.random.default_rng(0)
    inputs = [generator.integers(0, 7, 6) for _ in range(2)]
    alone = [compiled.run(compiled.instance(), x) for x in inputs]
    states = [compiled.instance() for _ in inputs]
    turns = [[compiled.step(state, x[t]) for state, x in zip(states, inputs)] for t in range(6)]
    for k in range(2):
        np.testing.assert_allclose([turn[k] for turn in turns], alone[k], **CLOSE)
    compiled.library.model_reset(pointer(states[0]))
    np.testing.assert_array_equal(compiled.step(states[0], inputs[0][0]), turns[0][0])


@pytest.mark.parametrize("k", [2, 3])
def test_with_two_directions_every_call_begins_anew(k: int, kernels: list[Path], tmp_path: Path) -> None:
    case = variety(k)
    compiled = Compiled(case.small, tmp_path, kernels)
    state, x = compiled.instance(), sequences(case)[0]
    np.testing.assert_array_equal(compiled.run(state, x), compiled.run(state, x))


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("empty", ["rnn.weight_ih_l1", "rnn.weight_hh_l0", "emb.weight", "fc.weight"])
def test_what_is_gone(cell: str, empty: str, kernels: list[Path], tmp_path: Path) -> None:
    case = emptied(3, OPTIONS | {"cell": cell, "density": 1.0, "dead": 0.0}, empty)
    compiled = Compiled(case.small, tmp_path, kernels)
    whole = compiled.run(compiled.instance(), sequences(case)[0])
    expected = case.answer(case.x, masked=True).numpy().reshape(whole.shape)
    np.testing.assert_allclose(whole, expected, **CLOSE)


@pytest.mark.parametrize(
    ("n_words", "kept", "fold"),
    [(40, 0.1, False), (40, 0.1, True), (40, 1.0, True), (70_000, 0.01, True), (70_000, 0.9, False)],
)
def test_words(n_words: int, kept: float, fold: bool, kernels: list[Path], tmp_path: Path) -> None:
    """Kept, removed and wrong words, whether rows are searched or looked up; a wrong one changes nothing."""
    torch.manual_seed(0)
    case = build(5, OPTIONS | {"words": n_words, "density": 1.0, "dead": 0.0, "layers": 1})
    with torch.no_grad():
        case.model.emb.weight.normal_().mul_(torch.rand(n_words, 1) < kept)
    case.small = gw.compress(case.model)
    compiled = Compiled(case.small, tmp_path, kernels, fold_embedding=fold)
    words = torch.linspace(0, n_words - 1, 30).long()
    state = compiled.instance()
    got = compiled.run(state, words.numpy())
    np.testing.assert_allclose(got, case.answer(words[:, None])[:, 0].numpy(), **CLOSE)
    before, y = state.copy(), np.full((2, compiled.width), 7, np.float32)
    for wrong in (-1, n_words, 2**31 - 1, -(2**31)):
        ids = np.array([0, wrong], np.int32)
        assert compiled.call(state, 2, pointer(ids), pointer(y)) == 2  # BAD_WORD
        assert (state == before).all()
        assert (y == 7).all()


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_sparse_vectors(weights: str, kernels: list[Path], tmp_path: Path) -> None:
    """Bits and what they stand for take the fewest bytes; a removed word is a zero vector, whole columns are read."""
    torch.manual_seed(0)
    case = build(5, OPTIONS | {"words": 60, "size": 24, "density": 1.0, "layers": 1})
    with torch.no_grad():
        keep = torch.rand(60, 24) < 0.1
        keep[:, 0] = True
        keep[::5] = False
        case.model.emb.weight.normal_().mul_(keep)
    case.small = gw.compress(case.model)
    compiled = Compiled(case.small, tmp_path, kernels, weights=weights, fold_embedding=False)
    assert "gw_embed_matrix" in (compiled.report.path / "model.c").read_text()
    words = np.arange(60)
    small = rounded_model(case.small, False) if weights == "int8" else case.small
    with torch.no_grad():
        expected = small(torch.from_numpy(words)[:, None])[0][:, 0].numpy()
    np.testing.assert_allclose(compiled.run(compiled.instance(), words), expected, **CLOSE)


def test_without_y_only_the_state_moves(kernels: list[Path], tmp_path: Path) -> None:
    for k in (0, 1, 5, 6):
        case = variety(k)
        compiled = Compiled(case.small, tmp_path, kernels, block=2)
        x = np.repeat(sequences(case)[0], 2, axis=0)
        expected = compiled.run(compiled.instance(), x)[-1]
        state = compiled.instance()
        given = np.ascontiguousarray(x, np.int32 if compiled.words else np.float32)
        assert compiled.call(state, len(x) - 1, pointer(given), None) == 0
        np.testing.assert_allclose(compiled.step(state, x[-1]), expected, **CLOSE)


@pytest.mark.parametrize("scores", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("large", [0, 1])
def test_large_scores_do_not_overflow(scores: Any, large: int, kernels: list[Path], tmp_path: Path) -> None:
    model = Net(lambda m, x: scores(m.fc(m.rnn(x)[0]), -1), rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model.fc.bias.fill_(-3e3)[large] = 3e3
        x = torch.randn(4, 1, 3)
        expected = model(x)[:, 0].numpy()
    compiled = Compiled(model, tmp_path, kernels)
    np.testing.assert_allclose(compiled.run(compiled.instance(), x[:, 0].numpy()), expected, **CLOSE)


def test_weight_file(kernels: list[Path], tmp_path: Path) -> None:
    """The loader takes the file and nothing else."""
    case = variety(0)
    compiled = Compiled(case.small, tmp_path, kernels, file_above=100)
    codes = (
        "OK BAD_STEPS BAD_WORD BAD_ALIGNMENT BAD_MAGIC BAD_VERSION BAD_SIZE OTHER_MODEL CORRUPT NOT_LOADED"
    )
    number = {name: k for k, name in enumerate(codes.split())}
    folder = compiled.report.path
    assert compiled.report.weight_file == folder / "model.bin"
    good = np.frombuffer(compiled.report.weight_file.read_bytes(), np.uint8)
    assert len(good) == compiled.report.weight_file_bytes
    room = np.zeros(len(good) + 72, np.uint8)
    start = -room.ctypes.data % 64

    def load(content: np.ndarray, shift: int = 0) -> int:
        room[start + shift : start + shift + len(content)] = content
        state = np.full(compiled.size, 0xFF, np.uint8)
        size = ctypes.c_size_t(len(content))
        return int(compiled.library.model_load(pointer(state), pointer(room, start + shift), size))

    def changed(at: int) -> np.ndarray:
        bad = good.copy()
        bad[at] ^= 1
        return bad

    assert load(good, 1) == number["BAD_ALIGNMENT"]
    assert load(changed(0)) == number["BAD_MAGIC"]
    assert load(changed(4)) == number["BAD_VERSION"]
    assert load(changed(8)) == load(good[:-1]) == load(good[:10]) == number["BAD_SIZE"]
    assert load(np.append(good, np.uint8(0))) == number["BAD_SIZE"]
    assert load(changed(12)) == number["OTHER_MODEL"]
    for at in (64, len(good) // 2, len(good) - 1):
        assert load(changed(at)) == number["CORRUPT"]
    empty = np.zeros(compiled.size, np.uint8)  # as a static state begins, and a failed load leaves it
    size = ctypes.c_size_t(len(good))
    assert compiled.call(empty, 1, None, None) == number["NOT_LOADED"]
    assert compiled.library.model_load(pointer(empty), None, size) == number["NOT_LOADED"]
    assert load(good, 4) == number["OK"]
    state = np.full(compiled.size + compiled.GUARD, 0xFF, np.uint8)
    assert compiled.library.model_load(pointer(state), pointer(room, start + 4), size) == 0
    got = compiled.run(state, sequences(case)[0])
    np.testing.assert_allclose(got, case.answer(case.x).numpy().reshape(got.shape), **CLOSE)
    bad = changed(64)
    assert (
        compiled.library.model_load(pointer(state), pointer(bad), size) != 0
    )  # what was loaded is gone, too
    assert compiled.call(state, 1, None, None) == number["NOT_LOADED"]
    compiled.report.weight_file.write_bytes(changed(len(good) - 1).tobytes())
    assert "cannot be loaded" in run("make", "check", "OPTIMIZE=-O0", cwd=folder, expect=2)
