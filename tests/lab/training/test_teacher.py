"""A teacher's share of the loss: its equation in every task, a run of its own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import METHODS, STILL, cut_off, numbers, options

import gatewise as gw
from gatewise.lab import recipe
from gatewise.lab.data.batches import Examples
from gatewise.lab.files import RunError
from gatewise.lab.models import TextClassifier
from gatewise.lab.training import earlier
from gatewise.lab.training.feeds import ExampleFeed
from gatewise.lab.training.objectives import Objective
from gatewise.lab.training.pronouncing import Pronouncing
from gatewise.lab.training.trainer import train

WORDS = ["model.hidden=4", "model.embedding=4", "train.epochs=2", "train.schedule=constant", "data.batch=2"]


@pytest.mark.parametrize(
    ("objective", "shape"),
    [
        (Objective("words"), (3, 2, 5)),
        (Objective("characters"), (3, 2, 5)),
        (Objective("classes"), (4, 5)),
        (Objective("classes"), (4, 1)),
        (Pronouncing(), (4, 6, 5)),
        (Objective("numbers"), (4, 5)),
    ],
)
def test_a_sure_teacher_is_a_target(objective: Objective, shape: tuple[int, ...]) -> None:
    """Probabilities that are 0 and 1 are classes, and a teacher's numbers are targets."""
    output = torch.randn(shape)
    if objective.kind == "numbers":
        answer = targets = torch.randn(shape)
    else:
        targets = torch.randint(max(shape[-1], 2), shape[:-1])
        answer = F.one_hot(targets, max(shape[-1], 2)) * 200.0 - 100
        answer = answer[..., 1:] if shape[-1] == 1 else answer
    torch.testing.assert_close(objective.differences(output, answer), objective.losses(output, targets))


def test_probabilities_weigh_the_losses() -> None:
    """An unsure teacher is the mean of what it thinks possible."""
    objective, output, p = Objective("classes"), torch.randn(2, 3), torch.tensor([0.2, 0.5, 0.3])
    found = objective.differences(output, p.log().expand(2, 3))
    losses = torch.stack([objective.losses(output, torch.tensor([k, k])) for k in range(3)], -1)
    torch.testing.assert_close(found, losses @ p)


@pytest.fixture(scope="module")
def taught(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to learn from."""
    out = tmp_path_factory.mktemp("teacher") / "run"
    adam = ["train.optimizer=adam", "train.lr=0.02", "train.epochs=10"]
    train(recipe.load("ptb-word-small-original", [*WORDS, *adam]), options(out, folder))
    return out


def test_a_run_learns_from_another(taught: Path, folder: Path, tmp_path: Path) -> None:
    """A pupil that learns from its teacher alone comes nearer to it than it was; the data it does not learn."""
    more = [*WORDS, "train.epochs=8", "train.seed=1", f"teacher.run={taught}", "teacher.share=1"]
    ways = {"pupil": ["train.optimizer=adam", "train.lr=0.02"], "still": STILL}
    for name, way in ways.items():
        train(recipe.load("ptb-word-small-original", [*more, *way]), options(tmp_path / name, folder))
    ids = torch.randint(10, (20, 3))
    with torch.no_grad():
        sure, pupil, still = (
            gw.load(out).eval()(ids)[0] for out in (taught, *(tmp_path / name for name in ways))
        )
        least, near, far = (
            Objective("words").differences(scores, sure).mean() for scores in (sure, pupil, still)
        )
    assert near - least < (far - least) / 2


def test_a_taught_run_goes_on_where_it_stopped(taught: Path, folder: Path, tmp_path: Path) -> None:
    """The teacher's state is carried on from the window of the checkpoint, too; and it teaches the refit."""
    more = [*WORDS, *METHODS["lasso"], "refit.epochs=1", f"teacher.run={taught}"]
    row = recipe.load("ptb-word-small-original", more)
    result = train(row, options(tmp_path / "a", folder))
    with pytest.MonkeyPatch.context() as patch:
        cut_off(row, options(tmp_path / "b", folder, checkpoint_every=0.0), 3, patch)
    again = train(row, options(tmp_path / "b", folder, resume=True))
    assert numbers(again) == numbers(result)


@pytest.mark.parametrize(
    ("row", "run", "message"),
    [
        ("ptb-word-small-original", "nowhere", "nowhere.safetensors: there is no such file"),
        ("g2p-original", None, "its network reads other symbols"),
    ],
)
def test_bad_teachers(
    row: str, run: str | None, message: str, taught: Path, folder: Path, tmp_path: Path
) -> None:
    """One sentence, before anything is written."""
    changes = [*WORDS, f"teacher.run={run or taught}"]
    with pytest.raises(RunError, match=message):
        train(recipe.load(row, changes), options(tmp_path / "run", folder))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("limit", [10**6, 10])
def test_answers_to_examples_are_remembered(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order and batch they are what the teacher answers when it is asked; where memory is short, it is."""
    monkeypatch.setattr(earlier, "REMEMBERED", limit)
    examples = Examples(torch.randint(1, 9, (11, 5)), torch.randint(1, 6, (11,)), torch.arange(11) % 3)
    feed, objective = ExampleFeed(examples, 4), Objective("classes")
    asked, remembering = (
        earlier.Teacher(model, 0.5, feed, torch.device("cpu")) for model in [TextClassifier(9, 3, 4, 4)] * 2
    )
    remembering.remember(feed, objective)
    assert (remembering.answers is None) == (limit == 10)
    feed.reset(torch.Generator().manual_seed(1))
    for k in range(feed.n_batches):
        batch = feed.fetch(torch.tensor([k]))
        output, losses = torch.randn(4, 3), torch.randn(4)
        wanted = asked.shared(losses, output, batch, objective)
        torch.testing.assert_close(remembering.shared(losses, output, batch, objective), wanted)
