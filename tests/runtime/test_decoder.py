"""Decoders that read their own answers: masked, compact, reference and engine agree symbol for symbol."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from decoders import END, START, Case, margin, speller, spellers
from hypothesis import assume, given, settings
from networks import Net
from test_rounding import as_rounded
from torch import nn

import gatewise as gw
from gatewise.program.graph import Program
from gatewise.program.operations import Decode
from gatewise.program.stand_ins import Refused
from gatewise.program.ways import programs
from gatewise.readers import find_readers
from gatewise.runtime.decoding import Decoder
from gatewise.runtime.evaluate import evaluate
from gatewise.runtime.layers import RecurrentLayer


def decoding(model: nn.Module) -> Program:
    """The program of a call without targets."""
    return next(program for program in programs(model) if "targets" not in program.arguments)


@given(case=spellers())
def test_every_form_gives_the_same_symbols(case: Case) -> None:
    """Only what no symbol depends on is cut, and the engine's loop is that of the equation."""
    small = case.small
    with torch.no_grad():
        assert torch.equal(small(case.words), case.answer)
    for model in (case.model, small):
        answer = evaluate(decoding(model), model, {"words": case.words.numpy()})
        assert np.array_equal(answer, case.answer.numpy())
    engine = gw.Engine(small)
    ids, _ = engine(case.words)
    assert torch.equal(ids, case.answer)
    one, _ = engine(case.words[:1].numpy())
    assert np.array_equal(one, case.answer[:1].numpy())


@given(case=spellers(way="plain"))
def test_a_word_may_arrive_in_pieces(case: Case) -> None:
    """The decoder begins with the state that all letters left."""
    engine, state = gw.Engine(case.small), None
    for letter in case.words.split(1, 1):
        ids, state = engine(letter, state=state)
    assert torch.equal(ids, case.answer)


@settings(max_examples=8)
@given(case=spellers(way="plain"))
def test_rounded_weights(case: Case) -> None:
    """The symbols of the network whose weights are rounded, as far as no further rounding decides."""
    small = case.small
    measure = as_rounded(small)
    with torch.no_grad():
        expected = measure(case.words)
    assume(margin(measure, case.words, expected) > 1e-3)
    ids, _ = gw.Engine(small, weights="int8", fold_embedding=False)(case.words)
    assert torch.equal(ids, expected)


def test_it_is_one_operation_of_the_program() -> None:
    """With the line of forward() that asks for it."""
    program = str(decoding(speller()))
    assert "embedding=phones, module=decoder, head=fc, start=1, end=2, longest=6) -> int(B, 6)" in program
    assert "decoders.py" in program.splitlines()[-2]


def test_who_reads_whom() -> None:
    """The embedding is read by the layer, the layer by the head, the head by the answer; states are handed over."""
    graph = find_readers(Net(lambda m, words: m.a(words), a=speller()))
    assert [read.matrix for read in graph.reads_of("a.phones")] == ["a.decoder.weight_ih_l0"]
    read = {read.matrix for read in graph.reads_of("a.decoder.l0")}
    assert read == {"a.fc.weight", "a.decoder.weight_hh_l0"}
    assert [(hand.source, hand.target) for hand in graph.handed] == [("a.encoder.l0", "a.decoder.l0")]
    assert "greedy_decode() answers with the largest of it" in graph.exposed["a.fc"]
    assert list(graph.exposed) == ["a.fc"]


def test_who_reads_whom_with_attention() -> None:
    """The query reads the layer beside the head; keys and votes read the encoder, and are weighed whole."""
    graph = find_readers(speller(way="attention", hidden=5))
    read = {read.matrix for read in graph.reads_of("decoder.l0")}
    assert read == {"fc.weight", "query.weight", "decoder.weight_hh_l0"}
    read = {read.matrix for read in graph.reads_of("encoder.l0")}
    assert read == {"key.weight", "vote.weight", "encoder.weight_hh_l0"}
    assert sorted(graph.exposed) == ["fc", "key", "query", "vote"]


def test_attention_reads_whole_words() -> None:
    """Letters to come have votes, too."""
    engine = gw.Engine(speller(way="attention", hidden=5))
    with pytest.raises(TypeError, match="every answer depends on steps to come"):
        engine.step(torch.zeros(1, dtype=torch.int64))


def test_a_symbol_that_always_scores_zero_may_win() -> None:
    """Its row of the head is cut, its zero is not; of equals the first one wins."""
    model = speller()
    with torch.no_grad():
        model.fc.weight[[3, 5]] = 0
        model.fc.bias.fill_(-100.0)
        model.fc.bias[[3, 5]] = 0
        words = torch.randint(9, (2, 4))
        assert (model(words) == 3).all()
        assert torch.equal(gw.compress(model)(words), model(words))
    assert torch.equal(gw.Engine(gw.compress(model))(words)[0], model(words))


def test_threads_and_batches_change_nothing() -> None:
    """Sequences are spread over threads, and calls of several threads have their own memory."""
    model = speller(layers=2, cell="LSTM")
    words = torch.randint(9, (33, 5))
    expected = model(words)
    assert torch.equal(gw.Engine(model, threads=3)(words)[0], expected)
    engine, found = gw.Engine(model), dict[int, Any]()
    workers = [
        threading.Thread(target=lambda k=k: found.update({k: engine(words[k::4])[0]})) for k in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(found[k], expected[k::4]) for k in range(4))


def test_a_layer_that_forward_also_reads_by_its_weight() -> None:
    """compress() leaves it whole, and the decoder takes it so."""
    model = Net(lambda m, words: (m.speller(words), m.speller.phones.weight.sum()), speller=speller()).eval()
    words = torch.randint(9, (3, 4))
    with pytest.warns(UserWarning, match="phones stays as it is"):
        engine = gw.Engine(model)
    assert torch.equal(engine(words)[0][0], model(words)[0])


def test_a_decoder_alone() -> None:
    """Its first states are arguments; nothing else says how they look."""
    model = speller(layers=2, cell="LSTM")
    layers = {"phones": model.phones, "decoder": model.decoder, "fc": model.fc}
    alone = Net(
        lambda m, x: gw.nn.greedy_decode(m.phones, m.decoder, m.fc, x, start=START, end=END, longest=5),
        **layers,
    ).eval()
    states = tuple(torch.randn(2, 2, 3, 6))
    ids, _ = gw.Engine(alone)(states)
    assert torch.equal(ids, alone(states))


def test_what_cannot_be_recorded_is_said() -> None:
    """A hook, or modules of elsewhere."""
    hooked = speller()
    hooked.fc.register_forward_hook(lambda *_: None)
    with pytest.raises(Refused, match="a hook on fc may see or change it"):
        programs(hooked)
    foreign = [nn.Linear(6, 7)]
    model = Net(
        lambda m, words: gw.nn.greedy_decode(
            m.a.phones, m.a.decoder, foreign[0], m.a.state(words), start=START, end=END, longest=3
        ),
        a=speller(),
    )
    with pytest.raises(Refused, match="runs a Linear that is no part of the model"):
        programs(model)


def test_the_kernel_checks_what_it_is_given() -> None:
    """Wrong symbols and other networks are refused, before memory is touched."""
    model = speller()
    network = Decoder(model, Decode("phones", "decoder", "fc", START, END, 3), None).layer.network
    state, ids = network.zero_state(1), np.empty((1, 3), np.int64)
    with pytest.raises(ValueError, match=r"start 7 or end 2 is outside 0\.\.6"):
        network.decode(state, ids, 1, 7, 2, 3, 1, None, None, 0)
    with pytest.raises(ValueError, match="ids: expected 4 items, got 3"):
        network.decode(state, ids, 1, 1, 2, 4, 1, None, None, 0)
    with pytest.raises(TypeError, match="takes 10 arguments"):
        network.decode(state)
    keys = np.zeros((1, 2, 3), np.float32)
    with pytest.raises(
        TypeError, match="decode\\(\\) with keys needs a network from words to scores of words and a query"
    ):
        network.decode(state, ids, 1, 1, 2, 3, 1, keys, keys, 2)
    with pytest.raises(TypeError, match="needs a network from words to scores of words"):
        RecurrentLayer(model.encoder, "encoder").network.decode(state, ids, 1, 1, 2, 3, 1, None, None, 0)


def test_the_kernel_checks_what_it_looks_at() -> None:
    """Keys and votes of as many things as are said, and a head that asks."""
    model = speller(way="attention", hidden=5)
    network = Decoder(
        model, Decode("phones", "decoder", "fc", START, END, 3, query="query"), None
    ).layer.network
    state, ids = network.zero_state(1), np.empty((1, 3), np.int64)
    keys, votes = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 7), np.float32)
    network.decode(state, ids, 1, 1, 2, 3, 1, keys, votes, 2)
    with pytest.raises(ValueError, match="keys: expected 9 items, got 6"):
        network.decode(state, ids, 1, 1, 2, 3, 1, keys, votes, 3)
    with pytest.raises(ValueError, match="votes: expected 14 items, got 6"):
        network.decode(state, ids, 1, 1, 2, 3, 1, keys, keys, 2)
    with pytest.raises(ValueError, match="things"):
        network.decode(state, ids, 1, 1, 2, 3, 1, keys, votes, 0)
    with pytest.raises(TypeError, match="needs a network from words to scores of words"):
        network.decode(state, ids, 1, 1, 2, 3, 1, None, None, 0)
