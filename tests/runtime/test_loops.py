"""Loops around cells: those that are chains run in the engine as in torch, for any length, and no others do."""

from __future__ import annotations

import pytest
import torch
from chains import CLOSE
from loops import CELLS, LOOPS, OTHERS, H, I, cells_of, example, looped
from torch import nn

import gatewise as gw
from gatewise.runtime.chain import ChainError, find_chain


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
    """Step by step, in pieces with the state handed back, and each sequence to its own length."""
    model = looped(LOOPS["two_cells"], cell)
    engine, x = gw.Engine(model), torch.randn(3, 6, I)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(torch.stack([engine.step(x[:, t]) for t in range(6)], 1), expected, **CLOSE)
    first, state = engine(x[:, :2])
    torch.testing.assert_close(torch.cat([first, engine(x[:, 2:], state)[0]], 1), expected, **CLOSE)
    lengths = torch.tensor([2, 6, 4])
    some, _ = engine(x, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(some[b, :length], expected[b, :length], **CLOSE)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_a_chain(name: str) -> None:
    """It raises and says what is in the way; torch runs it, so it could have been meant."""
    forward, why = OTHERS[name]
    model = looped(forward)
    with torch.no_grad():
        model(torch.randn(3, 3, I))
    with pytest.raises(ChainError, match=why):
        find_chain(model)


def test_a_cell_in_a_loop_is_a_layer() -> None:
    """Of one level, wherever the steps lie in the input."""
    chain = find_chain(gw.compress(looped(LOOPS["time_first_by_its_length"])))
    assert [step.kind for step in chain.steps] == ["recurrent", "linear"]
    assert (chain.batch_axis, chain.output_axes) == (1, "BTC")
    assert chain.steps[0].module.num_layers == 1


def test_packed_sequences_beside_a_loop_are_refused() -> None:
    """The loop would read the padding that the layer does not."""

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

    with pytest.raises(ChainError, match="does not run from the first step of the input to the last"):
        find_chain(Both())


def test_a_part_of_the_batch_is_refused() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(I, H)

        def forward(self, x: torch.Tensor) -> torch.Tensor | None:
            h = None
            for t in range(x.size(1)):
                h = self.cell(x[: x.size(0) // 2, t], h)
            return h

    with pytest.raises(ChainError, match="it takes anything but one step of the input"):
        find_chain(Half())


def test_a_hook_in_a_loop_is_refused() -> None:
    model = looped(LOOPS["another_function"])
    model.gru.register_forward_hook(lambda module, given, h: 2 * h)
    with pytest.raises(ChainError, match="gru: a hook may change"):
        find_chain(model)
