"""train(recipe): one run from a recipe to a compact model and its numbers, in a folder of its own.

    recipe.toml     what was run, with every value
    metrics.jsonl   one line per epoch
    checkpoint.pt   where the run stands: weights, optimiser, random numbers, position in the data
    model/          the compact network, and encoding.json: what its inputs and outputs mean
    gates.json      the live gates of every kept neuron, and the numbers that the others are
    result.json     quality, counts, time, machine, command

A run depends on its recipe and the data alone: the order of an epoch is drawn from (seed, epoch), noise from one
generator whose state is part of the checkpoint. Killed at any moment and resumed, it ends with the same numbers on a
CPU; on a GPU sums are made in another order, so the last digits may differ.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch import Tensor

from gatewise.nn.lookup import broken_parameter
from gatewise.readers import find_readers
from gatewise.report import measure
from gatewise.sparsify import GroupLasso, Refit, Variational
from gatewise.tasks import provenance
from gatewise.tasks.data.batches import epoch_generator
from gatewise.tasks.data.corpus import describe, digest, load_data, pretrained
from gatewise.tasks.files import (
    CHECKPOINT,
    METRICS,
    RECIPE,
    RESULT,
    TENSORBOARD,
    VECTORS,
    Diverged,
    plain,
    write_json,
    write_whole,
)
from gatewise.tasks.recipe import dump
from gatewise.tasks.schema import Recipe
from gatewise.tasks.training.assembly import assemble, refitted, shrunk
from gatewise.tasks.training.board import Board, summary_writer
from gatewise.tasks.training.checkpoints import (
    Metrics,
    check_optimizer,
    fitting,
    load_checkpoint,
    restoring,
    save_checkpoint,
)
from gatewise.tasks.training.ending import conclude, result_of
from gatewise.tasks.training.evaluation import live_counts, short_counts
from gatewise.tasks.training.graph import use_tf32
from gatewise.tasks.training.lock import only_writer
from gatewise.tasks.training.options import Options, chosen_device
from gatewise.tasks.training.parts import Part, Position
from gatewise.tasks.training.progress import Progress
from gatewise.tasks.training.run_folder import (
    can_be_rebuilt,
    checked_result,
    prepare_folder,
    refuse_other_data,
    refuse_other_recipe,
    refuse_taken_folder,
)
from gatewise.tasks.training.shrinking import Shrinking


def train(recipe: Recipe, options: Options) -> dict[str, Any]:
    """Run a recipe to its end and return what result.json holds."""
    out = options.out
    # A model that was lost or damaged comes again from the checkpoint, without an update.
    if options.resume and (out / RESULT).is_file() and not can_be_rebuilt(out):
        return checked_result(recipe, options)
    with only_writer(out):
        refuse_taken_folder(recipe, options)
        # What is wrong with the data must not cost the run that is there: they are read first.
        run = Run(recipe, options)
        prepare_folder(options)
        return run.to_the_end()


class Run:
    def __init__(self, recipe: Recipe, options: Options) -> None:
        self.recipe, self.options = recipe, options
        self.device = chosen_device(options.device)
        if options.tensorboard:
            summary_writer()  # said now, before a run begins that is in the way of the next
        if self.device.type == "cuda":
            use_tf32()
            torch.cuda.reset_peak_memory_stats(self.device)
        torch.manual_seed(recipe.train.seed)
        self.corpus = load_data(recipe, options.data_dir)
        self.about, self.digest = describe(self.corpus), digest(self.corpus)
        rows, self.coverage = pretrained(recipe, self.corpus, options.data_dir)
        made = assemble(recipe, self.corpus, self.device, options.graph, rows)
        self.objective, self.feed, self.test_feed = made.objective, made.feeds.train, made.feeds.test
        self.n_batches, self.quality = self.feed.n_batches, self.objective.quality
        self.take(Part("train", recipe.train, made))
        self.position, self.shrinking = Position(), Shrinking(recipe.train.shrink_every)
        self.metrics = Metrics(options.out / METRICS)
        self.saved_at, self.saved_position = time.perf_counter(), "none yet"
        self.board: Board | None = None

    def take(self, part: Part) -> None:
        """Go on with the network and the optimiser of another part; between two epochs only."""
        self.part, made = part, part.made
        self.model, self.sparsifier, self.evaluators = made.model, made.sparsifier, made.evaluators
        self.step, self.update, self.budget = made.step, made.update, made.budget
        self.readers = find_readers(self.model)

    @property
    def place(self) -> str:
        """`epoch 3, update 17 of 200`"""
        return f"epoch {self.position.epoch}, update {self.position.step} of {self.n_batches}"

    # The loop.

    def to_the_end(self) -> dict[str, Any]:
        where = self.options.out / CHECKPOINT
        resumed = self.options.resume and where.exists()
        if resumed:
            with restoring(where):
                self.restore(load_checkpoint(where))
        if not (resumed and (self.options.out / RECIPE).is_file()):
            write_whole(self.options.out / RECIPE, dump(self.recipe).encode())
        if self.coverage:
            write_json(self.options.out / VECTORS, self.coverage.to_dict())
        self.metrics.rewind(self.position.epoch - 1)
        if self.options.tensorboard:
            self.board = Board(self.options.out / TENSORBOARD, self.position.epoch)
        self.model.train()
        with Progress(self.recipe.name, self.last_epoch, self.options.quiet) as progress:
            self.introduce(progress, resumed)
            self.epochs_of_part(progress)
            if self.recipe.refit.epochs and self.part.name == "train" and self.begin_refit():
                progress.epochs = self.last_epoch
                progress.say(f"refit from epoch {self.part.first} on")
                self.epochs_of_part(progress)
            result = self.finish()
        if self.board is not None:
            self.board.close()
        return result

    @property
    def last_epoch(self) -> int:
        return self.part.last + (self.recipe.refit.epochs if self.part.name == "train" else 0)

    def epochs_of_part(self, progress: Progress) -> None:
        while self.position.epoch <= self.part.last and not self.position.done:
            self.one_epoch(progress)

    def begin_refit(self) -> bool:
        """Go on without the penalty, from the result of the first part; not where it has made nothing zero."""
        p = self.position
        epoch, quality = self.back_to_result(), self.qualities()
        p.before = {"epoch": epoch, "quality": quality, "counts": plain(measure(self.model).to_dict())}
        if self.budget is not None:
            p.before["budget"] = self.budget.to_dict()
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
        self.set_best(epoch, quality[f"valid_{self.quality}"])
        return True

    def refit_part(self, first: int, state: dict[str, Tensor] | None = None) -> Part:
        made = refitted(self.recipe, self.part.made, self.device, self.options.graph, state)
        return Part("refit", self.recipe.refit_train(), made, first)

    def shrink(self, last: bool) -> str:
        """Cut out what has been removable for long enough, and go on with the rest; what there is to say of it."""
        if last or not isinstance(self.sparsifier, GroupLasso):
            return ""
        if not self.shrinking.after_epoch(self.model, self.step.optimizer, self.readers):
            return ""
        self.take(self.shrunk_part())
        return f"cut: {sum(p.numel() for p in self.model.parameters()):,} numbers are left in the network"

    def shrunk_part(self) -> Part:
        made = shrunk(self.recipe, self.part.made, self.device, self.options.graph)
        return Part("train", self.recipe.train, made, self.part.first)

    def back_to_result(self) -> int:
        """Of the part: the last epoch, or the best one on validation; which it is."""
        p = self.position
        self.step.optimizer.zero_grad(set_to_none=True)
        if self.part.settings.keep == "best" and p.best:
            self.model.load_state_dict(p.best)
            return p.best_epoch
        return p.epoch - 1

    def qualities(self) -> dict[str, float]:
        return {f"{split}_{self.quality}": evaluate() for split, evaluate in self.evaluators.items()}

    def introduce(self, progress: Progress, resumed: bool) -> None:
        progress.say(f"{self.recipe.name}: {self.about}; on {self.device}")
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
            due = self.options.checkpoint_every
            if p.step < n and min(now - self.saved_at, now - start) > due:
                self.save()
        loss, weight, penalty = self.step.sums.tolist()  # waits for the device, once per epoch
        self.stop_at_nan()
        self.stop_at_broken_weights()
        p.epoch_seconds = before + time.perf_counter() - start
        p.seconds += p.epoch_seconds
        self.end_epoch(progress, loss / weight, penalty / n, rates[-1])

    def end_epoch(self, progress: Progress, loss: float, penalty: float, lr: float) -> None:
        t, p = self.part.settings, self.position
        start = time.perf_counter()
        line: dict[str, Any] = {
            "epoch": p.epoch,
            **({"part": p.part} if self.recipe.refit.epochs else {}),
            "updates": p.epoch * self.n_batches,
            "lr": lr,
            "train_loss": loss,
            "penalty": penalty,
        }
        last = p.epoch == self.part.last
        if p.epoch % t.evaluate_every == 0 or last:
            value = self.evaluators["valid"]()
            line[f"valid_{self.quality}"] = value
            self.note_best(value)
        last = last or p.done  # patience may end the run here
        if p.epoch % t.count_every == 0 or p.epoch == self.part.first or last:
            line |= short_counts(live_counts(self.model, self.readers))
        if t.test_every and (p.epoch % t.test_every == 0 or last):
            line[f"test_{self.quality}"] = self.evaluators["test"]()
        cut = self.shrink(last)
        spent = time.perf_counter() - start
        p.seconds += spent
        line |= {
            "train_seconds": p.epoch_seconds,
            "seconds": p.epoch_seconds + spent,
            "peak_memory": provenance.peak_memory(self.device),
        }
        p.epoch, p.step, p.epoch_seconds = p.epoch + 1, 0, 0.0
        self.metrics.append(line)
        progress.line(line, self.quality)
        if cut:
            progress.say(cut)
        if self.board is not None:
            self.board.add(line)
        if time.perf_counter() - self.saved_at >= self.options.checkpoint_every or last:
            self.save()
        if self.options.on_epoch is not None:
            self.options.on_epoch(line)

    def note_best(self, value: float) -> None:
        t, p = self.part.settings, self.position
        better = value > p.best_value if self.objective.higher_is_better else value < p.best_value
        if p.best_epoch and not better:
            p.waited += 1
            p.done = t.keep == "best" and t.patience is not None and p.waited >= t.patience
            return
        self.set_best(p.epoch, value)

    def set_best(self, epoch: int, value: float) -> None:
        p = self.position
        p.best_epoch, p.best_value, p.waited, p.best = epoch, value, 0, {}
        if self.part.settings.keep == "best":
            p.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

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
        p, path = self.position, self.options.out / CHECKPOINT
        content: dict[str, Any] = {
            "recipe": self.recipe.steering(),
            "data": self.about,
            "digest": self.digest,
            "position": {key: value for key, value in vars(p).items() if key != "best"},
            "best": p.best,
            "model": self.model.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "step": {name: getattr(self.step, name) for name in ("k", "sums", "bad")},
            "state": [] if self.step.state is None else self.step.state.parts,
            "rng": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            content["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        if isinstance(self.sparsifier, Refit):
            content["sparsifier"] = self.sparsifier.state_dict()
        if self.budget is not None:
            content["budget"] = self.budget.state_dict()
        if self.shrinking.every:
            content["shrinking"] = self.shrinking.state_dict()
        save_checkpoint(path, content)
        self.saved_at = time.perf_counter()
        self.saved_position = f"{path}, at {self.place}"

    def restore(self, content: dict[str, Any]) -> None:
        path = self.options.out / CHECKPOINT
        refuse_other_recipe(content["recipe"], self.recipe, path)
        refuse_other_data(content["data"], content.get("digest"), self.about, self.digest, path)
        if isinstance(self.sparsifier, Variational) and "sparsifier_steps" in content:
            for state in filter(
                None, (content["model"], content["best"])
            ):  # early files have the count apart
                state.setdefault(self.sparsifier.counter, content["sparsifier_steps"])
        self.position = Position(**fitting(Position(), content["position"]))
        self.position.best = {name: tensor.to(self.device) for name, tensor in content["best"].items()}
        if self.shrinking.every:
            self.shrinking.load_state_dict(content["shrinking"])
            if self.shrinking.again(self.model, self.step.optimizer) and self.position.part == "train":
                self.take(self.shrunk_part())
        if self.position.part == "refit":
            self.take(self.refit_part(self.position.first, content["sparsifier"]))
        self.model.load_state_dict(content["model"])
        check_optimizer(self.step.optimizer, content["optimizer"])
        self.step.optimizer.load_state_dict(content["optimizer"])
        for group in self.step.optimizer.param_groups:
            group["lr"] = self.step.lr  # the tensor that the step writes to, not the copy from the file
        for name, value in content["step"].items():
            getattr(self.step, name).copy_(value)
        if self.step.state is not None:
            for part, value in zip(self.step.state.parts, content["state"], strict=True):
                part.copy_(value)
        if self.budget is not None:
            self.budget.load_state_dict(content["budget"])
        torch.set_rng_state(content["rng"])
        if self.device.type == "cuda" and "cuda_rng" in content:
            torch.cuda.set_rng_state(content["cuda_rng"], self.device)
        self.saved_position = f"{path}, at {self.place}"

    # The end.

    def finish(self) -> dict[str, Any]:
        p, start = self.position, time.perf_counter()
        epoch = self.back_to_result()
        ending = conclude(self)
        p.seconds += time.perf_counter() - start
        result = result_of(self, epoch, ending)
        write_json(self.options.out / RESULT, result)
        return result
