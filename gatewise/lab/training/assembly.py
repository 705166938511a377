"""Everything an update needs, put together from a recipe and its data: batches, model, sparsifier, objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.budget import Budget
from gatewise.lab.data.classification import TextData
from gatewise.lab.data.cuts import Chunks, Windows
from gatewise.lab.data.encoding import Corpus
from gatewise.lab.data.language import LanguageData
from gatewise.lab.data.pronunciation import END, LETTERS, MAX_PHONEMES, PAD, PHONEMES, START, WordData
from gatewise.lab.data.series import SeriesData
from gatewise.lab.data.sources import DataError
from gatewise.lab.initial import initialise
from gatewise.lab.models import CharLM, Pronouncer, SeriesModel, TaskModel, TextClassifier, WordLM
from gatewise.lab.schema import Dense, Lasso, Model, OwnLanguage, Penn, Recipe, RecipeError, Train
from gatewise.lab.training.dropped import dropped_weights
from gatewise.lab.training.earlier import Teacher, first_network, make_teacher
from gatewise.lab.training.evaluation import Evaluator
from gatewise.lab.training.feeds import (
    ChunkFeed,
    ExampleFeed,
    Feed,
    WindowFeed,
    WordFeed,
    evaluation_windows,
)
from gatewise.lab.training.graph import Replayed
from gatewise.lab.training.objectives import Objective
from gatewise.lab.training.pronouncing import Pronouncing
from gatewise.lab.training.ranks import Ranks, Share
from gatewise.lab.training.step import Sparsifier, TrainStep
from gatewise.sparsify import GroupLasso, Refit, Variational

EVALUATION_SYMBOLS = {"cpu": 2048, "cuda": 8192}  # read at once in evaluation; no result depends on it
EVALUATION_ROWS = {"cpu": 256, "cuda": 2048}


@dataclass(frozen=True)
class Feeds:
    train: Feed
    valid: Feed
    test: Feed
    n_train: int  # training objects: texts, or target symbols of an epoch; the KL is divided by it


@dataclass(frozen=True)
class Assembly:
    model: TaskModel
    sparsifier: Sparsifier | None
    objective: Objective
    feeds: Feeds
    step: TrainStep
    update: Replayed
    evaluators: dict[str, Evaluator]
    budget: Budget | None = None


def assemble(
    recipe: Recipe,
    corpus: Corpus,
    device: torch.device,
    graph: bool = True,
    rows: Tensor | None = None,
    ranks: Ranks | None = None,
) -> Assembly:
    """Draws starting values from torch's global generator, on the CPU, so that every device starts alike.

    `rows` are pretrained rows of the embedding.
    """
    objective, feeds = objective_of(recipe, corpus), make_feeds(recipe, corpus, device)
    if ranks is not None and ranks.size > 1:
        feeds = replace(feeds, train=Share(feeds.train, ranks))
    model = build_model(recipe, corpus) if recipe.start.run is None else first_network(recipe, corpus)
    if rows is not None:
        with torch.no_grad():
            model.get_parameter("emb.weight").copy_(rows)
    model = model.to(device).train()
    sparsifier = make_sparsifier(recipe, model, feeds.n_train, feeds.train.n_batches)
    teacher = make_teacher(recipe.teacher, corpus, feeds.train, objective, device)
    made = assembled(model, sparsifier, objective, feeds, recipe.train, device, graph, teacher=teacher)
    return replace(made, budget=make_budget(recipe, sparsifier, feeds.train.n_batches))


def assembled(
    model: TaskModel,
    sparsifier: Sparsifier | None,
    objective: Objective,
    feeds: Feeds,
    train: Train,
    device: torch.device,
    graph: bool,
    optimizer: torch.optim.Optimizer | None = None,
    teacher: Teacher | None = None,
) -> Assembly:
    """With a new optimiser, if none goes on, and steps that are still to be captured, for tensors are built in."""
    step = TrainStep(
        model,
        sparsifier,
        objective,
        feeds.train,
        optimizer=optimizer or train.optimizer,
        clip=train.clip,
        window_sum=train.loss == "window-sum",
        device=device,
        teacher=teacher,
        dropped=dropped_weights(model, train),
        weight_decay=train.weight_decay,
    )
    # A decoder asks the device whether all words have ended: that cannot be captured.
    fixed = graph and not isinstance(objective, Pronouncing)
    evaluators = {
        split: Evaluator(model, objective, feed, device, fixed)
        for split, feed in (("valid", feeds.valid), ("test", feeds.test))
    }
    return Assembly(model, sparsifier, objective, feeds, step, Replayed(step, device, graph), evaluators)


def refitted(
    recipe: Recipe, first: Assembly, device: torch.device, graph: bool, state: Mapping[str, Tensor] | None
) -> Assembly:
    """The network of the first part, to be trained on without its penalty; `state` is that of an earlier Refit."""
    first.step.optimizer.zero_grad(set_to_none=True)  # gradients live in the memory of a captured step
    sparsifier = Refit(first.model, recipe.refit.hold, state=state)
    if recipe.refit.dropout is not None:
        first.model.set_dropout(recipe.refit.dropout)
    return assembled(
        first.model, sparsifier, first.objective, first.feeds, recipe.refit_train(), device, graph,
        teacher=first.step.teacher,
    )  # fmt: skip


def shrunk(recipe: Recipe, before: Assembly, device: torch.device, graph: bool) -> Assembly:
    """The same part of a run after a cut: other layers, and a sparsifier for them, with the optimiser of before."""
    feeds = before.feeds
    sparsifier = make_sparsifier(recipe, before.model, feeds.n_train, feeds.train.n_batches)
    if before.budget is not None:
        assert isinstance(sparsifier, GroupLasso)
        before.budget.follow(sparsifier)
    optimizer, teacher = before.step.optimizer, before.step.teacher
    made = assembled(
        before.model, sparsifier, before.objective, feeds, recipe.train, device, graph, optimizer, teacher
    )
    return replace(made, budget=before.budget)


def objective_of(recipe: Recipe, corpus: Corpus) -> Objective:
    if isinstance(corpus, LanguageData):
        return Objective("words" if corpus.level == "word" else "characters")
    if isinstance(corpus, WordData):
        return Pronouncing()
    if isinstance(corpus, TextData) or corpus.kind == "classification":
        return Objective("classes", recipe.train.clip_probabilities)
    return Objective("numbers")


def make_feeds(recipe: Recipe, corpus: Corpus, device: torch.device) -> Feeds:
    """Batches of the three splits on the device."""
    data, corpus = recipe.data, corpus.to(device)
    symbols, rows = EVALUATION_SYMBOLS[device.type], EVALUATION_ROWS[device.type]
    if not isinstance(corpus, LanguageData):
        feed = WordFeed if isinstance(corpus, WordData) else ExampleFeed
        valid, test = (feed(part, rows) for part in (corpus.valid, corpus.test))
        train = feed(corpus.train, data.batch)
        # Of a word every phoneme is an object, as every symbol of a text is.
        n_train = (
            int((corpus.train.targets != PAD).sum()) if isinstance(corpus, WordData) else len(corpus.train)
        )
        return Feeds(train, valid, test, n_train)
    assert isinstance(data, Penn | OwnLanguage)
    if data.chunk is not None:
        at_once = max(1, symbols // data.chunk)
        with naming("train"):
            chunks = Chunks(corpus.train, data.chunk, data.batch)
        with naming("valid"):
            valid_chunks = Chunks(corpus.valid, data.chunk, at_once)
        with naming("test"):
            test_chunks = Chunks(corpus.test, data.chunk, at_once)
        return Feeds(ChunkFeed(chunks), ChunkFeed(valid_chunks), ChunkFeed(test_chunks), chunks.n_targets)
    with naming("train"):
        windows = Windows(corpus.train, data.batch, data.steps, data.remainder)
    with naming("valid"):
        valid_feed = evaluation_windows(corpus.valid, data.batch, data.steps, data.remainder, symbols)
    with naming("test"):
        test_feed = evaluation_windows(
            corpus.test, data.test_batch or data.batch, data.steps, "keep", symbols
        )
    return Feeds(WindowFeed(windows), valid_feed, test_feed, windows.n_targets)


@contextmanager
def naming(split: str) -> Iterator[None]:
    """Which of the three texts an error is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"the {split} text is too short: {error}") from error


def build_model(recipe: Recipe, corpus: Corpus) -> TaskModel:
    """The network of the recipe with input and output sizes of the data, starting values drawn."""
    m = recipe.model
    model = language_model(m, corpus) if isinstance(corpus, LanguageData) else sequence_model(m, corpus)
    initialise(model, m.init, m.init_range, m.forget_bias)
    return model


def language_model(m: Model, corpus: LanguageData) -> TaskModel:
    stack: dict[str, Any] = {"hidden": m.hidden, "layers": m.layers, "cell": m.cell}
    if corpus.level == "word":
        return WordLM(len(corpus.vocabulary), m.embedding, dropout=m.dropout, **stack)
    return CharLM(len(corpus.vocabulary), **stack)


def sequence_model(m: Model, corpus: TextData | SeriesData | WordData) -> TaskModel:
    stack: dict[str, Any] = {"hidden": m.hidden, "layers": m.layers, "cell": m.cell}
    stack |= {"dropout": m.dropout, "gate_activation": m.gates}
    if isinstance(corpus, WordData):
        return Pronouncer(
            len(LETTERS),
            len(PHONEMES),
            START,
            END,
            MAX_PHONEMES,
            m.embedding,
            bidirectional=m.bidirectional,
            backwards=m.backwards,
            attention=m.attention,
            **stack,
        )
    if isinstance(corpus, TextData):
        outputs = 1 if len(corpus.classes) == 2 else len(corpus.classes)
        return TextClassifier(corpus.embedding_rows, outputs, m.embedding, **stack)
    binary = corpus.kind == "classification" and corpus.n_outputs == 2
    return SeriesModel(corpus.n_inputs, 1 if binary else corpus.n_outputs, corpus.every_step, **stack)


def make_budget(recipe: Recipe, sparsifier: Sparsifier | None, updates_per_epoch: int) -> Budget | None:
    """The budget of the recipe, to be met at the last update of [train]."""
    b = recipe.budget
    if not b.wanted() or not isinstance(sparsifier, GroupLasso | Variational):
        return None
    steps = recipe.train.epochs * updates_per_epoch
    try:
        return Budget(sparsifier, steps=steps, begin=b.begin, end=b.end, precision=b.precision, **b.wanted())
    except ValueError as error:
        raise RecipeError(f"[budget] {error}") from error


def make_sparsifier(
    recipe: Recipe, model: nn.Module, n_train: int, updates_per_epoch: int
) -> GroupLasso | Variational | None:
    """The sparsifier of the recipe; it may convert the model, so the optimiser comes after it."""
    s = recipe.sparsify
    if isinstance(s, Dense) or recipe.start.run is not None:
        return None
    if isinstance(s, Lasso):
        scope = None if s.l1_on_output else ["rnn"]
        threshold = s.threshold if s.update == "subgradient" else 0.0
        return GroupLasso(
            model, s.levels, l1=s.l1, group=s.group, threshold=threshold, update=s.update, l1_layers=scope
        )
    has_embedding = isinstance(getattr(model, "emb", None), nn.Embedding)
    warm_up = (0, max(1, round(s.warm_up_epochs * updates_per_epoch))) if s.warm_up_epochs else None
    return Variational(
        model,
        s.levels,
        n_train=n_train,
        vocabulary=["emb"] if s.word_variables and has_embedding else (),
        noise=s.noise,
        linear_noise=s.output_noise,
        warm_up=warm_up,
        snr_threshold=s.snr_threshold,
        log_sigma=s.log_sigma,
    )
