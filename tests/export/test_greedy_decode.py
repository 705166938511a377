"""Decoders that read their own answers: compress() is exact, engine and ONNX run encoder and step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders import END, START, Case, Reader, Step, speller, spellers
from hypothesis import given
from networks import Net
from test_onnx_programs import Session
from torch import Tensor, nn

import gatewise as gw
from gatewise.readers import find_readers


@given(case=spellers())
def test_compress_is_exact(case: Case) -> None:
    """Every symbol stays, although neurons, gates and words go: what the first step leaves, the second one reads."""
    with torch.no_grad():
        assert torch.equal(case.small(case.words), case.answer)


def looped(read: Callable[..., Any], step: Callable[..., Any], words: Tensor, longest: int) -> Tensor:
    """The loop of greedy_decode around what stands for encoder and decoder."""
    state, *seen = read(words)
    symbols, ended = torch.full((len(words),), START), torch.zeros(len(words), dtype=torch.bool)
    answer = torch.full((len(words), longest), END)
    for k in range(longest):
        symbols, state = step(symbols, state, *seen)
        answer[:, k] = symbols.masked_fill(ended, END)
        ended |= symbols == END
    return answer


@given(case=spellers())
def test_a_loop_over_engines_gives_the_same_symbols(case: Case) -> None:
    """An engine of the encoder, one of a step: its states come back as forward() returns them."""
    small = case.small
    reader, one = gw.Engine(Reader(small)), gw.Engine(Step(small))

    def step(*given: Any) -> tuple[Tensor, Any]:
        symbols, after = one(*given)
        return symbols, after.returned[0]

    found = looped(lambda words: reader(words)[0], step, case.words, case.model.longest)
    assert torch.equal(found, case.answer)


@pytest.mark.parametrize("way", ["plain", "attention"])
def test_a_loop_over_onnx_gives_the_same_symbols(way: str, tmp_path: Path) -> None:
    """Two files, whatever the batch and the number of letters."""
    model = speller(way=way, hidden=5)
    reader, one = Reader(model).eval(), Step(model).eval()
    with torch.no_grad():
        example = (torch.full((3,), START), *reader(torch.randint(9, (3, 4))))
    for name in ("reader", "step"):
        (tmp_path / name).mkdir()
    read = Session(reader, tmp_path / "reader")
    step = Session(one, tmp_path / "step", example=example)
    for words in (torch.randint(9, (3, 4)), torch.randint(9, (1, 7))):
        assert torch.equal(looped(read, step, words, 6), model(words))


def test_who_reads_whom() -> None:
    """The embedding is read by the layer, the layer by the head, the head by the answer; states are handed over."""
    graph = find_readers(Net(lambda m, words: m.a(words), a=speller()))
    assert [read.matrix for read in graph.reads_of("a.phones")] == ["a.decoder.weight_ih_l0"]
    read = {read.matrix for read in graph.reads_of("a.decoder.l0")}
    assert read == {"a.fc.weight", "a.decoder.weight_hh_l0"}
    assert [(hand.source, hand.target) for hand in graph.handed] == [("a.encoder.l0", "a.decoder.l0")]
    assert list(graph.exposed) == ["a.fc"]


def test_who_reads_whom_with_attention() -> None:
    """The query reads the layer beside the head; keys and votes read the encoder, and are weighed whole."""
    graph = find_readers(speller(way="attention", hidden=5))
    read = {read.matrix for read in graph.reads_of("decoder.l0")}
    assert read == {"fc.weight", "query.weight", "decoder.weight_hh_l0"}
    read = {read.matrix for read in graph.reads_of("encoder.l0")}
    assert read == {"key.weight", "vote.weight", "encoder.weight_hh_l0"}
    assert sorted(graph.exposed) == ["fc", "key", "query", "vote"]


def test_a_decoder_alone() -> None:
    """Its first states are arguments; nothing else says how they look."""
    whole = speller(layers=2, cell="LSTM")
    with torch.no_grad():
        whole.decoder.weight_hh_l1[:, 2] = 0
        whole.fc.weight[:, 2] = 0
    model = Net(
        lambda m, x: gw.nn.greedy_decode(m.phones, m.decoder, m.fc, x, start=START, end=END, longest=5),
        phones=whole.phones, decoder=whole.decoder, fc=whole.fc,
    ).eval()  # fmt: skip
    states = tuple(torch.randn(2, 2, 3, 6))
    small = gw.compress(model)
    assert small.decoder.layer(1, 0).kept == 5
    assert torch.equal(small(states), model(states))


def test_a_symbol_that_always_scores_zero_may_win() -> None:
    """Its row of the head is zero, its answer is not; of equals the first one wins."""
    model = speller()
    with torch.no_grad():
        model.fc.weight[[3, 5]] = 0
        model.fc.bias.fill_(-100.0)
        model.fc.bias[[3, 5]] = 0
        words = torch.randint(9, (2, 4))
        assert (model(words) == 3).all()
        assert torch.equal(gw.compress(model)(words), model(words))


def test_training_sees_the_decoder() -> None:
    """What GroupLasso makes zero in a decoder goes, measure() counts what is left, no warning is about readers."""
    model = speller(hidden=9)
    lasso = gw.GroupLasso(model, l1=0.0, group=0.3)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for _ in range(40):
        optimizer.zero_grad()
        lasso.penalty().backward()
        optimizer.step()
        lasso.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = gw.compress(model)
    words = torch.randint(9, (4, 5))
    assert torch.equal(small(words), model(words))
    assert (
        gw.measure(small).nonzero
        == gw.measure(model).nonzero
        < sum(p.numel() for p in speller(hidden=9).parameters())
    )


EXPORTS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "engine": lambda model, _: gw.Engine(model),
    "ONNX": lambda model, folder: gw.export.to_onnx(model, folder / "model.onnx"),
    "C": lambda model, folder: gw.export.to_c(model, folder / "m"),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_the_loop_itself_is_refused(name: str, tmp_path: Path) -> None:
    """With the line and the way out; also where another way to call forward(), for training, could be exported."""
    with pytest.raises(
        ValueError, match=r"decoders.py, line \d+.*export the encoder and one step.*docs/export.md"
    ):
        EXPORTS[name](speller(), tmp_path)
    assert not list(tmp_path.iterdir())
