"""Counts on the real corpora, where they are present: GATEWISE_DATA, or shared/data beside the repository."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from gatewise.lab import recipe
from gatewise.lab.data import classification, cuts, language, sources, texts, vectors
from gatewise.lab.data.corpus import pretrained


def _real_data() -> Path | None:
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    named = os.environ.get("GATEWISE_DATA")
    folder = Path(named) if named else beside
    return folder if folder.is_dir() else None


DATA = _real_data()


def has(*keys: str) -> bool:
    return DATA is not None and all(sources.find(key, DATA) for key in keys)


def needs(corpus: str, present: bool) -> pytest.MarkDecorator:
    reason = f"{corpus} not found in {DATA or 'any data folder'}: set GATEWISE_DATA to where the corpora are"
    return pytest.mark.skipif(not present, reason=reason)


needs_ptb = needs("Penn Treebank", has(*(f"ptb/ptb.{split}.txt" for split in ("train", "valid", "test"))))
REVIEWS = has("imdb/train.csv.xz", "imdb/test.csv.xz") or has("imdb/aclImdb_v1.tar.gz")
needs_imdb = needs("IMDb", has("vocab/imdb_words.txt") and REVIEWS)
ALL_NEWS = has("ag_news_csv/train.csv")
needs_ag_news = needs(
    "AG News",
    has("ag_news_csv/test.csv", "vocab/agnews_words.txt")
    and (ALL_NEWS or has("ag_news_csv/train_subset.csv.xz")),
)
WORD2VEC, GLOVE = vectors.FILES["word2vec"], vectors.FILES["glove"]
needs_vectors = needs("the word2vec subset", has(WORD2VEC))


@cache
def reviews() -> tuple[texts.Texts, texts.Texts]:
    return texts.imdb_reviews(DATA)


@pytest.fixture(scope="module")
def imdb() -> classification.TextData:
    """As `classification.imdb`, from reviews parsed once."""
    words, note = classification.authors_words("imdb", DATA)
    rules = classification.TextRules()
    return classification.prepare(*reviews(), rules, ("negative", "positive"), words, [note])


@needs_ptb
def test_word_ptb() -> None:
    data = language.word_ptb(DATA)
    assert (len(data.train), len(data.valid), len(data.test)) == (929_589, 73_760, 82_430)
    assert len(data.vocabulary) == 10_000
    assert data.vocabulary.symbols[:4] == ("the", "<unk>", "<eos>", "N")
    assert data.note == ""
    assert len(cuts.Windows(data.train, 20, 20)) == 2_323  # updates per epoch, small pruning runs
    assert len(cuts.Windows(data.train, 20, 35)) == 1_327  # large
    bayes = cuts.Windows(data.train, 32, 35, "keep")
    assert (len(bayes), bayes.n_targets) == (830, 929_536)
    assert cuts.Windows(data.test, 1, 35, "keep").n_targets == 82_429


@needs_ptb
def test_char_ptb() -> None:
    """Also: the published character files, a blank after every character, are the same stream."""
    data = language.char_ptb(DATA)
    assert (len(data.train), len(data.valid), len(data.test)) == (5_017_482, 393_042, 442_423)
    assert len(data.vocabulary) == 50
    assert data.note == ""
    chunks = cuts.Chunks(data.train)
    assert (chunks.n_chunks, len(chunks), chunks.n_targets) == (50_173, 784, 4_967_127)
    assert [cuts.Chunks(part).n_chunks for part in (data.valid, data.test)] == [3_929, 4_423]
    assert DATA is not None
    published = DATA / "ptb" / "ptb.char.test.txt"
    if published.is_file():
        assert "".join(data.vocabulary.decode(data.test.tolist())) == published.read_text()[::2]


@needs_imdb
def test_imdb_counts(imdb: classification.TextData) -> None:
    assert (len(imdb.train), len(imdb.valid), len(imdb.test)) == (21_250, 3_750, 25_000)
    assert imdb.embedding_rows == 20_003
    assert imdb.train.inputs.shape == (21_250, 200)
    assert (imdb.skipped, imdb.note) == ({"train": 0, "test": 0}, "")
    assert int(imdb.train.inputs.max()) == 19_999  # the last three rows of the embedding are never read
    assert imdb.test.targets.bincount().tolist() == [12_500, 12_500]
    assert len(imdb.train.epoch(128).index) == 167


@needs_imdb
@pytest.mark.long
def test_imdb_words_counted_in_train_are_the_authors_list() -> None:
    """The same 53,784 words, and their order is an order by our counts: only ties are arranged otherwise."""
    train, _ = reviews()
    theirs, _ = classification.authors_words("imdb", DATA)
    ours = classification.word_list(train.texts)
    assert len(ours) == len(theirs) == 53_785
    assert set(ours) == set(theirs)
    counts = Counter(token for text in train.texts for token in classification.tokens_of(text))
    frequencies = [counts[word] for word in theirs[:-1]]
    assert frequencies == sorted(frequencies, reverse=True)
    assert frequencies == [counts[word] for word in ours[:-1]]


@needs_imdb
@needs_vectors
def test_imdb_vectors(imdb: classification.TextData) -> None:
    """Coverage as told in the description of the data: 64.1 % as written, 75.5 % with the fallback."""
    found = sources.find(WORD2VEC, DATA)
    assert found is not None
    rows, coverage = vectors.pretrained_rows(found.path, imdb.words, 300, torch.Generator().manual_seed(0))
    assert (coverage.exact, coverage.found) == (12_815, 15_106)
    assert found.deviation() == ""
    assert rows.shape == (20_003, 300)
    assert 1.0 < float(rows.norm(dim=1).median()) < 4.0  # original lengths, not 1


@needs("the GloVe subset", has(GLOVE))
def test_the_glove_subset_has_its_sum() -> None:
    assert sources.obtain(GLOVE, DATA).deviation() == ""


@needs_imdb
@needs_vectors
def test_vectors_that_are_all_zero_do_not_pass_for_the_published_ones(
    imdb: classification.TextData, tmp_path: Path
) -> None:
    found = sources.obtain(WORD2VEC, DATA)
    with np.load(found.path) as arrays:
        content = dict(arrays)
    content["vectors"] = np.zeros_like(content["vectors"])
    np.savez(tmp_path / found.path.name, **content)
    sentence = str(pretrained(recipe.load("imdb-original"), imdb, tmp_path)[1])
    assert "15,106 of 20,000 words" in sentence
    assert "is not the published file" in sentence


@needs_ag_news
def test_ag_news() -> None:
    data = classification.ag_news(DATA)
    assert len(data.test) == 7_599  # 7,600, less the first row
    assert data.test.targets.bincount().tolist() == [1_900, 1_900, 1_899, 1_900]
    assert data.embedding_rows == 20_003
    assert data.train.inputs.shape[1] == 100
    if ALL_NEWS:
        assert (len(data.train), len(data.valid), data.note) == (113_999, 6_000, "")
        assert len(data.train.epoch(128).index) == 891
    else:
        assert data.note == "trained on 58 % of the training rows (69,659 of 120,000)"
        assert (len(data.train), len(data.valid)) == (66_176, 3_483)
        assert torch.cat([data.train.targets, data.valid.targets]).bincount().tolist() == [
            17_335,
            17_438,
            17_493,
            17_393,
        ]
