"""What a recipe may say: sections, keys with their types and ranges, and what no single key can say."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

Count = Annotated[int, Field(gt=0)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Size = Annotated[int | float, Field(gt=0)]


class RecipeError(ValueError):
    """A recipe says something that cannot be; the message names the key and the way out."""


class Section(BaseModel):
    """A number is not a string, an unknown key is an error, and nothing changes once it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Data(Section):
    """Corpus and batches. The task says which keys there are."""

    task: str
    batch: Count


class Language(Data):
    steps: Count = 35  # window length
    chunk: Count | None = None  # independent chunks of so many symbols instead of windows
    remainder: Literal["drop", "keep"] = "keep"  # the last window of training and validation, if shorter
    test_batch: Count | None = None  # rows of the test stream; as in training by default


class Penn(Language):
    task: Literal["word-ptb", "char-ptb"]


class Own(Data):
    """Files of your own."""

    path: str  # your own file
    test_path: str | None = None
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None


class OwnLanguage(Language, Own):
    task: Literal["words", "characters"]
    valid_path: str | None = None  # a file of its own for validation
    vocabulary_size: Annotated[int, Field(ge=2)] | None = None  # words that have a row of their own


class Texts(Data):
    vocabulary_size: Annotated[int, Field(ge=2)] | None = None
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_len: Count | None = None  # words of a text that are read
    lower: bool = False
    vectors: str = "none"  # start of the embedding: "word2vec", "glove", or an .npz of your own
    lower_fallback: bool = True  # a cased word without a vector takes that of its lower-case form


class Reviews(Texts):
    task: Literal["imdb", "agnews"]
    vocabulary: Literal["authors", "train"] = "authors"  # the authors' word list, or counted


class OwnTexts(Texts, Own):
    task: Literal["csv"]
    text_column: str | int = "text"  # by name, or by position from 0; two positions: there is no header
    label_column: str | int = "label"


class Spellings(Data):
    task: Literal["g2p"]
    max_len: Count | None = None  # letters of a word


class OwnSeries(Own):
    task: Literal["npz"]
    steps: Count = 35  # with `series`: window length
    valid_path: str | None = None


class Model(Section):
    """The network; its input and output sizes come from the data."""

    hidden: Count
    embedding: Count = 200
    layers: Count = 1
    dropout: Share = 0.0
    cell: Literal["LSTM", "GRU"] = "LSTM"
    bidirectional: bool = False  # the encoder
    backwards: bool = False  # the encoder begins with the last letter
    attention: Whole = 0  # the decoder looks at all letters, by keys of so many numbers
    gates: Literal["sigmoid", "hard_sigmoid"] = "sigmoid"
    init: Literal["uniform", "glorot", "orthogonal", "torch"] = "uniform"
    init_range: Positive = 0.1  # of "uniform"
    forget_bias: float = 0.0


class Sparsify(Section):
    """The framework, which says what other keys there are."""

    method: str


class Dense(Sparsify):
    method: Literal["none"] = "none"


class Sparse(Sparsify):
    levels: Literal["W", "W+N", "W+G+N"] = "W+G+N"


class Lasso(Sparse):
    method: Literal["group-lasso"]
    l1: Weight = 1e-5
    group: Weight = 0.0
    threshold: Weight = 1e-4  # of subgradient updates
    update: Literal["subgradient", "proximal"] = "subgradient"  # as in the paper, or shrunk after each update
    l1_on_output: bool = True  # L1 on the softmax matrix too; if not, only groups push it and set it to 0

    @model_validator(mode="after")
    def groups_are_pushed(self) -> Self:
        if (self.levels == "W") != (self.group == 0):
            raise RecipeError(
                f"sparsify.method = 'group-lasso', levels = {self.levels!r}, group = {self.group}: it needs group "
                "> 0 on the levels W+N and W+G+N, and 0 on W."
            )
        return self


class Bayes(Sparse):
    method: Literal["variational"]
    noise: Literal["sequence", "batch"] = "sequence"  # one z per sequence, or per batch
    output_noise: Literal["weights", "local", "sequence"] = "weights"
    word_variables: bool = False  # one z per word of the embedding
    snr_threshold: Positive = 0.05
    log_sigma: float = -3.0
    warm_up_epochs: Weight = 0.0  # KL weight from 0 to 1; the paper has none


class Train(Section):
    """lr of epoch e (from 1), with `decay` as d:

    constant  lr
    power     lr * d^max(e - after, 0)
    stairs    lr * d^((e - 1) // after)
    linear    lr until epoch `after`, then straight down to 0 at the end of the last one, update by update

    times min(1, u / warm_up) in update u (from 1) of the run.
    """

    epochs: Count
    lr: Positive
    optimizer: Literal["adam", "sgd"] = "adam"
    schedule: Literal["constant", "power", "stairs", "linear"] = "constant"
    decay: float = 1.0
    after: Whole = 0
    warm_up: Whole = 0  # updates
    clip: Positive | None = None  # global gradient norm, penalty included
    weight_decay: Weight = 0.0  # every update takes lr * weight_decay of each parameter; not if variational
    loss: Literal["mean", "window-sum"] = "mean"  # per target, or summed over the window as in Wen's code
    clip_probabilities: Annotated[float, Field(ge=0, lt=0.5)] = 0.0  # they are held in [p, 1 - p]
    keep: Literal["last", "best"] = "last"  # which epoch is the result: the last, or the best on validation
    patience: Count | None = None  # with "best": stop after so many evaluations without a better one
    evaluate_every: Count = 1  # epochs between looks at validation quality
    count_every: Count = 1  # epochs between counts of what is left; the first and the last always
    test_every: Whole = 0  # epochs; 0: at the end only
    average: Whole = (
        0  # last epochs, over whose updates the weights are averaged; not of variational networks
    )
    drop_recurrent: Share = 0.0  # part of the recurrent weights that is left out of an update
    drop_words: Share = 0.0  # part of the words whose embedding is left out of an update
    shrink_every: Whole = (
        0  # epochs in a row after which what was removable goes; and before a refit. 0: never
    )
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0


BUDGETS = ("gates", "neurons", "weights", "bytes")


class Budget(Section):
    """How large the network may be when [train] ends: one of the four, a number or, with a point, a part of all."""

    gates: Size | None = None
    neurons: Size | None = None
    weights: Size | None = None
    bytes: Size | None = None
    begin: Weight = 0.1  # parts of [train] between which what does not fit goes
    end: Positive = 0.6
    precision: Literal["float32", "int8"] = "float32"  # of the export, for bytes

    def wanted(self) -> dict[str, float]:
        return {key: value for key in BUDGETS if (value := getattr(self, key)) is not None}


class Refit(Section):
    """A second part of the run: what is left trains on without the penalty, zeros held (`gatewise.Refit`).

    It begins with the network that is the result of [train]. Keys that are left out are those of [train] and [model],
    apart from the schedule; the batches, the loss and `clip` are always theirs. `lr`, `schedule`, `decay` and `after`
    count epochs from the first one of this part.
    """

    epochs: Whole = 0  # 0: there is no second part
    lr: Positive | None = None
    optimizer: Literal["adam", "sgd"] | None = None
    schedule: Literal["constant", "power", "stairs", "linear"] = "linear"
    decay: float = 1.0
    after: Whole = 0
    dropout: Share | None = None
    hold: Literal["weights", "structure"] = "weights"  # zeros, or constant gates and removed neurons alone
    keep: Literal["last", "best"] = "best"  # on validation, of its epochs and the network that it begins with
    patience: Count | None = None
    average: Whole = 0  # last epochs, over whose updates the weights are averaged


class Teaching(Section):
    """A trained network whose answers are a part of what this one learns, in [train] and [refit]."""

    run: str | None = None  # the folder of a finished run on the same data
    share: Annotated[float, Field(gt=0, le=1)] = 0.5  # of its answers in the loss; the rest is the data's


class Start(Section):
    """A trained network in place of [train]: what does not fit [budget] is cut at once, and [refit] follows."""

    run: str | None = None  # the folder of a finished run on the same data


class Recipe(Section):
    name: str = "recipe"
    title: str = ""
    data: Annotated[
        Penn | OwnLanguage | Reviews | OwnTexts | Spellings | OwnSeries, Field(discriminator="task")
    ]
    model: Model
    sparsify: Annotated[Dense | Lasso | Bayes, Field(discriminator="method")] = Dense()
    train: Train
    budget: Budget = Budget()
    refit: Refit = Refit()
    teacher: Teaching = Teaching()
    start: Start = Start()
    expect: dict[str, Any] = {}

    def tags(self) -> dict[str, str]:
        return {"data.task": self.data.task, "sparsify.method": self.sparsify.method}

    def steering(self) -> dict[str, Any]:
        """`section.key` -> value for everything that changes the numbers of a run."""
        sections = self.model_dump(include=set(SECTIONS))
        return {
            f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()
        }

    def first_train(self) -> Train:
        """[train] as the first part of the run has it: no epochs where a trained network takes its place."""
        return self.train if self.start.run is None else self.train.model_copy(update={"epochs": 0})

    def refit_train(self) -> Train:
        """[train] as the second part of the run has it."""
        own = self.refit.model_dump(exclude={"dropout", "hold"}, exclude_none=True)
        return self.train.model_copy(update={"patience": None, "warm_up": 0, **own})

    @model_validator(mode="after")
    def what_no_section_can_say(self) -> Self:
        for said in (*unread(self), *unmet(self)):
            raise RecipeError(said)
        return self


# Of each section the classes it may be of.
SECTIONS: dict[str, tuple[type[Section], ...]] = {
    name: get_args(info.annotation) or (info.annotation,)
    for name, info in Recipe.model_fields.items()
    if name not in ("name", "title", "expect")
}
TAGS = {"data": "task", "sparsify": "method"}  # the key that says which of a section's classes it is
KEYS: dict[str, FieldInfo] = {
    f"{section}.{key}": info
    for section, kinds in SECTIONS.items()
    for kind in kinds
    for key, info in kind.model_fields.items()
}
WORDS: dict[str, dict[str, type[Section]]] = {
    section: {
        word: kind for kind in SECTIONS[section] for word in get_args(kind.model_fields[tag].annotation)
    }
    for section, tag in TAGS.items()
}
OWN_DATA = tuple(word for word, kind in WORDS["data"].items() if issubclass(kind, Own))
PAPER_DATA = tuple(word for word in WORDS["data"] if word not in OWN_DATA)
PLAIN = ("none", "group-lasso")  # frameworks whose weights are no distributions
WORDS_IN = ("word-ptb", "words", "imdb", "agnews", "csv")  # tasks that embed words
CLASSES_OUT = ("imdb", "agnews", "csv", "npz")
# Who reads a key that not everyone reads: kinds of data, frameworks, or both.
READERS: dict[str, dict[str, tuple[str, ...]]] = {
    "train.clip_probabilities": {"data.task": CLASSES_OUT},
    "train.loss": {"data.task": ("word-ptb", "char-ptb", "words", "characters")},
    **{f"train.{key}": {"sparsify.method": PLAIN} for key in ("average", "weight_decay", "drop_recurrent")},
    "train.drop_words": {"data.task": WORDS_IN, "sparsify.method": PLAIN},
    "train.shrink_every": {"sparsify.method": ("group-lasso", "variational")},
    "model.embedding": {"data.task": (*WORDS_IN, "g2p")},
    **{f"{part}.dropout": {"data.task": (*WORDS_IN, "npz", "g2p")} for part in ("model", "refit")},
    "model.gates": {"data.task": (*CLASSES_OUT, "g2p")},
    **{f"model.{key}": {"data.task": ("g2p",)} for key in ("bidirectional", "backwards", "attention")},
    **{
        f"{section}.{key}": {f"{section}.{TAGS[section]}": words}
        for section, kinds in WORDS.items()
        for key in dict.fromkeys(key for kind in kinds.values() for key in kind.model_fields)
        if len(words := tuple(word for word in kinds if key in kinds[word].model_fields)) < len(kinds)
    },
}


def is_read(key: str, tags: Mapping[str, Any]) -> bool:
    """Whether the task and the framework that these tags name read `section.key`."""
    return all(tags.get(tag) in words for tag, words in READERS.get(key, {}).items())


def does_nothing(key: str, value: Any, tags: Mapping[str, Any]) -> str:
    tag, words = next(
        (tag, words) for tag, words in READERS[key].items() if tags.get(tag, words[0]) not in words
    )
    return f"{key} = {value!r} does nothing with {tag} = {tags[tag]!r}, only with {' or '.join(words)}. Leave it out."


# From parsed TOML to a recipe, or to one sentence.


def parse(content: Mapping[str, Any]) -> Recipe:
    """Check every key and value, and build the recipe."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        # A key that is misspelt is missing, too.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise RecipeError(sentence(**first)) from None


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or a full stop."""
    close = difflib.get_close_matches(word, list(known), 3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else "."


def sentence(type: str, loc: tuple[int | str, ...], msg: str, input: Any, ctx: Any = None, **_: Any) -> str:
    """What pydantic found wrong: section, key, value, and what would be right."""
    if type == "value_error":
        return str(ctx["error"])
    section, *rest = map(str, loc)
    tag = f"{section}.{TAGS.get(section)}"
    word = rest.pop(0) if section in TAGS and rest else ""
    key = ".".join([section, *rest[:1]])
    if type == "extra_forbidden" and key in KEYS:
        return does_nothing(key, input, {tag: word})
    if type == "extra_forbidden":
        return f"no key {key!r}{suggestion(key, [*KEYS, *Recipe.model_fields])}"
    if type == "missing" and key in READERS:
        return f"{tag} = {word!r} needs {key}."
    if type in ("missing", "union_tag_not_found"):
        return f"{tag if type != 'missing' else key if rest else f'[{section}]'} is missing."
    if type == "union_tag_invalid":
        return f"{tag} = {ctx['tag']!r} is not one of {ctx['expected_tags']}."
    if not rest and section in (*SECTIONS, "expect"):
        return f"[{section}] must be a section, not {input!r}."
    return msg.replace("Input", f"{key} = {input!r}", 1) + "."


def kinds_of(kind: Any) -> set[Any]:
    """int of `Count | None`: the kinds of values that a key's type allows."""
    return {kind} & {int, float, bool, str} | {one for part in get_args(kind) for one in kinds_of(part)}


# What no single key can say.


def unread(recipe: Recipe) -> Iterator[str]:
    """Keys of sections that all tasks and frameworks share, which the one of this recipe does not read."""
    tags = recipe.tags()
    for key in READERS:
        section, _, name = key.partition(".")
        if section not in TAGS and not is_read(key, tags):
            value = getattr(getattr(recipe, section), name)
            if value != KEYS[key].default:
                yield does_nothing(key, value, tags)


def unmet(recipe: Recipe) -> Iterator[str]:
    """Sections that do not go together."""
    train, refit, method = recipe.train, recipe.refit, recipe.sparsify.method
    start, keep = recipe.start.run, "train.keep = 'best' may take an earlier epoch. Set train.keep = 'last'."
    budget, wanted = recipe.budget, recipe.budget.wanted()
    asked = " and ".join(f"budget.{kind} = {value}" for kind, value in wanted.items())
    yield from unmet_by_schedule("train", train)
    if refit.epochs:
        yield from unmet_by_schedule("refit", recipe.refit_train())
    if len(wanted) > 1:
        yield f"[budget] has {' and '.join(wanted)}; keep one of them."
    if {"weights", "bytes"} & wanted.keys() and refit.epochs and refit.hold == "structure":
        yield (
            f"{asked}, refit.hold = 'structure': zeros between what is kept would fill again, and the network would "
            "outgrow its budget. Set refit.hold = 'weights', or use budget.gates or neurons."
        )
    if wanted and start is None:
        if method == "none":
            yield f"{asked}, sparsify.method = 'none': nothing would go. Name a method, or lower model.hidden."
        if train.keep == "best":
            yield f"{asked} is met at the end of [train], {keep}"
        if not budget.begin < budget.end <= 1:
            yield f"budget.begin = {budget.begin}, budget.end = {budget.end}: 0 <= begin < end <= 1, of [train]."
    if train.shrink_every and method == "variational" and not refit.epochs:
        yield (
            f"train.shrink_every = {train.shrink_every}: variational layers are cut when [train] is over, before a "
            "refit. Set refit.epochs, too, or leave it out."
        )
    if train.shrink_every and method == "group-lasso" and train.keep == "best":
        yield f"train.shrink_every = {train.shrink_every}: what was cut does not come back, {keep}"
    if start is not None and not refit.epochs:
        yield f"start.run = {start!r} takes the place of [train]: nothing to do without refit.epochs. Set it, too."
    if refit.epochs and method == "none" and start is None:
        yield (
            f"refit.epochs = {refit.epochs}, sparsify.method = 'none': a dense network has no zeros to hold. Leave "
            "it out and set train.epochs, or name a sparsify.method."
        )
    if train.loss == "window-sum" and getattr(recipe.data, "chunk", None) is not None:
        yield "train.loss = 'window-sum' belongs to language models cut into windows. Leave out data.chunk."


def unmet_by_schedule(section: str, train: Train) -> Iterator[str]:
    epochs, after = train.epochs, train.after
    if train.average > epochs:
        yield f"{section}.average = {train.average}, but there are {epochs} epochs."
    if train.schedule in ("power", "stairs") and not 0 < train.decay <= 1:
        yield f"{section}.decay = {train.decay} must be in (0, 1]."
    if train.schedule == "stairs" and after < 1:
        yield f"{section}.schedule 'stairs' needs {section}.after, the epochs of a step."
    if train.schedule == "linear" and after >= epochs:
        yield (
            f"{section}.after = {after} must be below {section}.epochs = {epochs}, because the rate falls from there "
            f"on. Set both, for instance --set {section}.after={epochs // 2}."
        )
