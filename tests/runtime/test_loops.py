"""Loops around cells: those that are chains run in the engine as in torch, for any length, and no others do."""

from __future__ import annotations

import pytest
import torch
from chains import CLOSE, chain_of, check_answers
from loops import CELLS, LOOPS, OTHERS, H, I, cells_of, example, looped
from torch import nn

import gatewise as gw
from gatewise.runtime.chained import ChainError


@pytest.mark.parametrize("zeros", ["", "some", "bayes"])
@pytest.mark.parametrize(("name", "cell"), [(name, cell) for name in LOOPS for cell in cells_of(name)])
def test_the_contract(name: str, cell: str, zeros: str) -> None:
    """Three steps were recorded; the engine gives what torch gives for one and for many."""
    for bias in (True, False) if zeros else (True,):
        model = looped(LOOPS[name], cell, bias, zeros)
        small = gw.compress(model)
        engine = gw.Engine(small)
        for steps in (*range(1, 10), 40):
            x = example(model, steps, batch=steps % 3 + 1)
            with torch.no_grad():
                expected = model(x)
                torch.testing.assert_close(small(x), expected, **CLOSE)
            torch.testing.assert_close(engine(x)[0], expected, **CLOSE)


@pytest.mark.parametrize("cell", CELLS)
def test_a_stream(cell: str) -> None:
    """Step by step, and in pieces with the state handed back."""
    model = looped(LOOPS["two_cells"], cell)
    engine, x = gw.Engine(model), torch.randn(3, 6, I)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(torch.stack([engine.step(x[:, t]) for t in range(6)], 1), expected, **CLOSE)
    first, state = engine(x[:, :2])
    torch.testing.assert_close(torch.cat([first, engine(x[:, 2:], state)[0]], 1), expected, **CLOSE)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_a_chain(name: str) -> None:
    """It runs as a graph with torch's answers for any number of steps, or raises and says what is in the way."""
    forward, why = OTHERS[name]
    model = looped(forward)
    if why:
        with torch.no_grad():
            model(torch.randn(3, 3, I))  # it could have been meant
        with pytest.raises(ChainError, match=why):
            gw.Engine(model)
        return
    engine = gw.Engine(model)
    for steps in (3, 4, 9):
        x = torch.randn(3, steps, I)
        with torch.no_grad():
            torch.testing.assert_close(engine(x, None)[0], model(x), **CLOSE)


@pytest.mark.parametrize("name", ["a_place_for_every_step", "a_residual", "ones_at_first", "the_cell_state"])
def test_a_loop_that_is_no_chain_in_pieces(name: str) -> None:
    """Steps are counted on, and states handed over, from one piece to the next."""
    model = looped(OTHERS[name][0])
    engine, x, state = gw.Engine(model), torch.randn(2, 7, I), None
    found = []
    for start, end in ((0, 3), (3, 4), (4, 7)):
        piece, state = engine(x[:, start:end], state)
        found.append(piece)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(torch.cat(found, 1) if expected.dim() == 3 else found[-1], expected, **CLOSE)


def test_a_cell_in_a_loop_is_a_layer() -> None:
    """Of one level, wherever the steps lie in the input."""
    chain = chain_of(gw.compress(looped(LOOPS["time_first_by_its_length"])))
    assert [link.kind for link in chain.links] == ["recurrent", "linear"]
    assert (chain.batch_axis, chain.output_axes) == (1, "BTC")
    assert chain.links[0].module.num_layers == 1


def test_a_loop_reads_the_padding_that_packed_sequences_leave() -> None:
    """As far as the longest of them."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cell = nn.GRU(I, H, batch_first=True), nn.GRUCell(H, H)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            pack = nn.utils.rnn.pack_padded_sequence
            packed = pack(x, lengths, batch_first=True, enforce_sorted=False)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
            h = None
            for t in range(out.size(1)):
                h = self.cell(out[:, t], h)
            return h

    check_answers(Both(), torch.randn(3, 5, I), torch.tensor([4, 2, 3]))


def test_a_part_of_the_batch() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(I, H)

        def forward(self, x: torch.Tensor) -> torch.Tensor | None:
            h = None
            for t in range(x.size(1)):
                h = self.cell(x[: x.size(0) // 2, t], h)
            return h

    check_answers(Half(), torch.randn(4, 3, I))


def test_a_hook_in_a_loop_is_refused() -> None:
    model = looped(LOOPS["another_function"])
    model.gru.register_forward_hook(lambda module, given, h: 2 * h)
    with pytest.raises(ChainError, match="a hook on gru may see or change it"):
        gw.Engine(model)
