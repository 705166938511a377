"""examples/import_g2p_en.py, with a made-up package of the same form: no network, nothing of the real one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from gatewise.lab.data.pronunciation import cmudict

SCRIPT = Path(__file__).parents[1] / "examples" / "import_g2p_en.py"
PACKAGE = """
import nltk
from .expand import normalize_numbers
import numpy as np
import os
import torch

nltk.download("would need a network")

class G2p:
    def __init__(self):
        raise RuntimeError("would need what was downloaded")

    def load_variables(self):
        self.variables = np.load(os.path.join(os.path.dirname(__file__), "weights.npz"))
        for name in self.variables:
            setattr(self, name, self.variables[name])

    def cell(self, part, x, h):
        weights = [torch.tensor(getattr(self, f"{part}_{name}")) for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
        return torch.gru_cell(x, h, *weights)

    def predict(self, word):
        h = torch.zeros(1, self.enc_w_hh.shape[1])
        for letter in [*word, "</s>"]:
            h = self.cell("enc", torch.tensor(self.enc_emb[[self.g2idx[letter]]]), h)
        said, last = [], 2
        while len(said) < 20:
            h = self.cell("dec", torch.tensor(self.dec_emb[[last]]), h)
            last = int((h @ torch.tensor(self.fc_w).T + torch.tensor(self.fc_b)).argmax())
            if last == 3:
                break
            said.append(self.idx2p[last])
        return said
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_g2p_en", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def network(script: ModuleType, tmp_path: Path) -> Any:
    draw = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "enc_emb": (29, 6),
        "dec_emb": (74, 6),
        "fc_w": (74, 5),
        "fc_b": (74,),
    }
    for part in ("enc", "dec"):
        shapes |= {
            f"{part}_w_ih": (15, 6),
            f"{part}_w_hh": (15, 5),
            f"{part}_b_ih": (15,),
            f"{part}_b_hh": (15,),
        }
    arrays = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "weights.npz", **arrays)
    (tmp_path / "g2p.py").write_text(PACKAGE)
    return script.original(tmp_path)


def test_imported_and_folded_networks_answer_as_the_package_does(script: ModuleType, network: Any) -> None:
    """Phoneme by phoneme; after folding an embedding has one number a symbol."""
    words = ["a", "gate", "wise", "zzzzz", "neuron"]
    model = script.imported(network)
    small = script.folded(model)
    for word in words:
        expected = " ".join(network.predict(word))
        assert script.answer(model, word) == script.answer(small, word) == expected
    assert int((small.emb.weight != 0).sum()) == 29


def test_a_budget_is_met_and_the_table_printed(
    script: ModuleType, network: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["".join(chr(97 + k // 26**p % 26) for p in range(3)) for k in range(400)]
    (tmp_path / "cmudict.dict").write_text("".join(f"{name} B AE1 T\n" for name in names))
    data = cmudict(tmp_path)
    torch.manual_seed(0)
    model = script.imported(network)
    small = script.fine_tuned(script.folded(model), data, 1500, 6)
    script.compare(network, model, small, data, ["gate", "wise"])
    shown = capsys.readouterr().out
    assert "engine, sparse" in shown
    assert "ONNX Runtime, dense" in shown
    assert sum(int(p.count_nonzero()) for name, p in small.named_parameters() if "weight" in name) <= 1500
