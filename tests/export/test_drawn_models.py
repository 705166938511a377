"""Drawn models through all forms: masked, compact, saved and loaded, accelerated, engine, ONNX, C."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from answers import CONTAINERS, Way
from chains import Case as Chain
from chains import chains, packed_chains, three_lengths
from compiled import STRICT, run
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_networks import Case, sparse_networks
from torch import Tensor, nn

import gatewise as gw
from gatewise.runtime.graph_engine import GraphEngine

DRAWN = (12, 2_000)  # usual and --long
NUMPY = {"float": "float32"}  # what ONNX calls otherwise
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}  # sums in another order, through several layers


def first(answer: Any) -> Tensor:
    found = answer[0] if isinstance(answer, tuple) else answer
    assert isinstance(found, Tensor)
    return found


@dataclass
class Drawn:
    """A sparse network, and what it is called with."""

    model: nn.Module
    inputs: tuple[Any, ...]
    fresh: Callable[[], nn.Module | None]  # to load into
    source: Any  # says how to build it again
    read: Callable[[Any], Tensor] = first  # what is compared of an answer

    def __repr__(self) -> str:
        return f"{self.source!r} called with {self.inputs[1:]}"


def of_any_shape(case: Case) -> Drawn:
    inputs = case.inputs[:2] if case.options["shape"] == "masked" else case.inputs  # no form takes mask=
    bare = isinstance(case.model, nn.RNNBase | gw.nn.Recurrent)
    return Drawn(case.model, inputs, (lambda: None) if bare else case.fresh, case)


def of_a_chain(case: Chain, lengths: Tensor | None = None) -> Drawn:
    inputs = (case.x,) if lengths is None else (case.x, lengths)
    return Drawn(case.model, inputs, lambda: type(case.model)(case.model.o), case)


def drawn() -> st.SearchStrategy[Drawn]:
    """Every shape that compress() keeps exact; chains, which all forms take; chains of packed sequences; chains of
    which forward() asks what their layer is, and whose answer is inside something."""
    return st.one_of(
        sparse_networks(state=False, unbatched=False).map(of_any_shape),
        chains().map(of_a_chain),
        st.builds(of_a_chain, packed_chains(), three_lengths),
        st.builds(
            wrapped,
            chains().map(of_a_chain),
            st.sampled_from(sorted(CONTAINERS)),
            st.sampled_from(sorted(IDIOMS)),
        ),
    )


# What forward() makes of its layer, whatever form that has.
IDIOMS: dict[str, Callable[[Any], float]] = {
    "nothing": lambda rnn: 1.0,
    "isinstance": lambda rnn: 2.0 if isinstance(rnn, nn.LSTM) else 0.5,
    "hasattr": lambda rnn: (
        2.0 if hasattr(rnn, "flatten_parameters") and hasattr(rnn, "weight_ih_l0") else 0.5
    ),
    "sizes": lambda rnn: rnn.hidden_size / rnn.input_size * (1 + rnn.bidirectional) / rnn.num_layers,
    "shape of a weight": lambda rnn: rnn.weight_hh_l0.shape[0] / rnn.weight_ih_l0.shape[1],
}


class Wrapped(nn.Module):
    """A network that asks what its layer is, and whose answer is inside a container or an object."""

    def __init__(self, inner: nn.Module, way: Way, idiom: str) -> None:
        super().__init__()
        self.inner, self.way, self.idiom = inner, way, idiom

    def forward(self, x: Tensor) -> Any:
        return self.way.wrap(first(self.inner(x)) * IDIOMS[self.idiom](self.inner.rnn))


def wrapped(case: Drawn, container: str, idiom: str) -> Drawn:
    """The same network, times what it asks, with its answer in a container."""
    way = CONTAINERS[container]

    def around(inner: nn.Module | None) -> nn.Module:
        assert inner is not None
        return Wrapped(inner, way, idiom).eval()

    source = (container, idiom, case.source)
    return Drawn(around(case.model), case.inputs, lambda: around(case.fresh()), source, way.unwrap)


# The forms: each makes one, or raises what it cannot take, and then answers.

Form = Callable[[nn.Module, Drawn, Path], Callable[[], Tensor]]


def loaded(small: nn.Module, case: Drawn, folder: Path) -> Callable[[], Tensor]:
    gw.save(small, folder / "model")
    model = gw.load(folder / "model", case.fresh()).eval()
    return lambda: case.read(model(*case.inputs))


def accelerated(small: nn.Module, case: Drawn, folder: Path) -> Callable[[], Tensor]:
    model = gw.accelerate(small)
    return lambda: case.read(model(*case.inputs))


def engine(small: nn.Module, case: Drawn, folder: Path) -> Callable[[], Tensor]:
    made = gw.Engine(small, example=case.inputs)
    inputs = (
        case.inputs if isinstance(made, GraphEngine) else case.inputs[:1]
    )  # a chain has a state of its own
    return lambda: case.read(made(*inputs)[0])


def onnx(small: nn.Module, case: Drawn, folder: Path) -> Callable[[], Tensor]:
    path = gw.export.to_onnx(small, folder / "model.onnx", states=False, example=case.inputs)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    given = [argument.numpy() for argument in case.inputs if argument is not None]
    types = [known.type.removeprefix("tensor(")[:-1] for known in session.get_inputs()]
    names = [known.name for known in session.get_inputs()]
    fed = {name: x.astype(NUMPY.get(kind, kind)) for name, kind, x in zip(names, types, given)}
    return lambda: torch.from_numpy(session.run(None, fed)[0])


FORMS: dict[str, Form] = {"loaded": loaded, "accelerated": accelerated, "engine": engine, "ONNX": onnx}


class Campaign:
    """Counts what each form said."""

    def __init__(self, folder: Path, kernels: list[Path]) -> None:
        self.folder, self.kernels = folder, kernels
        self.models, self.same, self.refused = 0, Counter[str](), Counter[str]()

    @torch.no_grad()
    def __call__(self, case: Drawn) -> None:
        self.models += 1
        expected = case.read(case.model(*case.inputs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layers whose readers are not known
            small = gw.compress(case.model)
        torch.testing.assert_close(case.read(small(*case.inputs)), expected, **CLOSE)
        for name, form in FORMS.items():
            try:
                answer = form(small, case, self.folder)
            except (TypeError, ValueError):
                self.refused[name] += 1
            else:
                torch.testing.assert_close(answer(), expected, **CLOSE)
                self.same[name] += 1
        self.check_c(small, case)

    def check_c(self, small: nn.Module, case: Drawn) -> None:
        """The export checks itself, against the answers that the compact model gave."""
        folder = self.folder / "c"
        try:
            weights = ("float32", "int8")[self.models % 2]
            gw.export.to_c(small, folder, weights=weights, example=case.inputs)
        except (TypeError, ValueError):
            self.refused["C"] += 1
            return
        program = self.folder / "check"
        run("gcc", *STRICT, "-O0", "-o", program, "check.c", "model.c", *self.kernels, "-lm", cwd=folder)
        assert "passed" in run(program, cwd=folder)
        self.same["C"] += 1

    def __str__(self) -> str:
        forms = ", ".join(
            f"{name} {self.same[name]} ({self.refused[name]} refused)" for name in (*FORMS, "C")
        )
        return f"{self.models} drawn models, the same answers: compact {self.models}, {forms}"


def test_drawn_models(tmp_path: Path, kernels: list[Path], pytestconfig: Any, campaign: Any) -> None:
    """A form answers as the masked network does, or says that it cannot; compress() can always."""
    check = Campaign(tmp_path, kernels)

    @settings(max_examples=DRAWN[pytestconfig.getoption("--long")], derandomize=True)
    @given(case=drawn())
    def every_form(case: Drawn) -> None:
        check(case)

    every_form()
    assert not check.refused["loaded"]
    campaign(str(check))
