"""gw.Engine of a model that is no chain: its program, with layers in C and the rest in NumPy."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gatewise.program.calling import fixed, not_default
from gatewise.program.graph import BOOL, INT, Node, Program, called_with, leaves, mapped, only_called_with
from gatewise.program.sizes import at
from gatewise.program.ways import programs
from gatewise.runtime.arguments import bound, check_finite, is_tensor, letters_of, unknown
from gatewise.runtime.bindings import check_threads
from gatewise.runtime.carried import carried_arguments, returns_state
from gatewise.runtime.chained import ChainError
from gatewise.runtime.engine import Engine
from gatewise.runtime.prepared import MOST_KNOWN, Call, Prepared, Unrunnable
from gatewise.runtime.rounding import Weights, check_weights
from gatewise.runtime.streaming import Stream, streamed
from gatewise.wording import counted

Array = NDArray[Any]


class GraphState:
    """What an engine remembers between two calls; opaque, made by the engine, never changed by it.

    `returned` are the states that forward() itself would have returned, one for every argument that takes them.
    Pickled, it is of numbers alone: an engine of the same model in another process goes on with it.
    """

    __slots__ = ("_remembered", "batch", "returned", "steps", "way")

    def __init__(self, way: Way, call: Call, returned: tuple[Any, ...]) -> None:
        self.way: Any = way  # its key, of a state that was pickled
        self.returned = returned
        self.batch = call.letters.get(way.stream.batch, 0)
        self.steps = call.offset + call.letters.get(way.stream.time, 0)
        self._remembered = tuple(
            [call.after.get(node) for node in way.remembering]
        )  # a batch of none: nothing

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {name: getattr(self, name) for name in self.__slots__} | {"way": key_of(self)}


class Way:
    """One way to call forward(), ready to run."""

    def __init__(
        self,
        program: Program,
        model: nn.Module,
        carried: tuple[str, ...],
        fold_embedding: bool | None,
        weights: Weights = "float32",
    ) -> None:
        self.program, self.names = program, frozenset(program.arguments)
        self.returned = len(carried) if returns_state(program, carried) else 0  # parts of the answer
        self.stream: Stream = streamed(program, model)
        self.remembering = [node for node in program.nodes if node in self.stream.remembering]
        # What tells this way from others, and from those of other models, in any process.
        said = [(type(node.op).__name__, tuple(map(str, node.shape))) for node in self.remembering]
        names = (tuple(program.arguments), tuple(sorted(program.absent)), tuple(sorted(program.unread)))
        self.key = (fingerprint(model), *names, tuple(said))
        self.prepared = Prepared(program, model, self.stream.special, fold_embedding, weights)
        self.known: dict[
            tuple[tuple[int, ...], ...], dict[str, int]
        ] = {}  # letters, by shapes of earlier calls

    def letters(self, arrays: dict[Node, Array]) -> dict[str, int]:
        """The sizes that arguments give."""
        shapes = tuple(array.shape for array in arrays.values())
        found = self.known.get(shapes)
        if found is None:
            found = letters_of(arrays, self.stream.batch)
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            self.known[shapes] = found
        return dict(found)  # a call adds to its own

    def run(self, arrays: dict[Node, Array], call: Call) -> Any:
        some = call.letters.get(self.stream.batch, 1)
        return self.prepared.run(arrays, call) if some else self.no_sequence(call.letters)

    def no_sequence(self, letters: dict[str, int]) -> Any:
        """The answer to a batch of none, as torch gives it: tensors without an entry."""

        def empty(node: Node) -> Array:
            shape = tuple([at(size, letters) for size in node.shape])
            if 0 not in shape:
                raise ValueError(f"the inputs are empty, but an answer of shape {shape} depends on them.")
            return np.zeros(shape, {"float": np.float32, INT: np.int64, BOOL: np.bool_}[node.kind])

        return mapped(empty, self.program.outputs)

    def time_axis(self, node: Any) -> int | None:
        """Where an argument or answer has time; rows of sequences and steps have it nowhere."""
        names = list(map(str, node.shape)) if isinstance(node, Node) else []
        return names.index(self.stream.time) if self.stream.time in names else None

    def with_time(self, name: str, value: Any) -> Any:
        """An argument of one step as a sequence of that step."""
        axes = map(self.time_axis, leaves(self.program.arguments.get(name)))
        return mapped(lambda leaf: with_axis(leaf, next(axes)), value)

    def without_time(self, answer: Any) -> Any:
        axes = map(self.time_axis, leaves(self.split(self.program.outputs)[0]))
        return mapped(lambda leaf: without_axis(leaf, next(axes)), answer)

    def split(self, answer: Any) -> tuple[Any, tuple[Any, ...]]:
        """The answer, and the states that forward() returns behind it."""
        if not self.returned:
            return answer, ()
        left = answer[: len(answer) - self.returned]
        return (left[0] if len(left) == 1 else left), tuple(answer[len(left) :])


def fingerprint(model: nn.Module) -> int:
    """Of all weights."""
    found = 0
    for tensor in model.state_dict().values():
        found = zlib.crc32(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().data, found)
    return found


def key_of(state: GraphState) -> Any:
    return state.way.key if isinstance(state.way, Way) else state.way


def graph_engine(model: nn.Module, ways: list[Program], **options: Any) -> Engine:
    """An engine of the programs of a model; ChainError where they have what no back end runs."""
    made: GraphEngine = object.__new__(GraphEngine)
    try:
        made.prepare(model, ways, **options)
    except Unrunnable as error:
        raise ChainError(str(error)) from error
    return made


class GraphEngine(Engine):
    """y, state = engine(*inputs): forward()'s arguments in its order or by name, its outputs in its structure.

    Where forward() takes a state and returns it, `state` stands for both: `y, state = engine(x, state)`.
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        """Engine() has prepared it."""

    def prepare(
        self,
        model: nn.Module,
        ways: list[Program],
        *,
        threads: int = 1,
        fold_embedding: bool | None = None,
        weights: str = "float32",
        check: bool = False,
    ) -> None:
        check_threads(threads)
        self.model, self.threads, self.fold_embedding, self.check = model, threads, fold_embedding, check
        self.weights = check_weights(weights)
        self.parameters = list(inspect.signature(self.model.forward).parameters)
        self.fixed = fixed(self.model)
        self.ways = self._prepared(ways)
        self.learned: set[frozenset[str]] = set()  # ways that a call was an example of
        self._seen: dict[
            Any, tuple[Way, tuple[Node, ...], dict[str, int]]
        ] = {}  # by shapes and types of calls
        self._remembered_state: GraphState | None = None

    def __repr__(self) -> str:
        call = (
            f"forward({', '.join(self.parameters)}) as a graph, {counted(len(self.ways), 'way')} to call it"
        )
        return f"<Engine of {call}, {self.weights} weights, threads={self.threads}>"

    def _prepared(self, programs: list[Program]) -> list[Way]:
        self.carried = carried_arguments(programs)
        return [
            Way(program, self.model, self.carried, self.fold_embedding, self.weights) for program in programs
        ]

    def __call__(  # type: ignore[override]
        self, *inputs: Any, state: Any = None, **named: Any
    ) -> tuple[Any, GraphState]:
        if self.check:
            check_finite(leaves((*inputs, *named.values())))
        if state is None and not named:
            shapes = tuple([(x.shape, x.dtype) if type(x) is np.ndarray else None for x in inputs])
            if (seen := self._seen.get(shapes)) is not None:
                way, nodes, letters = seen
                call = Call(dict(letters), self.threads)
                answer, returned = way.split(way.run(dict(zip(nodes, inputs)), call))
                return answer, GraphState(way, call, returned)
        given, before = self._given(inputs, {**named, **({} if state is None else {"state": state})})
        return self._answer(given, before, inputs if before is None and not named else ())

    def _answer(
        self, given: dict[str, Any], before: GraphState | None, inputs: tuple[Any, ...] = ()
    ) -> tuple[Any, GraphState]:
        """A call as it was looked at; one with these `inputs` alone need not be, the next time."""
        try:
            way, arrays, letters = self._bound(given, before)
        except ValueError:
            if before is not None or not self._learn(given):
                raise
            way, arrays, letters = self._bound(given, before)
        self._remember(inputs, way, arrays, letters)
        call = self._call(way, letters, before)
        answer, returned = way.split(way.run(arrays, call))
        after = GraphState(way, call, returned)
        tensors = any(is_tensor(leaf) for leaf in leaves(list(given.values())))
        return (mapped(as_tensor, answer) if tensors else answer), after

    def _remember(
        self, inputs: tuple[Any, ...], way: Way, arrays: dict[Node, Array], letters: dict[str, int]
    ) -> None:
        """Calls with arrays of these shapes and types need no more looking at."""
        if (
            not inputs
            or len(inputs) != len(arrays)
            or not all(x is y for x, y in zip(inputs, arrays.values()))
        ):
            return  # tensors, lists, other types
        if len(self._seen) >= MOST_KNOWN:
            self._seen.clear()
        shapes = tuple([(x.shape, x.dtype) for x in inputs])
        self._seen[shapes] = way, tuple(arrays), dict(letters)

    def _given(
        self, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[dict[str, Any], GraphState | None]:
        """Arguments by name, without those that are left out, and the state of an earlier call."""
        states = [value for value in (*inputs, *named.values()) if isinstance(value, GraphState)]
        if len(states) > 1:
            raise TypeError(f"{len(states)} states were given; one holds all that an engine remembers.")
        arrays = [value for value in inputs if not isinstance(value, GraphState)]
        if len(arrays) == len(self.parameters) + 1 and arrays[-1] is None:
            arrays.pop()  # no state yet
        if len(arrays) > len(self.parameters):
            raise TypeError(f"{len(arrays)} inputs were given; forward() takes {', '.join(self.parameters)}.")
        given = dict(zip(self.parameters, arrays))
        for name, value in named.items():
            if value is None or isinstance(value, GraphState):
                continue
            if name not in self.parameters or name in given:
                twice = TypeError(f"{name} is given twice.")
                raise twice if name in given else unknown(name, self.parameters)
            given[name] = value
        if changed := not_default(self.model, given):
            raise TypeError(
                f"{changed[0]}: forward() was recorded with its default, and with no other value."
            )
        free = {name: value for name, value in given.items() if value is not None and name not in self.fixed}
        return free, next(iter(states), None)

    def _bound(
        self, given: Mapping[str, Any], before: GraphState | None
    ) -> tuple[Way, dict[Node, Array], dict[str, int]]:
        """The way that has these arguments, their arrays, and the sizes that they give."""
        if before is None:
            way = self._way(given)
        else:
            if twice := [name for name in self.carried if name in given]:
                raise TypeError(f"{twice[0]} is given, and so is a state that holds it; give one of them.")
            given = {**given, **dict(zip(self.carried, before.returned))}
            way = self._way_of(before)
            way = self._way(given) if way.stream.refused else way
            others = given.keys() - set(self.carried)
            if not way.program.holds_for(others):
                known = called_with([way.program])
                raise TypeError(f"the state is of a call with {known}, and {', '.join(others)} is given now.")
        read = {name: value for name, value in given.items() if name in way.names}
        arrays = bound(way.program, read)
        return way, arrays, way.letters(arrays)

    def _way(self, given: Mapping[str, Any]) -> Way:
        """The way to call forward() that has these arguments, and leaves out as many of the others as there is."""
        fitting = [way for way in self.ways if way.names <= given.keys() and way.program.holds_for(given)]
        if fitting:
            return max(fitting, key=lambda way: len(way.program.absent))
        fewest = min(self.ways, key=lambda way: len(way.names - given.keys()))
        missing = [name for name in self.parameters if name in fewest.names - given.keys()]
        if missing:
            raise TypeError(f"forward() needs {', '.join(missing)}.")
        raise TypeError(only_called_with(given, [way.program for way in self.ways]))

    def _way_of(self, state: GraphState) -> Way:
        """The way that a state is of."""
        way = next((way for way in self.ways if way.key == key_of(state)), None)
        if way is None:
            raise TypeError("state must be what an earlier call of this engine returned, or None.")
        if way.stream.refused and not state.returned:
            raise TypeError(f"state: {way.stream.refused}. Give whole sequences: engine(x).")
        return way

    def _call(self, way: Way, letters: dict[str, int], before: GraphState | None) -> Call:
        if before is None or way.stream.refused:
            return Call(letters, self.threads)
        if before.batch != letters[way.stream.batch]:
            raise ValueError(
                f"the state is of {counted(before.batch, 'sequence')}, the inputs of {letters[way.stream.batch]}; "
                "without a state, or after reset(), others begin."
            )
        remembered = dict(zip(way.remembering, before._remembered))
        return Call(letters, self.threads, remembered, offset=before.steps)

    def _learn(self, given: Mapping[str, Any]) -> bool:
        """Recorded without an example, an argument may have been taken for one of other axes: the call is one."""
        old = self._way(given)
        names = old.names
        if names in self.learned:
            return False
        self.learned.add(names)
        gap = next((k for k, name in enumerate(self.parameters) if name not in given), len(given))
        example = tuple(mapped(torch.as_tensor, given[name]) for name in self.parameters[:gap])
        new = next((way for way in self._prepared(programs(self.model, example)) if way.names == names), old)
        self.ways[self.ways.index(old)] = new
        self._seen.clear()
        return new is not old

    def step(self, *inputs: Any, **named: Any) -> Any:
        """One time step, from the state that the step before left: inputs and answers without their time axis."""
        before = self._remembered_state
        if self.check:
            check_finite(leaves((*inputs, *named.values())))
        given, _ = self._given(inputs, named)
        way = self._way(given) if before is None else self._way_of(before)
        if way.stream.refused:
            raise TypeError(f"step(): {way.stream.refused}. Give whole sequences: engine(x).")
        longer = {name: way.with_time(name, value) for name, value in given.items()}
        answer, self._remembered_state = self._answer(longer, before)
        return way.without_time(answer)

    def reset(self) -> None:
        """Forget the state of step()."""
        self._remembered_state = None

    def zero_state(self, batch: int) -> Any:
        """The state before the first piece is the one of a call without a state."""
        raise TypeError("a graph of layers has no state of zeros; engine(x) begins without one.")


def with_axis(value: Any, axis: int | None) -> Any:
    if axis is None:
        return value
    return value.unsqueeze(axis) if is_tensor(value) else np.expand_dims(value, axis)


def without_axis(value: Any, axis: int | None) -> Any:
    return value if axis is None else value.squeeze(axis)


def as_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
