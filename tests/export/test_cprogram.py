"""forward() == compiled C for models that are no chain of layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled import CompiledProgram, pointer, run
from everyday import EVERYDAY, REFUSED, thinned
from networks import Net
from torch import nn

import gatewise as gw
from gatewise.export.c.golden_program import answers, from_example
from gatewise.export.c.operations import shape_of
from gatewise.export.c.program_check import as_stored
from gatewise.runtime.narrow import ChainError

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


pytestmark = pytest.mark.filterwarnings("ignore:.*keeps|.*stays as it is")  # what compress() leaves


def one_by_one(given: dict[Any, Any], batch: int) -> list[dict[Any, Any]]:
    """Every sequence of a batch alone; what has no batch axis belongs to all."""

    def alone(node: Any, tensor: Any, b: int) -> Any:
        axes = [k for k, size in enumerate(node.shape) if str(size) == "B"]
        return tensor.narrow(axes[0], b, 1) if axes else tensor

    return [{node: alone(node, tensor, b) for node, tensor in given.items()} for b in range(batch)]


@pytest.mark.parametrize(("weights", "block"), [("float32", None), ("int8", 9)])
@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_models(
    name: str, weights: str, block: int | None, kernels: list[Path], tmp_path: Path
) -> None:
    """Every sequence of the batch answers as forward() does, with int8 as with weights rounded to it."""
    model, inputs = EVERYDAY[name]()
    small = gw.compress(thinned(model))
    if name in REFUSED["c"]:
        with pytest.raises(ChainError, match=REFUSED["c"][name]):
            gw.export.to_c(small, tmp_path / "m", example=inputs)
        return
    compiled = CompiledProgram(small, tmp_path, kernels, inputs, weights=weights, block=block)
    measure = compiled.measure(small)
    given = from_example(compiled.program, small, inputs)
    for one in map(compiled.unpadded, one_by_one(given, batch=2)):
        expected = answers(compiled.program, measure, one)
        agree(compiled.run(compiled.instance(), one, expected), expected)
        if compiled.streams:
            agree_in_pieces(compiled, measure, one)


def agree_in_pieces(compiled: CompiledProgram, measure: nn.Module, whole: dict[Any, Any]) -> None:
    """After every piece, forward() of all steps so far."""
    state = compiled.instance()
    for done, piece in pieces(whole):
        so_far = answers(compiled.program, measure, compiled.ended(upto(whole, done)))
        agree(compiled.run(state, piece, last_steps(compiled.program, so_far, piece)), so_far)


def agree(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Of a piece, its steps are the last ones of the whole."""
    for got, whole in zip(found, wanted, strict=True):
        axes = tuple(slice(full - own, full) for own, full in zip(got.shape, whole.shape))
        np.testing.assert_allclose(got, whole[axes], **CLOSE)


def time_axes(node: Any) -> list[int]:
    return [k for k, size in enumerate(shape_of(node)) if str(size) == "T"]


def steps_of(given: dict[Any, Any]) -> int:
    (steps,) = {tensor.shape[axis] for node, tensor in given.items() for axis in time_axes(node)}
    return int(steps)


def upto(given: dict[Any, Any], end: int, begin: int = 0) -> dict[Any, Any]:
    """Steps begin to end of all that has steps."""
    found = {}
    for node, tensor in given.items():
        for axis in time_axes(node):
            tensor = tensor.narrow(axis, begin, end - begin)
        found[node] = tensor
    return found


def pieces(given: dict[Any, Any]) -> list[tuple[int, dict[Any, Any]]]:
    """One step, then two, then the rest; with how many there were by then."""
    ends = [1, 3, steps_of(given)]
    return [(end, upto(given, end, begin)) for begin, end in zip([0, *ends], ends)]


def last_steps(program: Any, so_far: list[np.ndarray], piece: dict[Any, Any]) -> list[np.ndarray]:
    """Arrays of the shapes that the answers to a piece have."""
    found = []
    for node, array in zip(program.results, so_far, strict=True):
        for axis in time_axes(node):
            array = array.take(range(array.shape[axis] - steps_of(piece), array.shape[axis]), axis)
        found.append(array)
    return found


@pytest.mark.parametrize(("name", "options"), [
    ("two heads", {"weights": "int8"}),
    ("words and tags", {"file_above": 0}),
    ("packed residual mean", {"name": "net"}),
])  # fmt: skip
def test_make_check(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The folder compiles without a warning, checks itself, and its example runs; with constants or a weight file."""
    model, _ = EVERYDAY[name]()
    report = gw.export.to_c(thinned(model), tmp_path / "m", block=14, **options)
    assert "passed" in run("make", "OPTIMIZE=-O1", "check", cwd=tmp_path / "m")
    run("make", "OPTIMIZE=-O1", cwd=tmp_path / "m")
    run(tmp_path / "m" / "build" / "model", cwd=tmp_path / "m")
    assert report.max_abs_error < (0.1 if report.weights == "int8" else 1e-5)


def test_wrong_answers_are_found(tmp_path: Path) -> None:
    """A changed weight fails the check."""
    model, _ = EVERYDAY["residual sum"]()
    gw.export.to_c(model, tmp_path / "m")
    source = tmp_path / "m" / "model.c"
    lines = source.read_text().replace("p_fc_bias[2] = {\n    ", "p_fc_bias[2] = {\n    1.0f + ")
    source.write_text(lines)
    assert "WRONG" in run("make", "OPTIMIZE=-O1", "check", cwd=tmp_path / "m", expect=2)


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        out, _ = self.rnn(x)
        return torch.linalg.inv(out @ out.mT) if x.sum() > 0 else out


def test_what_cannot_be_written_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ChainError, match=r'test_cprogram.py, line \d+, ".*if x.sum\(\) > 0.*accelerate'):
        gw.export.to_c(Asks(), tmp_path / "m")
    assert not list(tmp_path.iterdir())
    model = Net(lambda m, x: m.rnn(m.emb(x))[0] + m.emb(x), emb=nn.Embedding(5, 3), rnn=nn.GRU(3, 3))
    with pytest.raises(
        ValueError, match=r"fold_embedding=True: forward\(\) does more with the vectors of emb"
    ):
        gw.export.to_c(model, tmp_path / "m", fold_embedding=True)


@pytest.mark.parametrize(
    "name",
    [
        "causal convolution",
        "adaptive mean",
        "shifted by one",
        "positions",
        "masked mean",
    ],
)
def test_what_a_stream_remembers(name: str, kernels: list[Path], tmp_path: Path) -> None:
    """Windows that look back, running means and numbers of steps go on from piece to piece."""
    model, inputs = EVERYDAY[name]()
    assert CompiledProgram(gw.compress(model), tmp_path, kernels, inputs).streams


def test_a_softmax_over_time_is_whole(tmp_path: Path) -> None:
    """Weights of steps so far are other ones with every step, so no piece has those that a second layer reads."""
    torch.manual_seed(0)
    layers = {"rnn": nn.GRU(4, 4, batch_first=True), "above": nn.GRU(4, 3, batch_first=True)}
    model = Net(lambda m, x: m.above(x * m.rnn(x)[0].softmax(1))[0], **layers).eval()
    gw.export.to_c(model, tmp_path / "m")
    assert "_STREAMS 0" in (tmp_path / "m" / "model.h").read_text()
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


class Letters(nn.Module):
    """Every word is read letter by letter, all words at once, and then the text word by word."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 3)
        self.letters = nn.LSTM(3, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.words = nn.GRU(10, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        b, t, n = x.shape
        out, (h, c) = self.letters(self.emb(x.reshape(b * t, n)))
        words = torch.cat((h[-2], h[-1]), 1) + out.mean(1)
        return self.words(words.view(b, t, 10))[0], c


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_sequences_within_a_sequence(weights: str, kernels: list[Path], tmp_path: Path) -> None:
    """A layer whose batch is made of steps runs all of them at once."""
    torch.manual_seed(0)
    model, x = thinned(Letters()).eval(), torch.randint(9, (1, 6, 4))
    small = gw.compress(model)
    compiled = CompiledProgram(small, tmp_path, kernels, (x,), block=6, weights=weights)
    given = from_example(compiled.program, small, (x,))
    expected = answers(compiled.program, compiled.measure(small), given)
    agree(compiled.run(compiled.instance(), given, expected), expected)


class Named(nn.Module):
    """Arguments, answers and variables with names that C has for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.ih = nn.GRU(3, 4, batch_first=True)
        self.m = nn.Linear(4, 3)

    def forward(self, float: Any, steps: Any, unread: Any) -> Any:
        v1 = self.ih(float)[0]  # not what C calls v1 /* */
        return {
            "float": v1,
            "v0": self.m(v1),
            "a b": v1.sum(1),
            "": steps * 2,
            "1": v1[:, -1],
            "y": unread.shape[-1],
        }


@pytest.mark.parametrize("file_above", [0, 10**6])
def test_any_names(file_above: int, tmp_path: Path) -> None:
    x = (torch.randn(1, 5, 3), torch.randn(1, 2), torch.randn(1, 6))
    gw.export.to_c(Named(), tmp_path / "m", example=x, file_above=file_above)
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


class Readers(nn.Module):
    """Two layers read the first; a state may be given or not."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.a, self.b = nn.GRU(2, 3), nn.Linear(3, 1), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, state: Any = None) -> torch.Tensor:
        out, _ = self.rnn(x, state)
        return torch.cat([self.a(out), self.b(out)], -1)


def test_an_argument_that_the_example_leaves_out(tmp_path: Path) -> None:
    """None is no argument: the C takes those that the example has."""
    x, state = torch.randn(5, 1, 2), torch.randn(1, 1, 3)
    for given in ((x, None), (x, state), (x,)):
        gw.export.to_c(Readers(), tmp_path / "m", example=given)
        has_state = given[-1] is state
        assert ("float *state" in (tmp_path / "m" / "model.h").read_text()) is has_state


class Handover(nn.Module):
    """The last state of one layer begins another."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec, self.fc = nn.GRU(2, 4), nn.GRU(2, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.dec(x, self.enc(x)[1])[0])  # type: ignore[no-any-return]


def test_a_state_that_begins_a_layer_is_whole(kernels: list[Path], tmp_path: Path) -> None:
    """The layer that it begins looks for its neurons among all; those that were removed have their places."""
    model = Handover()
    gw.Variational(model, "W+N", n_train=10)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_log_sigma"):
                parameter.fill_(-9.0)
        model.enc.neuron_scale_l0_log_sigma[0] = model.dec.neuron_scale_l0_log_sigma[3] = 9.0  # z_h is zero
    small = gw.compress(model.eval())
    assert small.enc.layers[0].neurons.tolist() == [1, 2, 3]
    x = torch.randn(6, 1, 2)
    compiled = CompiledProgram(small, tmp_path, kernels, (x,))
    given = from_example(compiled.program, small, (x,))
    expected = answers(compiled.program, model, given)
    agree(compiled.run(compiled.instance(), given, expected), expected)


class Picked(nn.Module):
    """The answer of one step, which the caller names."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Any, at: Any) -> Any:
        return self.rnn(x)[0][torch.arange(x.shape[0]), at]


def picked() -> tuple[nn.Module, tuple[Any, ...]]:
    return Picked().eval(), (torch.randn(2, 6, 3), torch.tensor([2, 5]))


@pytest.mark.parametrize(("name", "wrong", "error"), [
    ("words and tags", {"tags": 6}, "BAD_WORD"),
    ("words and tags", {"words": -1}, "BAD_WORD"),
    ("packed residual mean", {"lengths": 0}, "BAD_LENGTH"),
    ("packed residual mean", {"lengths": 8}, "BAD_LENGTH"),
    ("picked", {"at": 9}, "BAD_INDEX"),
])  # fmt: skip
def test_wrong_arguments(
    name: str, wrong: dict[str, int], error: str, kernels: list[Path], tmp_path: Path
) -> None:
    """What would be read outside an array is an error code."""
    model, inputs = picked() if name == "picked" else EVERYDAY[name]()
    compiled = CompiledProgram(gw.compress(model), tmp_path, kernels, inputs, block=9)
    given = one_by_one(from_example(compiled.program, model, inputs), 1)[0]
    expected = answers(compiled.program, model, given)
    for node, tensor in given.items():
        if node.op.argument in wrong:
            given[node] = torch.full_like(tensor, wrong[node.op.argument])
    codes = (compiled.folder / "model.h").read_text().partition("MODEL_OK = 0,")[2].split("}")[0]
    names = re.findall(r"^ *MODEL_(\w+),", codes, re.M)
    assert compiled.run(compiled.instance(), given, expected, error=1 + names.index(error))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model, _ = EVERYDAY["residual sum"]()
    small: Any = gw.compress(model)
    with torch.no_grad():
        small.fc.weight[0, 1] = float("nan")
    with pytest.raises(ValueError, match=r"fc.weight is not finite, and NaN or infinity is not exported"):
        gw.export.to_c(small, tmp_path / "m")
    assert not list(tmp_path.iterdir())


class Shared(nn.Module):
    """One layer behind two others that were cut differently: of b, one more neuron is read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.GRU(3, 8, batch_first=True), nn.LSTM(3, 8, batch_first=True)
        self.top, self.fc, self.own = nn.LSTM(8, 5, batch_first=True), nn.Linear(8, 4), nn.Linear(8, 2)
        with torch.no_grad():
            for weight, unread in (
                (self.top.weight_ih_l0, [1, 4]),
                (self.fc.weight, [1, 4]),
                (self.own.weight, [4]),
            ):
                weight[:, unread] = 0
            for weight in (self.a.weight_hh_l0, self.b.weight_hh_l0):
                weight[:, [1, 4]] = 0

    def forward(self, x: Any) -> Any:
        a, b = self.a(x)[0], self.b(x)[0]
        return self.fc(a), self.own(torch.relu(b).mean(1)), self.fc(b), self.top(a)[0] + self.top(b)[0]


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_removed_channels_do_not_travel(weights: str, kernels: list[Path], tmp_path: Path) -> None:
    """Readers take the kept ones alone, of each source its own."""
    torch.manual_seed(0)
    small, x = gw.compress(Shared().eval()), torch.randn(1, 6, 3)
    compiled = CompiledProgram(small, tmp_path, kernels, (x,), weights=weights)
    given = from_example(compiled.program, small, (x,))
    expected = answers(compiled.program, compiled.measure(small), given)
    agree(compiled.run(compiled.instance(), given, expected), expected)
    source = (compiled.folder / "model.c").read_text()
    assert "widen(" not in source
    assert "p_top_0_ = {" in source


def test_removed_words_and_large_answers(tmp_path: Path) -> None:
    """Of many words few are kept: their list is searched. Golden vectors are short where answers are wide."""
    emb = nn.Embedding(9000, 3)
    with torch.no_grad():
        emb.weight[40:8990] = 0
    layers = {"emb": emb, "rnn": nn.GRU(3, 4), "fc": nn.Linear(4, 9000), "own": nn.Linear(3, 2)}
    model = Net(lambda m, x: (m.fc(m.rnn(m.emb(x))[0]), m.own(m.emb(x))), **layers)
    report = gw.export.to_c(model, tmp_path / "m")
    assert report.flash_bytes < 4 * 9000 * 5 + 3000
    assert "find_row(p_emb_words, 50, k)" in (tmp_path / "m" / "model.c").read_text()
    assert "#define GOLDEN_T 2\n" in (tmp_path / "m" / "golden.h").read_text()
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


def test_arguments_that_cannot_be_made_up(tmp_path: Path) -> None:
    """An example is then the golden sequence."""
    model = Net(lambda m, x: (torch.log(x), m.rnn(x)[0] + x), rnn=nn.GRU(3, 3, batch_first=True))
    with pytest.raises(ValueError, match=r"made up \(its answer is NaN\). Give an example="):
        gw.export.to_c(model, tmp_path / "m")
    x = torch.rand(2, 30, 3)
    assert gw.export.to_c(model, tmp_path / "m", example=x).measured_on == "the example, 2 x 30 x 3"
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


@pytest.mark.parametrize(
    "layer", [nn.LSTM(3, 4, num_layers=2), nn.GRU(3, 4, bidirectional=True, batch_first=True)]
)
def test_a_layer_alone(layer: nn.Module, kernels: list[Path], tmp_path: Path) -> None:
    """What it says of every step and its last states."""
    small = gw.compress(Net(lambda m, x: m.rnn(x), rnn=layer))
    x = torch.randn(1, 4, 3) if layer.batch_first else torch.randn(4, 1, 3)
    compiled = CompiledProgram(small, tmp_path, kernels, (x,))
    given = from_example(compiled.program, small, (x,))
    expected = answers(compiled.program, small, given)
    assert len(expected) == (3 if isinstance(layer, nn.LSTM) else 2)
    agree(compiled.run(compiled.instance(), given, expected), expected)


def test_scores_are_computed_where_they_are_wanted(kernels: list[Path], tmp_path: Path) -> None:
    """As many as there are words need no second place, and without a pointer no time."""
    torch.manual_seed(0)
    layers = {"rnn": nn.GRU(3, 4, batch_first=True), "fc": nn.Linear(4, 500), "own": nn.Linear(4, 400)}
    model = Net(lambda m, x: (m.fc(m.rnn(x)[0] + x[..., :1]), m.own(m.rnn(x)[0]).log_softmax(-1)), **layers)
    x = torch.randn(1, 5, 3)
    compiled = CompiledProgram(model, tmp_path, kernels, (x,), block=1)
    assert compiled.report.ram_bytes < 4 * 900
    given = from_example(compiled.program, model, (x,))
    agree_in_pieces(compiled, model, given)
    array, y = as_stored(x.numpy()), np.zeros((5, 400), np.float32)
    state = compiled.instance()
    assert compiled.library.model_run(pointer(state), 5, pointer(array), None, pointer(y)) == 0
    agree([y[None]], answers(compiled.program, model, given)[1:])


def test_the_error_of_a_forward_that_makes_float32(tmp_path: Path) -> None:
    """It cannot be computed in double precision as it is; its program can."""
    model, inputs = EVERYDAY["one hot"]()
    assert 0 < gw.export.to_c(model, tmp_path / "m", example=inputs).max_abs_error < 1e-6


def test_widths_that_forward_leaves_open(tmp_path: Path) -> None:
    """They are arguments, as the number of steps is; of two that add up to six none has more than five."""
    model, _ = EVERYDAY["static repeated"]()
    gw.export.to_c(model, tmp_path / "m")
    assert "int32_t n_c_" in (tmp_path / "m" / "model.h").read_text()
    assert re.search(
        r"if \(-n_c_\w+ \+ 6 < 1\) return MODEL_BAD_STEPS;", (tmp_path / "m" / "model.c").read_text()
    )
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


def test_names_that_the_source_has_itself(tmp_path: Path) -> None:
    """Sizes begin with n_, parameters with p_."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, p_x: Any, n_days: Any, gw_: Any) -> Any:
            return {"v1": self.rnn(p_x)[0] + n_days * gw_}

    x = torch.randn(1, 5, 3)
    gw.export.to_c(Named(), tmp_path / "m", example=(x, x[..., :1], x[..., :1]))
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


def test_an_argument_that_is_a_list(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 4)
    model = Net(lambda m, xs: m.rnn(xs[0])[0] + xs[1], rnn=nn.GRU(4, 4, batch_first=True))
    report = gw.export.to_c(model, tmp_path / "m", example=([x, x],))
    assert report.measured_on == "the example, 2 x 5 x 4"


def raw(m: Any, x: Any) -> Any:
    return m.rnn(m.conv(x[:, None]).transpose(1, 2))[0][:, -1]


def test_raw_samples(tmp_path: Path) -> None:
    """A window may be longer than the golden sequence that is made up, or cut from the example."""
    model = Net(raw, conv=nn.Conv1d(1, 8, 256, stride=128), rnn=nn.GRU(8, 4, batch_first=True))
    gw.export.to_c(model, tmp_path / "m", example=torch.randn(1, 640))


def test_a_chain_with_an_argument_that_nobody_reads(tmp_path: Path) -> None:
    """Golden answers need one all the same."""

    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: Any, unread: Any) -> Any:
            return self.rnn(x)[0]

    x = torch.randn(2, 5, 3)
    gw.export.to_c(Unread(), tmp_path / "m", example=(x, x))
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


def test_a_step_that_is_picked_beside_others_is_no_end(tmp_path: Path) -> None:
    """forward() may count steps from one; where all of them are answered, too, C needs to be told which."""

    class Days(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: Any, day: Any) -> Any:
            y, _ = self.rnn(x)
            return y, y[torch.arange(x.shape[0]), day - 1]

    gw.export.to_c(Days(), tmp_path / "m", example=(torch.randn(2, 5, 3), torch.tensor([2, 5])))
    assert "const int32_t *day" in (tmp_path / "m" / "model.h").read_text()
