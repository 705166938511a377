"""What is kept: the authors' counting rules by hand, groups by brute force, and nothing removed ever matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from networks import Classifier, LanguageModel, Net, answer, disturb, load, parameter, randomly_sparse, twin
from torch import Tensor, nn

import gatewise as gw
from gatewise.nn.lookup import cell_of
from gatewise.readers import find_readers
from gatewise.structure import EmbeddingStructure, LinearStructure, RecurrentStructure, Structure

CELLS = ["LSTM", "GRU"]


def matrix(rows: int, columns: int, *ones: tuple[int, int]) -> Tensor:
    w = torch.zeros(rows, columns)
    for row, column in ones:
        w[row, column] = 1
    return w


def kept(mask: Tensor) -> list[Any]:
    return mask.int().tolist()


# A language model with three words, two components and three neurons. Row of gate k, neuron j: 3 * k + j.
BY_HAND = {
    "emb.weight": [[1, 0], [0, 0], [1, 1]],
    # i of 0, g of 1, o of 0 read component 0; f of 2 reads component 1.
    "rnn.weight_ih_l0": matrix(12, 2, (0, 0), (7, 0), (9, 0), (5, 1)),
    # f of 0 reads neuron 1; i of 2 reads neuron 2 itself.
    "rnn.weight_hh_l0": matrix(12, 3, (3, 1), (2, 2)),
    "fc.weight": [[1, 0, 0], [0, 0, 0], [0, 0, 0]],
    "fc.bias": 1.0,
}


def by_hand() -> LanguageModel:
    model = LanguageModel(words=3, width=2, hidden=3, layers=1)
    load(model, BY_HAND)
    return model


def layer(structure: Structure, name: str) -> Any:
    return structure.layers[name]


def test_one_pass_by_hand() -> None:
    """Neuron 2 is read only by itself: the paper's single pass keeps it, with its gates i and f."""
    structure = Structure.from_weights(by_hand())
    rnn = layer(structure, "rnn.l0")
    assert kept(rnn.keep_neurons) == [1, 1, 1]
    assert kept(rnn.keep_gates) == [[1, 0, 1], [1, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert kept(rnn.keep_inputs) == [1, 1]
    assert kept(rnn.keep_recurrent) == [0, 1, 1]
    emb = layer(structure, "emb")
    assert kept(emb.keep_words) == [1, 0, 1]
    assert kept(emb.keep_components) == [1, 1]
    assert kept(layer(structure, "fc").keep_inputs) == [1, 0, 0]


def test_fixed_point_by_hand() -> None:
    """A neuron read only by itself goes, then the component that only it reads, then nothing more."""
    structure = Structure.from_weights(by_hand(), fixed_point=True)
    rnn = layer(structure, "rnn.l0")
    assert kept(rnn.keep_neurons) == [1, 1, 0]
    assert kept(rnn.keep_gates) == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert kept(rnn.keep_inputs) == [1, 0]
    assert kept(layer(structure, "emb").keep_components) == [1, 0]
    assert kept(layer(structure, "emb").keep_words) == [1, 0, 1]


def test_a_neuron_read_only_by_removed_neurons_goes_in_the_fixed_point() -> None:
    """Layer 2 reads neuron 0 of layer 1 only with a neuron that nobody reads."""
    model = LanguageModel(words=3, width=2, hidden=2, layers=2)
    load(
        model,
        {
            "emb.weight": 1.0,
            "rnn.weight_ih_l0": 1.0,
            "rnn.weight_ih_l1": matrix(8, 2, (1, 0), (0, 1)),  # neuron 1 reads 0, neuron 0 reads 1
            "fc.weight": [[1, 0], [0, 0], [0, 0]],
        },
    )
    once, whole = Structure.from_weights(model), Structure.from_weights(model, fixed_point=True)
    assert kept(once.recurrent()["rnn.l0"].keep_neurons) == [1, 1]
    assert kept(once.recurrent()["rnn.l1"].keep_neurons) == [1, 0]
    assert kept(whole.recurrent()["rnn.l0"].keep_neurons) == [0, 1]
    assert kept(whole.recurrent()["rnn.l1"].keep_neurons) == [1, 0]


def variational(model: nn.Module, **options: Any) -> nn.Module:
    """A variational twin in which every weight is sure of itself: sigma is tiny next to any mean but 0."""
    gw.Variational(model, n_train=1, log_sigma=-20.0, **options)
    return model.eval()


def off(model: nn.Module, name: str, index: Any) -> None:
    with torch.no_grad():
        parameter(model, name)[index] = 0


def test_rules_for_group_variables() -> None:
    """Each z removes exactly its own: a neuron, a gate, a component, a word (details 3.7, rules 2 to 6)."""
    model = LanguageModel(words=3, width=2, hidden=3, layers=1)
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    variational(model, vocabulary=["emb"])
    off(model, "rnn.neuron_scale_l0", 0)
    off(model, "rnn.gate_scale_l0", (1, 2))
    off(model, "rnn.input_scale", 1)
    off(model, "emb.word_scale", 2)
    structure = Structure.from_weights(model)
    rnn, emb = layer(structure, "rnn.l0"), layer(structure, "emb")
    assert kept(rnn.keep_neurons) == [0, 1, 1]
    assert kept(rnn.keep_gates) == [[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 1]]
    assert kept(rnn.keep_inputs) == [1, 0]
    assert kept(emb.keep_components) == [1, 0]
    assert kept(emb.keep_words) == [1, 1, 0]


def test_word_rules() -> None:
    """With variables a word is kept by its variable alone, without by any weight of its row (rule 4)."""
    model = Classifier(words=3, width=2, hidden=2)
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    off(model, "emb.weight", 1)
    assert kept(layer(Structure.from_weights(model), "emb").keep_words) == [1, 0, 1]
    variational(model, vocabulary=["emb"])
    assert kept(layer(Structure.from_weights(model), "emb").keep_words) == [1, 1, 1]
    assert kept(layer(Structure.from_weights(model, fixed_point=True), "emb").keep_words) == [1, 0, 1]


def test_gates_are_tested_before_anything_is_removed() -> None:
    """A gate that reads only a component whose z_x is gone counts as live in the single pass (rule 6)."""
    model = LanguageModel(words=3, width=2, hidden=2, layers=1)
    load(
        model,
        {
            "emb.weight": 1.0,
            "rnn.weight_ih_l0": matrix(8, 2, (0, 0), (1, 1)),
            "rnn.bias_ih_l0": 1.0,
            "fc.weight": 1.0,
        },
    )
    variational(model)
    off(model, "rnn.input_scale", 0)
    once, whole = Structure.from_weights(model), Structure.from_weights(model, fixed_point=True)
    assert kept(once.recurrent()["rnn.l0"].keep_gates)[0] == [1, 1]
    assert kept(whole.recurrent()["rnn.l0"].keep_gates)[0] == [0, 1]
    assert kept(once.recurrent()["rnn.l0"].keep_inputs) == [0, 1]


def test_an_exposed_layer_keeps_what_is_not_always_zero() -> None:
    """Where nobody can list the readers, only neurons with z_h = 0 go; constant gates and unread columns still do."""
    model = Net(
        lambda m, x: m.fc(m.norm(m.rnn(m.emb(x))[0])),
        emb=nn.Embedding(4, 2),
        rnn=nn.LSTM(2, 3),
        norm=nn.LayerNorm(3),
        fc=nn.Linear(3, 2),
    )
    off(model, "fc.weight", (slice(None), 1))
    off(model, "rnn.weight_ih_l0", 0)
    off(model, "rnn.weight_hh_l0", 0)
    off(model, "rnn.weight_hh_l0", (slice(None), 1))
    variational(model)
    off(model, "rnn.neuron_scale_l0", 2)
    for fixed_point in (False, True):
        structure = Structure.from_weights(model, fixed_point=fixed_point)
        rnn = structure.recurrent()["rnn.l0"]
        assert kept(rnn.keep_neurons) == [1, 1, 0]
        assert not rnn.keep_gates[0, 0]
        assert kept(rnn.keep_recurrent) == [1, 0, 0]
        assert "layer_norm()" in structure.exposed["rnn.l0"]


@pytest.mark.parametrize("make", [partial(gw.GroupLasso, group=1e-2), partial(gw.Variational, n_train=1)])
def test_a_sparsifier_counts_with_the_readers_it_was_told(make: Callable[..., Any]) -> None:
    model = Net(
        lambda m, x: m.fc(m.norm(m.rnn(x)[0])), rnn=nn.LSTM(2, 3), norm=nn.LayerNorm(3), fc=nn.Linear(3, 2)
    )
    off(model, "fc.weight", (slice(None), 1))
    off(model, "rnn.weight_hh_l0", (slice(None), 1))
    rnn = layer(make(model, readers={"rnn": ["fc"]}).structure(), "rnn.l0")
    assert kept(rnn.keep_neurons) == [1, 0, 1]


def untraceable(m: Any, x: Any) -> Any:
    out, _ = m.rnn(x)
    return m.fc(out if float(out.detach().sum()) > -1e9 else -out)


@pytest.mark.parametrize(("cell", "neurons"), [(nn.LSTM, [1, 1, 1]), (nn.GRU, [1, 0, 1])])
def test_a_silent_neuron_may_be_remembered_by_its_cell_state_alone(
    cell: type[nn.Module], neurons: list[int]
) -> None:
    """Who sees c cannot be told here, and z_h = 0 makes h zero, not c; h is all that a GRU hands on."""
    model = Net(untraceable, rnn=cell(2, 3), fc=nn.Linear(3, 2))
    variational(model)
    off(model, "rnn.neuron_scale_l0", 1)
    rnn = layer(Structure.from_weights(model, fixed_point=True), "rnn.l0")
    assert kept(rnn.keep_neurons) == neurons


def test_an_input_that_only_a_removed_output_reads_goes() -> None:
    model = Net(
        lambda m, x: m.fc(m.rnn(m.first(x))[0]),
        first=nn.Linear(2, 2), rnn=nn.GRU(2, 2), fc=nn.Linear(2, 1),
    )  # fmt: skip
    with torch.no_grad():
        model.first.weight.copy_(torch.eye(2))
    off(model, "rnn.weight_ih_l0", (slice(None), 1))
    for fixed_point in (False, True):
        first = layer(Structure.from_weights(model, fixed_point=fixed_point), "first")
        assert kept(first.keep_outputs) == kept(first.keep_inputs) == [1, 0]


# Groups, by brute force; tests/sparsify/test_lasso.py shows that the penalty sums exactly these.


def gate_group(model: nn.Module, block: str, group: int) -> dict[str, Tensor]:
    """Row `group` of the input and of the recurrent matrix of a layer."""
    module, _, place = block.rpartition(".")
    found = {}
    for name in (f"{module}.weight_ih_{place}", f"{module}.weight_hh_{place}"):
        found[name] = torch.zeros_like(parameter(model, name), dtype=torch.bool)
        found[name][group] = True
    return found


def neuron_group(model: nn.Module, block: str, j: int, levels: str) -> dict[str, Tensor]:
    """Every column that reads a neuron; at W+N its rows as well."""
    found: dict[str, Tensor] = {}
    for read in find_readers(model).reads_of(block):
        mask = torch.zeros_like(parameter(model, read.matrix), dtype=torch.bool)
        mask[:, read.column + j - read.unit] = True
        found[read.matrix] = found.get(read.matrix, False) | mask
    if levels == "W+N":
        width = find_readers(model).blocks[block].width
        for row in range(j, len(parameter(model, gates_of(block))), width):
            for name, mask in gate_group(model, block, row).items():
                found[name] = found.get(name, False) | mask
    return found


def gates_of(block: str) -> str:
    module, _, place = block.rpartition(".")
    return f"{module}.weight_hh_{place}"


def zeroed(model: nn.Module, weights: Mapping[str, Tensor]) -> Any:
    new = twin(model)
    with torch.no_grad():
        for name, mask in weights.items():
            parameter(new, name)[mask] = 0
    return new


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gate_groups_are_exactly_what_makes_a_gate_move(cell: str, bidirectional: bool, every: Any) -> None:
    """Zero one gate group: that gate needs no product any more, and every other gate still does."""
    model = LanguageModel(cell=cell, bidirectional=bidirectional)
    for name, rnn in Structure.from_weights(model).recurrent().items():
        assert rnn.keep_gates.all()
        for group in every(range(rnn.keep_gates.numel()), 5):
            after = zeroed(model, gate_group(model, name, group))
            alive = Structure.from_weights(after).recurrent()
            assert torch.arange(rnn.keep_gates.numel())[~alive[name].keep_gates.flatten()].tolist() == [group]
            assert all(own.keep_gates.all() for other, own in alive.items() if other != name)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("levels", ["W+N", "W+G+N"])
def test_neuron_groups_are_exactly_what_reads_a_neuron(
    cell: str, bidirectional: bool, levels: str, every: Any
) -> None:
    """Zero one neuron group: the answer no longer depends on that neuron, and on every other it still does."""
    model = LanguageModel(cell=cell, bidirectional=bidirectional)
    graph = find_readers(model)
    x = torch.randint(7, (5, 3))
    for name, rnn in Structure.from_weights(model).recurrent().items():
        for j in every(range(len(rnn.keep_neurons)), 3):
            after = zeroed(model, neuron_group(model, name, j, levels))
            keep = Structure.from_weights(after).recurrent()[name].keep_neurons
            assert torch.arange(len(keep))[~keep].tolist() == [j]
        changed = zeroed(after, {})
        disturb(changed, graph.blocks[name], j)
        again = zeroed(changed, neuron_group(model, name, j, levels))
        torch.testing.assert_close(answer(again(x)), answer(after(x)))


# Exactness, by brute force.


def keep_masks(model: nn.Module, structure: Structure) -> dict[int, Tensor]:
    """For every matrix, by identity, the entries that some use of it keeps."""
    found: dict[int, Tensor] = {}

    def add(tensor: Any, rows: Tensor, columns: Tensor) -> None:
        body = rows[:, None] & columns
        found[id(tensor)] = body | found.get(id(tensor), torch.zeros_like(body))

    for name, own in structure.layers.items():
        if isinstance(own, RecurrentStructure):
            module, _, place = name.rpartition(".")
            rnn = model.get_submodule(module)
            add(getattr(rnn, "weight_ih_" + place), own.keep_gates.flatten(), own.keep_inputs)
            add(getattr(rnn, "weight_hh_" + place), own.keep_gates.flatten(), own.keep_recurrent)
        elif isinstance(own, EmbeddingStructure):
            add(model.get_submodule(name).weight, own.keep_words, own.keep_components)
        else:
            assert isinstance(own, LinearStructure)
            add(model.get_submodule(name).weight, own.keep_outputs, own.keep_inputs)
    return found


def without_the_removed(model: nn.Module, structure: Structure) -> Any:
    """Everything outside the structure at zero, and removed neurons with random biases."""
    small = twin(model)
    masks = keep_masks(small, structure)
    with torch.no_grad():
        for p in small.parameters():
            if id(p) in masks:
                p *= masks[id(p)]
        for name, own in structure.recurrent().items():
            module, _, place = name.rpartition(".")
            rnn = small.get_submodule(module)
            cell = cell_of(rnn)
            assert cell is not None
            for label in ("bias_ih_", "bias_hh_") if rnn.bias else ():
                bias = cell.split(getattr(rnn, label + place))
                bias[:, ~own.keep_neurons] += torch.randn_like(bias[:, ~own.keep_neurons])
    return small


def residual(m: Any, x: Any) -> Any:
    first, _ = m.a(m.emb(x))
    second, _ = m.b(first)
    return m.fc(torch.cat([first + second, first.sigmoid()], -1))


def linear_between(m: Any, x: Any) -> Any:
    out, _ = m.a(m.emb(x))
    again, _ = m.b(torch.relu(m.mid(out)))
    return m.fc(again[-1])


def normed(m: Any, x: Any) -> Any:
    return m.fc(m.norm(m.a(m.emb(x))[0]))


def networks(cell: str) -> dict[str, Callable[[], nn.Module]]:
    rnn = nn.LSTM if cell == "LSTM" else nn.GRU
    return {
        "stack": lambda: LanguageModel(layers=3, cell=cell),
        "both ways": lambda: LanguageModel(layers=2, cell=cell, bidirectional=True),
        "no bias": lambda: LanguageModel(layers=2, cell=cell, bias=False),
        "tied": lambda: LanguageModel(width=4, layers=2, cell=cell, tied=True),
        "last step": lambda: Classifier(cell=cell),
        "residual": lambda: Net(
            residual, emb=nn.Embedding(7, 3), a=rnn(3, 4), b=rnn(4, 4), fc=nn.Linear(8, 2)
        ),
        "linear between": lambda: Net(
            linear_between,
            emb=nn.Embedding(7, 3),
            a=rnn(3, 4),
            mid=nn.Linear(4, 3),
            b=rnn(3, 2),
            fc=nn.Linear(2, 2),
        ),
        "normed": lambda: Net(
            normed, emb=nn.Embedding(7, 3), a=rnn(3, 4), norm=nn.LayerNorm(4), fc=nn.Linear(4, 2)
        ),
    }


@given(
    cell=st.sampled_from(CELLS),
    kind=st.sampled_from(sorted(networks("LSTM"))),
    density=st.floats(0.0, 0.7),
    group_density=st.floats(0.3, 1.0),
    levels=st.sampled_from([None, "W", "W+N", "W+G+N"]),
    words=st.booleans(),
    seed=st.integers(0, 2**20),
)
@example(cell="GRU", kind="no bias", density=0.5, group_density=0.7, levels="W+G+N", words=True, seed=0)
def test_what_the_fixed_point_removes_never_matters(
    cell: str, kind: str, density: float, group_density: float, levels: str | None, words: bool, seed: int
) -> None:
    """The answer, over two windows with the state handed on, is the same without everything that is removed."""
    torch.manual_seed(seed)
    model = randomly_sparse(networks(cell)[kind](), density, biases=True).eval()
    if levels is not None:
        variational(model, levels=levels, vocabulary=["emb"] if words else [])
        for name, p in model.named_parameters():
            if "scale" in name and "log_sigma" not in name:
                with torch.no_grad():
                    p.copy_(torch.randn_like(p) * (torch.rand_like(p) < group_density))
    structure = Structure.from_weights(model, fixed_point=True)
    small = without_the_removed(model, structure)
    windows = torch.randint(7, (2, 5, 3))
    big_state = small_state = None
    for x in windows:
        with torch.no_grad():
            big, little = (
                net(x) if state is None else net(x, state)
                for net, state in ((model, big_state), (small, small_state))
            )
        torch.testing.assert_close(answer(little), answer(big), rtol=1e-5, atol=1e-6)
        if isinstance(big, tuple):
            big_state, small_state = big[1], little[1]


@given(density=st.floats(0.0, 0.9), seed=st.integers(0, 2**20), cell=st.sampled_from(CELLS))
def test_the_fixed_point_never_keeps_more(density: float, seed: int, cell: str) -> None:
    """It starts from the same zeros and removes at least what one pass removes."""
    torch.manual_seed(seed)
    model = randomly_sparse(LanguageModel(cell=cell), density)
    once, whole = Structure.from_weights(model), Structure.from_weights(model, fixed_point=True)
    for name, own in whole.layers.items():
        for mask, other in zip(vars(own).values(), vars(once.layers[name]).values()):
            assert not (mask & ~other).any()


def test_a_network_without_a_living_neuron() -> None:
    """All zeros: nothing is kept but the answer itself, and nothing breaks."""
    model = LanguageModel()
    load(model, {"fc.bias": 1.0})
    structure = Structure.from_weights(model, fixed_point=True)
    assert not any(own.keep_neurons.any() or own.keep_gates.any() for own in structure.recurrent().values())
    assert not layer(structure, "emb").keep_words.any()
    assert layer(structure, "fc").keep_outputs.all()


def test_a_union_has_what_either_has() -> None:
    """Of one model at two moments; structures of different models have no union."""
    model = LanguageModel(layers=1)
    whole = Structure.from_weights(model)
    with torch.no_grad():
        model.fc.weight[:, 1] = 0
        model.rnn.weight_hh_l0[:, 1] = 0
    left = Structure.from_weights(model)
    assert not left.recurrent()["rnn.l0"].keep_neurons.all()
    for both in (whole | left, left | whole):
        for name, layer in both.layers.items():
            for key, mask in vars(layer).items():
                assert torch.equal(mask, vars(whole.layers[name])[key])
    with pytest.raises(ValueError, match=r"different models: only one of them has rnn\.l1"):
        left | Structure.from_weights(LanguageModel(layers=2))
