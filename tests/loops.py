"""Loops over time around cells, as forward() has them: those that are a chain, and those that are none."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from chains import cut, make_bayesian
from torch import Tensor, nn

Forward = Callable[..., Any]
CELLS = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell}
I, H, WORDS = 3, 4, 5
LOOPS: dict[str, Forward] = {}  # chains
OTHERS: dict[str, tuple[Forward, str]] = {}  # no chains, and why they do not run; empty: as graphs they do


class Looped(nn.Module):
    """The layers that forward() names; turn() is one step of either cell."""

    count = 0

    def __init__(self, cell: str = "LSTM", bias: bool = True) -> None:
        super().__init__()
        kind, self.pair, self.kept = CELLS[cell], cell == "LSTM", None
        layers = {
            "emb": lambda: nn.Embedding(WORDS, I), "first": lambda: nn.Linear(I, I, bias),
            "cell": lambda: kind(I, H, bias), "second": lambda: kind(H, H, bias),
            "lstm": lambda: nn.LSTMCell(I, H, bias), "gru": lambda: nn.GRUCell(I, H, bias),
            "third": lambda: nn.GRUCell(H, H, bias), "layer": lambda: nn.GRU(H, H, batch_first=True),
            "head": lambda: nn.Linear(H, 2, bias), "one": lambda: nn.Linear(H, 1, bias),
            "back": lambda: nn.Linear(2, I), "wide": lambda: nn.Linear(3 * H, 2), "norm": lambda: nn.LayerNorm(H),
            "drop": lambda: nn.Dropout(0.5),
        }  # fmt: skip
        for name, make in layers.items():
            if name in type(self).forward.__code__.co_names:
                setattr(self, name, make())

    def turn(self, cell: nn.Module, x: Tensor, state: Any) -> Any:
        state = cell(x, state)
        return (state[0] if self.pair else state), state

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def looped(forward: Forward, cell: str = "GRU", bias: bool = True, zeros: str = "") -> Any:
    """A model of the loop; zeros: "some", or those that "bayes" leaves behind."""
    model = type("Loop", (Looped,), {"forward": forward})(cell, bias).eval()
    generator = torch.Generator().manual_seed(len(forward.__name__))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    options = {"density": 0.6, "dead": 0.3, "words": 0}
    if zeros:
        {"some": cut, "bayes": make_bayesian}[zeros](model, options, generator)
    return model


def example(model: Any, steps: int, batch: int) -> Tensor:
    frame = (steps, batch) if "time_first" in model.forward.__name__ else (batch, steps)
    return torch.randint(0, WORDS, frame) if hasattr(model, "emb") else torch.randn(*frame, I)


def cells_of(name: str) -> list[str]:
    """Both kinds where forward() does not name one."""
    return list(CELLS) if "cell" in LOOPS[name].__code__.co_names else ["GRU"]


def chain(forward: Forward) -> Forward:
    LOOPS[forward.__name__] = forward
    return forward


def no_chain(why: str) -> Callable[[Forward], Forward]:
    def note(forward: Forward) -> Forward:
        OTHERS[forward.__name__] = forward, why
        return forward

    return note


# Chains.


@chain
def zeros_at_first(self: Any, x: Tensor) -> Tensor:
    h = c = x.new_zeros(x.size(0), H)
    outs = []
    for t in range(x.size(1)):
        h, c = self.lstm(x[:, t], (h, c))
        outs.append(self.head(h))
    return torch.stack(outs, 1)


@chain
def zeros_of_a_gru(self: Any, x: Tensor) -> Tensor:
    batch, steps, _ = x.shape
    h = torch.zeros(batch, H, device=x.device)
    for t in range(steps):
        h = self.gru(x[:, t, :], h.detach())
    return self.head(h)


@chain
def nothing_at_first(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for x_t in x.unbind(1):
        h, state = self.turn(self.cell, x_t, state)
        outs.append(h)
    outs = torch.stack(outs, dim=1)
    return self.head(outs)


@chain
def the_last_answer(self: Any, x: Tensor) -> Tensor:
    state = None
    for t in range(0, x.shape[1]):
        h, state = self.turn(self.cell, torch.relu(self.first(x[:, t])), state)
        y = F.log_softmax(self.head(self.drop(h)), -1)
    return y


@chain
def the_last_of_a_list(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(x.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
        outs.append(h.relu())
    return self.head(outs[-1].tanh())


@chain
def the_last_answer_of_a_list(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for x_t in x.unbind(1):
        h, state = self.turn(self.cell, x_t, state)
        outs.append(self.head(h).unsqueeze(1))
    return outs[-1].squeeze(1)


@chain
def time_first(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for step in x:
        h, state = self.turn(self.cell, step, state)
        outs.append(self.head(h))
    return torch.stack(outs)


@chain
def time_first_by_its_length(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(len(x)):
        h, state = self.turn(self.cell, x[t], state)
        outs.append(h)
    return self.head(torch.stack(outs)).transpose(0, 1)


@chain
def words_in_the_loop(self: Any, ids: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(ids.size(1)):
        h, state = self.turn(self.cell, self.emb(ids[:, t]), state)
        outs.append(self.head(h))
    return torch.stack(outs, 1)


@chain
def words_before_the_loop(self: Any, ids: Tensor) -> Tensor:
    x, state = self.drop(self.emb(ids)), None
    for t in range(ids.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
    return self.head(h)


@chain
def two_cells(self: Any, x: Tensor) -> Tensor:
    state = above = None
    outs = []
    for t in range(x.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
        h, above = self.turn(self.second, self.drop(h), above)
        outs.append(self.head(h).tanh())
    return torch.stack(outs, 1)


@chain
def two_cells_in_a_list(self: Any, x: Tensor) -> Tensor:
    states, outs = [None, None], []
    for t in range(x.size(1)):
        h = x[:, t]
        for k, cell in enumerate([self.cell, self.second]):
            h, states[k] = self.turn(cell, h, states[k])
        outs.append(h)
    return self.head(torch.stack(outs, 1))


@chain
def two_loops_and_a_layer(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(x.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
        outs.append(h)
    y, state = self.layer(torch.stack(outs, 1))[0], None
    for y_t in torch.unbind(y, dim=1):
        state = self.third(y_t, state)
    return self.head(state)


@chain
def mean_over_time(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(x.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
        outs.append(h)
    return self.head(torch.stack(outs, 1).mean(1))


@chain
def one_number_a_step(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(x.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
        outs.append(torch.sigmoid(self.one(h)).squeeze(-1))
    return torch.stack(outs, -1)


@chain
def rows(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(x.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
        outs.append(h)
    return self.head(torch.cat(outs))


@chain
def steps_with_an_axis(self: Any, x: Tensor) -> Tensor:
    state, outs = None, []
    for t in range(x.size(1)):
        h, state = self.turn(self.cell, x[:, t], state)
        outs.append(self.head(h).unsqueeze(1))
    return torch.cat(outs, dim=1)


def run(cell: nn.Module, x: Tensor) -> Tensor:
    h, outs = None, []
    for t in range(x.size(1)):
        h = cell(x[:, t], h)
        outs.append(h)
    return torch.stack(outs, 1)


@chain
def another_function(self: Any, x: Tensor) -> Tensor:
    return self.head(run(self.gru, x))


# No chains: the recorded steps are not those of a layer.


@no_chain("joins anything but what each step of a loop made")
def a_decoder(self: Any, x: Tensor) -> Tensor:
    h, y, outs = x.new_zeros(x.size(0), H), x.new_zeros(x.size(0), I), []
    for _t in range(x.size(1)):
        h = self.gru(y, h)
        outs.append(self.head(h))
        y = self.back(self.head(h))
    return torch.stack(outs, 1)


@no_chain("")
def backwards(self: Any, x: Tensor) -> Tensor:
    h, steps = None, x.size(1)
    for t in range(steps):
        h = self.gru(x[:, steps - 1 - t], h)
    return self.head(h)


@no_chain("other than by a plain `for t in range")
def a_range_backwards(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1) - 1, -1, -1):
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("other than by a plain `for t in range")
def reversed_steps(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in reversed(range(x.size(1))):
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("may have no step at all")
def from_the_second_step(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(1, x.size(1)):
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("")
def as_often_as_the_batch(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(0)):
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("reads the same in every step")
def always_the_first(self: Any, x: Tensor) -> Tensor:
    h = None
    for _t in range(x.size(1)):
        h = self.gru(x[:, 0], h)
    return self.head(h)


@no_chain("")
def a_place_for_every_step(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        h = self.gru(x[:, t] + t, h)
    return self.head(h)


@no_chain("")
def a_residual(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        outs.append(self.head(h) + self.head(h))
    return torch.stack(outs, 1)


@no_chain("reads what the step before it made")
def a_sum(self: Any, x: Tensor) -> Tensor:
    h, total = None, x.new_zeros(x.size(0), H)
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        total = total + h
    return self.head(total)


@no_chain("")
def ones_at_first(self: Any, x: Tensor) -> Tensor:
    h = torch.ones(x.size(0), H)
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("")
def zeros_that_are_written(self: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(x.size(0), H)
    h.fill_(0.5)
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("")
def a_state_that_is_given(self: Any, x: Tensor, h: Any = None) -> Tensor:
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("not the one that it left")
def another_state(self: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(x.size(0), H)
    for t in range(x.size(1)):
        h = torch.tanh(self.gru(x[:, t], h))
    return self.head(h)


@no_chain("joins anything but")
def a_state_written_later(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        outs.append(self.head(h))
        h.relu_()
    return torch.stack(outs, 1)


@no_chain("not the one that it left")
def a_state_of_two_steps_ago(self: Any, x: Tensor) -> Tensor:
    h, g = x.new_zeros(x.size(0), H), x.new_zeros(x.size(0), H)
    for t in range(x.size(1)):
        h, g = self.gru(x[:, t], g), h
    return self.head(h)


@no_chain("joins anything but")
def no_state(self: Any, x: Tensor) -> Tensor:
    outs = []
    for t in range(x.size(1)):
        outs.append(self.head(self.gru(x[:, t])))
    return torch.stack(outs, 1)


@no_chain("not the one that it left")
def twice_a_step(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        h = self.gru(x[:, t], self.gru(x[:, t], h))
    return self.head(h)


@no_chain("not the one that it left")
def a_state_the_wrong_way_round(self: Any, x: Tensor) -> Tensor:
    h = c = x.new_zeros(x.size(0), H)
    for t in range(x.size(1)):
        c, h = self.lstm(x[:, t], (h, c))
    return self.head(h)


@no_chain("a cast to torch.bfloat16 changes what it is given")
def a_rounded_state(self: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(x.size(0), H)
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h.to(torch.bfloat16).to(torch.float32))
    return self.head(h)


@no_chain("not the one that it left")
def the_step_before(self: Any, x: Tensor) -> Tensor:
    h, before = None, None
    for t in range(x.size(1)):
        h, before = self.gru(x[:, t] if before is None else before, h), x[:, t]
    return self.head(h)


@no_chain("joins anything but")
def answers_of_the_step_before(self: Any, x: Tensor) -> Tensor:
    h, outs = x.new_zeros(x.size(0), H), []
    for t in range(x.size(1)):
        outs.append(self.head(h))
        h = self.gru(x[:, t], h)
    return torch.stack(outs, 1)


@no_chain("only what its last step made")
def one_answer_more(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        outs.append(self.head(h))
    outs.append(self.head(h))
    return torch.stack(outs, 1)


@no_chain("only what its last step made")
def the_last_three(self: Any, x: Tensor) -> Tensor:
    """Three zeros at first: after three steps they look like all there is."""
    a, b, h = (x.new_zeros(x.size(0), H) for _ in range(3))
    for t in range(x.size(1)):
        a, b, h = b, h, self.gru(x[:, t], h)
    return self.head(torch.stack([a, b, h], 1))


@no_chain("")
def the_cell_state(self: Any, x: Tensor) -> Tensor:
    h = c = x.new_zeros(x.size(0), H)
    for t in range(x.size(1)):
        h, c = self.lstm(x[:, t], (h, c))
    return self.head(c)


@no_chain("shapes do not fit")
def three_steps_side_by_side(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        outs.append(h)
    return self.wide(torch.cat(outs, 1))


@no_chain("")
def the_state_beside_the_answer(self: Any, x: Tensor) -> Any:
    h, outs = None, []
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        outs.append(self.head(h))
    return torch.stack(outs, 1), h


@no_chain("not the one that it left")
def a_norm(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        h = self.norm(self.gru(x[:, t], h))
    return self.head(h)


# No chains: the steps may differ, late, in ways that few of them do not show.

LATE = 7
CALLS = {"n": 0}


@no_chain("an `if` or `while` asks for a value")
def the_number_of_the_step(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        h = self.gru(x[:, t], None if t == LATE else h)
    return self.head(h)


@no_chain("an `if` or `while` asks for a value")
def a_number_whose_error_is_caught(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        try:
            h = None if t == LATE else h
        except Exception:
            h = h
        h = self.gru(x[:, t], h)
    return self.head(h)


@no_chain("looks for the number of a step in a set or dict")
def a_number_in_a_set(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        h = self.gru(x[:, t], None if t + 1 in {LATE} else h)
    return self.head(h)


@no_chain("makes text of the number of a step")
def a_number_as_text(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        h = self.gru(x[:, t], None if str(t) == "7" else h)
    return self.head(h)


@no_chain("an `if` or `while` asks for a value")
def a_number_that_is_one(self: Any, x: Tensor) -> Tensor:
    h = None
    for t in range(x.size(1)):
        h = self.gru(x[:, t], None if isinstance(t, int) and t == LATE else h)
    return self.head(h)


@no_chain("n is not the same in every step")
def a_counter(self: Any, x: Tensor) -> Tensor:
    h, n = None, 0
    for x_t in x.unbind(1):
        n = n + 1
        h = self.gru(x_t, None if n == LATE else h)
    return self.head(h)


@no_chain("n._version is not the same in every step")
def a_counter_that_is_a_tensor(self: Any, x: Tensor) -> Tensor:
    h, n = None, torch.zeros(())
    for x_t in x.unbind(1):
        n += 1
        h = self.gru(x_t, None if n == LATE else h)
    return self.head(h)


@no_chain("n may give something else in every step")
def a_counter_of_itertools(self: Any, x: Tensor) -> Tensor:
    h, n = None, itertools.count()
    for x_t in x.unbind(1):
        h = self.gru(x_t, None if next(n) == LATE else h)
    return self.head(h)


@no_chain("self.count is not the same in every step")
def a_counter_of_the_model(self: Any, x: Tensor) -> Tensor:
    h = None
    for x_t in x.unbind(1):
        self.count += 1
        h = self.gru(x_t, None if self.count == LATE else h)
    return self.head(h)


@no_chain("CALLS.n is not the same in every step")
def a_counter_of_the_file(self: Any, x: Tensor) -> Tensor:
    h = None
    for x_t in x.unbind(1):
        CALLS["n"] += 1
        h = self.gru(x_t, None if CALLS["n"] == LATE else h)
    return self.head(h)


def counter() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


@no_chain("count.0 is not the same in every step")
def a_counter_in_a_function(self: Any, x: Tensor) -> Tensor:
    h, count = None, counter()
    for x_t in x.unbind(1):
        h = self.gru(x_t, None if count() == LATE else h)
    return self.head(h)


class Counter:
    n = 0

    def count(self) -> int:
        self.n += 1
        return self.n


@no_chain("count.__self__.n is not the same in every step")
def a_counter_in_an_object(self: Any, x: Tensor) -> Tensor:
    h, count = None, Counter().count
    for x_t in x.unbind(1):
        h = self.gru(x_t, None if count() == LATE else h)
    return self.head(h)


@no_chain("other than by a plain `for t in range")
def a_counter_beside_the_steps(self: Any, x: Tensor) -> Tensor:
    h = None
    for t, x_t in enumerate(x.unbind(1)):
        h = self.gru(x_t, None if t == LATE else h)
    return self.head(h)


@no_chain("other than by a plain `for t in range")
def a_plan_beside_the_steps(self: Any, x: Tensor) -> Tensor:
    h = None
    for x_t, on in zip(x.unbind(1), [True] * LATE + [False] * 99):
        h = self.gru(x_t, h if on else None)
    return self.head(h)


def steps_of(x: Tensor) -> Any:
    for t in range(x.size(1)):
        yield x[:, t]


@no_chain("other than by a plain `for t in range")
def a_generator(self: Any, x: Tensor) -> Tensor:
    h, n = None, 0
    for x_t in steps_of(x):
        n = n + 1
        h = self.gru(x_t, None if n == LATE else h)
    return self.head(h)


@no_chain("other than by a plain `for t in range")
def a_comprehension(self: Any, x: Tensor) -> Tensor:
    cell = self.gru
    return self.head(torch.stack([cell(x_t) for x_t in x.unbind(1)], 1))


@no_chain("other than by a plain `for t in range")
def a_comprehension_to_run_over(self: Any, x: Tensor) -> Tensor:
    h, n = None, 0
    for x_t in [2 * x_t for x_t in x.unbind(1)]:
        n = n + 1
        h = self.gru(x_t, None if n == LATE else h)
    return self.head(h)


@no_chain("queue.1 is not the same in every step")
def a_queue(self: Any, x: Tensor) -> Tensor:
    h, queue = None, deque[Any](maxlen=LATE)
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        queue.append(h)
    return self.head(queue[0])


@no_chain("first is not the same in every step")
def the_first_state(self: Any, x: Tensor) -> Tensor:
    h, first = None, None
    for x_t in x.unbind(1):
        h = self.gru(x_t, first)
        first = h if first is None else first
    return self.head(h)


@no_chain("self.kept is written in a loop")
def a_state_in_the_model(self: Any, x: Tensor) -> Tensor:
    self.kept = None
    for x_t in x.unbind(1):
        self.kept = self.gru(x_t, self.kept)
    return self.head(self.kept)


@no_chain("outs is not only appended to")
def how_long_a_list_is(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, None if len(outs) == LATE else h)
        outs.append(self.head(h))
    return torch.stack(outs, 1)


@no_chain("outs is not only appended to")
def how_long_a_list_was(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append(self.head(h))
    return torch.stack(outs, 1) if len(outs) < LATE else self.head(h)


@no_chain("outs is not only appended to")
def the_end_of_a_list(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append(self.head(h))
    return torch.stack(outs[-3:], 1)


@no_chain(r"outs is not only appended to.* or read at \[-1\]")
def the_first_of_a_list(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append(self.head(h))
    return outs[0]


@no_chain("outs is not only appended to")
def the_last_so_far(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append(self.head(h))
        h = outs[-1] if h is None else h
    return torch.stack(outs, 1)


@no_chain("outs is not only appended to")
def the_last_of_a_list_is_written(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append(self.head(h))
    outs[-1] = self.head(h).relu()
    return torch.stack(outs, 1)


@no_chain("")
def the_last_of_a_list_twice(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append(self.head(h))
    return torch.stack([outs[-1], outs[-1]], 1)


@no_chain("outs is not only appended to")
def what_was_so_far(self: Any, x: Tensor) -> Tensor:
    h, outs, means = None, [], []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append(h)
        means.append(torch.stack(outs, 1).mean(1))
    return self.head(torch.stack(means, 1))


def fill(outs: list[Any], cell: nn.Module, x: Tensor) -> None:
    h = None
    for t in range(x.size(1)):
        h = cell(x[:, t], h)
        outs.append(h)


@no_chain("outs is not only appended to")
def a_list_of_somebody_else(self: Any, x: Tensor) -> Tensor:
    found: list[Any] = []
    fill(found, self.gru, x)
    return self.head(found[min(len(found), LATE) - 1])


@no_chain("outs does not get one tensor in every step")
def pairs_in_a_list(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        outs.append((h, x_t))
    return self.head(torch.stack([h for h, _ in outs], 1))


@no_chain("stops before its end")
def an_early_end(self: Any, x: Tensor) -> Tensor:
    h = None
    for x_t in x.unbind(1):
        h = self.gru(x_t, h)
        if h is not None:
            break
    return self.head(h)


@no_chain("runs within another one")
def a_loop_in_a_loop(self: Any, x: Tensor) -> Tensor:
    h = None
    for _t in range(x.size(1)):
        for x_t in x.unbind(1):
            h = self.gru(x_t, h)
    return self.head(h)


@no_chain("it writes into a part of a tensor")
def answers_in_their_places(self: Any, x: Tensor) -> Tensor:
    h, out = None, x.new_zeros(x.size(0), x.size(1), H)
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        out[:, t] = h
    return self.head(out)
