"""What the paper leaves open, chosen on validation: all trials written down.

`bayes`: batch, window, clipping, learning-rate decay and starting values of the Bayesian word model, which the
paper does not state. `lambda`: the strength of pruning W+N, which the paper says was tuned to equal quality.
`small-wgn`: clipping and starting values of pruning W+G+N, which are Wen's and not the paper's, the two best with
three seeds. `start`: how the large word model gets through its first updates, four epochs each. `large-wgn`,
`large-wn`: the same to the end, and lambda. `imdb-vectors`, `agnews-vectors`: what pretrained vectors are worth to
the dense network, those that `word_vectors.py --fill-from` predicts included; `agnews-rows`: what half of the
training rows are to it, and to one of 64 neurons. `word-updates`, `imdb-updates`: subgradient and proximal updates,
SGD and Adam, each to the same budget and then refitted. `word-budgets`: five budgets of gates, the second with three
seeds. `word-controls`: small dense networks with our penalty and without a cut, or with weight decay, the best of
each width with three seeds. A trial differs from its recipe in the keys that its name lists and is otherwise trained
in full.
Trials are ordered by validation quality; test numbers are stored and not looked at.
What differs by less than a seed does (1 in perplexity) counts as equal; then fewer live gates decide. Trials that
are done already are taken from their folders.

    python reproduction/choose_settings.py bayes --json reproduction/choice_bayes.json
    python reproduction/choose_settings.py lambda --json reproduction/choice_lambda.json
    python reproduction/choose_settings.py small-wgn --json reproduction/choice_small_wgn.json
    python reproduction/choose_settings.py start --json reproduction/choice_start.json
    python reproduction/choose_settings.py large-wgn --json reproduction/choice_large_wgn.json
    python reproduction/choose_settings.py large-wn --json reproduction/choice_large_wn.json
    python reproduction/choose_settings.py imdb-vectors --json reproduction/choice_imdb_vectors.json
    python reproduction/choose_settings.py agnews-vectors --json reproduction/choice_agnews_vectors.json
    python reproduction/choose_settings.py agnews-rows --json reproduction/choice_agnews_rows.json
    python reproduction/choose_settings.py word-updates --json reproduction/choice_word_updates.json
    python reproduction/choose_settings.py imdb-updates --json reproduction/choice_imdb_updates.json
    python reproduction/choose_settings.py word-budgets --json reproduction/choice_word_budgets.json
    python reproduction/choose_settings.py word-controls --json reproduction/choice_word_controls.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from gatewise.lab import recipe as recipes
from gatewise.lab.analyse.history import rises
from gatewise.lab.finished.reproduce import QUALITY, line, numbers
from gatewise.lab.training.trainer import Options, train

RECIPE = {
    "bayes": "ptb-word-small-bayes-wgn",
    "lambda": "ptb-word-small-prune-wn",
    "small-wgn": "ptb-word-small-prune-wgn",
    "start": "ptb-word-large-prune-wgn",
    "large-wgn": "ptb-word-large-prune-wgn",
    "large-wn": "ptb-word-large-prune-wn",
    "imdb-vectors": "imdb-original",
    "agnews-vectors": "agnews-original",
    "agnews-rows": "agnews-original",
    "word-updates": "ptb-word-small-prune-wgn",
    "imdb-updates": "imdb-original",
    "word-budgets": "ptb-word-small-prune-wgn-budget",
    "word-controls": "ptb-word-small-dense",
}
# Budgets end when the rate begins to fall; Adam's proximal lambdas are larger, since it moves by its rate.
TO_560_GATES = "budget.gates=560 dropout=0.1 epochs=24 schedule=linear after=14 refit.epochs=16"
TO_24_GATES = (
    "method=group-lasso budget.gates=24 keep=last test_every=0 schedule=linear after=18 refit.epochs=10"
)
TO_640_NEURONS = (
    "decay=0.2 clip=10 warm_up=600 shrink_every=2 budget.neurons=640 budget.begin=0.1 budget.end=0.33"
)


def controls(width: int, ways: str, seeds: int = 1) -> list[str]:
    """Dense, with our penalty, which cuts nothing here, or with weight decay; of `0.2 group=0.1`, dropout is 0.2."""
    penalty = "method=group-lasso threshold=0 "
    return [
        f"hidden={width} dropout={dropout} schedule=power decay=0.87 {penalty * how.startswith('group')}{how}".strip()
        + (f" seed={seed}" if seed else "")
        for dropout, _, how in (way.strip().partition(" ") for way in ways.split(","))
        for seed in range(seeds)
    ]


TRIALS = {
    "bayes": [
        f"batch={batch} steps={steps} clip={clip} after={after} forget_bias={forget} init_range={start}"
        for batch, steps, clip, after, forget, start in (
            (32, 35, 10, 25, 0, 0.1),
            (32, 35, 10, 25, 1, 0.1),
            (32, 35, 10, 0, 0, 0.1),
            (32, 35, 1, 25, 0, 0.1),
            (32, 35, 10, 25, 0, 0.05),
            (32, 35, 10, 25, 0, 0.04),
            (32, 35, 10, 25, 0, 0.03),
            (32, 35, 10, 25, 0, 0.02),
            (32, 35, 10, 10, 0, 0.03),
            (20, 35, 10, 25, 0, 0.03),
        )
    ],
    "lambda": [
        *("group=0.002", "group=0.002 l1_on_output=false", "group=0.003", "group=0.004"),
        *(
            f"group={group}{seed}"
            for group in (0.0034, 0.0036, 0.0038)
            for seed in ("", " seed=1", " seed=2")
        ),
    ],
    "small-wgn": [
        *("clip=10", "clip=2.5", "init_range=0.05", "l1_on_output=false"),
        *(f"forget_bias={bias}{seed}" for bias in (0, 1) for seed in ("", " seed=1", " seed=2")),
    ],
    "start": [
        f"epochs=4 clip={clip} warm_up={updates}"  # an epoch has 1,327 updates
        for clip, updates in ((10, 0), (5, 0), (10, 600), (10, 1327), (5, 600))
    ],
    "large-wgn": [
        *("clip=5 warm_up=0", "clip=10 warm_up=600", "group=0.0016 clip=10 warm_up=600"),
        "group=0.0018 decay=0.2 clip=10 warm_up=600",  # the rate falls as it does for W+N
        "group=0.0019 decay=0.2 clip=10 warm_up=600 shrink_every=2",
        f"group=0.0014 {TO_640_NEURONS} epochs=49 after=16",
        f"group=0.0015 l1=0.000018 {TO_640_NEURONS}",
        f"group=0.0015 l1=0.000018 forget_bias=1 {TO_640_NEURONS}",
        f"group=0.0015 l1=0.00002 {TO_640_NEURONS} epochs=58",
        *(f"group=0.0015 l1=0.0000195 {TO_640_NEURONS}{seed}" for seed in ("", " seed=1")),
        *(
            f"group=0.0015 l1=0.000021 {TO_640_NEURONS} drop_recurrent={recurrent} drop_words={words}"
            for recurrent, words in ((0.2, 0.05), (0.3, 0.1))
        ),
        "group=0.0015 l1=0.000021 decay=0.2 clip=10 warm_up=600 shrink_every=2 budget.neurons=646 "
        "budget.begin=0.1 budget.end=0.33 drop_recurrent=0.2 drop_words=0.05 average=8",
    ],
    "large-wn": [
        f"group={group} clip={clip} warm_up={updates}"
        for group, clip, updates in ((0.0015, 5, 0), (0.0015, 10, 600), (0.00245, 10, 600), (0.003, 10, 600))
    ]
    + [
        "group=0.0032 clip=10 warm_up=600 shrink_every=2",
        "group=0.003 l1=0.0000115 clip=10 warm_up=600 shrink_every=2 budget.neurons=712 budget.begin=0.1 "
        "budget.end=0.33",
    ],
    "imdb-vectors": ["vectors=word2vec", "vectors=none", "vectors=word2vec-filled.npz"],
    "agnews-vectors": ["vectors=word2vec", "vectors=none", "vectors=word2vec-filled.npz"],
    # What is not validation trains: all rows but the usual twentieth, and half as many.
    "agnews-rows": [
        *(f"hidden=64 epochs=5 valid_fraction={part}" for part in (0.05, 0.525)),
        "epochs=5 valid_fraction=0.525",  # to compare with the row, whose best epoch is the third
    ],
    "word-updates": [
        f"{TO_560_GATES} optimizer={how}"
        for how in (
            "sgd update=subgradient lr=1 refit.lr=0.5",
            "sgd update=proximal lr=1 refit.lr=0.5",
            "adam update=subgradient lr=0.002 threshold=0.001 refit.lr=0.001",
            "adam update=proximal lr=0.002 group=0.2 l1=0.001 refit.lr=0.001",
        )
    ],
    "imdb-updates": [
        f"{TO_24_GATES} optimizer={how}"
        for how in (
            "sgd update=subgradient lr=1 clip=5 group=0.0001 l1=0.000001 refit.lr=0.5",
            "sgd update=proximal lr=1 clip=5 group=0.0001 l1=0.000001 refit.lr=0.5",
            "adam update=subgradient lr=0.001 group=0.0001 l1=0.000001 threshold=0.0005 refit.lr=0.0005",
            "adam update=proximal lr=0.001 group=0.2 l1=0.002 refit.lr=0.0005",
            "adam update=proximal lr=0.001 group=1 l1=0.01 refit.lr=0.0005",
        )
    ],
    "word-budgets": [
        "budget.gates=310 dropout=0.1",
        *(f"budget.gates=560 dropout=0.1{seed}" for seed in ("", " seed=1", " seed=2")),
        "budget.gates=800 dropout=0.15",
        "budget.gates=980 dropout=0.2",
        "budget.gates=1190 dropout=0.2",
        *("budget.gates=560 dropout=0.2", "budget.gates=560 dropout=0.1 weight_decay=0.00005"),
        *("budget.gates=1190 dropout=0.3", "budget.gates=310 dropout=0.1 weight_decay=0.00005"),
    ],
    "word-controls": [
        *controls(58, "0.1 group=0.0006", 3),
        *controls(58, "0.15 group=0.0006, 0.1 weight_decay=0.00005, 0.1 weight_decay=0.0001"),
        *controls(93, "0.15 weight_decay=0.0001", 3),
        *controls(93, "0.1 weight_decay=0.0001, 0.2 weight_decay=0.0001, 0.1 weight_decay=0.0003"),
        *controls(
            93, "0.1 group=0.0003, 0.1 group=0.0006, 0.15 group=0.0006, 0.2 group=0.0006, 0.1 group=0.001"
        ),
        *controls(128, "0.2 weight_decay=0.0001", 3),
        *controls(128, "0.2, 0.2 weight_decay=0.00003, 0.2 weight_decay=0.00006, 0.1 weight_decay=0.0001"),
        *controls(128, "0.15 weight_decay=0.0001, 0.3 weight_decay=0.0001, 0.1 weight_decay=0.0003"),
        *controls(128, "0.2 weight_decay=0.0003, 0.2 group=0.0003, 0.1 group=0.0006, 0.2 group=0.0006"),
        *controls(128, "0.1 group=0.001, 0.2 group=0.001, 0.3 group=0.001"),
        *(  # as a budget has it: weak units are let off the penalty, and all of them fit
            f"hidden=128 dropout={dropout} schedule=linear after=24 keep=last method=group-lasso threshold=0 "
            "group=0.0017 budget.gates=1024"
            for dropout in (0.1, 0.2)
        ),
        *controls(146, "0.2 weight_decay=0.0001", 3),
        *controls(146, "0.25 weight_decay=0.0001, 0.2 group=0.0006, 0.25 group=0.0006"),
        *controls(175, "0.3 group=0.0006", 3),
        *controls(
            175, "0.3 group=0.0003, 0.2 group=0.0006, 0.25 group=0.0006, 0.2 group=0.001, 0.3 group=0.001"
        ),
        *controls(175, "0.2 weight_decay=0.0001, 0.25 weight_decay=0.0001, 0.3 weight_decay=0.0001"),
        *controls(175, "0.2 weight_decay=0.0003"),
    ],
}


def folder(trial: str, longest: int = 200) -> str:
    """batch32-steps35-...: a name for the run's folder; of a path, its parts; of a long one, the end as a digest."""
    name = trial.replace("=", "").replace(" ", "-").replace("/", ".")
    if len(name) <= longest:
        return name
    return f"{name[: longest - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def summary(trial: str, result: dict[str, Any]) -> dict[str, Any]:
    return {"trial": trial, **numbers(result), "seconds": result["seconds"], "seed": result["seed"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("question", choices=TRIALS)
    parser.add_argument("--runs", type=Path, default=Path("runs/choice"), help="folder of the trials")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true", help="print the trials as commands and stop")
    arguments = parser.parse_args()
    name, done = RECIPE[arguments.question], []
    for trial in TRIALS[arguments.question]:
        out = arguments.runs / arguments.question / folder(trial)
        if arguments.list:
            changes = " ".join(f"--set {change}" for change in trial.split())
            print(f"gatewise train {name} {changes} --out {out} --resume")
            continue
        options = Options(out, arguments.data_dir, arguments.device, resume=True)
        done.append(summary(trial, train(recipes.load(name, trial.split()), options)))
    if not done:
        return
    quality = next(key for key in QUALITY if key in done[0])
    done.sort(key=lambda found: found[quality], reverse=rises(quality))
    for found in done:
        print(f"{line(found):48} {found['seconds']:5.0f} s  {found['trial']}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"recipe": name, "trials": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
