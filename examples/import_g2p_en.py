"""The network inside g2p_en, in gatewise: checked word by word, cut, made sparse, and compared.

    pip install g2p-en                    # Apache-2.0; its weights are read from where pip put them
    OMP_NUM_THREADS=1 python examples/import_g2p_en.py --updates 400

1. reads the published weights into a Pronouncer, and checks that it answers as g2p_en's own predict() does
2. folds each embedding into the matrix that reads it, which changes no answer, and cuts what is unread then
3. makes the rest sparse by fine-tuning with a budget, and refits it
4. prints error, weights, bytes and time a word of every form, one thread, words one by one

With --runs DENSE SPARSE, two runs of the task g2p, step 4 compares these with g2p_en instead.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.export.c.rounded import rounded_model
from gatewise.lab.data.pronunciation import (
    END,
    LETTERS,
    MAX_LETTERS,
    MAX_PHONEMES,
    PHONEMES,
    START,
    WordData,
    cmudict,
    pronounced,
    spelled,
)
from gatewise.lab.finished.opened import open_run
from gatewise.lab.models import NextPhoneme, Pronouncer, WordReader
from gatewise.lab.training.evaluation import Evaluator
from gatewise.lab.training.feeds import WordFeed
from gatewise.lab.training.pronouncing import Pronouncing

CPU, BATCH, TURN = torch.device("cpu"), 256, 20


def package_folder() -> Path:
    """Where pip put g2p_en; it is not imported, because that would download data for another part of it."""
    found = importlib.util.find_spec("g2p_en")
    if found is None or not found.submodule_search_locations:
        sys.exit("g2p_en is not installed: pip install g2p-en")
    return Path(found.submodule_search_locations[0])


def original(folder: Path) -> Any:
    """g2p_en's own network. Only what reads whole sentences needs the nltk package, which is left out here."""
    names = ("nltk", "nltk.corpus", "nltk.tokenize", "g2p_en.expand")
    package = types.ModuleType("g2p_en")
    package.__path__ = [str(folder)]
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in names} | {"g2p_en": package}):
        spec = importlib.util.spec_from_file_location("g2p_en.g2p", folder / "g2p.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    network = module.G2p.__new__(module.G2p)
    network.g2idx = {letter: k for k, letter in enumerate(LETTERS)}
    network.idx2p = dict(enumerate(PHONEMES))
    network.load_variables()
    return network


def pronouncer(embedding: int, hidden: int) -> Pronouncer:
    return Pronouncer(len(LETTERS), len(PHONEMES), START, END, MAX_PHONEMES, embedding, hidden).eval()


@torch.no_grad()
def imported(network: Any) -> Pronouncer:
    """The same network as a Pronouncer: torch's GRU has the gates in the same order."""
    embedding, hidden = network.enc_emb.shape[1], network.enc_w_hh.shape[1]
    model = pronouncer(embedding, hidden)
    published = {
        "emb.weight": "enc_emb",
        "phoneme_emb.weight": "dec_emb",
        "fc.weight": "fc_w",
        "fc.bias": "fc_b",
    }
    for ours, theirs in (("encoder", "enc"), ("decoder", "dec")):
        for kind in ("ih", "hh"):
            published[f"{ours}.weight_{kind}_l0"] = f"{theirs}_w_{kind}"
            published[f"{ours}.bias_{kind}_l0"] = f"{theirs}_b_{kind}"
    model.load_state_dict({ours: torch.tensor(network.variables[name]) for ours, name in published.items()})
    return model


@torch.no_grad()
def folded(model: Pronouncer) -> Pronouncer:
    """W (E e_k) = (W E) e_k: embeddings become the identity, and the matrices that read them as wide as there are
    symbols."""
    width = len(PHONEMES)
    small = pronouncer(width, model.decoder.hidden_size)
    state = dict(model.state_dict())
    for embedding, stack in (("emb", "encoder"), ("phoneme_emb", "decoder")):
        rows = state[f"{embedding}.weight"]  # (symbols, E)
        product = state[f"{stack}.weight_ih_l0"] @ rows.mT
        state[f"{stack}.weight_ih_l0"] = nn.functional.pad(product, (0, width - len(rows)))
        state[f"{embedding}.weight"] = torch.eye(len(rows), width)
    small.load_state_dict(state)
    return small


def answer(model: Callable[[Any], Any], word: str) -> str:
    return pronounced(model(torch.tensor([spelled(word, MAX_LETTERS)]))[0].tolist())


def check_same(network: Any, model: Pronouncer, words: Sequence[str], what: str) -> None:
    """Every word, phoneme by phoneme."""
    differ = [word for word in words if " ".join(network.predict(word)) != answer(model, word)]
    print(f"{what}: {len(words) - len(differ):,} of {len(words):,} words are answered as predict() does")
    if differ:
        print(f"  not {', '.join(differ[:5])}: two phonemes are as likely there, to float32 rounding")


def errors(model: nn.Module, data: WordData, split: str) -> dict[str, float]:
    return Evaluator(model, Pronouncing(), WordFeed(getattr(data, split), BATCH), CPU)()


def updates(data: WordData, number: int) -> Iterator[Any]:
    """So many batches of training words, in an order drawn anew for every epoch."""
    feed = WordFeed(data.train, BATCH)
    for k in range(number):
        if k % feed.n_batches == 0:
            feed.reset(torch.Generator().manual_seed(k))
        yield feed.fetch(torch.tensor([k % feed.n_batches]))


def fine_tuned(model: Pronouncer, data: WordData, weights: int, number: int) -> nn.Module:
    """A budget of weights in two thirds of the updates, a refit in the rest."""
    lasso = gw.GroupLasso(model, l1=2e-6, group=3e-5)
    first = 2 * number // 3
    budget = gw.Budget(lasso, weights=weights, steps=first, begin=0.05, end=0.7)
    train(model, data, first, 1e-3, lasso.penalty, lambda: (lasso.step(), budget.step()))
    refit = gw.Refit(model)
    train(model, data, number - first, 5e-4, lambda: torch.zeros(()), refit.step)
    return gw.compress(model.eval())


def train(
    model: Pronouncer,
    data: WordData,
    number: int,
    rate: float,
    penalty: Callable[[], Tensor],
    after: Callable[[], object],
) -> None:
    """Adam, with a rate that falls to 0."""
    trained = [p for name, p in model.named_parameters() if "emb" not in name]
    optimizer, objective = torch.optim.Adam(trained, rate), Pronouncing()
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, number)
    for k, batch in enumerate(updates(data, number)):
        scores, _ = objective.run(model.train(), batch, None)
        loss = (batch.weight * objective.losses(scores, batch.targets)).sum() / batch.weight.sum()
        optimizer.zero_grad()
        (loss + penalty()).backward()
        optimizer.step()
        after()
        falling.step()
        if k % 20 == 0:
            print(f"  update {k} of {number}: loss {loss.item():.3f}", flush=True)


def microseconds(forms: dict[str, Callable[[str], Any]], words: Sequence[str]) -> dict[str, float]:
    """Median over words. The forms take turns, so that a slow moment of the machine falls on all of them: a few words
    each, as a text has them, or every one would find its weights pushed out of the caches by the others."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for first in range(0, len(words), TURN):
        for name, run in forms.items():
            for word in words[first : first + TURN]:
                start = time.perf_counter()
                run(word)
                times[name].append(1e6 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def onnx_form(model: nn.Module, folder: Path) -> Callable[[str], Any] | None:
    """ONNX Runtime, where it is installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    sessions = []
    for part, example in halves(model):
        gw.export.to_onnx(part, folder / "part.onnx", example=example)
        sessions.append(
            onnxruntime.InferenceSession(folder / "part.onnx", options, providers=["CPUExecutionProvider"])
        )
    reader, step = sessions
    (letters,), names = reader.get_inputs(), [given.name for given in step.get_inputs()]
    return looped(
        lambda ids: reader.run(None, {letters.name: ids}),
        lambda *given: step.run(None, dict(zip(names, given))),
    )


def engine_form(model: nn.Module, **options: Any) -> Callable[[str], Any]:
    reader, one = (gw.Engine(part, threads=1, **options) for part, _ in halves(model))

    def step(*given: Any) -> tuple[Any, Any]:
        phoneme, after = one(*given)
        return phoneme, after.returned[0]

    return looped(lambda ids: reader(ids)[0], step)


@torch.no_grad()
def halves(model: Any) -> list[tuple[nn.Module, Any]]:
    """Encoder and one step of the decoder, each with an example of its arguments."""
    reader, letters = WordReader(model).eval(), torch.tensor([spelled("gatewise", MAX_LETTERS)])
    return [(reader, (letters,)), (NextPhoneme(model).eval(), (torch.tensor([START]), *reader(letters)))]


def looped(read: Callable[[Any], Any], step: Callable[..., Any]) -> Callable[[str], Any]:
    """What greedy_decode does, around what stands for encoder and step."""

    def said(word: str) -> list[list[int]]:
        state, *seen = read(np.array([spelled(word, MAX_LETTERS)], np.int64))
        phoneme, answer = np.array([START]), list[int]()
        while len(answer) < MAX_PHONEMES and END not in answer:
            phoneme, state = step(phoneme, state, *seen)
            answer.append(int(phoneme[0]))
        return [answer]

    return said


LOOP = """
#include "decoder.h"
#include "encoder.h"
static encoder_state reader;
static decoder_state step;
static float {arrays};
int said(int32_t n, const int32_t *letters, int32_t *phonemes) {{
    int32_t before = {start};
    encoder_reset(&reader);
    if (encoder_run(&reader, n, letters, {left})) return 1;
    for (int32_t k = 0; k < {longest}; k++) {{
        if (decoder_run(&step, {sizes}&before, {left}, phonemes + k, state)) return 1;
        before = phonemes[k];
        if (before == {end}) break;
    }}
    return 0;
}}
"""


def exported(model: nn.Module, folder: Path, weights: str) -> list[gw.export.CSource]:
    """C of encoder and step, and said.c, the loop over the step."""
    parts, most = halves(model), MAX_LETTERS + 1
    made = [
        gw.export.to_c(part, folder / name, name=name, weights=weights, block=most, example=example)
        for name, (part, example) in zip(("encoder", "decoder"), parts)
    ]
    _, state, *seen = parts[1][1]
    sizes = [
        f"state[{state.numel()}]",
        *(f"{name}[{most * x.shape[-1]}]" for name, x in zip(("keys", "votes"), seen)),
    ]
    left = ", ".join(name.partition("[")[0] for name in sizes)
    (folder / "said.c").write_text(
        LOOP.format(
            arrays=", ".join(sizes),
            left=left,
            sizes="n, " if seen else "",
            start=START,
            end=END,
            longest=MAX_PHONEMES,
        )
    )
    return made


def c_form(folder: Path) -> Callable[[str], Any] | None:
    """The exported C, compiled for this machine and called through ctypes; where there is a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    names = "said.c", "encoder/encoder.c", "decoder/decoder.c", "encoder/gw.c", "encoder/words.c"
    flags = ["-O3", "-march=native", "-std=c99", "-ffp-contract=fast", "-shared", "-fPIC"]
    flags += [f"-I{folder / name}" for name in ("encoder", "decoder")]
    sources = [str(folder / name) for name in names]
    subprocess.run([compiler, *flags, *sources, "-o", folder / "said.so", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "said.so"))
    # Made once: an array of a new length is a new type to ctypes, which takes a fifth of the time of a word.
    letters, phonemes = (ctypes.c_int32 * (MAX_LETTERS + 1))(), (ctypes.c_int32 * MAX_PHONEMES)()

    def said(word: str) -> list[int]:
        ids = spelled(word, MAX_LETTERS)
        letters[: len(ids)] = ids
        if library.said(len(ids), letters, phonemes):
            raise ValueError(f"{word!r}: encoder_run() or decoder_run() returned an error")
        return phonemes[:]

    return said


def compare(network: Any, dense: Pronouncer, small: nn.Module, data: WordData, words: Sequence[str]) -> None:
    """Errors on test words, weights, bytes, and microseconds a word."""
    published, narrow = imported(network), rounded_model(small).eval()
    with tempfile.TemporaryDirectory() as folder:
        run = onnx_form(dense, Path(folder))
        made = {kind: exported(small, Path(folder) / kind, weights=kind) for kind in ("float32", "int8")}
        compiled = {kind: c_form(Path(folder) / kind) for kind in made}
        check_compiled(compiled, small, narrow, words)
        forms = {
            "g2p_en, NumPy": network.predict,
            **({"ONNX Runtime, dense": run} if run else {}),
            "engine, dense": engine_form(dense),
            "engine, sparse": engine_form(small),
            "engine, sparse, int8": engine_form(small, weights="int8"),
            **({"C, sparse": compiled["float32"]} if compiled["float32"] else {}),
            **({"C, sparse, int8": compiled["int8"]} if compiled["int8"] else {}),
        }
        microseconds(forms, words[:20])  # warm-up, thrown away
        times = microseconds(forms, words)
        sizes = {kind: sum(part.flash_bytes for part in parts) for kind, parts in made.items()}
    print(f"{'':22}{'word error':>12}{'phoneme error':>15}{'weights':>11}{'bytes':>12}{'us a word':>11}")
    for name, spent in times.items():
        model = (
            published
            if "NumPy" in name
            else narrow
            if "int8" in name
            else small
            if "sparse" in name
            else dense
        )
        count = gw.measure(small if "sparse" in name else model).nonzero
        size = 4 * count if "sparse" not in name else sizes["int8" if "int8" in name else "float32"]
        found = errors(model, data, "test")
        print(
            f"{name:22}{found['word_error']:>11.2f}%{found['phoneme_error']:>14.2f}%{count:>11,}{size:>12,}{spent:>11,.1f}"
        )


def check_compiled(
    compiled: dict[str, Callable[[str], Any] | None],
    small: nn.Module,
    narrow: nn.Module,
    words: Sequence[str],
) -> None:
    """The compiled networks answer as the models do, before anything is timed."""
    for kind, run in compiled.items():
        model = narrow if kind == "int8" else small
        same = sum(run is None or pronounced(run(word)) == answer(model, word) for word in words)
        print(f"C, {kind}: {same:,} of {len(words):,} words are answered as the model does")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="where cmudict/cmudict.dict is; else it is downloaded")
    parser.add_argument("--words", type=int, default=2000, help="words that are compared one by one")
    parser.add_argument("--weights", type=int, default=83_000, help="budget of the sparse network")
    parser.add_argument("--updates", type=int, default=400, help="of fine-tuning, each on 256 words; 0: none")
    parser.add_argument(
        "--runs", nargs=2, metavar=("DENSE", "SPARSE"), help="compare these networks with g2p_en"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = cmudict(given.data_dir)
    network = original(package_folder())
    model = imported(network)
    words = some_words(data, given.words)
    check_same(network, model, words, "imported")
    for split in ("valid", "test"):
        found = ", ".join(f"{name} {value:.2f}%" for name, value in errors(model, data, split).items())
        print(f"  on {split} words: {found}")
    if given.runs:
        dense, sparse = (open_run(folder).model for folder in given.runs)
        compare(network, dense, gw.compress(sparse), data, words[:500])
        return
    small = folded(model)
    check_same(network, small, words, "embeddings folded")
    print(gw.measure(gw.compress(small)))
    if given.updates:
        compare(network, model, fine_tuned(small, data, given.weights, given.updates), data, words[:500])


def some_words(data: WordData, number: int) -> list[str]:
    """Spread evenly over the training words."""
    rows = data.train.inputs[torch.linspace(0, len(data.train) - 1, number).long()]
    return ["".join(LETTERS[k] for k in ids if k > 2) for ids in rows.tolist()]


if __name__ == "__main__":
    main()
