"""Recipes: all are read and built, what is misspelt is refused, the paper's numbers are in them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from gatewise.lab import recipe
from gatewise.lab.data.batches import Examples
from gatewise.lab.data.classification import TextData
from gatewise.lab.data.language import LanguageData, Vocabulary
from gatewise.lab.data.pronunciation import WordData
from gatewise.lab.schema import KEYS, READERS, TAGS, WORDS, Recipe, RecipeError, is_read, parse
from gatewise.lab.training.assembly import build_model, make_sparsifier
from gatewise.lab.training.parts import learning_rates

FOUR = ("original", "bayes-w", "bayes-wn", "bayes-wgn")
ROWS = [
    *(f"{task}-{row}" for task in ("imdb", "agnews", "ptb-char") for row in FOUR),
    *(f"ptb-word-small-{row}" for row in (*FOUR, "prune-wn", "prune-wgn")),
    *(f"ptb-word-large-{row}" for row in ("original", "prune-wn", "prune-wgn")),
]
OTHERS = [
    "ptb-word-small-prune-wn-best",
    "ptb-word-small-prune-wgn-best",
    "ptb-word-large-prune-wn-best",
    "ptb-word-large-prune-wgn-best",
    "ptb-word-small-prune-wgn-budget",
    "ptb-word-small-prune-wgn-neurons",
    "ptb-word-large-prune-wn-budget",
    "ptb-word-large-prune-wgn-average",
    "ptb-word-large-prune-wgn-budget",
    "ptb-word-small-prune-wgn-refit",
    "ptb-word-small-dense",
    "ptb-word-small-prune-wgn-gru",
    "imdb-bayes-wgn-gru",
    *(f"g2p-{row}" for row in ("original", "bayes-wgn", "prune-wgn", "prune-wgn-60k")),
    *(
        f"{task}-bayes-{levels}-{kind}"
        for task in ("imdb", "agnews", "ptb-char", "ptb-word-small")
        for levels in ("w", "wn", "wgn")
        for kind in ("best", "cut")
        if (task, levels, kind) != ("agnews", "w", "cut")  # its -best is not larger than the paper's
    ),
]
BASE = {"data": {"task": "word-ptb", "batch": 4}, "model": {"hidden": 3}, "train": {"epochs": 2, "lr": 1.0}}


def corpus(row: Recipe) -> LanguageData | TextData | WordData:
    """As large a vocabulary as the real one, and hardly any text."""
    if row.data.task in ("word-ptb", "char-ptb"):
        words = row.data.task == "word-ptb"
        symbols = Vocabulary(tuple(map(str, range(10_000 if words else 50))))
        return LanguageData(*[torch.zeros(9, dtype=torch.long)] * 3, symbols, "word" if words else "char")
    rows = Examples(torch.zeros(2, 3, dtype=torch.long), torch.ones(2), torch.zeros(2, dtype=torch.long))
    if row.data.task == "g2p":
        return WordData(rows, rows, rows)
    classes = ("0", "1") if row.data.task == "imdb" else ("0", "1", "2", "3")
    return TextData(rows, rows, rows, tuple(map(str, range(20_000))), classes, {})


def test_there_is_a_recipe_for_every_row() -> None:
    assert len(ROWS) == 21
    assert recipe.names() == sorted(ROWS + OTHERS)


def test_a_packaged_recipe_is_no_path() -> None:
    """A folder before its name is a mistake; what one caller changes no other one sees."""
    with pytest.raises(RecipeError, match="no recipe 'runs/imdb-original'; did you mean 'imdb-original'"):
        recipe.load("runs/imdb-original")
    before = recipe.load("imdb-original")
    recipe.load("imdb-original", ["model.hidden=3"])
    before.expect["test_accuracy"] = 0
    assert recipe.load("imdb-original").model.hidden == before.model.hidden == 128
    assert recipe.load("imdb-original").expect["test_accuracy"] == 84.1


@pytest.mark.parametrize("name", ROWS + OTHERS)
def test_recipe_builds_its_network(name: str) -> None:
    """Read, written and read again, and built with the paper's number of weights."""
    row = recipe.load(name)
    assert parse(tomllib.loads(recipe.dump(row))) == row
    with torch.device("meta"):
        model = build_model(row, corpus(row))
    weights = {"imdb": 6_220_164, "agnews": 7_665_924, "ptb-char": 4_250_000, "ptb-word-small": 4_640_000}
    total = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    expected = next((n for start, n in weights.items() if name.startswith(start)), 66_000_000)
    assert row.model.cell == "GRU" or name.endswith("dense") or total == expected
    method = {"o": "none", "d": "none", "b": "variational", "p": "group-lasso"}
    kind = name.replace("ptb-word-small-", "").replace("ptb-word-large-", "").replace("ptb-char-", "")
    kind = kind.removeprefix("imdb-").removeprefix("agnews-").removeprefix("g2p-")
    assert row.sparsify.method == method[kind[0]]
    levels = {"w": "W", "wn": "W+N", "wgn": "W+G+N"}.get(kind.split("-")[1]) if kind[0] not in "od" else None
    assert levels in (None, getattr(row.sparsify, "levels", None))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_holds_the_papers_numbers(name: str) -> None:
    """`[expect]` has a quality, and counts of as many layers as the network has."""
    row = recipe.load(name)
    assert any(key.startswith("test_") for key in row.expect)
    assert row.expect["compression"] >= 1
    assert len(row.expect["neurons"]) == len(row.expect["live_gates"]) == row.model.layers


def test_a_sparse_recipe_sparsifies_what_the_paper_says() -> None:
    """z of words for texts only; L1 on the softmax, not on the embedding."""
    texts, words = recipe.load("imdb-bayes-w"), recipe.load("ptb-word-small-prune-wgn")
    tiny = ["model.hidden=2", "model.embedding=2"]
    texts, words = recipe.load(texts.name, tiny), recipe.load(words.name, tiny)
    model = build_model(texts, corpus(texts))
    make_sparsifier(texts, model, 10, 1)
    names = dict(model.named_parameters())
    assert "emb.word_scale" in names
    assert not any(name.startswith("rnn.gate_scale") for name in names)
    model = build_model(words, corpus(words))
    lasso = make_sparsifier(words, model, 10, 1)
    assert lasso is not None
    lasso.penalty().backward()
    pulled = {name for name, p in model.named_parameters() if p.grad is not None}
    ends = ("ih_l0", "hh_l0", "ih_l1", "hh_l1")
    assert pulled == {*(f"rnn.weight_{end}" for end in ends), "fc.weight"}


def test_schedules_are_the_papers() -> None:
    """0.6^max(e - 4, 0); d^((e - 1) // 18) with epoch 55 alone at d^3; constant, then linear to 0."""
    small, large = recipe.load("ptb-word-small-prune-wgn").train, recipe.load("ptb-word-large-prune-wn").train
    for epoch in range(1, 21):
        assert learning_rates(small, epoch, 3) == pytest.approx([0.6 ** max(epoch - 4, 0)] * 3)
    steps = [learning_rates(large, epoch, 1)[0] for epoch in range(1, 56)]
    assert steps == pytest.approx([1.0] * 18 + [0.2] * 18 + [0.04] * 18 + [0.008])
    bayes = recipe.load("ptb-word-small-bayes-wgn", ["epochs=4", "after=2"]).train
    rates = [rate for epoch in range(1, 5) for rate in learning_rates(bayes, epoch, 2)]
    assert rates == pytest.approx([0.002 * min(1, (8 - k) / 4) for k in range(8)])
    assert set(learning_rates(recipe.load("imdb-bayes-w").train, 800, 2)) == {5e-4}


def test_warm_up_multiplies_the_schedule() -> None:
    """Update u of the run by min(1, u / 5): over an epoch's end, and on top of a rate that falls."""
    warm = recipe.load("ptb-word-large-prune-wn", ["train.warm_up=5"]).train
    assert learning_rates(warm, 1, 3) == pytest.approx([0.2, 0.4, 0.6])
    assert learning_rates(warm, 2, 3) == pytest.approx([0.8, 1.0, 1.0])
    assert learning_rates(warm, 19, 3) == pytest.approx([0.2] * 3)
    falling = recipe.load("ptb-word-small-bayes-w", ["epochs=1", "after=0", "lr=1", "warm_up=2"]).train
    assert learning_rates(falling, 1, 4) == pytest.approx([1 / 2, 3 / 4, 1 / 2, 1 / 4])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": {"hiden": 3}}, r"no key 'model.hiden'; did you mean 'model.hidden'"),
        ({"modle": {}}, "no key 'modle'; did you mean 'model"),
        ({"train": {"epochs": 2}}, "train.lr is missing"),
        ({"data": {"batch": 2}}, "data.task is missing"),
        (
            {"data": {"task": "wordptb", "batch": 2}},
            "data.task = 'wordptb' is not one of 'word-ptb', 'char-ptb'",
        ),
        ({"sparsify": {"levels": "W"}}, "sparsify.method is missing"),
        ({"title": 3}, "title = 3 should be a valid string"),
        ({"train": {"epochs": "2", "lr": 1}}, "train.epochs = '2' should be a valid integer"),
        ({"train": {"epochs": True, "lr": 1}}, "train.epochs = True should be a valid integer"),
        ({"train": {"epochs": 0, "lr": 1}}, "train.epochs = 0 should be greater than 0"),
        ({"model": {"hidden": 3, "cell": "lstm"}}, "model.cell = 'lstm' should be 'LSTM' or 'GRU'"),
        ({"model": {"hidden": 3, "dropout": 1.0}}, "model.dropout = 1.0 should be less than 1"),
        ({"data": {"task": "words", "batch": 2}}, "needs data.path"),
        ({"sparsify": {"method": "group-lasso"}}, "it needs group > 0"),
        ({"train": {"epochs": 2, "lr": 1, "schedule": "stairs"}}, "needs train.after"),
        ({"train": {"epochs": 2, "lr": 1, "schedule": "linear", "after": 2}}, "must be below train.epochs"),
        ({"train": {"epochs": 2, "lr": 1, "schedule": "power", "decay": 0}}, "train.decay"),
        (
            {"data": {"task": "imdb", "batch": 2}, "train": {"epochs": 1, "lr": 1, "loss": "window-sum"}},
            "train.loss = 'window-sum' does nothing with data.task = 'imdb'",
        ),
        ({"data": 3}, "must be a section"),
        ({"expect": 3}, "must be a section"),
    ],
)
def test_mistakes_are_named(changed: dict[str, object], said: str) -> None:
    """A key nobody reads would be a setting that was never made."""
    with pytest.raises(RecipeError, match=said):
        parse({**BASE, **changed})


def test_a_section_that_must_be_there_is_named() -> None:
    with pytest.raises(RecipeError, match=r"^\[train\] is missing\.$"):
        parse({key: section for key, section in BASE.items() if key != "train"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.batch=0", "greater than 0"),
        ("data.steps=0", "greater than 0"),
        ("data.chunk=0", "greater than 0"),
        ("data.test_batch=-4", "greater than 0"),
        ("data.max_len=0", "greater than 0"),
        ("data.vocabulary_size=1", "greater than or equal to 2"),
        ("data.valid_fraction=0.0", "greater than 0"),
        ("data.valid_fraction=1.0", "less than 1"),
        ("model.embedding=-1", "greater than 0"),
        ("model.dropout=-0.1", "greater than or equal to 0"),
        ("model.init_range=nan", "a finite number"),
        ("model.forget_bias=inf", "a finite number"),
        ("sparsify.l1=-1e-05", "greater than or equal to 0"),
        ("sparsify.threshold=-0.1", "greater than or equal to 0"),
        ("sparsify.snr_threshold=0.0", "greater than 0"),
        ("sparsify.log_sigma=-inf", "a finite number"),
        ("sparsify.warm_up_epochs=-1.0", "greater than or equal to 0"),
        ("train.lr=inf", "a finite number"),
        ("train.after=-1", "greater than or equal to 0"),
        ("train.warm_up=-1", "greater than or equal to 0"),
        ("train.clip=-1.0", "greater than 0"),
        ("train.clip=0.0", "greater than 0"),
        ("train.clip_probabilities=2.0", "less than 0.5"),
        ("train.clip_probabilities=0.5", "less than 0.5"),
        ("train.patience=-3", "greater than 0"),
        ("train.test_every=-2", "greater than or equal to 0"),
        ("train.seed=-1", "greater than or equal to 0"),
        ("train.seed=18446744073709551616", "less than 18446744073709551616"),
    ],
)
def test_numbers_out_of_range_are_refused(change: str, said: str) -> None:
    """Each would train something else without a word (clip = -1 turns the gradient round), or fail epochs later."""
    key, _, value = change.partition("=")
    words = {"data.task": "word-ptb", "sparsify.method": "group-lasso"}
    row = "ptb-word-small-prune-wgn" if is_read(key, words) else "imdb-bayes-wgn"
    with pytest.raises(RecipeError) as caught:
        recipe.load(row, [change])
    assert str(caught.value) == f"--set {change}: {key} = {value} should be {said}."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("epoch=3", "did you mean 'train.epochs'"),
        ("train.lerning_rate=3", "there is no such key"),
        ("trian.epochs=3", "did you mean 'train.epochs'"),
        ("epochs", "write it as section.key=value"),
        ("=3", "write it as section.key=value"),
        ("train.epochs=three", "should be a valid integer"),
        ("data.task=wordptb", "is not one of"),
        ("qqqq=1", "there is no such key"),
    ],
)
def test_set_typos_are_refused(change: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load("ptb-word-small-prune-wgn", [change])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["train.epochs=0", "train.lr=1"],
            "--set train.epochs=0: train.epochs = 0 should be greater than 0.",
        ),
        (["hidden=three"], "--set hidden=three: model.hidden = 'three' should be a valid integer."),
        (
            ["train.epochs=5"],
            "--set train.epochs=5: train.after = 25 must be below train.epochs = 5, because the rate falls "
            "from there on. Set both, for instance --set train.after=2.",
        ),
        (
            ["sparsify.method=group-lasso"],
            "--set sparsify.method=group-lasso: sparsify.method = 'group-lasso'",
        ),
    ],
)
def test_what_a_change_caused_names_the_change(changes: list[str], said: str) -> None:
    """Not the packaged file, which is right; and the way out works."""
    with pytest.raises(RecipeError) as caught:
        recipe.load("ptb-word-small-bayes-wgn", changes)
    assert str(caught.value).startswith(said)
    assert recipe.load("ptb-word-small-bayes-wgn", ["train.epochs=5", "train.after=2"]).train.epochs == 5


def test_what_a_file_says_wrong_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(recipe.dump(recipe.load("imdb-original")).replace("hidden = 128", "hidden = 0"))
    with pytest.raises(RecipeError) as caught:
        recipe.load(path, ["train.seed=1"])
    assert str(caught.value).startswith(f"{path}: model.hidden = 0")


def test_set_changes_one_key() -> None:
    """With or without its section, strings with or without quotes; later changes win."""
    changes = ["epochs=3", "train.lr=2", "model.cell=GRU", 'sparsify.levels="W+N"', "lr=0.5"]
    row = recipe.load("ptb-word-small-prune-wgn", changes)
    assert (row.train.epochs, row.train.lr, row.model.cell, row.sparsify.levels) == (3, 0.5, "GRU", "W+N")


def test_on_own_data_nothing_speaks_of_the_papers() -> None:
    """A report would show the paper's accuracy on IMDb beside that on your mails."""
    own = ["data.task=csv", "data.path=in/mails.csv"]
    row = recipe.load("imdb-bayes-wgn", own)
    assert (row.title, row.expect) == ("mails.csv, Bayes W+G+N", {})
    assert recipe.load("imdb-original", own).title == "mails.csv, dense network"
    assert recipe.load("imdb-bayes-wgn", ["train.seed=1"]).expect


def test_a_title_of_ones_own_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    row = recipe.load("imdb-bayes-wgn", ["data.task=csv", "data.path=a.csv"])
    path.write_text(recipe.dump(row).replace("a.csv, Bayes W+G+N", "My mails"))
    assert recipe.load(path, ["data.path=b.csv"]).title == "My mails"


@pytest.mark.parametrize("name", ["mäil.csv", "mail\U0001f600.csv", 'a"b\\c.csv'])
def test_every_path_can_be_read_back(name: str, tmp_path: Path) -> None:
    row = recipe.load("imdb-bayes-wgn", ["data.task=csv", f"data.path={name}"])
    (tmp_path / "recipe.toml").write_text(recipe.dump(row), encoding="utf-8")
    assert recipe.load(tmp_path / "recipe.toml") == row


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_base_gives_what_the_file_does_not_say(tmp_path: Path) -> None:
    """Key by key in the sections, the expected numbers as a whole; by name, or by path from the file's folder."""
    row = recipe.load("imdb-bayes-wgn")
    near = write(tmp_path / "near.toml", 'base = "imdb-bayes-wgn"\n[train]\nlr = 0.01\n')
    got = recipe.load(near)
    assert got.name == "near"
    train = row.train.model_copy(update={"lr": 0.01})
    assert got == row.model_copy(update={"name": "near", "train": train})
    far = write(
        tmp_path / "sub" / "far.toml", 'base = "../near.toml"\ntitle = "Far"\n[expect]\nneurons = [1]\n'
    )
    got = recipe.load(far, ["train.epochs=3"])
    assert (got.name, got.title, got.train.lr, got.train.epochs, got.expect) == (
        "far",
        "Far",
        0.01,
        3,
        {"neurons": [1]},
    )
    assert parse(tomllib.loads(recipe.dump(got))) == got


@pytest.mark.parametrize("start", ["", "start.run=somewhere"])
@pytest.mark.parametrize("kind", ["weights", "bytes"])
def test_a_refit_that_fills_zeros_is_refused_where_the_budget_counts_them(kind: str, start: str) -> None:
    """The budget would be met by [train] and broken by [refit], in silence; of gates and neurons none comes back."""
    changes = ["refit.hold=structure", *filter(None, [start])]
    with pytest.raises(RecipeError, match=f"budget.{kind} = 90000, refit.hold = 'structure': zeros"):
        recipe.load("g2p-prune-wgn", [*changes, f"budget.{kind}=90_000"])
    assert recipe.load("g2p-prune-wgn", [*changes, "budget.gates=90"]).refit.hold == "structure"


def test_another_budget_takes_the_place_of_the_recipes(tmp_path: Path) -> None:
    """There is one budget; who names bytes need not know how to take back weights. Two at once are refused."""
    assert set(recipe.load("g2p-prune-wgn").budget.wanted()) == {"weights"}
    asked = recipe.load("g2p-prune-wgn", ["budget.bytes=100_000"]).budget
    assert (asked.wanted(), asked.end) == ({"bytes": 100_000}, 0.7)
    mine = write(tmp_path / "mine.toml", 'base = "g2p-prune-wgn"\n[budget]\ngates = 90\n')
    assert recipe.load(mine).budget.wanted() == {"gates": 90}
    with pytest.raises(RecipeError, match="has gates and bytes; keep one of them"):
        recipe.load("g2p-prune-wgn", ["budget.bytes=100_000", "budget.gates=3"])


def test_a_base_of_the_papers_on_own_data(tmp_path: Path) -> None:
    """Its numbers are not those of the paper's data; a title of one's own stays."""
    text = 'base = "imdb-bayes-wgn"\n[data]\ntask = "csv"\npath = "mails.csv"\n'
    got = recipe.load(write(tmp_path / "mine.toml", text))
    assert (got.title, got.expect) == ("mails.csv, Bayes W+G+N", {})
    assert recipe.load(write(tmp_path / "mine.toml", 'title = "Mails"\n' + text)).title == "Mails"


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ('"imdb-bayes-wng"', r"mine.toml: base: no recipe 'imdb-bayes-wng'; did you mean 'imdb-bayes-wn'"),
        ('"gone.toml"', r"gone.toml: cannot be read"),
        ('"mine.toml"', r"mine.toml: base = 'mine.toml' leads back to mine.toml"),
        ("3", r"base = 3 must be the name of a recipe"),
    ],
)
def test_a_base_that_cannot_be_is_named(base: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load(write(tmp_path / "mine.toml", f"base = {base}\n"))


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(recipe.dump(recipe.load("imdb-original")), encoding="utf-8-sig")
    assert recipe.load(tmp_path / "mine.toml") == recipe.load("imdb-original")


def test_columns_go_by_name_or_position() -> None:
    own = ["data.task=csv", "data.path=a.csv"]
    data = recipe.load("imdb-original", [*own, "data.text_column=1", "data.label_column=0"]).data
    assert (data.text_column, data.label_column) == (1, 0)
    assert recipe.load("imdb-original", [*own, 'data.text_column="1"']).data.text_column == "1"
    with pytest.raises(RecipeError, match="text_column = True should be a valid string"):
        recipe.load("imdb-original", [*own, "data.text_column=true"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["data.path=a.csv"],
            "data.path = 'a.csv' does nothing with data.task = 'imdb', only with words or characters or csv",
        ),
        (["data.test_path=a.csv"], "only with words or characters or csv or npz"),
        (
            ["data.task=csv", "data.path=a", "data.valid_path=b"],
            "data.valid_path = 'b' does nothing with data.task = 'csv'",
        ),
    ],
)
def test_a_file_that_nobody_would_read_is_refused(changes: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load("imdb-bayes-wgn", changes)


def test_unknown_recipe_and_broken_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'imdb-bayes-wgn'"):
        recipe.load("imdb-bays-wgn")
    with pytest.raises(RecipeError, match="cannot be read"):
        recipe.load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[data\n")
    with pytest.raises(RecipeError, match="is not TOML"):
        recipe.load(broken)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("ptb-char-bayes-wgn", ["model.dropout=0.9"], "data.task = 'char-ptb'"),
        ("ptb-char-bayes-wgn", ["embedding=77"], "data.task = 'char-ptb'"),
        ("ptb-word-small-bayes-wgn", ["data.lower=true"], "only with imdb or agnews or csv"),
        ("imdb-bayes-wgn", ["data.steps=5"], "data.task = 'imdb'"),
        ("imdb-bayes-wgn", ["sparsify.group=0.1"], "sparsify.method = 'variational'"),
        ("ptb-word-small-prune-wgn", ["sparsify.noise=batch"], "only with variational"),
        ("imdb-original", ["sparsify.levels=W"], "sparsify.method = 'none'"),
    ],
)
def test_a_change_that_does_nothing_is_refused(name: str, changes: list[str], said: str) -> None:
    """Who sets a key expects it to matter; in a file it may wait for other data."""
    with pytest.raises(RecipeError, match="does nothing with") as caught:
        recipe.load(name, changes)
    assert said in str(caught.value)
    recipe.load("imdb-bayes-wgn", ["data.task=npz", "data.path=x.npz"])


def test_keys_that_not_everyone_reads_are_keys() -> None:
    assert READERS.keys() <= KEYS.keys()
    for tags in READERS.values():
        for tag, words in tags.items():
            section, _, key = tag.partition(".")
            assert TAGS[section] == key
            assert words
            assert set(words) < WORDS[section].keys()
