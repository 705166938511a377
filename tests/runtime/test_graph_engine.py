"""gw.Engine of models that are no chain of layers: whole sequences, pieces, states, mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from everyday import EVERYDAY, REFUSED, compressed
from networks import Net
from torch import Tensor, nn

import gatewise as gw
from gatewise.program.graph import leaves, mapped
from gatewise.runtime.chained import ChainError
from gatewise.runtime.graph_engine import GraphEngine, GraphState, graph_engine
from gatewise.runtime.narrow import recorded

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
# Everyday models that run on whole sequences only, with a part of the reason.
WHOLE = {
    "additive attention": "both directions",
    "attention pooling": "softmax over time",
    "masked attention": "softmax over time",
    "by einsum": "softmax over time",
    "attention by state": "depends on steps to come",
    "attention between": "several sequences",
    "self attention": "compares steps with each other",
    "squeeze excite": "depends on steps to come",
    "words and tags": "both directions",
    "decoder of two layers": "both directions",
    "siamese": "several sequences",
    "packed states": "both directions",
    "packed tagger": "several lengths",
    "packed residual mean": "several lengths",
    "last of each": "looks steps up",
    "last by gather": "looks steps up",
    "mean and max": "both directions",
    "max of both directions": "both directions",
    "states of both directions": "both directions",
    "first and last": "both directions",
    "directions added": "both directions",
    "layers separated": "both directions",
    "convolution in front": "looks back only",
    "convolution and pool": "looks back only",
    "both ways by flip": "turns time around",
    "differences": "some of the steps",
    "encoder decoder": "several sequences",
    "history and future": "several sequences",
    "one step of cell": "no sequence",
    "spelling to sounds": "no sequence",
    "bridged states": "both directions",
}


def graph(small: nn.Module, **options: Any) -> GraphEngine:
    """The engine of the program, also where the model is a chain."""
    engine = graph_engine(small, recorded(small, options.pop("example", None)), **options)
    assert isinstance(engine, GraphEngine)
    return engine


def answered(small: nn.Module, *inputs: Any) -> Any:
    with torch.no_grad():
        return small(*inputs)


def whole_answer(answer: Any, state: GraphState) -> Any:
    """With the states that forward() returns."""
    return (answer, *state.returned) if state.returned else answer


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_models(name: str) -> None:
    """Every structure and type as forward() has them, with and without an example; arrays in, arrays out."""
    small, inputs = compressed(name)
    expected = answered(small, *inputs)
    assert name not in REFUSED["engine"]
    for engine in (graph(small), graph(small, example=inputs)):
        answer = whole_answer(*engine(*inputs))
        assert type(answer) is type(expected)
        torch.testing.assert_close(mapped(torch.as_tensor, answer), expected, **CLOSE)
    answer = whole_answer(*engine(*mapped(lambda leaf: leaf.numpy(), inputs)))
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves(answer))
    torch.testing.assert_close(mapped(torch.as_tensor, answer), expected, **CLOSE)


@pytest.mark.parametrize("name", sorted(EVERYDAY.keys() - WHOLE.keys()))
def test_pieces_are_the_whole(name: str) -> None:
    """Answers of steps stand one behind another, answers to a sequence are of all that came so far."""
    small, inputs = compressed(name)
    engine = graph(small, example=inputs)
    expected, state = engine(*inputs)
    way = state.way
    arguments = way.program.arguments
    nodes = leaves(way.split(way.program.outputs)[0])
    steps = next(
        value.shape[axis]
        for value, node in zip(inputs, arguments.values())
        if (axis := way.time_axis(node)) is not None
    )
    for ends in ([2, 3, steps], range(1, steps + 1)):
        answers, state, start = [], None, 0
        for end in ends:
            given = {
                name: value
                if (axis := way.time_axis(node)) is None
                else value.narrow(axis, start, end - start)
                for value, (name, node) in zip(inputs, arguments.items())
                if state is None or name not in engine.carried
            }
            answer, state = engine(**given, state=state) if state else engine(**given)
            answers.append(leaves(answer))
            start = end
        for k, (node, leaf) in enumerate(zip(nodes, leaves(expected))):
            torch.testing.assert_close(together([a[k] for a in answers], way, node), leaf, **CLOSE)


def together(parts: list[Tensor], way: Any, node: Any) -> Tensor:
    if str(node.shape[0]) == "B*T":
        rows = [part.view(2, -1, part.shape[-1]) for part in parts]
        return torch.cat(rows, 1).flatten(0, 1)
    axis = way.time_axis(node)
    return parts[-1] if axis is None else torch.cat(parts, axis)


@pytest.mark.parametrize("name", WHOLE)
def test_what_needs_whole_sequences_says_so(name: str) -> None:
    """By the line of forward(), in a call with a state and in step(); the answer to whole sequences stays right."""
    small, inputs = compressed(name)
    engine = graph(small, example=inputs)
    _, state = engine(*inputs)
    if not state.returned:
        with pytest.raises(TypeError, match=WHOLE[name]):
            engine(*inputs, state)
    with pytest.raises(TypeError, match=rf"step\(\): .*{WHOLE[name]}"):
        engine.step(*inputs)


class Speaker(nn.Module):
    """Residual, static features, an optional mask and a state that comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.fc = nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, speaker: Tensor, state: Any = None, mask: Any = None) -> Any:
        out, state = self.rnn(x * self.gain, state)
        out = out + x + speaker.unsqueeze(1)
        if mask is not None:
            out = out.masked_fill(~mask.unsqueeze(-1), 0.0)
        return self.fc(out), state


@cache
def spoken() -> tuple[nn.Module, Any, Tensor, Tensor]:
    torch.manual_seed(0)
    small = gw.compress(Speaker().eval())
    x, who = torch.randn(2, 6, 4), torch.randn(2, 4)
    return small, gw.Engine(small, example=(x, who)), x, who


@pytest.fixture
def speaker() -> tuple[nn.Module, Any, Tensor, Tensor]:
    """One engine for all of them, because following forward() takes seconds; it begins without a state."""
    small, engine, x, who = spoken()
    engine.reset()
    return small, engine, x.clone(), who.clone()


def test_a_state_stands_for_the_argument_and_the_answer(speaker: Any) -> None:
    """`y, state = engine(x, speaker, state)` reads as `y, state = model(x, speaker, state)`: forward()'s own state
    goes in as well, the one of a call goes on, by position or by any name."""
    small, engine, x, who = speaker
    first = (torch.randn(1, 2, 4), torch.randn(1, 2, 4))
    expected, last = answered(small, x, who, first)
    y, state = engine(x, who, first)
    torch.testing.assert_close(y, expected, **CLOSE)
    torch.testing.assert_close(mapped(torch.as_tensor, state.returned[0]), last, **CLOSE)
    more, final = answered(small, x, who, last)
    calls = [
        ((x, who, state), {}),
        ((x, who), {"state": state}),
        ((), {"speaker": who, "x": x, "state": state}),
    ]
    for inputs, named in calls:
        y, after = engine(*inputs, **named)
        torch.testing.assert_close(y, more, **CLOSE)
        torch.testing.assert_close(mapped(torch.as_tensor, after.returned[0]), final, **CLOSE)


def test_optional_arguments_are_ways_to_call(speaker: Any) -> None:
    small, engine, x, who = speaker
    mask = torch.rand(2, 6) > 0.5
    y, _ = engine(x, who, mask=mask)
    torch.testing.assert_close(y, answered(small, x, who, None, mask)[0], **CLOSE)
    torch.testing.assert_close(engine(x, who)[0], answered(small, x, who)[0], **CLOSE)
    with pytest.raises(TypeError, match=r"forward\(\) needs speaker"):
        engine(x)


def test_an_argument_of_no_recorded_way_is_refused() -> None:
    """Rather than left out."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 3, batch_first=True)

        def forward(self, x: Tensor, scale: Any = None) -> Tensor:
            out = self.rnn(x)[0] + x
            return out if scale is None else out * scale.sum().item()

    torch.manual_seed(0)
    engine, x = graph(gw.compress(Scaled().eval())), torch.randn(2, 4, 3)
    assert engine(x)[0].shape == (2, 4, 3)
    with pytest.raises(TypeError, match="could not be recorded with x, scale given, only with x"):
        engine(x, torch.ones(2))


@pytest.mark.parametrize("by_name", [False, True])
def test_a_part_of_a_state_is_an_answer(by_name: bool) -> None:
    """A tracer takes isinstance(state, tuple) for false, and c_n for h_n[-1]."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Any:
            out, state = self.rnn(x)
            h = state[0] if isinstance(state, tuple) else state
            return {"y": self.fc(out), "last": h[-1]} if by_name else (self.fc(out), h[-1])

    torch.manual_seed(0)
    small, x = gw.compress(Last().eval()), torch.randn(2, 5, 3)
    torch.testing.assert_close(gw.Engine(small)(x)[0], answered(small, x), **CLOSE)


def test_an_answer_beside_a_chain_is_not_lost() -> None:
    """A chain has one answer; what forward() makes past it is another."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return self.rnn(x)[0], y * 2

    torch.manual_seed(0)
    small, inputs = gw.compress(Beside().eval()), (torch.randn(2, 5, 3), torch.randn(2, 5, 1))
    engine = gw.Engine(small, example=inputs)
    torch.testing.assert_close(engine(*inputs)[0], answered(small, *inputs), **CLOSE)


def test_steps_go_on_until_reset(speaker: Any) -> None:
    small, engine, x, who = speaker
    expected = answered(small, x, who)[0]
    for _ in range(2):
        steps = [engine.step(x[:, t], who) for t in range(6)]
        torch.testing.assert_close(torch.stack(steps, 1), expected, **CLOSE)
        engine.reset()
    engine.step(x[:, 0].numpy(), who.numpy())
    with pytest.raises(ValueError, match=r"state is of 2 sequences, the inputs of 1; .*reset\(\)"):
        engine.step(x[:1, 0], who[:1])


def test_answers_states_and_inputs_belong_to_the_caller(speaker: Any) -> None:
    """Writing into an answer or an input changes no later answer; a state may be used twice."""
    small, engine, x, who = speaker
    arrays = x.numpy().copy(), who.numpy().copy()
    y, state = engine(*arrays)
    expected = y.copy()
    y[...] = np.nan
    again, _ = engine(*arrays)
    np.testing.assert_array_equal(again, expected)
    one, _ = engine(*arrays, state)
    one[...] = np.nan
    arrays[0][...] = 0
    two, _ = engine(x.numpy(), arrays[1], state)
    torch.testing.assert_close(
        torch.from_numpy(two), answered(small, x, who, answered(small, x, who)[1])[0], **CLOSE
    )


def test_an_answer_that_is_an_input_is_a_copy() -> None:
    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 3, batch_first=True)
            self.gain = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Any:
            return self.rnn(x)[0] + x, x, self.gain

    torch.manual_seed(0)
    engine, x = gw.Engine(Passing().eval()), np.ones((1, 2, 3), np.float32)
    (_, same, gain), _ = engine(x)
    same[...], gain[...] = 7, 7
    assert (x == 1).all()
    assert (engine(x)[0][2] == 1).all()


def test_threads_share_an_engine(speaker: Any) -> None:
    _, engine, x, who = speaker
    expected = engine(x, who)[0]
    wrong: list[int] = []

    def call(k: int) -> None:
        wrong.extend(k for _ in range(20) if not torch.equal(engine(x, who)[0], expected))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def other_speaker() -> Speaker:
    """One of other weights."""
    model = Speaker()
    for p in model.parameters():
        nn.init.constant_(p, 0.1)
    return model


MISTAKES: list[tuple[Callable[[Any, Tensor, Tensor], Any], type[Exception], str]] = [
    (
        lambda e, x, s: e(x, s, None, None, x),
        TypeError,
        r"5 inputs were given; forward\(\) takes x, speaker, state",
    ),
    (lambda e, x, s: e(x, s, speaker=s), TypeError, "speaker is given twice"),
    (lambda e, x, s: e(x, s, lengths=[1, 2]), TypeError, "lengths is no argument of the engine"),
    (
        lambda e, x, s: e(x, s[:1]),
        ValueError,
        r"speaker: expected shape \(B, 4\), got \(1, 4\); .* is \(2, 4\)",
    ),
    (lambda e, x, s: e(x.double(), s), TypeError, r"x must be float32, got float64; x.float\(\) converts it"),
    (lambda e, x, s: e(x.bfloat16(), s), TypeError, "x must be float32, got bfloat16"),
    (lambda e, x, s: e(x.requires_grad_(), s), ValueError, "x requires a gradient"),
    (lambda e, x, s: e(x[:, :0], s), ValueError, "which is empty"),
    (lambda e, x, s: e(x, s, (s, s, s)), TypeError, "state: expected 2 parts"),
    (
        lambda e, x, s: e(x, s, gw.Engine(gw.compress(other_speaker()))(x, s)[1]),
        TypeError,
        "an earlier call of this engine",
    ),
    (lambda e, x, s: e(x, s, e(x[:1], s[:1])[1]), ValueError, "state is of 1 sequence, the inputs of 2"),
]


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_mistakes_are_named(speaker: Any, call: Any, kind: type[Exception], message: str) -> None:
    _, engine, x, who = speaker
    with pytest.raises(kind, match=message):
        call(engine, x, who)


def test_words_and_lengths_are_checked() -> None:
    """The kernels trust both."""
    small, (words, tags) = compressed("words and tags")
    with pytest.raises(IndexError, match=r"tag_emb: word id 6 at position 0 is outside 0\.\.5"):
        graph(small)(words, torch.full_like(tags, 6))
    small, (x, _) = compressed("packed residual mean")
    for wrong, said in ((7, "7"), (0, "0")):
        with pytest.raises(ValueError, match=f"sequence 1 has length {said}, outside 1..6"):
            graph(small)(x, torch.tensor([3, wrong, 2]))


def test_what_cannot_be_recorded_is_refused_as_before() -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out, _ = self.rnn(x)
            return out if out.sum() > 0 else -out

    with pytest.raises(ChainError, match="accelerate"):
        gw.Engine(Deciding())


def test_two_directions_above_a_given_state() -> None:
    """forward() begins them anew in every call, so the engine has no state that goes on in all layers."""
    torch.manual_seed(0)
    below, above = nn.GRU(3, 4, batch_first=True), nn.GRU(4, 4, batch_first=True, bidirectional=True)

    def rule(m: Any, x: Tensor, state: Any) -> Any:
        y, state = m.below(x, state)
        return m.above(y)[0], state

    model = Net(rule, below=below, above=above).eval()
    engine, x = gw.Engine(model), torch.randn(2, 5, 3)
    _, state = engine(x)
    with pytest.raises(TypeError, match="above reads sequences in both directions"):
        engine(x, state)


def residual(m: Any, x: Tensor, state: Any) -> Any:
    y, state = m.rnn(x, state)
    return y + x, state


def test_a_state_is_given_once() -> None:
    """A state of the engine holds the argument, so one of the two would be ignored."""
    engine, x = gw.Engine(Net(residual, rnn=nn.GRU(4, 4, batch_first=True)).eval()), torch.randn(2, 5, 4)
    _, state = engine(x)
    with pytest.raises(TypeError, match="state is given, and so is a state that holds it"):
        engine(x, torch.ones(1, 2, 4), state=state)


def test_a_step_takes_an_argument_named_state() -> None:
    """step() keeps a state of its own, under no name."""
    rule = lambda m, x, state: m.rnn(x + state[:, None])[0] + x  # noqa: E731
    model = Net(rule, rnn=nn.GRU(4, 4, batch_first=True)).eval()
    x, shift = torch.randn(2, 3, 4), torch.randn(2, 4)
    engine = gw.Engine(model, example=(x, shift))
    steps = [engine.step(x[:, t], state=shift) for t in range(3)]
    torch.testing.assert_close(torch.stack(steps, 1), answered(model, x, shift), **CLOSE)


class Translator(nn.Module):
    """A decoder that starts where an encoder ends."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.GRU(3, 4, batch_first=True), nn.GRU(3, 4, batch_first=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.decoder(y, self.encoder(x)[1])[0])
        return scores


@pytest.mark.filterwarnings("ignore:.*nothing is left|.*no neuron")
def test_an_encoder_of_no_neuron_starts_a_decoder() -> None:
    """Its last state is zero, which no memory holds."""
    model: Any = Translator()
    gw.Variational(model, n_train=10)
    with torch.no_grad():
        model.encoder.neuron_scale_l0.zero_()
        model.encoder.neuron_scale_l0_log_sigma.fill_(3.0)
    small, x = gw.compress(model.eval()), torch.randn(2, 5, 3)
    assert not len(small.encoder.layers[0].neurons)
    torch.testing.assert_close(gw.Engine(small)(x, x)[0], answered(small, x, x), **CLOSE)


ONE_ENGINE = "one engine for all models comes with the plan that C runs"


@pytest.mark.xfail(strict=True, reason=f"a chain knows its own states alone; {ONE_ENGINE}")
def test_a_chain_takes_the_state_of_forward() -> None:
    """As docs/export.md lists it for engine(x, (h, c))."""
    model, x = (
        Net(lambda m, x, state: m.rnn(x, state), rnn=nn.LSTM(3, 4, batch_first=True)),
        torch.randn(2, 5, 3),
    )
    state = torch.ones(1, 2, 4), torch.ones(1, 2, 4)
    torch.testing.assert_close(gw.Engine(model)(x, state)[0], answered(model, x, state)[0], **CLOSE)


@pytest.mark.xfail(
    strict=True, reason="a recording takes no None inside of an argument; recording by example will"
)
def test_none_inside_an_argument() -> None:
    def rule(m: Any, pair: Any) -> Tensor:
        x, gain = pair
        y: Tensor = m.rnn(x)[0]
        return y + x if gain is None else y * gain

    model, x = Net(rule, rnn=nn.GRU(4, 4, batch_first=True)), torch.randn(2, 5, 4)
    engine = gw.Engine(model, example=((x, None),))
    torch.testing.assert_close(engine((x, None))[0], answered(model, (x, None)), **CLOSE)


OTHERS = """
import os, time
os.environ["OPENBLAS_NUM_THREADS"] = "2"
import torch
from torch import nn
import gatewise as gw

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1500)
        self.out = nn.Linear(1500, 1500)

    def forward(self, x):
        y = self.fc(self.rnn(x)[0])
        return self.out(y) + y

engine, x = gw.Engine(Wide(), threads=1), torch.randn(8, 40, 8).numpy()
engine(x)
own, everybody = time.thread_time(), time.process_time()
for _ in range(10):
    engine(x)
own, everybody = time.thread_time() - own, time.process_time() - everybody
print((everybody - own) / own)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread")
@pytest.mark.xfail(strict=True, reason=f"NumPy multiplies in as many threads as it likes; {ONE_ENGINE}")
def test_one_thread_is_one() -> None:
    """No other thread of the process works while an engine of one thread does."""
    done = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    assert float(done.stdout) < 0.2
