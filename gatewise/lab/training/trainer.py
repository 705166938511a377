"""train(recipe): one run from a recipe to a compact model and its numbers, in a folder of its own.

    recipe.toml         what was run, with every value
    metrics.jsonl       one line per epoch
    checkpoint.pt       where the run stands: weights, optimiser, random numbers, position in the data
    model.safetensors   the compact network, and what its inputs and outputs mean
    gates.json          the live gates of every kept neuron, and the numbers that the others are
    result.json         quality, counts, time, machine, command

A run depends on its recipe and the data alone: the order of an epoch is drawn from (seed, epoch), noise from one
generator whose state is part of the checkpoint. Killed at any moment and resumed, it ends with the same numbers on a
CPU; on a GPU sums are made in another order, so the last digits may differ.
"""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gatewise.lab import provenance
from gatewise.lab.data.batches import epoch_generator
from gatewise.lab.data.corpus import describe, digest, load_data, pretrained
from gatewise.lab.files import (
    CHECKPOINT,
    METRICS,
    RECIPE,
    RESULT,
    Diverged,
    plain,
    write_json,
    write_whole,
)
from gatewise.lab.recipe import dump
from gatewise.lab.schema import Recipe
from gatewise.lab.training.assembly import assemble, refitted, shrunk
from gatewise.lab.training.average import Average
from gatewise.lab.training.checkpoints import (
    Metrics,
    load_checkpoint,
    restoring,
    save_checkpoint,
)
from gatewise.lab.training.ending import conclude, result_of, write_card
from gatewise.lab.training.evaluation import live_counts, short_counts
from gatewise.lab.training.options import Options, chosen_device, prepare
from gatewise.lab.training.parts import Part, Position
from gatewise.lab.training.progress import Progress
from gatewise.lab.training.ranks import Ranks, joined, own_noise
from gatewise.lab.training.resuming import content_of, restore
from gatewise.lab.training.run_folder import (
    can_be_rebuilt,
    checked_result,
    goes_on_with_refit,
    only_writer,
    prepare_folder,
    refuse_taken_folder,
)
from gatewise.lab.training.shrinking import Shrinking, cut_to
from gatewise.nn.lookup import broken_parameter
from gatewise.readers import find_readers
from gatewise.report import measure
from gatewise.sparsify import GroupLasso


def train(recipe: Recipe, options: Options) -> dict[str, Any]:
    """Run a recipe to its end and return what result.json holds."""
    with joined() as ranks:
        # A model that was lost or damaged comes again from the checkpoint, without an update.
        finished = ranks.from_first(lambda: finished_result(recipe, options))
        if finished is not None:
            return finished
        with only_writer(options.out) if ranks.is_first else nullcontext():
            ranks.from_first(lambda: refuse_taken_folder(recipe, options))
            # What is wrong with the data must not cost the run that is there: they are read first.
            run = Run(recipe, options, ranks)
            ranks.from_first(lambda: prepare_folder(options))
            return run.to_the_end()


def finished_result(recipe: Recipe, options: Options) -> dict[str, Any] | None:
    out = options.out
    ended = options.resume and (out / RESULT).is_file()
    if not ended or can_be_rebuilt(out) or goes_on_with_refit(recipe, out):
        return None
    return checked_result(recipe, options)


class Run:
    def __init__(self, recipe: Recipe, options: Options, ranks: Ranks | None = None) -> None:
        self.recipe, self.options, self.ranks = recipe, options, ranks or Ranks()
        self.device = chosen_device(options.device, self.ranks.local if self.ranks.size > 1 else None)
        prepare(self.device)
        torch.manual_seed(recipe.train.seed)
        self.corpus = load_data(recipe, options.data_dir)
        self.about, self.digest = describe(self.corpus), digest(self.corpus)
        rows, self.coverage = pretrained(recipe, self.corpus, options.data_dir)
        self.graph = options.graph and self.ranks.size == 1  # what ranks say to each other is not captured
        made = assemble(recipe, self.corpus, self.device, self.graph, rows, self.ranks)
        own_noise(recipe.train.seed, self.ranks)
        self.objective, self.feed, self.test_feed = made.objective, made.feeds.train, made.feeds.test
        self.n_batches, self.quality = self.feed.n_batches, self.objective.quality
        self.take(Part("train", recipe.first_train(), made))
        self.position, self.shrinking = Position(), Shrinking(recipe.train.shrink_every)
        self.metrics = Metrics(options.out / METRICS)
        self.saved_at, self.saved_position = time.perf_counter(), "none yet"

    def take(self, part: Part) -> None:
        """Go on with the network and the optimiser of another part; between two epochs only."""
        self.part, made = part, part.made
        self.model, self.sparsifier, self.evaluators = made.model, made.sparsifier, made.evaluators
        self.step, self.update, self.budget = made.step, made.update, made.budget
        self.average = Average(made.model) if part.settings.average else None
        self.readers = find_readers(self.model)

    @property
    def place(self) -> str:
        """`epoch 3, update 17 of 200`"""
        return f"epoch {self.position.epoch}, update {self.position.step} of {self.n_batches}"

    # The loop.

    def to_the_end(self) -> dict[str, Any]:
        where = self.options.out / CHECKPOINT
        content = self.ranks.from_first(
            lambda: load_checkpoint(where) if self.options.resume and where.exists() else None
        )
        resumed = content is not None
        if content is not None:
            with restoring(where):
                restore(self, content)
        self.ranks.check_alike(self.model, "the start")
        if self.ranks.is_first:
            self.begin_files()
        self.model.train()
        quiet = self.options.quiet or not self.ranks.is_first
        with Progress(self.recipe.name, self.last_epoch, quiet) as progress:
            self.introduce(progress, resumed)
            self.epochs_of_part(progress)
            epoch = self.back_to_result()
            if self.recipe.refit.epochs and self.part.name == "train" and self.begin_refit(epoch):
                progress.epochs = self.last_epoch
                progress.say(f"refit from epoch {self.part.first} on")
                self.epochs_of_part(progress)
                epoch = self.back_to_result()
            result = self.ranks.from_first(lambda: self.finish(epoch))
        return result

    def begin_files(self) -> None:
        write_whole(self.options.out / RECIPE, dump(self.recipe).encode())
        self.metrics.rewind(self.position.epoch - 1)

    @property
    def last_epoch(self) -> int:
        return self.part.last + (self.recipe.refit.epochs if self.part.name == "train" else 0)

    def epochs_of_part(self, progress: Progress) -> None:
        while self.position.epoch <= self.part.last and not self.position.done:
            self.one_epoch(progress)

    def begin_refit(self, epoch: int) -> bool:
        """Go on without the penalty, from the result of the first part; not where it has made nothing zero."""
        p, quality = self.position, self.ranks.from_first(self.qualities)
        p.before = {"epoch": epoch, "quality": quality, "counts": plain(measure(self.model).to_dict())}
        if self.budget is not None:
            p.before["budget"] = self.budget.to_dict()
        if self.recipe.start.run is not None and self.recipe.budget.wanted():
            p.before["budget"] = cut_to(self.recipe, self.step).to_dict()
            quality = self.ranks.from_first(self.qualities)
        if self.shrinking.every:
            self.shrinking.cut_all(self.model)
        try:
            self.take(self.refit_part(p.epoch))
        except ValueError as error:
            p.before["refused"] = str(error)
            warnings.warn(
                f"{self.recipe.name}: no refit, the result is that of [train]. {error}", stacklevel=2
            )
            return False
        p.part, p.first, p.done = "refit", p.epoch, False
        # What it begins with is the first to be beaten.
        p.set_best(epoch, quality[f"valid_{self.quality}"], self.part)
        return True

    def refit_part(self, first: int, state: dict[str, Tensor] | None = None) -> Part:
        made = refitted(self.recipe, self.part.made, self.device, self.graph, state)
        return Part("refit", self.recipe.refit_train(), made, first)

    def shrink(self, last: bool) -> str:
        """Cut out what has been removable for long enough, and go on with the rest; what there is to say of it."""
        averaging = self.average is not None and self.average.n
        if last or averaging or not isinstance(self.sparsifier, GroupLasso):
            return ""
        if not self.shrinking.after_epoch(self.model, self.step.optimizer, self.readers):
            return ""
        self.take(self.shrunk_part())
        return f"cut: {sum(p.numel() for p in self.model.parameters()):,} numbers are left in the network"

    def shrunk_part(self) -> Part:
        made = shrunk(self.recipe, self.part.made, self.device, self.graph)
        return Part("train", self.recipe.train, made, self.part.first)

    def back_to_result(self) -> int:
        """Of the part: the last epoch, or the best one on validation; which it is."""
        p = self.position
        self.step.optimizer.zero_grad(set_to_none=True)
        if self.part.settings.keep == "best" and p.best:
            self.model.load_state_dict(p.best)
            return p.best_epoch
        if self.average is not None:
            self.average.take()
        return p.epoch - 1

    def qualities(self) -> dict[str, float]:
        return {key: value for split in self.evaluators for key, value in self.judged(split).items()}

    def judged(self, split: str) -> dict[str, float]:
        return {f"{split}_{name}": value for name, value in self.evaluators[split]().items()}

    def introduce(self, progress: Progress, resumed: bool) -> None:
        where = f"{self.device}" if self.ranks.size == 1 else f"{self.ranks.size} ranks, {self.device.type}"
        progress.say(f"{self.recipe.name}: {self.about}; on {where}")
        for note in (self.corpus.note, self.coverage):
            if note:
                progress.say(f"note: {note}")
        if resumed:
            progress.say(f"resumed at {self.place}")

    def one_epoch(self, progress: Progress) -> None:
        p, n = self.position, self.n_batches
        self.feed.reset(epoch_generator(self.recipe.train.seed, p.epoch))
        rates = self.part.rates(p.epoch)
        if p.step == 0:
            self.step.begin(rates)
            p.epoch_seconds = 0.0
        else:  # resumed inside the epoch: the rest of the step's tensors are in place
            self.step.lrs.copy_(torch.tensor(rates))
        before, start = p.epoch_seconds, time.perf_counter()
        progress.epoch(p.epoch, n, p.step)
        was_graph, shown = self.update.why_not, start
        while p.step < n:
            self.update()
            if self.budget is not None:
                self.budget.step()
            if self.average is not None and p.epoch > self.part.last - self.part.settings.average:
                self.average.add()
            p.step += 1
            now = time.perf_counter()
            p.epoch_seconds = before + now - start
            if self.update.why_not != was_graph:
                was_graph = self.update.why_not
                progress.say(f"no CUDA graph, steps run one by one: {was_graph}")
            if self.device.type == "cpu":
                self.stop_at_nan()
            if now - shown > 0.2:
                shown = now
                loss, weight, _ = self.step.sums.tolist() if self.device.type == "cpu" else (0.0, 0.0, 0.0)
                progress.advance(p.step, loss / weight if weight else None)
            if p.step < n and self.is_due(min(now - self.saved_at, now - start)):
                self.save()
        loss, weight, penalty = self.ranks.total(
            self.step.sums
        ).tolist()  # waits for the device, once per epoch
        self.stop_at_nan()
        self.stop_at_broken_weights()
        p.epoch_seconds = before + time.perf_counter() - start
        p.seconds += p.epoch_seconds
        self.ranks.check_alike(self.model, f"epoch {p.epoch}")
        self.end_epoch(progress, loss / weight, penalty / n / self.ranks.size, rates[-1])

    def is_due(self, seconds: float) -> bool:
        """Whether to write a checkpoint now: by the clock of the first rank, heard with the update after."""
        if self.ranks.size == 1:
            return seconds > self.options.checkpoint_every
        heard = float(self.step.wished) > 0
        late = self.ranks.is_first and not heard and seconds > self.options.checkpoint_every
        self.step.wish.fill_(float(late))
        return heard

    def end_epoch(self, progress: Progress, loss: float, penalty: float, lr: float) -> None:
        p = self.position
        start = time.perf_counter()
        line: dict[str, Any] = {
            "epoch": p.epoch,
            **({"part": p.part} if self.recipe.refit.epochs else {}),
            "updates": p.epoch * self.n_batches,
            "lr": lr,
            "train_loss": loss,
            "penalty": penalty,
        }
        last = self.look(line)
        cut = self.shrink(last)
        spent = time.perf_counter() - start
        p.seconds += spent
        line |= {
            "train_seconds": p.epoch_seconds,
            "seconds": p.epoch_seconds + spent,
            "peak_memory": provenance.peak_memory(self.device),
        }
        p.epoch, p.step, p.epoch_seconds = p.epoch + 1, 0, 0.0
        if self.ranks.is_first:
            self.metrics.append(line)
            progress.line(line, self.quality)
        if cut:
            progress.say(cut)
        late = time.perf_counter() - self.saved_at >= self.options.checkpoint_every
        if self.ranks.from_first(lambda: late) or last:
            self.save()
        if self.options.on_epoch is not None:
            self.options.on_epoch(line)

    def look(self, line: dict[str, Any]) -> bool:
        """Quality and counts of the network, for a line of metrics; whether its part ends here."""
        t, p = self.part.settings, self.position
        last = p.epoch == self.part.last
        with self.average.judged() if self.average is not None else nullcontext():
            if p.epoch % t.evaluate_every == 0 or last:
                line |= self.ranks.from_first(lambda: self.judged("valid"))
                p.note(line[f"valid_{self.quality}"], self.part)
            last = last or p.done  # patience may end the run here
            counted = p.epoch % t.count_every == 0 or p.epoch == self.part.first or last
            if counted and self.ranks.is_first:
                line |= short_counts(live_counts(self.model, self.readers))
            if t.test_every and (p.epoch % t.test_every == 0 or last) and self.ranks.is_first:
                line |= self.judged("test")
        return last

    def stop_at_nan(self) -> None:
        bad = int(self.step.bad)
        if bad < self.n_batches:
            raise Diverged(
                f"the loss was NaN or infinite in epoch {self.position.epoch}, update {bad + 1} of {self.n_batches}. "
                + self.way_back()
            )

    def stop_at_broken_weights(self) -> None:
        """A loss is known before its update: the last one may have broken weights, and no loss tells of it."""
        if (name := broken_parameter(self.model)) is not None:
            raise Diverged(f"{name} is NaN or infinite after {self.place}. {self.way_back()}")

    def way_back(self) -> str:
        return (
            f"The last good checkpoint is {self.saved_position}. A lower train.lr or train.clip usually helps; with "
            "another recipe begin in another --out."
        )

    # Checkpoints.

    def save(self) -> None:
        """Write where the run stands; a loss or a weight that is not finite is never written."""
        self.stop_at_nan()
        self.stop_at_broken_weights()
        path, content = self.options.out / CHECKPOINT, content_of(self)
        if self.ranks.is_first:
            save_checkpoint(path, content)
        self.saved_at = time.perf_counter()
        self.saved_position = f"{path}, at {self.place}"

    # The end.

    def finish(self, epoch: int) -> dict[str, Any]:
        p, start = self.position, time.perf_counter()
        ending = conclude(self)
        p.seconds += time.perf_counter() - start
        result = result_of(self, epoch, ending)
        write_card(self, result, ending)
        write_json(self.options.out / RESULT, result)
        return result
