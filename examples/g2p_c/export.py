"""A trained speller as a C function, g2p("gatewise", out, sizeof out), for a machine without files and malloc.

    python examples/g2p_c/export.py runs/g2p-original g2p     # int8; --float32 for four bytes a weight
    make -C g2p check && g2p/build/g2p gatewise sparse
    make -C g2p size                                          # on a Cortex-M4, with gcc-arm-none-eabi

Two networks are exported, the encoder and one step of the decoder; g2p.c loops over the step. The run is of the
task g2p, with GRUs and attention, or a folder that such a model was saved in.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

import gatewise as gw
from gatewise.export.c.rounded import rounded_layers
from gatewise.lab.data.encoding import Encoding
from gatewise.lab.data.pronunciation import END, LETTER_END, START
from gatewise.lab.finished.opened import open_run
from gatewise.lab.models import NextPhoneme, Pronouncer, WordReader

HERE = Path(__file__).parent
PROGRAM = ("g2p.h", "g2p.c", "main.c", "Makefile")
WORDS = "gatewise sparse neuron gate phoneme through though knight a strengths queue onomatopoeia".split()


def export(
    model: Pronouncer, encoding: Encoding, folder: Path, weights: str = "int8", words: Sequence[str] = WORDS
) -> list[gw.export.CSource]:
    """Write the folder: encoder and decoder, letters and phonemes, golden words, and the program around them."""
    small = gw.compress(model.eval())
    encoder, decoder = WordReader(small).eval(), NextPhoneme(small).eval()
    spelled = {word: torch.from_numpy(encoding.encode(word))[None] for word in words}
    answering = rounded_layers(small) if weights == "int8" else small
    with torch.no_grad():
        ids = {word: answering(letters)[0].numpy() for word, letters in spelled.items()}
        state, keys, votes = encoder(spelled[words[0]])
    made = [
        gw.export.to_c(
            part, folder / name, name=name, weights=weights, block=encoding.max_len + 1, example=example
        )
        for name, part, example in (
            ("encoder", encoder, (spelled[words[0]],)),
            ("decoder", decoder, (torch.tensor([START]), state, keys, votes)),
        )
    ]
    said = {word: str(encoding.decode(answer)) for word, answer in ids.items()}
    sizes = {
        "PHONEMES": len(ids[words[0]]),
        "STATE": state.numel(),
        "KEY": keys.shape[-1],
        "SOUNDS": votes.shape[-1],
    }
    (folder / "phonemes.h").write_text(tables(encoding, sizes))
    (folder / "golden_words.h").write_text(golden(said))
    for file in PROGRAM:
        shutil.copy(HERE / file, folder / file)
    return made


def tables(encoding: Encoding, sizes: dict[str, int]) -> str:
    """phonemes.h: what ids of letters and phonemes mean, and how large the arrays between the networks are."""
    names = encoding.classes
    letters = "".join(encoding.symbols[LETTER_END + 1 :])
    sizes |= {"LETTERS": encoding.max_len, "ROOM": sizes["PHONEMES"] * (max(map(len, names)) + 1)}
    return f"""\
/* Letters in, phonemes out. */

enum {{ {", ".join(f"G2P_{name} = {size}" for name, size in sizes.items())} }};
enum {{ FIRST_LETTER = {LETTER_END + 1}, LETTER_END = {LETTER_END}, PHONEME_START = {START}, PHONEME_END = {END} }};

static const char letters[] = "{letters}";
static const char phonemes[][{max(map(len, names)) + 1}] = {{
    {", ".join(f'"{name}"' for name in names)}}};
"""


def golden(said: dict[str, str]) -> str:
    lines = "".join(f'    {{"{word}", "{sounds}"}},\n' for word, sounds in said.items())
    head = "/* What the network says, computed in Python. */\n\nstatic const struct {\n    const char *word, *said;\n"
    return f"{head}}} golden[] = {{\n{lines}}};\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--float32", action="store_true")
    given = parser.parse_args()
    run = open_run(given.run)
    if run.encoding is None or run.encoding.kind != "spellings" or not isinstance(run.model, Pronouncer):
        parser.error(f"{given.run}: is no run of the task g2p.")
    if run.model.config()["cell"] != "GRU" or not run.model.config()["attention"]:
        parser.error(f"{given.run}: g2p.c is written for GRUs with attention (model.attention, model.cell).")
    given.folder.mkdir(parents=True, exist_ok=True)
    made = export(run.model, run.encoding, given.folder, "float32" if given.float32 else "int8")
    constants, ram = sum(part.flash_bytes for part in made), max(part.ram_bytes for part in made)
    print(f"{given.folder}: constants {constants:,} bytes, RAM of the networks {ram:,} bytes")


if __name__ == "__main__":
    main()
