"""Loops as long as the input: what they read holds at every length, and what may change later is refused."""

from __future__ import annotations

import builtins
import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from loop_patterns import LOOPS
from networks import Net, answer, no_grad
from patterns import B, E, H, V, emb
from torch import nn

import gatewise as gw
from gatewise.nn.lookup import cell_of, is_single_step
from gatewise.readers import find_readers

Rule = Callable[[Any, Any], Any]


def cut(model: nn.Module) -> nn.Module:
    """Nobody reads neurons 1 and 3 of any cell."""
    with torch.no_grad():
        for module in model.modules():
            if is_single_step(module):
                module.weight_hh[:, [1, 3]] = 0
            wide = isinstance(module, nn.Linear) or (is_single_step(module) and module.input_size == H)
            for start in (
                range(0, module.in_features if isinstance(module, nn.Linear) else H, H) if wide else ()
            ):
                weight = module.weight if isinstance(module, nn.Linear) else module.weight_ih
                weight[:, [start + 1, start + 3]] = 0
    return model.eval()


FOLLOWED = [name for name in LOOPS if not any("rnn" in exposed for exposed in LOOPS[name].exposed)]


@pytest.mark.parametrize("name", FOLLOWED)
def test_the_cut_holds_at_every_length(name: str) -> None:
    """Also at lengths that were not recorded, and at one step."""
    model = cut(LOOPS[name].build())
    small = gw.compress(model)
    cells = [module for module in small.modules() if is_single_step(module)]
    assert [module.layer.kept for module in cells] == [H - 2] * len(cells)
    words = LOOPS[name].x().dtype == torch.int64
    for steps in (1, 2, 3, 4, 11):
        x = torch.randint(V, (steps, B)) if words else torch.randn(steps, B, E)
        torch.testing.assert_close(no_grad(small, x), no_grad(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparsify", [gw.GroupLasso, gw.Variational])
@pytest.mark.parametrize(
    "name", ["a loop over steps", "a loop around stacked cells", "a loop that reads its answer"]
)
def test_sparsifiers_need_no_stated_readers(name: str, sparsify: type[Any]) -> None:
    """They put the same groups on a cell whose readers were found as on one whose readers were stated."""
    stated = {"a loop around stacked cells": {"rnn": ["middle"], "middle": ["top"], "top": ["fc"]}}
    readers = {**stated.get(name, {"rnn": ["fc"]}), "emb": ["rnn"]}
    model = LOOPS[name].build()
    given = copy.deepcopy(model)
    options = {"l1": 1e-3, "group": 1e-2} if sparsify is gw.GroupLasso else {"n_train": 50}
    found = sparsify(model, levels="W+G+N", **options)
    torch.testing.assert_close(
        found.penalty(), sparsify(given, levels="W+G+N", readers=readers, **options).penalty()
    )


# Every loop below reads the neurons with `late`, but not in its first steps; or might.


def at_step_seven(m: Any, x: Any) -> Any:
    h, y = None, 0
    for t in range(len(x)):
        h = m.rnn(m.emb(x[t]), h)
        y = y + (m.fc(h) if t < 7 else m.late(h))
    return y


def at_the_last_step(m: Any, x: Any) -> Any:
    h, y, steps = None, 0, x.size(0)
    for t, step in enumerate(m.emb(x)):
        h = m.rnn(step, h)
        y = y + (m.late(h) if t == steps - 1 else m.fc(h))
    return y


def by_a_counter(m: Any, x: Any) -> Any:
    h, y, i = None, 0, 0
    for step in m.emb(x):
        h = m.rnn(step, h)
        y = y + (m.fc(h) if i < 7 else m.late(h))
        i += 1  # noqa: SIM113
    return y


def by_a_counter_in_the_model(m: Any, x: Any) -> Any:
    h, y, m.i = None, 0, 0
    for step in m.emb(x):
        h = m.rnn(step, h)
        y = y + (m.fc(h) if m.i < 7 else m.late(h))
        m.i += 1
    return y


def by_a_tensor(m: Any, x: Any) -> Any:
    h, y, i = None, 0, torch.zeros(1)
    for step in m.emb(x):
        h = m.rnn(step, h)
        y = y + (m.fc(h) if i < 7 else m.late(h))
        i += 1
    return y


def by_a_counter_around_a_generator(m: Any, x: Any) -> Any:
    def steps() -> Iterator[Any]:
        for t in range(x.size(0)):
            yield m.emb(x[t])

    h, y, i = None, 0, 0
    for step in steps():
        h = m.rnn(step, h)
        y = y + (m.fc(h) if i < 7 else m.late(h))
        i += 1  # noqa: SIM113
    return y


def by_what_it_collected(m: Any, x: Any) -> Any:
    h, outputs = None, []
    for step in m.emb(x):
        h = m.rnn(step, h)
        outputs.append(m.fc(h) if len(outputs) < 7 else m.late(h))
    return outputs[-1]


def counted_afterwards(m: Any, x: Any) -> Any:
    h, outputs, y = None, [], 0
    for step in m.emb(x):
        h = m.rnn(step, h)
        outputs.append(h)
    for t, h in enumerate(outputs):
        y = y + (m.fc(h) if t < 7 else m.late(h))
    return y


def through_a_queue(m: Any, x: Any) -> Any:
    h, y, queue = None, 0, [torch.zeros(x.size(1), H)] * 7
    for step in m.emb(x):
        h = m.rnn(step, h)
        y = y + m.fc(h) + m.late(queue[0])
        queue = [*queue[1:], h]
    return y


def through_a_deque(m: Any, x: Any) -> Any:
    h, y, queue = None, 0, deque([torch.zeros(B, H)] * 7, maxlen=7)
    for step in m.emb(x):
        h = m.rnn(step, h)
        y = y + m.fc(h) + m.late(queue[0])
        queue.append(h)
    return y


def of_a_list_that_began_otherwise(m: Any, x: Any) -> Any:
    h, y, outputs = None, 0, [torch.zeros(x.size(1), H)]
    for step in m.emb(x):
        h = m.rnn(step, h)
        outputs.append(h)
        y = y + m.fc(h) + m.late(outputs[-7:][0])
    return y


def step_seven_afterwards(m: Any, x: Any) -> Any:
    h, outputs = None, []
    for step in m.emb(x):
        h = m.rnn(step, h)
        outputs.append(h)
    return m.fc(h) + m.late(outputs[7])


def left_early(m: Any, x: Any) -> Any:
    h = None
    for step in m.emb(x):
        h = m.rnn(step, h)
        if m.training:
            break
    return m.fc(h) + m.late(h)


def inside_another(m: Any, x: Any) -> Any:
    h, y = None, 0
    for step in m.emb(x):
        h = m.rnn(step, h)
        for b in range(x.size(1)):
            y = y + m.late(h[b])
    return m.fc(h) + y


def by_chance(m: Any, x: Any) -> Any:
    h, y = None, 0
    for step in m.emb(x):
        h = m.rnn(step, h)
        y = y + (m.fc(h) if random.random() < 0.5 else m.late(h))
    return y


def by_its_value(m: Any, x: Any) -> Any:
    h = None
    for step in m.emb(x):
        h = m.rnn(step, h)
        h = -h if h.sum() > 0 else h
    return m.fc(h) + m.late(h)


def unpacked(m: Any, x: Any) -> Any:
    h = m.rnn(*m.emb(x))
    return m.fc(h) + m.late(h)


@pytest.mark.filterwarnings("ignore:rnn keeps:UserWarning")
@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (at_step_seven, "the number of a step, which only a call knows"),
        (at_the_last_step, "the number of a step, which only a call knows"),
        (by_a_counter, "'i' may hold something else at every step"),
        (by_a_counter_in_the_model, "'i' may hold something else at every step"),
        (by_a_tensor, "'i' may hold something else at every step"),
        (by_a_counter_around_a_generator, "'i' may hold something else at every step"),
        (by_what_it_collected, "an `if` or `while` asks"),
        (counted_afterwards, "an `if` or `while` asks"),
        (through_a_queue, "carries something else at every step"),
        (through_a_deque, "'queue' may hold something else"),
        (of_a_list_that_began_otherwise, "carries something else at every step"),
        (step_seven_afterwards, "list index out of range"),
        (left_early, "left before its end"),
        (inside_another, "inside another"),
        (by_chance, ""),
        (by_its_value, "an `if` or `while` asks for a value"),
        (unpacked, "does not know the number of"),
    ],
)
def test_a_loop_that_may_do_something_else_later_is_refused(rule: Rule, why: str) -> None:
    """Three steps prove nothing of the eighth: all neurons stay, with the reason, and the answer with them."""
    model = Net(rule, emb=emb(), rnn=nn.GRUCell(E, H), fc=nn.Linear(H, 2), late=nn.Linear(H, 2)).eval()
    assert cell_of(model.rnn) is not None
    with torch.no_grad():
        model.rnn.weight_hh[:, 1] = model.fc.weight[:, 1] = 0  # `late` reads it
    graph = find_readers(model)
    assert why in graph.exposed["rnn"]
    small = gw.compress(model)
    if rule not in (by_chance, unpacked):
        ids = torch.randint(V, (11, B))
        torch.testing.assert_close(answer(small(ids)), answer(model(ids)), rtol=1e-4, atol=1e-5)


def test_stated_readers_are_the_way_out() -> None:
    model = Net(by_a_counter, emb=emb(), rnn=nn.GRUCell(E, H), fc=nn.Linear(H, 2), late=nn.Linear(H, 2))
    assert "rnn" not in find_readers(model, {"rnn": ["fc", "late"]}).exposed


def test_a_first_step_of_its_own_and_a_delay_are_followed() -> None:
    """What differs in the first steps alone is seen, and later steps are proven to be like the third."""

    def rule(m: Any, x: Any) -> Any:
        h, last, y = None, torch.zeros(B, H), 0
        for step in m.emb(x):
            y = y + (m.fc(step) if h is None else m.late(last))
            last, h = m.rnn(step, h), last
        return y

    model = Net(rule, emb=emb(), rnn=nn.GRUCell(E, H), fc=nn.Linear(E, 2), late=nn.Linear(H, 2))
    graph = find_readers(model)
    assert set(graph.exposed) == {"fc", "late"}
    assert {read.matrix for read in graph.reads_of("rnn")} == {"rnn.weight_hh", "late.weight"}


@pytest.mark.parametrize("rule", [at_step_seven, by_its_value, inside_another])
def test_the_names_of_python_are_its_own_again(rule: Rule) -> None:
    """Also where recording ends with an error."""
    before = range, len, enumerate
    find_readers(Net(rule, emb=emb(), rnn=nn.GRUCell(E, H), fc=nn.Linear(H, 2), late=nn.Linear(H, 2)))
    assert (builtins.range, builtins.len, builtins.enumerate) == before


def test_a_loop_is_no_chain() -> None:
    with pytest.raises(ValueError, match=r"loops over its input.*nn\.LSTM and nn\.GRU also run in C"):
        gw.Engine(LOOPS["a loop over steps"].build())
