"""The pieces of an update against what they stand for, worked out plainly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import gatewise as gw
from gatewise.lab.data.batches import Examples, epoch_generator
from gatewise.lab.data.cuts import Chunks, Windows
from gatewise.lab.models import TextClassifier, WordLM
from gatewise.lab.training.evaluation import Evaluator
from gatewise.lab.training.feeds import ChunkFeed, ExampleFeed, Feed, WindowFeed, evaluation_windows
from gatewise.lab.training.graph import Replayed
from gatewise.lab.training.objectives import Objective
from gatewise.lab.training.step import SGD, TrainStep

CPU = torch.device("cpu")


def at(k: int) -> Tensor:
    return torch.tensor([k])


def examples(n: int = 7) -> Examples:
    return Examples(torch.randint(3, 9, (n, 5)), torch.randint(1, 6, (n,)), torch.arange(n) % 2)


def twins() -> tuple[WordLM, WordLM]:
    model, twin = WordLM(9, 4, 4), WordLM(9, 4, 4)
    twin.load_state_dict(model.state_dict())
    return model, twin


def test_feeds_give_the_batches_of_the_data_layer() -> None:
    """By number instead of by iteration, with fillers of weight 0."""
    stream = torch.randint(9, (101,))
    windows = Windows(stream, 3, 7, "keep")
    feed = WindowFeed(windows)
    for k, (inputs, targets) in enumerate(windows.windows()):
        batch = feed.fetch(at(k))
        real = len(inputs)
        assert torch.equal(batch.inputs[:real], inputs)
        assert torch.equal(batch.targets[:real], targets)
        assert batch.weight.sum() == inputs.numel()
    chunks = Chunks(stream, 10, 4)
    by_chunk = ChunkFeed(chunks)
    by_chunk.reset(epoch_generator(3, 1))
    plan = chunks.epoch(epoch_generator(3, 1))
    for k, (first, weight) in enumerate(zip(plan.index, plan.weight)):
        batch, (inputs, targets) = by_chunk.fetch(at(k)), chunks.batch(first)
        assert torch.equal(batch.inputs, inputs)
        assert torch.equal(batch.targets, targets)
        assert torch.equal(batch.weight, weight.expand(inputs.shape))
    rows = examples()
    by_row = ExampleFeed(rows, 3)
    by_row.reset(epoch_generator(0, 2))
    seen = [by_row.fetch(at(k)) for k in range(by_row.n_batches)]
    assert sum(float(batch.weight.sum()) for batch in seen) == len(rows)


def test_a_target_behind_padding_has_no_weight() -> None:
    """Something to predict at every step, of two sequences of 4 and of 1 step."""
    rows = Examples(torch.randn(2, 4, 3), torch.tensor([4, 1]), torch.randn(2, 4, 3))
    assert ExampleFeed(rows, 2).fetch(at(0)).weight.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_longer_evaluation_windows_give_the_same_quality(remainder: str) -> None:
    """The state is carried on, so it does not matter where the text is cut; how much of it counts does."""
    stream = torch.randint(9, (200,))
    model, objective = WordLM(9, 4, 4), Objective("words")
    short = Evaluator(model, objective, WindowFeed(Windows(stream, 3, 7, remainder)), CPU)()  # type: ignore[arg-type]
    for at_once in (1, 30, 1000):
        longer = evaluation_windows(stream, 3, 7, remainder, at_once)
        assert Evaluator(model, objective, longer, CPU)() == pytest.approx(short, rel=1e-6)


def test_perplexity_bits_accuracy_and_error() -> None:
    assert Objective("words").judge(2 * math.log(7), 0, 2) == {"ppl": pytest.approx(7)}
    assert Objective("words").judge(1e9, 0, 1) == {"ppl": math.inf}
    assert Objective("characters").judge(3 * math.log(2), 0, 2) == {"bpc": pytest.approx(1.5)}
    assert Objective("classes").judge(9, 3, 4) == {"accuracy": 75}
    assert Objective("numbers").judge(6, 0, 4) == {"mse": 1.5}


def test_one_score_serves_two_classes() -> None:
    """The same loss as two scores 0 and s."""
    scores, targets = torch.randn(6, 1), torch.arange(6) % 2
    both = torch.cat([torch.zeros(6, 1), scores], 1)
    objective = Objective("classes")
    torch.testing.assert_close(objective.losses(scores, targets), objective.losses(both, targets))


def test_probabilities_are_held_in_their_range() -> None:
    """-log clip(p, 1e-6, 1 - 1e-6): bounded both ways, no gradient outside."""
    scores = torch.tensor([[40.0], [-40.0], [0.5]], requires_grad=True)
    losses = Objective("classes", 1e-6).losses(scores, torch.ones(3, dtype=torch.long))
    p = torch.sigmoid(scores.detach()[:, 0]).clamp(1e-6, 1 - 1e-6)
    torch.testing.assert_close(losses.detach(), -p.log(), rtol=1e-3, atol=1e-6)
    losses.sum().backward()
    assert scores.grad is not None
    assert (scores.grad[:2] == 0).all()
    assert scores.grad[2] != 0


def test_fillers_change_nothing() -> None:
    """A last batch of 1 row and 2 fillers updates like that row alone."""
    rows = examples(4)
    objective = Objective("classes")
    torch.manual_seed(1)
    padded = TextClassifier(12, 1, 4, 3)
    torch.manual_seed(1)
    alone = TextClassifier(12, 1, 4, 3)
    step = TrainStep(padded, None, objective, ExampleFeed(rows, 3), optimizer="sgd", clip=None, window_sum=False,
                     device=CPU)  # fmt: skip
    step.begin([0.0, 0.5])
    step()
    step()
    batch = rows.batch(torch.tensor([3]))
    loss = objective.losses(alone(batch.inputs, batch.mask), batch.targets).mean()
    loss.backward()
    for p, q in zip(padded.parameters(), alone.parameters()):
        expected = q.detach() if q.grad is None else q.detach() - 0.5 * q.grad
        torch.testing.assert_close(p.detach(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("penalised", [False, True])
def test_a_step_is_clip_and_update(penalised: bool) -> None:
    """Window-sum loss, global norm clipped at c: p - lr * g * min(1, c / |g|), penalty included; state and counter go
    on."""
    stream = torch.randint(9, (61,))
    windows = Windows(stream, 3, 6, "drop")
    model, twin = twins()
    lasso, same = (
        gw.GroupLasso(m, l1=0.1, group=5.0, threshold=0.0) if penalised else None for m in (model, twin)
    )
    step = TrainStep(model, lasso, Objective("words"), WindowFeed(windows), optimizer="sgd", clip=0.1,
                     window_sum=True, device=CPU)  # fmt: skip
    step.begin([0.3] * len(windows))
    step()
    inputs, targets = next(windows.windows())
    scores, state = twin(inputs)
    loss = cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum") / 3
    (loss if same is None else loss + same.penalty()).backward()
    trained = [p for p in twin.parameters() if p.requires_grad]
    norm = torch.stack([p.grad.norm() for p in trained if p.grad is not None]).norm()
    after = iter(p.detach() for p in model.parameters() if p.requires_grad)
    for p in trained:
        assert p.grad is not None
        torch.testing.assert_close(
            next(after), p.detach() - 0.3 * p.grad * min(1, 0.1 / float(norm)), rtol=1e-4, atol=1e-6
        )
    assert step.state is not None
    torch.testing.assert_close(step.state.parts[0], state[0].detach())
    assert int(step.k) == 1
    assert float(step.sums[0]) == pytest.approx(loss.item() * 3, rel=1e-5)


def mean_step(
    model: WordLM,
    feed: Feed,
    sparsifier: gw.GroupLasso | None = None,
    optimizer: str = "sgd",
    decay: float = 0.0,
) -> TrainStep:
    return TrainStep(model, sparsifier, Objective("words"), feed, optimizer=optimizer, clip=None, window_sum=False,
                     device=CPU, weight_decay=decay)  # fmt: skip


def same_parameters(model: WordLM, twin: WordLM) -> None:
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()))


def test_the_penalty_is_a_part_of_the_loss() -> None:
    """p - lr * gradient of (mean cross-entropy + penalty), and the sum of the epoch tells the penalty alone."""
    windows = Windows(torch.randint(9, (61,)), 3, 6, "drop")
    model, twin = twins()
    lasso, same = (gw.GroupLasso(each, l1=0.1, group=0.1, threshold=0.0) for each in (model, twin))
    step = mean_step(model, WindowFeed(windows), lasso)
    step.begin([0.5] * len(windows))
    step()
    inputs, targets = next(windows.windows())
    penalty = same.penalty()
    (cross_entropy(twin(inputs)[0].flatten(0, 1), targets.flatten()) + penalty).backward()
    torch.optim.SGD(twin.parameters(), lr=0.5).step()
    same_parameters(model, twin)
    assert float(step.sums[2]) == pytest.approx(penalty.item())


def test_a_proximal_step_follows_the_update_at_its_rate() -> None:
    """p - lr * gradient of the loss alone, then shrunk by the lr of this update times lambda."""
    windows = Windows(torch.randint(9, (61,)), 3, 6, "drop")
    model, twin = twins()
    lasso, same = (gw.GroupLasso(each, l1=0.1, group=0.1, update="proximal") for each in (model, twin))
    step = mean_step(model, WindowFeed(windows), lasso)
    step.begin([0.5] * len(windows))
    step()
    inputs, targets = next(windows.windows())
    cross_entropy(twin(inputs)[0].flatten(0, 1), targets.flatten()).backward()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    optimizer.step()
    same.step(optimizer)
    same_parameters(model, twin)
    assert not model.rnn.weight_hh_l0.all()


TORCHS = {
    "adam": lambda parameters, _: torch.optim.Adam(parameters, lr=0.1),
    "adam with decay": lambda parameters, decay: torch.optim.AdamW(parameters, lr=0.1, weight_decay=decay),
    "sgd with decay": lambda parameters, decay: torch.optim.SGD(parameters, lr=0.1, weight_decay=decay),
}


@pytest.mark.parametrize("how", TORCHS)
def test_optimisers_are_those_of_torch(how: str) -> None:
    """With their defaults; over an epoch, since the first update of Adam does not depend on the betas."""
    windows = Windows(torch.randint(9, (61,)), 3, 6, "drop")
    model, twin = twins()
    kind, _, decays = how.partition(" ")
    step = mean_step(model, WindowFeed(windows), optimizer=kind, decay=0.3 if decays else 0.0)
    step.begin([0.1] * len(windows))
    optimizer, state = TORCHS[how](twin.parameters(), 0.3), None
    for inputs, targets in windows.windows():
        step()
        scores, state = twin(inputs, state)
        optimizer.zero_grad()
        cross_entropy(scores.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        state = tuple(part.detach() for part in state)
    same_parameters(model, twin)


def test_an_epoch_begins_from_a_zero_state() -> None:
    step = mean_step(WordLM(9, 4, 4), WindowFeed(Windows(torch.randint(9, (61,)), 3, 6, "drop")))
    assert step.state is not None
    for _ in range(2):
        step.begin([0.1] * step.feed.n_batches)
        assert not any(part.any() for part in step.state.parts)
        step()
        assert all(part.any() for part in step.state.parts)


def test_plain_sgd_with_a_rate_that_is_a_tensor() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    rate = torch.tensor(0.5)
    optimizer = SGD([p], rate)
    p.grad = torch.full((3,), 2.0)
    optimizer.step()
    rate.fill_(0.25)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 1 - 1.0 - 0.5))


def test_without_cuda_a_step_just_runs() -> None:
    calls: list[int] = []
    replayed = Replayed(lambda: calls.append(1), CPU)
    for _ in range(5):
        replayed()
    assert len(calls) == 5
    assert replayed.graph is None
    assert "cpu" in replayed.why_not


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
def test_a_replayed_step_is_the_step() -> None:
    """Graph and eager runs of the same updates agree; a step that waits for the host falls back and says why."""
    device = torch.device("cuda")
    stream = torch.randint(9, (500,), device=device)
    ends = []
    for graph in (True, False):
        torch.manual_seed(0)
        model = WordLM(9, 8, 8).to(device)
        feed = WindowFeed(Windows(stream, 4, 6, "keep"))
        step = TrainStep(model, None, Objective("words"), feed, optimizer="adam", clip=1.0, window_sum=False,
                         device=device)  # fmt: skip
        step.begin([1e-2] * feed.n_batches)
        run = Replayed(step, device, graph)
        for _ in range(feed.n_batches):
            run()
        assert (run.graph is not None) == graph
        ends.append(model.fc.weight.detach().clone())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-4)
    x = torch.ones(1, device=device)
    waiting = Replayed(lambda: print(end="" if x.item() else " "), device)
    for _ in range(5):
        waiting()
    assert waiting.graph is None
    assert waiting.why_not
