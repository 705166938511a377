"""examples/g2p_c: a word in, phonemes out, in C."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from compiled import need_arm, run
from torch import nn

import gatewise as gw
from gatewise.lab.data.encoding import ENCODING, Encoding, content_of
from gatewise.lab.data.pronunciation import END, LETTERS, PHONEMES, START
from gatewise.lab.models import Pronouncer

EXAMPLE = Path(__file__).parents[2] / "examples" / "g2p_c"


ATTENTIVE = {"layers": 2, "bidirectional": True, "attention": 4}


@pytest.fixture(scope="module", params=[{"attention": 4}, ATTENTIVE], ids=["forwards", "both ways"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a small speller that nobody trained: what it says is nonsense, and always the same."""
    torch.manual_seed(3)
    sizes = {"embedding": 8, "hidden": 12, **request.param}
    model = Pronouncer(len(LETTERS), len(PHONEMES), START, END, 20, **sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.7)
        model.decoder.get_parameter("weight_hh_l0")[:, ::3] = 0
        for reader in (model.fc, model.query):
            reader.weight[:, ::3] = 0
    made = tmp_path_factory.mktemp("g2p") / "made"
    exported(model, tmp_path_factory.mktemp("saved"), made)
    return made


def exported(model: Pronouncer, saved: Path, made: Path) -> None:
    encoding = Encoding("spellings", LETTERS, max_len=22, classes=PHONEMES)
    gw.save(model, saved, attached={ENCODING: content_of(encoding)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["export.py", str(saved), str(made)])
        runpy.run_path(str(EXAMPLE / "export.py"), run_name="__main__")


def test_other_networks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What passes from encoder to decoder is written down in g2p.c."""
    model = Pronouncer(len(LETTERS), len(PHONEMES), START, END, 20, embedding=8, hidden=12).eval()
    with pytest.raises(SystemExit):
        exported(model, tmp_path / "saved", tmp_path / "made")
    assert "g2p.c is written for GRUs with attention" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_golden_words(folder: Path) -> None:
    """The compiled function says what the network with rounded weights says in Python."""
    said = run("make", "-C", folder, "check")
    assert "12 golden words, 0 wrong" in said
    assert "whole numbers: ok" in said
    sounds = run(folder / "build" / "g2p", "gatewise").split()[1:]
    assert sounds
    assert set(sounds) <= set(PHONEMES[END + 1 :])


def test_bad_words_are_one_sentence(folder: Path) -> None:
    run("make", "-C", folder)
    for word, reason in (("", "is empty"), ("it's", "else than letters a-z"), ("a" * 23, "is too long")):
        assert reason in run(folder / "build" / "g2p", word, expect=1)
    assert run(folder / "build" / "g2p", "a" * 22)


def test_it_fits_a_microcontroller(folder: Path, tmp_path: Path) -> None:
    """It compiles for a Cortex-M4 without anything that allocates; sizes are printed."""
    need_arm(tmp_path)
    printed = run("make", "-C", folder, "size")
    assert "(TOTALS)" in printed
    assert "warning" not in printed
    symbols = run("arm-none-eabi-nm", "--undefined-only", *sorted((folder / "build").glob("*.arm.o")))
    assert "malloc" not in symbols
