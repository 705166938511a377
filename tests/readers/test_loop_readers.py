"""Readers of cells in loops over time: three steps show all of them, or the loop says why not."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import LOOPS, OTHERS, H, I, example, looped
from networks import disturb, hide, no_grad, twin
from torch import Tensor, nn

import gatewise as gw
from gatewise.program.loops import LoopError
from gatewise.program.ways import recordings
from gatewise.readers import find_readers

# Of these the steps are alike, though they are no chain: their readers are found all the same.
ALIKE = [
    "a_decoder", "backwards", "from_the_second_step", "always_the_first", "a_place_for_every_step", "a_residual",
    "a_sum", "ones_at_first", "a_state_that_is_given", "another_state", "a_state_written_later", "twice_a_step",
    "a_state_of_two_steps_ago", "the_step_before", "answers_of_the_step_before", "one_answer_more",
]  # fmt: skip


@pytest.mark.parametrize("name", [*LOOPS, *ALIKE])
def test_reads_are_enough(name: str) -> None:
    """Zero the columns that are said to read a unit, and no answer knows what it does, however long the loop runs."""
    model = looped(LOOPS[name] if name in LOOPS else OTHERS[name][0])
    graph = find_readers(model)
    cells = [block for block in graph.blocks.values() if block.place is not None]
    assert not {block.name for block in cells} & graph.exposed.keys()
    for block in cells:
        for unit in range(block.width):
            quiet, changed = twin(model), twin(model)
            disturb(changed, block, unit)
            for network in (quiet, changed):
                hide(network, graph, block.name, unit)
            for steps in (2, 9):
                x = example(model, steps, batch=3)
                torch.testing.assert_close(no_grad(quiet, x), no_grad(changed, x), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["a_counter", "how_long_a_list_was", "the_end_of_a_list", "a_queue", "an_early_end", "a_generator"],
)
def test_steps_that_may_differ_hide_their_readers(name: str) -> None:
    """Nobody knows what a later one reads."""
    forward, why = OTHERS[name]
    with pytest.raises(LoopError, match=why):
        recordings(looped(forward))
    assert "could not be traced" in find_readers(looped(forward)).exposed["gru"]


def moved_on(self: Any, x: Tensor) -> Tensor:
    """What is read at the end was in another channel in every step before."""
    h, wheel = None, x.new_zeros(x.size(0), H)
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        wheel = torch.cat([wheel[:, 1:], wheel[:, :1]], 1) + h
    return wheel[:, :1]


def the_sixth_of_all(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        outs.append(h)
    return torch.cat(outs, 1)[:, 5 * H : 6 * H]


def a_channel_by_its_step(self: Any, x: Tensor) -> Tensor:
    h, outs = None, []
    for t in range(x.size(1)):
        h = self.gru(x[:, t], h)
        outs.append(h[:, t % H : t % H + 1])
    return torch.stack(outs, 1)


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (moved_on, "a loop moves its channels from step to step"),
        (the_sixth_of_all, "its channels are laid side by side with as many others as only a call knows"),
        (a_channel_by_its_step, "getitem() may mix its channels"),
        (OTHERS["the_last_three"][0], "a loop moves its channels from step to step"),
    ],
)
def test_channels_that_move_are_exposed(forward: Any, why: str) -> None:
    """More steps would lead to more readers."""
    found = find_readers(looped(forward)).exposed.values()
    assert any(re.fullmatch(rf'{re.escape(why)} \(\w+\.py, line \d+, ".+"\)', said) for said in found)


def test_a_cut_needs_no_stated_readers() -> None:
    """As many neurons go as with readers=, and without a warning."""
    model = looped(LOOPS["two_cells"])
    with torch.no_grad():
        for matrix in (
            model.cell.weight_hh,
            model.second.weight_ih,
            model.second.weight_hh,
            model.head.weight,
        ):
            matrix[:, 1] = 0
    small = gw.compress(model)
    stated = gw.compress(model, readers={"cell": ["second"], "second": ["head"]})
    for name in ("cell", "second"):
        kept = small.get_submodule(name).layer.kept
        assert kept == stated.get_submodule(name).layer.kept == H - 1


def test_recording_leaves_files_as_they_were() -> None:
    """range() and len() are recorded in the file of a forward(), only then, and also if it fails."""
    for forward in (LOOPS["time_first_by_its_length"], OTHERS["an_early_end"][0]):
        find_readers(looped(forward))
        assert not {"range", "len"} & forward.__globals__.keys()


def test_a_loop_without_source_is_named() -> None:
    names: dict[str, Any] = {"torch": torch}
    exec("def forward(self, x):\n    for h in x:\n        h = self.gru(h)\n    return h\n", names)
    with pytest.raises(LoopError, match="its source cannot be read"):
        recordings(looped(names["forward"]))


def test_a_source_that_has_changed_is_named(tmp_path: Path) -> None:
    """What a list is used for is read there: it must be what runs."""
    text = "import torch\ndef forward(self, x):\n    for h in x:\n        h = self.gru(h)\n    return h\n"
    path, names = tmp_path / "changed.py", dict[str, Any]()
    for written, expected in (
        (text, None),
        (text.replace("self.gru(h)", "self.gru(x)"), "another than when"),
    ):
        path.write_text(text)
        exec(compile(text, str(path), "exec"), names)
        path.write_text(written)
        linecache.checkcache(str(path))
        if expected is None:
            assert recordings(looped(names["forward"]))[1] is None
        else:
            with pytest.raises(LoopError, match=expected):
                recordings(looped(names["forward"]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_has_no_file() -> None:
    """It is one of torch's own modules to a tracer."""

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.act = nn.GRU(I, H), torch.jit.script(nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.rnn(x)[0])

    assert "may mix its channels" in find_readers(Scripted()).exposed["rnn.l0"]


def test_sizes_are_not_found_in_sets() -> None:
    """A graph would show the way of a size that is in none."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.fc = nn.GRU(I, H), nn.Linear(H, 2)

        def forward(self, x: Tensor) -> Tensor:
            out = self.rnn(x)[0]
            return out if x.size(0) in {1, 2} else self.fc(out)

    assert "in a set or dict" in find_readers(Asks()).exposed["rnn.l0"]
