"""The demo in small: the same stages on a narrow network and a little text."""

from __future__ import annotations

from pathlib import Path

import pytest

import gatewise as gw
from gatewise.lab import demo
from gatewise.lab.data.language import text_file
from gatewise.lab.demo import METHODS, paragraphs, recipe, rows, run_demo, write_text
from gatewise.lab.models import WordLM


def test_the_text_is_english_and_no_paragraph_comes_twice() -> None:
    found = paragraphs()
    assert len(found) == len(set(found)) > 1000
    assert sum(" the " in paragraph for paragraph in found) > 500


def test_held_out_paragraphs_are_not_in_the_training_text(tmp_path: Path) -> None:
    """Whole paragraphs are held out: what ends up in one stream is in no other."""
    write_text(tmp_path)
    train, valid, test = (set((tmp_path / f"{split}.txt").read_text().splitlines()) for split in demo.SPLITS)
    assert len(train) > 6 * len(valid) > 500
    assert len(train | valid | test) == len(train) + len(valid) + len(test) == len(paragraphs())
    files = [tmp_path / f"{split}.txt" for split in demo.SPLITS]
    data = text_file(files[0], "word", *files[1:], vocabulary_size=2000)
    unknown = data.vocabulary.ids["<unk>"]
    assert 0 < (data.valid == unknown).float().mean() < 0.1


@pytest.mark.parametrize("method", METHODS)
def test_a_penalty_belongs_to_a_sum_or_to_a_mean(method: str, tmp_path: Path) -> None:
    """Group lasso's to the loss summed over a window of words, KL / n_train to the mean of a word."""
    whole, quick = (recipe(method, tmp_path, 3, short) for short in (False, True))
    assert whole.train.loss == ("mean" if method == "bayes" else "window-sum")
    assert whole.train.seed == quick.train.seed == 3
    assert quick.model.hidden < whole.model.hidden
    assert quick.train.epochs < whole.train.epochs


@pytest.mark.parametrize("method", ["lasso", "bayes"])
def test_the_tour(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage leaves what the last lines of the program name; it may be taken again, over the first."""
    monkeypatch.setattr(demo, "QUICK", {key: {"epochs": 2, "after": 1} for key in METHODS})
    for _ in range(2):
        table = run_demo(method, tmp_path, quick=True)
    assert [column.header for column in table.columns] == ["", "dense", "compressed"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"text", "dense", "compressed", "gates.png", "report.html"}
    assert (tmp_path / "gates.png").read_bytes().startswith(b"\x89PNG")
    small = gw.load(tmp_path / "compressed" / "model.safetensors")
    assert isinstance(small, WordLM)
    assert gw.measure(small).compression >= 1


def test_the_table_has_the_numbers_of_both_runs() -> None:
    def result(n: int) -> dict[str, object]:
        counts = {"nonzero": 1000 * n, "compression": 6 / n, "neurons": {"l0": n}, "gates": {"l0": 4 * n}}
        return {"quality": {"valid_ppl": n, "test_ppl": n}, "counts": counts, "model_bytes": 4000 * n}

    found = {
        name: values for name, *values in rows(result(6), result(2), {"torch dense": 3e-6, "engine": 1e-6})
    }
    assert found["perplexity, valid"] == ["6.00", "2.00"]
    assert found["compression"] == ["1.00x", "3.00x"]
    assert found["live gates"] == ["24", "8"]
    assert found["time of a word, torch dense"] == ["3 us", ""]
    assert found["time of a word, engine"] == ["", "1 us"]
