"""How fast a compact model is beside its dense original: the same answer first, then the clock, in turns."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gatewise.compact import CompactCell, CompactEmbedding, CompactLinear, CompactRecurrent, compacted
from gatewise.export.c.golden_program import by_name
from gatewise.export.onnx.model import to_onnx
from gatewise.export.onnx.ways import state_arguments
from gatewise.nn.lookup import SINGLE_STEP, replace_module
from gatewise.nn.recurrent import GRU, LSTM
from gatewise.program.graph import Program, leaves, letters_in, mapped
from gatewise.program.made_up import described, made_up
from gatewise.program.sizes import at
from gatewise.runtime.engine import Engine
from gatewise.runtime.graph_engine import GraphEngine
from gatewise.runtime.streaming import letters_of
from gatewise.wording import counted

CALLS, WARM, ROUNDS = 20, 5, 5  # calls of a block, calls before it that do not count, blocks at least
BLOCK_SECONDS = 0.05  # a block of slow calls has fewer of them
LOOP_SECONDS = 0.0005  # a loop in C has more calls: entering it takes as long as ten of the shortest
DENSE_TORCH = "torch dense"
DENSE = {"LSTM": LSTM, "GRU": GRU}
TORCH = {"LSTM": nn.LSTM, "GRU": nn.GRU}


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds a call in each warm block of 20 calls.

    Contenders take turns, so that a slow moment of the machine falls on all of them: k-th entries belong together.
    One that has a method repeat(n) makes n calls by itself, in longer blocks if they are short.
    """
    blocks: dict[str, int] = {}
    for name, call in contenders.items():
        call()
        start = clock()
        call()
        once = max(clock() - start, 1e-6)
        calls = max(CALLS, int(LOOP_SECONDS / once)) if hasattr(call, "repeat") else CALLS
        blocks[name] = max(1, min(calls, int(BLOCK_SECONDS / once)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or any(len(found) <= ROUNDS for found in times.values()):
        for name, call in contenders.items():
            repeat(call, WARM * blocks[name] // CALLS)
            start = clock()
            repeat(call, blocks[name])
            times[name].append((clock() - start) / blocks[name])
    return {name: found[1:] for name, found in times.items()}  # the first round warms up


def repeat(call: Callable[[], object], n: int) -> None:
    by_itself = getattr(call, "repeat", None)
    if by_itself is not None:
        by_itself(n)
        return
    for _ in range(n):
        call()


def ratio(slow: list[float], fast: list[float]) -> float:
    """How many times faster, from blocks that ran one after the other."""
    return statistics.median(a / b for a, b in zip(slow, fast))


@dataclass(frozen=True)
class Timing:
    """One contender in one situation."""

    situation: str
    name: str
    seconds: float
    ratio: float  # dense torch over this one


def race(
    model: nn.Module, *, steps: int = 35, batch: int = 20, threads: int = 1, seconds: float = 1.0
) -> list[Timing]:
    """A saved or sparse model against its dense original: torch, ONNX Runtime where installed, and the engine.

    Raises:
        ChainError: forward() does what no engine runs.
        AssertionError: two contenders give different answers.
    """
    small = compacted(model).eval()
    engine, dense = Engine(small, threads=threads), dense_original(small).eval()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    timings: list[Timing] = []
    try:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            sessions = onnx_calls(
                {"ONNX Runtime dense": dense, "ONNX Runtime compact": small},
                Path(folder),
                threads,
                with_states(engine),
            )
            for situation, length, size in (
                ("one step", 1, 1),
                (counted(steps, "step"), steps, 1),
                (f"{counted(steps, 'step')} of {batch}", steps, batch),
            ):
                asked = made_call(engine, length, size)
                if asked is None:
                    continue  # windows that so few steps do not fill
                contenders = contenders_of(asked, dense, small, sessions)
                same_answers({name: call for name, call in contenders.items() if "dense" not in name})
                times = take_turns(contenders, seconds)
                timings += [
                    Timing(situation, name, statistics.median(found), ratio(times[DENSE_TORCH], found))
                    for name, found in times.items()
                ]
    finally:
        torch.set_num_threads(before)
    return timings


class Asked(NamedTuple):
    """One call with random arguments, as every contender takes it."""

    inputs: tuple[Tensor, ...]
    named: dict[str, Any]
    arrays: list[Any]  # of an ONNX graph
    engine: Callable[[], object]


def contenders_of(
    asked: Asked, dense: nn.Module, small: nn.Module, sessions: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Callable[[], object]]:
    return {
        DENSE_TORCH: partial(dense, *asked.inputs, **asked.named),
        "torch compact": partial(small, *asked.inputs, **asked.named),
        **{name: partial(call, asked.arrays) for name, call in sessions.items()},
        "gatewise engine": asked.engine,
    }


def made_call(engine: Engine, steps: int, batch: int) -> Asked | None:
    if isinstance(engine, GraphEngine):
        return graph_call(engine, steps, batch)
    x = example(engine, steps, batch)
    return Asked((x,), {}, [x.numpy()], partial(engine, x.numpy()))


def fewest(engine: GraphEngine) -> Program:
    return min((way.program for way in engine.ways), key=lambda program: len(program.inputs))


def with_states(engine: Engine) -> bool:
    """Whether a call with the fewest arguments has states among them."""
    return isinstance(engine, GraphEngine) and bool(state_arguments(fewest(engine)))


def graph_call(engine: GraphEngine, steps: int, batch: int) -> Asked | None:
    """The way to call forward() that takes the fewest arguments."""
    program = fewest(engine)
    letters = frozenset[str]().union(*map(letters_in, program.inputs))
    sizes = dict.fromkeys(letters, steps) | {"B": batch}
    known = [size for node in program.nodes for size in node.shape if letters_of(size) <= sizes.keys()]
    if min((at(size, sizes) for size in known), default=1) < 1:
        return None
    generator = np.random.default_rng(0)
    given = {
        node: made_up(described(node, program), engine.model, sizes, steps, generator)
        for node in program.inputs
    }
    named, arrays = by_name(program, given), [tensor.numpy() for tensor in given.values()]
    return Asked((), named, arrays, partial(engine, **mapped(Tensor.numpy, named)))


def example(engine: Engine, steps: int, batch: int) -> Tensor:
    """Random words or vectors in the layout of forward()."""
    narrow = engine.narrow
    generator = torch.Generator().manual_seed(0)
    frame = (batch, steps) if narrow.chain.batch_axis == 0 else (steps, batch)
    if narrow.chain.words:
        return torch.randint(0, narrow.table.n_words, frame, generator=generator)
    return torch.randn(*frame, narrow.n_inputs, generator=generator)


def same_answers(
    contenders: Mapping[str, Callable[[], object]], rtol: float = 1e-3, atol: float = 1e-4
) -> None:
    """Every contender gives what the first gives."""
    answers = {name: np.asarray(leaves(call())[0]) for name, call in contenders.items()}
    (reference, expected), *others = answers.items()
    for name, answer in others:
        np.testing.assert_allclose(answer, expected, rtol, atol, err_msg=f"{name} against {reference}")


def onnx_calls(
    models: Mapping[str, nn.Module], folder: Path, threads: int, states: bool
) -> dict[str, Callable[[Any], Any]]:
    """The models in ONNX Runtime, where asked for with states as inputs; none where it is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        return {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    calls: dict[str, Callable[[Any], Any]] = {}
    for k, (name, model) in enumerate(models.items()):
        path = to_onnx(model, folder / f"{k}.onnx", states=None if states else False)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        calls[name] = partial(ask, session)
    return calls


def ask(session: Any, arrays: list[Any]) -> Any:
    names = [given.name for given in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))[0]


def dense_original(model: nn.Module) -> nn.Module:
    """The model at its original size, with new weights: how long it takes does not depend on them."""
    dense = copy.deepcopy(model)
    for name, module in list(dense.named_modules()):
        new: nn.Module
        if isinstance(module, CompactLinear):
            new = nn.Linear(module.in_features, module.out_features, module.bias is not None)
        elif isinstance(module, CompactEmbedding):
            new = nn.Embedding(module.num_embeddings, module.embedding_dim)
        elif isinstance(module, CompactRecurrent):
            logistic = module.gate_activation == "sigmoid"
            options = module.options()
            if logistic:
                del options["gate_activation"]
            new = (TORCH if logistic else DENSE)[module.cell.name](**options)
        elif isinstance(module, CompactCell):
            biased = module.layer.bias is not None
            new = SINGLE_STEP[module.cell.name](module.input_size, module.hidden_size, biased)
        else:
            continue
        if not name:
            return new
        replace_module(dense, module, new)
    return dense
