"""What the paper says about the gates that are left, asked of our runs: numbers, a threshold, a verdict.

Every claim is asked of every stored seed that has what it needs: the result, the gate map (gates.json), or the
network itself for cell states and gradients, which take the real data (GATEWISE_DATA). A claim whose rows were not
run says so. Numbers of several seeds stand side by side, in the order of the seeds.

    layer 2    the last layer of the word model
    o-only     of a neuron's four gates only the output gate is live
    ratio      of a neuron's gradient: mean norm at lags 20 to 100 over mean norm at lags 0 to 5
    overlap    of two layers: sum over patterns of live gates of the smaller of their two shares; 1 if they are equal
    by chance  the same if in one of the two every kind of gate were live as often, but independently of the others

    python reproduction/claims.py --json reproduction/claims.json
    python reproduction/claims.py --markdown
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from stored import RESULTS, stored_runs
from verdicts import (
    ALIKE,
    CLEARLY,
    LONG,
    SETTLED,
    SHORT,
    Found,
    all_long,
    fewer,
    full_are_long,
    keeps_g,
    less_compressed,
    long_are_full,
    long_by_themselves,
    many_output_only,
    monotone,
    not_fewer,
    other_structure,
    output_only_are_short,
    output_only_everywhere,
    same_patterns,
    settles,
    shows_o,
    uses_nearly_all,
)

from gatewise.lab.files import GATES, MODEL, RESULT

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Claim:
    key: str  # a letter, which numbered() completes
    text: str
    threshold: str
    rows: Sequence[str]
    needs: str  # RESULT, GATES or MODEL, of at least one seed of every row
    check: Callable[..., Found]  # gets the runs of each row

    def ask(self, results: Path) -> dict[str, Any]:
        runs = [stored_runs(results, row, self.needs) for row in self.rows]
        missing = [row for row, own in zip(self.rows, runs) if not own]
        not_run: Found = NOT_RUN, {}, f"without {self.needs}: {', '.join(missing)}"
        said, found, line = not_run if missing else self.check(*runs)
        return {
            "claim": self.key,
            "text": self.text,
            "threshold": self.threshold,
            "verdict": said,
            "line": line,
            "seeds": {row: [run.seed for run in own] for row, own in zip(self.rows, runs)},
            "numbers": found,
        }


def numbered(claims: Sequence[Claim]) -> list[Claim]:
    """a1, a2, ...; the letter alone where it has one claim."""
    together, seen = Counter(claim.key for claim in claims), Counter[str]()
    found = []
    for claim in claims:
        seen[claim.key] += 1
        number = str(seen[claim.key]) if together[claim.key] > 1 else ""
        found.append(replace(claim, key=claim.key + number))
    return found


WGN, WN, W, PRUNED, PRUNED_WN = (
    f"ptb-word-small-{row}" for row in "bayes-wgn bayes-wn bayes-w prune-wgn prune-wn".split()
)
KEEPS_G = "every seed: g live in 3/4 of the kept neurons or more, o in 1/4 or less"
OVERLAP = (
    f"every layer: {ALIKE} of the overlap of two seeds (1 if there is one), {CLEARLY} more than by chance"
)
FEWER = "every W+G+N run has fewer of both than every W+N run"
TEXTS = {"IMDb": "imdb-bayes-{}", "IMDb, best": "imdb-bayes-{}-best",
         "AG News": "agnews-bayes-{}", "AG News, best": "agnews-bayes-{}-best"}  # fmt: skip
PAIRS = {
    "IMDb": ("imdb-bayes-wn", "imdb-bayes-wgn"),
    "IMDb, best": ("imdb-bayes-wn-best", "imdb-bayes-wgn-best"),
    "AG News": ("agnews-bayes-wn", "agnews-bayes-wgn"),
    "AG News, best": ("agnews-bayes-wn-best", "agnews-bayes-wgn-best"),
    "word PTB small, Bayes": (WN, WGN),
    "word PTB small, Bayes, best": (f"{WN}-best", f"{WGN}-best"),
    "word PTB small, pruning, both lambdas as stated": (PRUNED_WN, PRUNED),
    "word PTB small, pruning W+N with our lambda": (f"{PRUNED_WN}-best", PRUNED),
    "word PTB large, pruning, best": ("ptb-word-large-prune-wn-best", "ptb-word-large-prune-wgn-best"),
}
CHARACTERS = {"": "ptb-char-bayes-wgn", ", best": "ptb-char-bayes-wgn-best"}
W_ALONE = {
    "word PTB": (W, WGN),
    **{task: (rows.format("w"), rows.format("wgn")) for task, rows in TEXTS.items()},
}

CLAIMS = numbered([
    *(Claim("a", f"classification keeps g and drops output gates: {task}", KEEPS_G, [rows.format("wgn")],
            GATES, keeps_g)
      for task, rows in TEXTS.items()),
    *(Claim("a", f"so does Bayes W alone: {task}", KEEPS_G, [rows.format("w")], GATES, keeps_g)
      for task, rows in TEXTS.items()),
    Claim("b", "word LM, layer 2: many neurons are o-only",
          "every seed: a tenth of the kept neurons, and twice as many as by chance", [WGN], GATES, many_output_only),
    Claim("b", "their c_t moves one way, with the sign of g",
          "every o-only neuron, step and text; within 1e-3 of c* (1 - f^t)", [WGN], MODEL, monotone),
    Claim("b", "and saturates in a few steps: |tanh c_t| near 1",
          f"every seed: median over o-only neurons {SETTLED} or more at step 5", [WGN], GATES, settles),
    Claim("b", "so that they show their output gate, h_t = +-o_t",
          "every seed, medians: correlation 0.95 or more, apart by 5 % or less from step 10 on",
          [WGN], MODEL, shows_o),
    Claim("c", "word LM, layer 2: o-only neurons are short",
          f"every seed: median ratio {SHORT} or less", [WGN], MODEL, output_only_are_short),
    Claim("c", "and neurons with all gates live are long",
          "every seed: median ratio twice that of o-only neurons", [WGN], MODEL, full_are_long),
    Claim("c", "the long neurons have all gates live",
          f"all seeds together: 9 of 10 neurons with a ratio of {LONG} or more", [WGN], MODEL, long_are_full),
    Claim("c", "the same through a neuron's own cell alone, h of the step before held fixed",
          f"all seeds together: 9 of 10 neurons with a ratio of {LONG} or more", [WGN], MODEL, long_by_themselves),
    *(Claim("d", f"{task}: all neurons are long, one of them reads the present too",
            f"every seed: all ratios {LONG} or more, exactly one 1/3 or less", [TEXTS[task].format("wgn")],
            MODEL, all_long)
      for task in ("IMDb", "IMDb, best")),
    *(Claim("e", f"char LM: nearly all gates of kept neurons are live{best}",
            "every seed: 90 % or more", [row], GATES, uses_nearly_all)
      for best, row in CHARACTERS.items()),
    *(Claim("f", f"Bayes W alone leaves the patterns of Bayes W+G+N: {task}", OVERLAP, rows, GATES, same_patterns)
      for task, rows in W_ALONE.items()),
    *(Claim("f", f"at lower compression: {task}", "mean over seeds below", rows, RESULT, less_compressed)
      for task, rows in W_ALONE.items()),
    Claim("f", "pruning W+G+N leaves the patterns of Bayes W+G+N", OVERLAP, [PRUNED, WGN], GATES, same_patterns),
    Claim("f", "o-only neurons in layer 2 with every method",
          "every seed: more than twice as many as by chance", [W, WN, WGN, PRUNED], GATES, output_only_everywhere),
    Claim("g", "the large word LM is left with another structure than the small one",
          f"every layer: less than {ALIKE} of the overlap of two seeds of the small one",
          ["ptb-word-large-prune-wgn-best", PRUNED], GATES, other_structure),
    *(Claim("h", f"W+G+N leaves fewer neurons and gates than W+N: {task}", FEWER, rows, RESULT, fewer)
      for task, rows in PAIRS.items()),
    *(Claim("h", f"W+G+N does not leave fewer than W+N: char PTB{best}", f"not: {FEWER}",
            [row.replace("wgn", "wn"), row], RESULT, not_fewer)
      for best, row in CHARACTERS.items()),
])  # fmt: skip


def markdown(asked: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| | claim | holds if | our runs | verdict |", "| --- | --- | --- | --- | --- |"]
    for one in asked:
        cells = (
            one[key].replace("|", r"\|").replace("*", r"\*") for key in ("claim", "text", "threshold", "line")
        )
        lines.append(f"| {' | '.join(cells)} | **{one['verdict']}** |")
    return "\n".join(lines)


def text(asked: Sequence[Mapping[str, Any]]) -> str:
    blocks = []
    for one in asked:
        body = [f"if: {one['threshold']}", one["line"]]
        blocks.append(f"{one['claim']:4}{one['verdict']:18}{one['text']}")
        blocks += [
            textwrap.fill(part, 112, initial_indent=" " * 22, subsequent_indent=" " * 22) for part in body
        ]
    return "\n".join(blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="claims whose letter is among these, for instance bc")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    asked = [c.ask(arguments.results) for c in CLAIMS if not arguments.only or c.key[0] in arguments.only]
    print(markdown(asked) if arguments.markdown else text(asked))
    if arguments.json:
        arguments.json.write_text(json.dumps({"claims": asked}, indent=1) + "\n")


if __name__ == "__main__":
    main()
