"""Where each claim begins to hold: just at its threshold, just beyond it, and one seed of several beyond it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import verdicts
from behaviour import Constants, Gradients, Trace
from made_runs import layer, made
from stored import StoredRun
from verdicts import FAILS, HOLDS

GOOD = layer("g", "g", "go", "i")


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([GOOD], HOLDS),  # g in 3 of 4, o in 1 of 4
        ([layer("g", "g", "o", "i")], FAILS),
        ([layer("g", "go", "go", "i")], FAILS),
        ([GOOD, layer("g", "g", "o", "i")], FAILS),
    ],
)
def test_keeps_g(layers: list[dict[str, Any]], said: str) -> None:
    runs = [made(layer("o"), last, seed=seed) for seed, last in enumerate(layers)]
    found, numbers, line = verdicts.keeps_g(runs)
    assert found == said
    assert numbers["neurons"] == dict.fromkeys(range(len(runs)), 4)
    assert len(line.split("; ")) == len(runs)


def test_many_output_only_is_a_tenth_and_twice_as_many_as_by_chance() -> None:
    few = layer(*["ifgo"] * 19, "o")
    tenth = layer(*["ifgo"] * 18, "o", "o")
    alone = layer("o", "o", "o", "ifgo")  # by chance 4 (3/4)^3 = 1.7
    for last, said in ((few, FAILS), (tenth, HOLDS), (alone, FAILS)):
        assert verdicts.many_output_only([made(last)])[0] == said
        assert verdicts.many_output_only([made(tenth), made(last)])[0] == said
    assert verdicts.many_output_only([made(layer("o", "-", "-"))])[1]["no_live_gate"] == [2]


def test_output_only_with_every_method() -> None:
    """More than twice as many as by chance, in every seed of every method; a tenth is not asked for."""
    few, alone = made(layer(*["ifgo"] * 19, "o")), made(layer("o", "o", "o", "ifgo"), row="other")
    assert verdicts.output_only_everywhere([few], [few])[0] == HOLDS
    assert verdicts.output_only_everywhere([few], [few, alone])[0] == FAILS


def test_nearly_all_gates_are_nine_of_ten() -> None:
    nine = layer(*["ifgo"] * 6, *["ifg"] * 4)
    assert verdicts.uses_nearly_all([made(nine)])[0] == HOLDS
    less = layer(*["ifgo"] * 5, *["ifg"] * 5)
    assert verdicts.uses_nearly_all([made(nine), made(less)])[0] == FAILS


def test_the_same_patterns_layer_by_layer() -> None:
    """0.8 of the overlap of two seeds, and 0.05 more than by chance: one layer in which all gates go together."""
    mixed, full = layer("ifgo", "ifgo", "-", "-"), layer("ifgo", "ifgo")
    a = [made(full, mixed, compression=10.0)]
    assert verdicts.same_patterns(a, a)[0] == "holds in layer 2"  # of layer 1 chance says the same
    b = [made(full, layer("ifgo", "-", "-", "-"), row="other", compression=30.0)]
    said, numbers, line = verdicts.same_patterns(a, b)
    assert said == FAILS  # 0.75 in common
    assert numbers["layers"]["rnn.l1"]["overlap"] == pytest.approx(0.75)
    assert line.endswith("compression 10.0x and 30.0x")
    assert verdicts.other_structure(a, b)[0] == "holds in layer 2"
    assert verdicts.other_structure(a, a)[0] == FAILS


def test_compression_is_compared_by_its_mean() -> None:
    def runs(*compression: float) -> list[StoredRun]:
        return [made(compression=value, row=str(compression)) for value in compression]

    assert verdicts.less_compressed(runs(1.0, 9.0), runs(5.5))[0] == HOLDS
    assert verdicts.less_compressed(runs(1.0, 9.0), runs(5.0))[0] == FAILS


def counts(neurons: int, gates: int) -> StoredRun:
    return made(compression=1.0, neurons={"a": neurons, "b": 1}, gates={"a": gates, "b": 1})


@pytest.mark.parametrize(
    ("having", "said", "states"),
    [
        ([(8, 30)], HOLDS, ("fewer", "fewer")),
        ([(9, 30)], "holds for gates", ("within the seeds", "fewer")),
        ([(12, 30)], "holds for gates", ("more", "fewer")),
        ([(8, 40)], FAILS, ("fewer", "within the seeds")),
        ([(8, 30), (10, 45)], FAILS, ("within the seeds", "within the seeds")),
    ],
)
def test_fewer_is_every_run_below_every_other(
    having: list[tuple[int, int]], said: str, states: tuple[str, str]
) -> None:
    without = [counts(9, 40), counts(11, 50)]
    runs = [counts(*pair) for pair in having]
    found, numbers, _ = verdicts.fewer(without, runs)
    assert found == said
    assert (numbers["neurons"]["state"], numbers["live_gates"]["state"]) == states
    assert verdicts.not_fewer(without, runs)[0] == (FAILS if said == HOLDS else HOLDS)


def test_settled_is_the_median_at_step_five() -> None:
    """f = 1/2, i = 1/2 and g large: c_5 = c* (1 - 2^-5), c* = g. Two of three neurons decide."""

    def run(*g: float) -> StoredRun:
        last = layer(*["o"] * len(g))
        last["constant"][2] = list(g)
        return made(last)

    enough, little = 2.0, 1.86  # tanh(31/32 g) is 0.959 and 0.947; a step later it would be 0.951
    assert verdicts.settles([run(enough, -enough, 0.1)])[0] == HOLDS
    assert verdicts.settles([run(little, -enough, 0.1)])[0] == FAILS
    assert verdicts.settles([run(enough, -enough, 0.1)])[1][0]["g_positive"] == 2


def traced(monkeypatch: pytest.MonkeyPatch, c: torch.Tensor, h: torch.Tensor, o: torch.Tensor) -> None:
    """A trace of two o-only neurons with f = 1/2 and c* = 2 and -2."""
    constants = Constants([0, 1], torch.full((2,), 0.5), torch.tensor([1.0, -1.0]), torch.tensor([2.0, -2.0]))
    monkeypatch.setattr(verdicts, "trace", lambda run: Trace(constants, c, h, o))


def test_one_way_and_by_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    end = torch.tensor([2.0, -2.0])
    right = (end * (1 - 0.5 ** torch.arange(1, 21)[:, None])).unsqueeze(1)  # (T, 1, K)
    off, back = right.clone(), right.clone()
    off[1, 0, 1] *= 1.003  # still between its neighbours
    back[7, 0, 0] = back[6, 0, 0] - 1e-4
    for c, said, moving in ((right, HOLDS, 2), (off, FAILS, 2), (back, FAILS, 1), (-right, FAILS, 0)):
        traced(monkeypatch, c, c, c)
        found, numbers, _ = verdicts.monotone([made()])
        assert (found, numbers[0]["monotone"]) == (said, moving)


def test_h_is_the_output_gate_with_the_sign_of_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps before the tenth may differ; a constant factor correlates, and is apart all the same."""
    o = torch.rand(20, 3, 2) * 0.5 + 0.4
    sign = torch.tensor([1.0, -1.0])
    early, late, unlike = sign * o, sign * o, sign * o.roll(1, dims=0)
    early[:9] *= 0.93
    late[9] *= 0.9
    for h, said, away in (
        (sign * o, HOLDS, 0),
        (early, HOLDS, 0),
        (late, HOLDS, 0.1 / 11),
        (sign * o * 0.94, FAILS, 0.06),
        (-sign * o, FAILS, 2),
        (unlike, FAILS, None),
    ):
        traced(monkeypatch, o, h, o)
        found, numbers, _ = verdicts.shows_o([made()])
        assert found == said
        assert away is None or numbers[0]["away"]["most"] == pytest.approx(away, abs=1e-6)


def gradients(**ratios: list[float]) -> Gradients:
    """Neurons by pattern, with a gradient of 1 near and of so much far."""
    patterns = tuple(pattern for pattern, own in ratios.items() for _ in own)
    far = torch.tensor([ratio for own in ratios.values() for ratio in own])
    return Gradients(patterns, torch.ones(len(far)), far)


def judged(check: Any, monkeypatch: pytest.MonkeyPatch, *seeds: Gradients) -> str:
    found = dict(enumerate(seeds))
    monkeypatch.setattr(verdicts, "gradients", lambda run: found[run.seed])
    monkeypatch.setattr(verdicts, "own_gradients", lambda run: found[run.seed])
    return check([made(seed=seed) for seed in found])[0]


def test_short_and_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(check: Any, *seeds: Gradients) -> str:
        return judged(check, monkeypatch, *seeds)

    short, middling = gradients(o=[0.01, 0.04, 0.9], ifgo=[0.08]), gradients(o=[0.06], ifgo=[0.5])
    assert ask(verdicts.output_only_are_short, short, short) == HOLDS
    assert ask(verdicts.output_only_are_short, short, middling) == FAILS
    assert ask(verdicts.full_are_long, short, middling) == HOLDS
    assert ask(verdicts.full_are_long, short, gradients(o=[0.05], ifgo=[0.09])) == FAILS
    for check in (verdicts.long_are_full, verdicts.long_by_themselves):
        nine = gradients(ifgo=[0.2] * 9, o=[0.01] * 50)
        assert ask(check, nine, gradients(go=[0.2], ifgo=[0.05])) == HOLDS  # 9 of 10, pooled
        assert ask(check, nine, gradients(go=[0.2, 0.2], ifgo=[0.05])) == FAILS
        assert ask(check, gradients(ifgo=[0.09])) == FAILS  # nobody is long
    one = gradients(g=[0.5, 0.9], go=[0.3])
    assert ask(verdicts.all_long, one) == HOLDS
    assert ask(verdicts.all_long, one, gradients(g=[0.5, 0.9])) == FAILS  # none reads the present
    assert ask(verdicts.all_long, gradients(g=[0.3, 0.2])) == FAILS  # two do
    assert ask(verdicts.all_long, gradients(g=[0.5, 0.09])) == FAILS  # one is not long


def test_a_claim_may_hold_in_some_layers() -> None:
    assert verdicts.by_layer([True, True]) == HOLDS
    assert verdicts.by_layer([False, True, True]) == "holds in layer 2, layer 3"
    assert verdicts.by_layer([False]) == FAILS
