"""What a recipe may say: sections, keys, types and ranges; everything else is an error that names the key."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class RecipeError(ValueError):
    """A recipe says something that cannot be; the message names the key and the way out."""


@dataclass(frozen=True)
class Data:
    """Corpus and batches. Keys of other kinds of corpus than the one named are ignored, but for those of `--set`."""

    task: Literal["word-ptb", "char-ptb", "imdb", "agnews", "g2p", "words", "characters", "csv", "npz"]
    batch: int
    steps: int = 35  # language models: window length; npz with `series`: window length
    chunk: int | None = None  # language models: independent chunks of so many symbols instead of windows
    remainder: Literal["drop", "keep"] = "keep"  # the last window of training and validation, if shorter
    test_batch: int | None = None  # rows of the test stream; as in training by default
    path: str | None = None  # your own file, for words, characters, csv, npz
    valid_path: str | None = None  # a file of its own for validation: words, characters, npz
    test_path: str | None = None
    vocabulary: Literal["authors", "train"] = "authors"  # classification: the authors' word list, or counted
    vocabulary_size: int | None = None  # words that have a row of their own
    max_len: int | None = None  # classification: words of a text that are read; g2p: letters of a word
    valid_fraction: float | None = None
    lower: bool = False
    vectors: Literal["none", "word2vec", "glove"] = "none"  # start of the embedding
    fill_from: Literal["none", "word2vec", "glove"] = (
        "none"  # vectors that predict those of words without one
    )
    lower_fallback: bool = True  # a cased word without a vector takes that of its lower-case form
    text_column: str | int = "text"  # by name, or by position from 0; two positions: there is no header
    label_column: str | int = "label"


@dataclass(frozen=True)
class Model:
    """The network; its input and output sizes come from the data."""

    hidden: int
    embedding: int = 200
    layers: int = 1
    dropout: float = 0.0
    cell: Literal["LSTM", "GRU"] = "LSTM"
    bidirectional: bool = False  # g2p: the encoder
    backwards: bool = False  # g2p: the encoder begins with the last letter
    attention: int = 0  # g2p: the decoder looks at all letters, by keys of so many numbers
    gates: Literal["sigmoid", "hard_sigmoid"] = "sigmoid"  # classification; language models have sigmoid
    init: Literal["uniform", "glorot", "orthogonal", "torch"] = "uniform"
    init_range: float = 0.1  # of "uniform"
    forget_bias: float = 0.0


@dataclass(frozen=True)
class Sparsify:
    """The framework and its numbers; keys of the other framework are ignored, but for those of `--set`."""

    method: Literal["none", "group-lasso", "variational"] = "none"
    levels: Literal["W", "W+N", "W+G+N"] = "W+G+N"
    l1: float = 1e-5  # group lasso
    group: float = 0.0
    threshold: float = 1e-4  # of subgradient updates
    update: Literal["subgradient", "proximal"] = "subgradient"  # as in the paper, or shrunk after each update
    l1_on_output: bool = True  # L1 on the softmax matrix too; if not, only groups push it and set it to 0
    noise: Literal["sequence", "batch"] = "sequence"  # variational: one z per sequence, or per batch
    output_noise: Literal["weights", "local", "sequence"] = "weights"
    word_variables: bool = False  # one z per word of the embedding
    kl: Literal["authors", "molchanov"] = "authors"
    snr_threshold: float = 0.05
    log_sigma: float = -3.0
    warm_up_epochs: float = 0.0  # KL weight from 0 to 1; the paper has none


@dataclass(frozen=True)
class Train:
    """lr of epoch e (from 1), with `decay` as d:

    constant  lr
    power     lr * d^max(e - after, 0)
    stairs    lr * d^((e - 1) // after)
    linear    lr until epoch `after`, then straight down to 0 at the end of the last one, update by update

    times min(1, u / warm_up) in update u (from 1) of the run.
    """

    epochs: int
    lr: float
    optimizer: Literal["adam", "sgd"] = "adam"
    schedule: Literal["constant", "power", "stairs", "linear"] = "constant"
    decay: float = 1.0
    after: int = 0
    warm_up: int = 0  # updates
    clip: float | None = None  # global gradient norm, penalty included
    loss: Literal["mean", "window-sum"] = "mean"  # per target, or summed over the window as in Wen's code
    clip_probabilities: float = 0.0  # classification: probabilities are held in [p, 1 - p]
    keep: Literal["last", "best"] = "last"  # which epoch is the result: the last, or the best on validation
    patience: int | None = None  # with "best": stop after so many evaluations without a better one
    evaluate_every: int = 1  # epochs between looks at validation quality
    count_every: int = 1  # epochs between counts of what is left; the first and the last always
    test_every: int = 0  # epochs; 0: at the end only
    average: int = 0  # last epochs, over whose updates the weights of a dense network are averaged
    shrink_every: int = (
        0  # epochs in a row after which what was removable is cut out; and before a refit. 0: never
    )
    seed: int = 0


BUDGETS = ("gates", "neurons", "weights", "bytes")


@dataclass(frozen=True)
class Budget:
    """How large the network may be when [train] ends: one of the four, a number or, with a point, a part of all."""

    gates: int | float | None = None
    neurons: int | float | None = None
    weights: int | float | None = None
    bytes: int | float | None = None
    begin: float = 0.1  # parts of [train] between which what does not fit goes
    end: float = 0.6
    precision: Literal["float32", "int8"] = "float32"  # of the export, for bytes

    def wanted(self) -> dict[str, float]:
        four = {key: getattr(self, key) for key in BUDGETS}
        return {key: value for key, value in four.items() if value is not None}


@dataclass(frozen=True)
class Refit:
    """A second part of the run: what is left trains on without the penalty, zeros held (`gatewise.Refit`).

    It begins with the network that is the result of [train]. Keys that are left out are those of [train] and [model],
    apart from the schedule; the batches, the loss and `clip` are always theirs. `lr`, `schedule`, `decay` and `after`
    count epochs from the first one of this part.
    """

    epochs: int = 0  # 0: there is no second part
    lr: float | None = None
    optimizer: Literal["adam", "sgd"] | None = None
    schedule: Literal["constant", "power", "stairs", "linear"] = "linear"
    decay: float = 1.0
    after: int = 0
    dropout: float | None = None
    hold: Literal["weights", "structure"] = "weights"  # zeros, or constant gates and removed neurons alone
    keep: Literal["last", "best"] = "best"  # on validation, of its epochs and the network that it begins with
    patience: int | None = None
    average: int = 0  # last epochs, over whose updates the weights are averaged


@dataclass(frozen=True)
class Teaching:
    """A trained network whose answers are a part of what this one learns, in [train] and [refit]."""

    run: str | None = None  # the folder of a finished run on the same data
    share: float = 0.5  # of its answers in the loss; the rest is the data's


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    data: Data
    model: Model
    sparsify: Sparsify
    train: Train
    budget: Budget = field(default_factory=Budget)
    refit: Refit = field(default_factory=Refit)
    teacher: Teaching = field(default_factory=Teaching)
    expect: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `parse` of it gives an equal recipe."""
        whole = dataclasses.asdict(self)
        return {
            key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
            for key, value in whole.items()
        }

    def refit_train(self) -> Train:
        """[train] as the second part of the run has it."""
        own = {key: value for key, value in dataclasses.asdict(self.refit).items() if value is not None}
        names = {key.name for key in fields(Train)}
        patience = {"patience": self.refit.patience, "warm_up": 0}
        return dataclasses.replace(
            self.train, **{key: value for key, value in own.items() if key in names} | patience
        )

    def steering(self) -> dict[str, Any]:
        """`section.key` -> value for everything that changes the numbers of a run."""
        return {
            f"{section}.{key}": value
            for section in SECTIONS
            for key, value in dataclasses.asdict(getattr(self, section)).items()
        }


SECTIONS: dict[str, type[Any]] = {
    "data": Data,
    "model": Model,
    "sparsify": Sparsify,
    "train": Train,
    "budget": Budget,
    "refit": Refit,
    "teacher": Teaching,
}
DEFAULTS = {
    f"{section}.{key.name}": key.default
    for section, keys in SECTIONS.items()
    for key in dataclasses.fields(keys)
    if key.default is not dataclasses.MISSING
}
# What a number may be, in words and as a test, and whose range it is; a key that is left out is not asked.
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "above 0": (
        lambda value: value > 0,
        "data.batch data.steps data.chunk data.test_batch data.max_len model.hidden model.embedding model.layers "
        "model.init_range sparsify.snr_threshold train.epochs train.lr train.clip train.patience "
        "train.evaluate_every train.count_every refit.lr refit.patience budget.gates budget.neurons budget.weights "
        "budget.bytes budget.end",
    ),
    "at least 0": (
        lambda value: value >= 0,
        "sparsify.l1 sparsify.group sparsify.threshold sparsify.warm_up_epochs train.after train.warm_up "
        "train.test_every train.shrink_every train.average refit.epochs refit.after refit.average budget.begin "
        "model.attention",
    ),
    "at least 2": (lambda value: value >= 2, "data.vocabulary_size"),
    "in (0, 1)": (lambda value: 0 < value < 1, "data.valid_fraction"),
    "in (0, 1]": (lambda value: 0 < value <= 1, "teacher.share"),
    "in [0, 1)": (lambda value: 0 <= value < 1, "model.dropout refit.dropout"),
    "in [0, 0.5)": (lambda value: 0 <= value < 0.5, "train.clip_probabilities"),
    "in [0, 2^64)": (lambda value: 0 <= value < 2**64, "train.seed"),
}
OWN_DATA = ("words", "characters", "csv", "npz")
PAPER_DATA = ("word-ptb", "char-ptb", "imdb", "agnews", "g2p")
# Who reads a key that not everyone reads: kinds of data, or the framework.
READERS = {
    "word-ptb char-ptb words characters": "data.chunk data.remainder data.test_batch",
    "word-ptb char-ptb words characters npz": "data.steps",
    "imdb agnews": "data.vocabulary",
    "imdb agnews csv g2p": "data.max_len",
    "imdb agnews csv": "data.lower data.vectors data.fill_from data.lower_fallback",
    "imdb agnews csv npz": "train.clip_probabilities",
    "imdb agnews csv words characters": "data.vocabulary_size",
    "imdb agnews csv words characters npz": "data.valid_fraction",
    "csv": "data.text_column data.label_column",
    "word-ptb words imdb agnews csv g2p": "model.embedding",
    "word-ptb words imdb agnews csv npz g2p": "model.dropout refit.dropout",
    "g2p": "model.bidirectional model.backwards model.attention",
    "group-lasso": "sparsify.l1 sparsify.group sparsify.threshold sparsify.l1_on_output sparsify.update",
    "variational": "sparsify.noise sparsify.output_noise sparsify.word_variables sparsify.kl sparsify.snr_threshold "
    "sparsify.log_sigma sparsify.warm_up_epochs",
    "group-lasso variational": "sparsify.levels train.shrink_every",
}


def parse(content: Mapping[str, Any]) -> Recipe:
    """Check every key and value, and build the recipe."""
    known = [*SECTIONS, "name", "title", "expect"]
    for key in content:
        if key not in known:
            raise RecipeError(f"unknown section or key {key!r}{suggestion(key, known)}")
    parts = {name: _section(content.get(name, {}), kind, f"[{name}]") for name, kind in SECTIONS.items()}
    expect = content.get("expect", {})
    if not isinstance(expect, Mapping):
        raise RecipeError("[expect] must be a section.")
    recipe = Recipe(
        str(content.get("name", "recipe")), str(content.get("title", "")), expect=dict(expect), **parts
    )
    _check(recipe)
    return recipe


def suggestion(word: str, known: Sequence[str]) -> str:
    """`; did you mean ...?`, or a full stop."""
    close = difflib.get_close_matches(word, known, 3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else "."


def _section(values: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(values, Mapping):
        raise RecipeError(f"{where} must be a section, not {values!r}.")
    hints = get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise RecipeError(f"{where} has an unknown key {key!r}{suggestion(key, list(hints))}")
    missing = [f.name for f in fields(kind) if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise RecipeError(f"{where} lacks {', '.join(missing)}.")
    return kind(**{key: _typed(value, hints[key], f"{where} {key}") for key, value in values.items()})


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The value if it fits the type of its key; a whole number serves as float."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value in choices:
            return value
        raise RecipeError(f"{where} = {value!r} is not one of {', '.join(choices)}.")
    if get_origin(hint) in (types.UnionType, Union):
        hints = [arg for arg in get_args(hint) if arg is not type(None)]
        return _typed(value, type(value) if type(value) in hints else hints[0], where)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise RecipeError(f"{where} = {value} must be a finite number.")
        return float(value)
    if type(value) is hint:
        return value
    kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "a string in quotes"}
    raise RecipeError(f"{where} = {value!r} must be {kinds[hint]}.")


def _check(recipe: Recipe) -> None:
    """Ranges of numbers, and what no single key can say."""
    flat = recipe.steering()
    for words, (allowed, keys) in RANGES.items():
        for key in keys.split():
            if flat[key] is not None and not allowed(flat[key]):
                raise RecipeError(f"{key} = {flat[key]} must be {words}.")
    data, sparsify, train = recipe.data, recipe.sparsify, recipe.train
    if data.task in OWN_DATA and data.path is None:
        raise RecipeError(f"data.task = {data.task!r} needs data.path, the file to read.")
    for key in ("path", "valid_path", "test_path") if data.task in PAPER_DATA else ():
        if getattr(data, key) is not None:
            raise RecipeError(
                f"data.{key} = {getattr(data, key)!r}: data.task = {data.task!r} has files of its own. Leave it out, "
                f"or set data.task to one of {', '.join(OWN_DATA)}."
            )
    if data.task == "csv" and data.valid_path is not None:
        raise RecipeError(
            f"data.valid_path = {data.valid_path!r}: validation texts are rows of data.path, the part "
            "data.valid_fraction of them. Leave it out, or put its rows into data.path."
        )
    if data.fill_from != "none" and data.vectors in ("none", data.fill_from):
        raise RecipeError(
            f"data.fill_from = {data.fill_from!r} with data.vectors = {data.vectors!r}: it predicts vectors of one "
            "kind from those of another. Name two kinds, or leave it out."
        )
    if sparsify.method == "group-lasso" and (sparsify.levels == "W") != (sparsify.group == 0):
        raise RecipeError(
            f"sparsify.method = 'group-lasso', levels = {sparsify.levels!r}, group = {sparsify.group}: it needs "
            "group > 0 on the levels W+N and W+G+N, and 0 on W."
        )
    if train.average and sparsify.method != "none":
        raise RecipeError(
            f"train.average = {train.average}: zeros come and go in [train]. Set refit.average."
        )
    _check_schedule("train", train)
    _check_budget(recipe)
    _check_shrinking(recipe)
    if recipe.refit.epochs:
        if sparsify.method == "none":
            raise RecipeError(
                f"refit.epochs = {recipe.refit.epochs}, sparsify.method = 'none': a dense network has no zeros to "
                "hold. Leave it out and set train.epochs, or name a sparsify.method."
            )
        _check_schedule("refit", recipe.refit_train())
    if train.loss == "window-sum" and (
        data.chunk is not None or data.task in ("imdb", "agnews", "csv", "npz", "g2p")
    ):
        raise RecipeError("train.loss = 'window-sum' belongs to language models cut into windows.")


def _check_schedule(section: str, train: Train) -> None:
    if train.average > train.epochs:
        raise RecipeError(f"{section}.average = {train.average}, but there are {train.epochs} epochs.")
    if train.schedule in ("power", "stairs") and not 0 < train.decay <= 1:
        raise RecipeError(f"{section}.decay = {train.decay} must be in (0, 1].")
    if train.schedule == "stairs" and train.after < 1:
        raise RecipeError(f"{section}.schedule 'stairs' needs {section}.after, the epochs of a step.")
    if train.schedule == "linear" and not 0 <= train.after < train.epochs:
        raise RecipeError(
            f"{section}.after = {train.after} must be below {section}.epochs = {train.epochs}, because the rate "
            f"falls from there on. Set both, for instance --set {section}.after={train.epochs // 2}."
        )


def _check_budget(recipe: Recipe) -> None:
    budget, wanted = recipe.budget, recipe.budget.wanted()
    if len(wanted) > 1:
        raise RecipeError(f"[budget] has {' and '.join(wanted)}; keep one of them.")
    if not wanted:
        return
    ((kind, value),) = wanted.items()
    if recipe.sparsify.method == "none":
        raise RecipeError(
            f"budget.{kind} = {value}, sparsify.method = 'none': nothing would go. Name a sparsify.method, or train "
            "a smaller network: model.hidden."
        )
    if recipe.train.keep == "best":
        raise RecipeError(
            f"budget.{kind} = {value} is met at the end of [train], train.keep = 'best' may take an earlier epoch. "
            "Set train.keep = 'last'."
        )
    if not budget.begin < budget.end <= 1:
        raise RecipeError(
            f"budget.begin = {budget.begin}, budget.end = {budget.end}: 0 <= begin < end <= 1, parts of [train]."
        )


def _check_shrinking(recipe: Recipe) -> None:
    said = f"train.shrink_every = {recipe.train.shrink_every}"
    if not recipe.train.shrink_every:
        return
    if recipe.sparsify.method == "none":
        raise RecipeError(f"{said}, sparsify.method = 'none': nothing becomes zero. Name a sparsify.method.")
    if recipe.sparsify.method == "variational" and not recipe.refit.epochs:
        raise RecipeError(
            f"{said}: variational layers are cut when [train] is over, before a refit. Set refit.epochs, too, "
            "or leave it out."
        )
    if recipe.sparsify.method == "group-lasso" and recipe.train.keep == "best":
        raise RecipeError(
            f"{said}: what was cut does not come back, train.keep = 'best' may take an epoch before the cut. Set "
            "train.keep = 'last'."
        )
