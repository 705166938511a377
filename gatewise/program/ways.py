"""forward() recorded in every way in which it can be called: programs() for back ends, recordings() for an analysis.

A call takes one branch. So forward() is run with every optional argument given and left out, and for an analysis with
every flag true and false, in training and in evaluation, and with every shape that its arguments may have.
"""

from __future__ import annotations

import functools
import math
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gatewise.nn.lookup import evaluating
from gatewise.program import sizes
from gatewise.program.calling import GIVEN, bound_example, not_default, optional, required, ways
from gatewise.program.decoding import ReadsItself
from gatewise.program.fits import LOOSE
from gatewise.program.graph import FLOAT, Node, Program, leaves, mapped
from gatewise.program.layers import RecordedPack, is_hooked
from gatewise.program.loops import LoopError
from gatewise.program.made_up import Call, call_of
from gatewise.program.opened import all_young, held, opened
from gatewise.program.operations import Concat, Input
from gatewise.program.over_time import over_time
from gatewise.program.recorder import Recorder, kind_of
from gatewise.program.session import recording, untouched
from gatewise.program.sizes import Size, Undecided, letter
from gatewise.program.source import PACKAGE, line_of_error
from gatewise.program.stand_ins import (
    ANY_PARTS,
    Assume,
    Impossible,
    NeedsShape,
    NoCall,
    Parts,
    Recorded,
    Refused,
    is_shape,
)

MOST_TRIES = 400  # runs for one way, with other shapes of its arguments
LONGEST = 30  # seconds for an analysis: what it then does not know costs neurons, not an afternoon
HELD = "forward() hands it out in something that cannot be looked into, or keeps it outside of the model"
ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True)
class Recording:
    """One call of forward(), and what it did beside giving an answer."""

    program: Program
    called: frozenset[str] = frozenset()  # layers
    sized: frozenset[str] = frozenset()  # parameters of which forward() asks how large they are
    left: tuple[tuple[Node, str], ...] = ()  # what it left in a module or anywhere, and a sentence on that
    # What names meant before the last step of a loop, and after it.
    carried: tuple[tuple[Node, Node], ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)  # of arguments, where another one is more likely
    call: Call | None = None  # for an analysis
    training: bool = False


def programs(model: nn.Module, example: Any = None) -> list[Program]:
    """One program for every way to call forward() in evaluation: optional arguments given first, then left out.

    `example`, the arguments of one call, says how many axes they have. What can be recorded in no way is refused,
    with the line of forward() and the reason.
    """
    made: list[Program] = []
    failure: Exception | None = None
    known = bound_example(model, example)
    if changed := not_default(model, known):
        raise Refused(
            f"{changed[0]}: forward() is recorded with its default only, and example= has another value"
        )
    with ONE_AT_A_TIME, evaluating(model):
        for recorded, why in attempts(model, ways(model)[0], known):
            if recorded and why is not None:
                raise why
            if isinstance(why, ReadsItself):  # the other ways are how it is trained
                raise Refused(why_not(why)) from why
            failure = failure or why
            made += [recording.program for recording in recorded[:1]]
    if made:
        return made
    assert failure is not None
    raise Refused(why_not(failure)) from failure


def recordings(model: nn.Module) -> tuple[list[Recording], Exception | None]:
    """Every way to call forward(), in training too, with every shape that its arguments may have.

    Also why some way is missing, if one is: it cannot be recorded, it may go on otherwise, or there are too many. A
    call that forward() itself refuses is none. If nothing can be recorded, what was raised first is raised.
    """
    made: list[Recording] = []
    failure: Exception | None = None
    found, too_many = ways(model, flags=True)
    until = time.monotonic() + LONGEST
    with ONE_AT_A_TIME, evaluating(model):
        for training in (False, True):
            for module in model.modules():
                module.training = training
            for way, (recorded, why) in zip(found, attempts(model, found, {}, lenient=True, until=until)):
                none = any(way[name] is None for name in required(model) & way.keys())
                if why is not None and (recorded or not made or not is_refusal(why, none)):
                    failure = failure or why
                made += recorded
    if failure is not None and not made:
        raise failure
    return made, failure or too_many


def attempts(
    model: nn.Module,
    found: list[dict[str, Any]],
    known: Mapping[str, Any],
    lenient: bool = False,
    until: float = math.inf,
) -> Iterator[tuple[list[Recording], Exception | None]]:
    """What each way to call forward() gives, and why it gives nothing, or perhaps something else another time."""
    for way in found:
        try:
            with same_random_numbers() as drawn:
                recorded = explored(model, way, known, lenient, until)
        except Exception as error:  # forward() is the user's code: anything may be raised by running it
            yield [], error
            continue
        why = f"it draws random numbers ({drawn[0]}), and with others may go another way" if drawn else ""
        yield recorded, Refused(why) if why else None


def why_not(error: Exception) -> str:
    """Why forward() could not be recorded, and in which line."""
    where = line_of_error(error)
    if isinstance(error, Undecided):
        said = f"it asks whether {error}, which calls answer differently"
    elif error.__traceback__ is None or isinstance(error, Refused | NoCall | Impossible) or is_refusal(error):
        said = str(error).strip()
        said = said.splitlines()[0][:200] if said else type(error).__name__
    else:  # torch's own words are about stand-ins, which nobody has seen
        said = f"what happens there cannot be followed ({type(error).__name__})"
    return f"{where}: {said}" if where else said


def is_refusal(error: Exception, none: bool = False) -> bool:
    """Whether forward() itself raised this, as it would with tensors: neither torch nor we did.

    `none`: it was given None for what has no default, which torch refuses as itself.
    """
    if isinstance(error, NoCall) or (none and isinstance(error, TypeError | AttributeError)):
        return True
    inner = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = inner.is_relative_to(Path(torch.__file__).parent) or inner.is_relative_to(PACKAGE / "program")
    return not ours and not isinstance(error, Refused | Undecided | Impossible)


@contextmanager
def same_random_numbers() -> Iterator[list[str]]:
    """Puts the generators of Python, NumPy and torch back, and names in the list it gives those that were used."""
    python, numpy, numbers = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    used: list[str] = []
    try:
        yield used
    finally:
        if random.getstate() != python:
            used.append("random")
        if not all(map(np.array_equal, np.random.get_state(), numpy)):  # noqa: NPY002
            used.append("numpy")
        if not torch.equal(torch.get_rng_state(), numbers):
            used.append("torch")
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(numbers)


def explored(
    model: nn.Module,
    way: Mapping[str, Any],
    known: Mapping[str, Any],
    lenient: bool = False,
    until: float = math.inf,
) -> list[Recording]:
    """One way: under the first assumption about shapes that can be; an analysis, lenient, under all of them."""
    search = Search(model, way, known, lenient, until)
    try:
        return search.attempt(Assumed())
    except Impossible as error:
        if lenient:
            with suppress(Impossible):
                return search.attempt(Assumed({LOOSE: ((), None)}))
        raise Refused(f"{line_of_error(error)}: shapes do not fit, whatever the arguments are") from error


@dataclass(frozen=True)
class Assumed:
    """What is taken for granted in one run: shapes of arguments, letters that are other sizes, unusual ranks."""

    shapes: Mapping[str, Any] = field(default_factory=dict)
    letters: Mapping[str, int] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Search:
    """forward() run again and again, each time with one assumption more, until it runs to its end."""

    model: nn.Module
    way: Mapping[str, Any]
    known: Mapping[str, Any]
    lenient: bool
    until: float  # seconds of time.monotonic()
    tries: int = 0

    def attempt(self, assumed: Assumed) -> list[Recording]:
        self.tries += 1
        if self.tries > MOST_TRIES:
            raise Refused("its arguments could have too many shapes; give example=")
        if time.monotonic() > self.until:
            raise Refused(f"to follow it takes longer than {LONGEST} s")
        once = functools.partial(run, self.model, self.way, assumed, self.lenient)
        try:
            return [once() if self.lenient else checked(once)]
        except Assume as found:
            return self.attempt(replace(assumed, letters={**assumed.letters, found.name: found.size}))
        except NeedsShape as asked:
            return self.choose(asked, assumed)

    def choose(self, asked: NeedsShape, assumed: Assumed) -> list[Recording]:
        made: list[Recording] = []
        failure: Exception | None = None
        tried = fitting(asked.candidates, self.known.get(asked.argument))
        for candidate in tried:
            said = is_shape(candidate) and asked.argument.isidentifier() and len(candidate) != len(tried[0])
            kind = asked.kind or whole_kind(self.known.get(asked.argument))
            shapes = {**assumed.shapes, asked.argument: (candidate, kind)}
            ranks = {**assumed.ranks, **({asked.argument: len(candidate)} if said else {})}
            try:
                made += self.attempt(replace(assumed, shapes=shapes, ranks=ranks))
            except (Refused, Undecided) as error:
                if not asked.guessed and not made:
                    raise
                failure = failure or error
            except Exception as error:  # impossible, or forward() itself refuses it, which says more
                failure = error if failure is None or isinstance(failure, Impossible) else failure
            if made and not self.lenient and (not asked.guessed or is_likely(made[-1].program)):
                return made[-1:]
        if not made:
            raise failure or Impossible("no shape of its arguments fits")
        return made


def is_likely(program: Program) -> bool:
    """Whether no value has its sequences along two axes, and no argument is as wide as another is long: such programs
    come of an argument that is taken for one with another axis."""
    twice = any([str(size) for size in node.shape].count("B") > 1 for node in program.nodes)
    free = [size for node in program.inputs for size in node.shape if isinstance(size, Size)]
    return not twice and all(
        str(size) in size.letters or all(n[0] == "C" for n in size.letters) for size in free
    )


def fitting(candidates: list[Any], example: Any) -> list[Any]:
    """Candidates with as many axes as the example has, and its widths."""
    if isinstance(example, torch.Tensor):
        fits = [c for c in candidates if is_shape(c) and len(c) == example.dim()] or candidates
        return [tuple(n if is_open(n) else size for n, size in zip(c, example.shape)) for c in fits]
    if isinstance(example, tuple | list):
        return [
            c for c in candidates if c == ANY_PARTS or (not is_shape(c) and len(c) == len(example))
        ] or candidates
    return candidates


def whole_kind(example: Any) -> str | None:
    """The kind of an example of whole numbers or of truths; None of all others, which may be used as any."""
    kind = kind_of(example.dtype) if isinstance(example, torch.Tensor) else FLOAT
    return None if kind == FLOAT else kind


def settle_kinds(program: Program) -> None:
    """What nothing decided is of floats; an argument that is only moved, of what a call gives."""
    users = program.users()
    for node in program.nodes:
        if isinstance(node.op, Input) and node.kind is None:
            node.as_given = is_handed_on(node, users)
        sources = node.inputs if isinstance(node.op, Concat) else node.inputs[:1]
        kinds = {source.kind for source in sources} if node.op.channels == "moved" else set[str]()
        node.kind = node.kind or (kinds.pop() if len(kinds) == 1 else FLOAT)


def is_handed_on(node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """Whether forward() does nothing but to put its values elsewhere, beside no others."""
    return all(
        user.op.channels == "moved" and not isinstance(user.op, Concat) and is_handed_on(user, users)
        for user in users[node]
    )


def is_open(size: int) -> bool:
    """Rather than a width, which an example shows."""
    return not isinstance(size, Size) or not any(name.startswith("C") for name in size.letters)


def checked(once: Callable[[], Recording]) -> Recording:
    """forward(), run twice, with other stand-ins for sizes: one that enters as a number shows."""
    with same_random_numbers():
        first = once()
    with sizes.other_stand_ins():
        second = once()
    if constants(first.program) != constants(second.program) or str(first.program) != str(second.program):
        raise Refused("it computes with a size as with a plain number")
    return first


def constants(program: Program) -> list[bytes]:
    return [node.op.values.tobytes() for node in program.nodes if node.op.name == "Constant"]  # type: ignore[attr-defined]


@all_young()
def run(model: nn.Module, way: Mapping[str, Any], assumed: Assumed, lenient: bool) -> Recording:
    """forward() once, on stand-ins."""
    if is_hooked(model) and not lenient:
        kind = type(model).__name__
        raise Refused(f"a hook on the model ({kind}) may see or change what goes in or comes out")
    stored: list[tuple[Recorded, str]] = []
    with untouched(model, stored), recording(model, assumed.shapes, assumed.letters, lenient) as recorder:
        arguments = {name: recorder.stand_in(name) for name, value in way.items() if value is GIVEN}
        # Hooks on the model see what goes in and comes out, no unit.
        call = model.forward if lenient else model
        answer = call(**{**way, **arguments})
        looked_at = opened(answer) if lenient else answer
        outputs = mapped(lambda leaf: as_output(recorder, leaf), looked_at)
    if recorder.loops and not recorder.loops[-1].done:
        raise recorder.refused or LoopError("a loop over an input stops before its end")
    if recorder.refused is not None:
        raise recorder.refused
    if stored and not lenient:
        raise Refused(f"it stores a tensor of the call in {stored[0][1]}, for the next call to read")
    kept = held(recorder.alive, [*leaves(looked_at), *opened(arguments), *(value for value, _ in stored)])
    if kept and not lenient:
        raise Refused(f"{HELD} ({kept[0].node.line})")
    left = tuple(
        (value.node, f"forward() stores it in {where}") for value, where in stored if value.is_shaped
    )
    left += tuple((value.node, f"{HELD} ({value.node.line})") for value in kept)
    effects = (*recorder.opaque, *(node for node, _ in left), *(n for pair in recorder.carried for n in pair))
    absent = frozenset(name for name, value in way.items() if value is None)
    given = given_nodes(arguments)
    unread = frozenset(arguments.keys() - given.keys())
    program = Program(given, outputs, absent, unread & optional(model), effects)
    if recorder.loops and not lenient:
        program = over_time(program)
    settle_kinds(program)
    seen = frozenset(recorder.called), frozenset(recorder.sized), left
    held_to = {name: value for name, value in way.items() if value is not GIVEN}
    known = call_of(program, unread, held_to) if lenient else None
    return Recording(program, *seen, tuple(recorder.carried), assumed.ranks, known, model.training)


def given_nodes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The nodes of arguments that were used, in their structure."""
    taken = {name: Parts.taken(value) for name, value in arguments.items()}
    nodes = mapped(lambda a: a.node if isinstance(a, Recorded) and a.is_shaped else None, taken)
    return {name: node for name, node in nodes.items() if leaves(node) != [None]}


def as_output(recorder: Recorder, leaf: Any) -> Any:
    if type(leaf) is RecordedPack:
        if recorder.lenient:
            return recorder.node(leaf.data_first)
        raise Refused("it returns a packed sequence; pad_packed_sequence() gives a tensor")
    if isinstance(leaf, Recorded) and not leaf.is_shaped:
        if leaf.argument.startswith("@"):
            return None  # what it was made of has been seen
        raise NeedsShape(leaf.argument, [(letter("B"), letter("T"), letter(f"C.{leaf.argument}"))])
    if isinstance(leaf, torch.Tensor):
        return recorder.node(leaf)
    if isinstance(leaf, Size) and not recorder.lenient:
        raise Refused("it returns a size")
    if recorder.lenient or leaf is None or isinstance(leaf, bool | int | float | str):
        return leaf
    raise Refused(f"it returns a {type(leaf).__name__}")
