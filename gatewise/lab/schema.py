"""What a recipe may say: sections, keys and their types."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal


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
    weight_decay: float = 0.0  # every update takes lr * weight_decay of each parameter; not if variational
    loss: Literal["mean", "window-sum"] = "mean"  # per target, or summed over the window as in Wen's code
    clip_probabilities: float = 0.0  # classification: probabilities are held in [p, 1 - p]
    keep: Literal["last", "best"] = "last"  # which epoch is the result: the last, or the best on validation
    patience: int | None = None  # with "best": stop after so many evaluations without a better one
    evaluate_every: int = 1  # epochs between looks at validation quality
    count_every: int = 1  # epochs between counts of what is left; the first and the last always
    test_every: int = 0  # epochs; 0: at the end only
    average: int = 0  # last epochs, over whose updates the weights are averaged; not of variational networks
    drop_recurrent: float = 0.0  # part of the recurrent weights that is left out of an update
    drop_words: float = 0.0  # part of the words whose embedding is left out of an update
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
class Start:
    """A trained network in place of [train]: what does not fit [budget] is cut at once, and [refit] follows."""

    run: str | None = None  # the folder of a finished run on the same data


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
    start: Start = field(default_factory=Start)
    expect: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `parse` of it gives an equal recipe."""
        whole = dataclasses.asdict(self)
        return {
            key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
            for key, value in whole.items()
        }

    def first_train(self) -> Train:
        """[train] as the first part of the run has it: no epochs where a trained network takes its place."""
        return self.train if self.start.run is None else dataclasses.replace(self.train, epochs=0)

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
    "start": Start,
}
DEFAULTS = {
    f"{section}.{key.name}": key.default
    for section, keys in SECTIONS.items()
    for key in dataclasses.fields(keys)
    if key.default is not dataclasses.MISSING
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
    "word-ptb words imdb agnews csv": "train.drop_words",
    "csv": "data.text_column data.label_column",
    "word-ptb words imdb agnews csv g2p": "model.embedding",
    "word-ptb words imdb agnews csv npz g2p": "model.dropout refit.dropout",
    "g2p": "model.bidirectional model.backwards model.attention",
    "group-lasso": "sparsify.l1 sparsify.group sparsify.threshold sparsify.l1_on_output sparsify.update",
    "variational": "sparsify.noise sparsify.output_noise sparsify.word_variables sparsify.kl sparsify.snr_threshold "
    "sparsify.log_sigma sparsify.warm_up_epochs",
    "group-lasso variational": "sparsify.levels train.shrink_every",
}
