"""How networks that pronounce words are judged: against the textbook's table, and by hand."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from tiny_runs import options

import gatewise as gw
from gatewise.lab import recipe
from gatewise.lab.data.encoding import load_encoding
from gatewise.lab.data.pronunciation import END, PAD, PHONEMES
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.models import NextPhoneme, Pronouncer, WordReader
from gatewise.lab.training.feeds import Fed
from gatewise.lab.training.pronouncing import Pronouncing, edit_distances, nearest
from gatewise.lab.training.trainer import train


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """The recursion as it stands in textbooks."""

    @functools.cache
    def d(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return d(len(a), len(b))


def before_end(row: list[int]) -> tuple[int, ...]:
    return tuple(row[: row.index(END)] if END in row else row)


def test_edit_distances_are_those_of_the_table() -> None:
    """Answers may lack an end or have none but ends; references have one, then padding."""
    draw = torch.Generator().manual_seed(0)
    answers = torch.randint(4, 7, (60, 6), generator=draw)
    references = torch.full((60, 2, 6), PAD)
    for n in range(60):
        answers[n, n % 7 :] = END
        for k in range(2):
            length = int(torch.randint(1, 6, (), generator=draw))
            references[n, k, :length] = torch.randint(4, 7, (length,), generator=draw)
            references[n, k, length] = END
    found = edit_distances(answers, references)
    for n in range(60):
        a = before_end(answers[n].tolist())
        assert found[n].tolist() == [distance(a, before_end(r)) for r in references[n].tolist()]


def ids(text: str, length: int = 4) -> list[int]:
    row = [PHONEMES.index(name) for name in text.split()] + [END]
    return row + [PAD] * (length - len(row))


def test_the_nearest_pronunciation_counts() -> None:
    """One of padding is none, though an empty answer would be near to it."""
    references = torch.tensor(
        [[ids("B AE1 T"), ids("B"), ids("B AE1 T")], [ids("T T"), [PAD] * 4, [PAD] * 4]]
    )
    answers = torch.tensor([[*ids("B AE1")[:3], END], [END] * 4])
    edits, lengths = nearest(answers, references)
    assert edits.tolist() == [1, 2]
    assert lengths.tolist() == [3, 2]


def test_word_and_phoneme_errors_with_and_without_stress() -> None:
    """Four words: right, wrong in its stress alone, wrong in one of two phonemes, and a filler without weight."""
    references = torch.tensor([[ids("B AE1")], [ids("B AE1")], [ids("B AE1")], [ids("B AE1")]])
    answers = torch.tensor([ids("B AE1"), ids("B AE2"), ids("B T"), ids("T T T")])
    batch = Fed(answers, references, torch.tensor([1.0, 1, 1, 0]))
    judged = Pronouncing()
    assert judged.judge(*judged.sums(answers, batch).tolist()) == {
        "word_error": 100 * 2 / 3,
        "phoneme_error": 100 * 2 / 6,
        "word_error_unstressed": 100 / 3,
        "phoneme_error_unstressed": 100 / 6,
    }


def test_a_taught_word_is_answered() -> None:
    """Greedy answers are what teaching makes likely: with its own answer as what is given, each is the likeliest."""
    torch.manual_seed(0)
    model = Pronouncer(9, 7, start=2, end=3, longest=6, embedding=5, hidden=8).eval()
    letters = torch.randint(3, 9, (5, 4))
    answer = model(letters)
    scores = model(letters, None, answer).argmax(-1)
    going_on = (answer == 3).cumsum(-1).roll(1, -1)
    going_on[:, 0] = 0
    assert torch.equal(scores[going_on == 0], answer[going_on == 0])


@pytest.mark.parametrize(
    "more", [[], ["model.cell=LSTM", "model.bidirectional=true"], ["model.backwards=true"]]
)
def test_a_sparse_network_is_the_same_in_all_forms(more: list[str], folder: Path, tmp_path: Path) -> None:
    """With a budget and a refit: trained, cut, saved and loaded, and in the engine; int8 has a quality of its own."""
    tiny = ["hidden=6", "embedding=4", "batch=32", "train.epochs=2", "train.after=1", "train.lr=0.02"]
    row = recipe.load("g2p-prune-wgn", [*tiny, "refit.epochs=1", "budget.weights=0.7", *more])
    result = train(row, options(tmp_path, folder))
    assert result["counts"]["nonzero"] <= 0.7 * result["counts"]["weights"]
    assert result["quality"]["compact_test_word_error"] == result["quality"]["test_word_error"]
    rounded, _ = evaluate_saved(tmp_path, data_dir=folder, int8=True)
    assert rounded["test_phoneme_error"] == pytest.approx(result["quality"]["test_phoneme_error"], rel=0.3)
    model, encoding = gw.load(tmp_path).eval(), load_encoding(tmp_path)
    assert encoding is not None
    word = torch.from_numpy(encoding.encode("tab"))[None]
    answer = model(word)[0].numpy()
    assert set(str(encoding.decode(answer)).split()) <= set(PHONEMES)
    assert said_by_engines(model, word, len(answer)) == answer.tolist()


def said_by_engines(model: Pronouncer, word: torch.Tensor, longest: int) -> list[int]:
    """The loop of greedy_decode around engines of the encoder and of one step."""
    encoder, decoder = gw.Engine(WordReader(model)), gw.Engine(NextPhoneme(model))
    (state, *seen), _ = encoder(word)
    phoneme, said = torch.tensor([model.start]), list[int]()
    while len(said) < longest and model.end not in said:
        phoneme, after = decoder(phoneme, state, *seen)
        (state,) = after.returned
        said.append(int(phoneme))
    return said + [model.end] * (longest - len(said))
