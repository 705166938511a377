"""How often patterns of live gates occur, and how alike two layers are, on layers small enough to count by hand."""

from __future__ import annotations

import itertools

import pytest
from gate_patterns import OutputOnly, by_chance, compared, independent, live_gates, overlap, rates, shares
from made_runs import GATES, layer, made

FOUR = layer("o", "o", "ifgo", "-")


def test_counts_rates_and_shares() -> None:
    assert live_gates(FOUR) == {"i": 1, "f": 1, "g": 1, "o": 3}
    assert rates(FOUR) == {"i": 0.25, "f": 0.25, "g": 0.25, "o": 0.75}
    assert shares(FOUR) == {"o": 0.5, "ifgo": 0.25, "-": 0.25}


def test_independent_gates_have_every_pattern() -> None:
    """The product of the rates; where gates are independent already, the shares themselves."""
    expected = independent(FOUR)
    assert len(expected) == 16
    assert sum(expected.values()) == pytest.approx(1)
    assert expected["o"] == pytest.approx(0.75**3 * 0.75)
    assert expected["-"] == pytest.approx(0.75**3 * 0.25)
    assert expected["ifgo"] == pytest.approx(0.25**3 * 0.75)
    subsets = [set(part) for n in range(5) for part in itertools.combinations(GATES, n)]
    every = layer(*("".join(gate for gate in GATES if gate in part) or "-" for part in subsets))
    assert independent(every) == pytest.approx(shares(every))


def test_the_overlap_is_what_both_have() -> None:
    a, b = {"o": 0.5, "ifgo": 0.5}, {"o": 0.25, "g": 0.75}
    assert overlap(a, b) == overlap(b, a) == 0.25
    assert overlap(a, a) == 1
    assert overlap(a, {"g": 1.0}) == 0


def test_by_chance_either_layer_loses_its_patterns() -> None:
    """i and o are never live together in the first; by chance each of the four patterns has a quarter."""
    apart, full = layer("i", "o"), layer("io", "-")
    assert by_chance(apart, full) == pytest.approx(0.5)
    assert overlap(shares(apart), shares(full)) == 0


def test_output_only_neurons_of_the_last_layer() -> None:
    found = OutputOnly.of(made(layer("ifgo", "i"), FOUR))
    assert (found.neurons, found.kept) == (2, 4)
    assert found.by_chance == pytest.approx(4 * 0.75**4)


def test_two_methods_are_compared_pair_by_pair_and_with_their_own_seeds() -> None:
    """0 and 1/2 in common; the two seeds of the one method have 1/2, of the other there is a single run."""
    a = [made(layer("o", "o")), made(layer("o", "ifgo"))]
    b = [made(layer("ifgo", "ifgo"))]
    found = compared(a, b)["rnn.l0"]
    assert found["overlap"] == pytest.approx(0.25)
    assert found["two_seeds"] == pytest.approx(0.5)
    assert found["by_chance"] == pytest.approx((by_chance(layer("o", "ifgo"), layer("ifgo")) + 0) / 2)
    assert compared(b, b)["rnn.l0"]["two_seeds"] == 1
