"""What recurrent layers draw, how often, and that the way back meets the same noise."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from networks import CELLS, TORCH, Classifier, LanguageModel, Net, answer
from noisy import Checkpointed, close, gradients, noisy
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from gatewise.nn.recurrence import scan


def watched(layer: Any) -> list[Any]:
    """Every set of weights that a recurrent layer asks for, in order."""
    seen: list[Any] = []
    original = layer.weights

    def weights(*args: Any) -> Any:
        seen.append(original(*args))
        return seen[-1]

    layer.weights = weights
    return seen


def alone(weights: Any, b: int) -> Any:
    """The weights of sequence b, with its own scales."""
    own = {k: v[b] if k.endswith("scale") and v is not None else v for k, v in vars(weights).items()}
    return type(weights)(**own)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("levels", ["W+N", "W+G+N"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_sequence_noise_is_one_run_per_sequence(
    cell: str, levels: str, packed: bool, bidirectional: bool
) -> None:
    """With the drawn z, each sequence is what the equations give for it alone, in the caller's order."""
    rnn = TORCH[cell](3, 4, bidirectional=bidirectional)
    model = Net(lambda m, x: m.rnn(m.emb(x) if isinstance(x, Tensor) else x), rnn=rnn, emb=nn.Embedding(7, 3),
                fc=nn.Linear(4, 2))  # fmt: skip
    noisy(model, levels=levels, readers={"emb": ["rnn"]})
    seen = watched(model.rnn)
    lengths = [2, 5, 3]  # not sorted
    x = torch.randn(5, 3, 3)
    if packed:
        output, _ = model(pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False))
        assert isinstance(output, PackedSequence)
        output, _ = nn.utils.rnn.pad_packed_sequence(output)
    else:
        lengths = [5, 5, 5]
        output, _ = model.rnn(x)
    assert all(w.per_sequence for w in seen)
    for b, n in enumerate(lengths):
        for d, weights in enumerate(seen):
            zero = tuple(x.new_zeros(1, 4) for _ in range(model.rnn.cell.n_states))
            expected, _ = scan(model.rnn.cell, x[:n, b : b + 1], zero, alone(weights, b), reverse=d == 1)
            close(output[:n, b, d * 4 : d * 4 + 4], expected[:, 0])
    shapes = {"gate_scale": (3, model.rnn.cell.n_gates, 4), "neuron_scale": (3, 4), "input_scale": (3, 3)}
    for weights, end in zip(seen, ("_l0", "_l0_reverse")):
        for name, shape in shapes.items():  # no axis of time
            z = getattr(weights, name)
            assert (z is None) == (name == "gate_scale" and levels == "W+N")
            if z is not None:
                assert z.shape == shape
                mean = model.rnn.get_parameter(name + ("" if name == "input_scale" else end))
                assert len((z - mean).unique()) == z.numel()  # a draw for every unit of every sequence


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_batch_noise_equals_folding(cell: str, bidirectional: bool) -> None:
    """One z for the whole batch: the fused kernel with z in the matrices equals the cell with z in place."""
    model = LanguageModel(cell=cell, layers=1, bidirectional=bidirectional)
    noisy(model, noise="batch")
    seen = watched(model.rnn)
    x = torch.randint(7, (5, 3))
    rnn_input: list[Tensor] = []
    model.rnn.register_forward_pre_hook(lambda m, args: rnn_input.append(args[0]))
    rnn_output: list[Tensor] = []
    model.rnn.register_forward_hook(lambda m, args, output: rnn_output.append(output[0]))
    model(x)
    assert not any(w.per_sequence for w in seen)
    zero = tuple(torch.zeros(3, 4) for _ in range(model.rnn.cell.n_states))
    runs = [scan(model.rnn.cell, rnn_input[0], zero, w, reverse=d == 1)[0] for d, w in enumerate(seen)]
    close(rnn_output[0], torch.cat(runs, -1))


def test_weights_are_drawn_once_for_a_forward_pass() -> None:
    """Layers called twice in one pass use the same sample; the next pass draws anew."""
    model = Net(lambda m, x: (m.fc(m.rnn(x)[0]), m.fc(m.rnn(x)[0])), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
    noisy(model)
    x = torch.randn(5, 3, 3)
    first, second = model(x)
    close(first, second)
    assert not torch.allclose(first, model(x)[0])


def test_outside_of_forward_a_layer_draws_anew() -> None:
    """What forward() drew is kept for the way back, and for nothing else."""
    model = Checkpointed()
    noisy(model)
    model(torch.randn(5, 2, 3))
    x = torch.randn(6, 4)
    assert not torch.equal(model.mid(x), model.mid(x))


def test_after_an_error_in_forward_a_layer_draws_anew() -> None:
    model = LanguageModel()
    noisy(model)
    with pytest.raises(IndexError):
        model(torch.tensor([[99]]))
    x = torch.ones(6, 4)
    assert not torch.equal(model.fc(x), model.fc(x))


def test_sampling_works_in_inference_mode() -> None:
    model = Classifier()
    noisy(model)
    words = torch.zeros(4, 2, dtype=torch.long)
    with torch.inference_mode():
        assert not torch.equal(answer(model(words)), answer(model(words)))


@pytest.mark.parametrize("noise", ["batch", "sequence"])
def test_an_empty_batch(noise: str) -> None:
    model = Checkpointed()
    noisy(model, noise=noise)
    assert model(torch.zeros(5, 0, 3)).shape == (5, 0, 2)


@pytest.mark.parametrize("noise", ["batch", "sequence"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("layers", [("mid",), ("rnn",), ("rnn", "mid")])
def test_gradient_checkpointing_sees_the_same_noise(
    layers: tuple[str, ...], reentrant: bool, noise: str
) -> None:
    x = torch.randn(5, 2, 3, requires_grad=True)  # without it a reentrant checkpoint has no way back

    def step(model: Any, sparsifier: Any, again: tuple[str, ...] = ()) -> None:
        model.again, model.reentrant = again, reentrant
        (model(x).square().sum() + sparsifier.penalty()).backward()

    close(gradients(partial(step, again=layers), noise=noise), gradients(step, noise=noise))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at tensors, and hides it from users
def test_a_compiled_model_trains_alike() -> None:
    """As dynamo splits it; inductor draws other random numbers."""
    x = torch.randn(5, 2, 3)

    def step(model: Any, sparsifier: Any, compile: Any = lambda model: model) -> None:
        (compile(model)(x).square().sum() + sparsifier.penalty()).backward()

    close(gradients(partial(step, compile=partial(torch.compile, backend="aot_eager"))), gradients(step))
