"""Several runs on one GPU: in order, and side by side where one of them leaves most of it idle.

    nvidia-cuda-mps-control -d    # NVIDIA's MPS; without it processes take turns, and nothing is gained
    python reproduction/train_rows.py ptb-char-bayes-wgn "imdb-bayes-wgn seed=1 share=0.5" "imdb-bayes-wn share=0.5"

An argument is a recipe, the keys that differ from it, and the share of the GPU that the run gets: all of it unless
said otherwise. Runs start in the order given, each as soon as its share is free. One that fails is started once more,
after the others. The same command goes on where it was stopped, and passes over what is finished.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from choose_settings import folder

from gatewise.lab import recipe as recipes


@dataclass(frozen=True)
class Run:
    recipe: str
    changes: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def name(self) -> str:
        """imdb-bayes-wgn-seed1: of its folder and its log."""
        return folder(" ".join((self.recipe, *self.changes)))


Start = Callable[[Run], "subprocess.Popen[bytes]"]


def parsed(text: str) -> Run:
    recipe, *words = text.split() or [""]
    shares = [word.removeprefix("share=") for word in words if word.startswith("share=")]
    changes = tuple(word for word in words if not word.startswith("share="))
    if not recipe or not all("=" in word for word in changes):
        raise ValueError(f"{text!r} is not a recipe and words KEY=VALUE.")
    try:
        share = float(shares[-1]) if shares else 1.0
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r}: the share must be a part of the GPU, a number in (0, 1].")
    return Run(recipe, changes, share)


def training(run: Run, out: Path) -> subprocess.Popen[bytes]:
    options = [word for change in run.changes for word in ("--set", change)]
    command = ["-m", "gatewise", "train", run.recipe, *options, "--out", str(out / run.name), "--resume"]
    # Budgets and counts run on the processor, where too many threads are slower than one.
    threads = max(1, int(run.share * (os.cpu_count() or 1)))
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 * run.share:.4g}", "OMP_NUM_THREADS": f"{threads}"}
    with (out / f"{run.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *command], env=os.environ | limits, stdout=log, stderr=subprocess.STDOUT
        )


def train_all(
    runs: Sequence[Run], start: Start, seconds: float = float("inf"), nap: float = 0.5
) -> list[str]:
    """The names of the runs that did not end well: failed twice, or not finished after so many seconds."""
    waiting, running, failed = list(runs), dict[Run, "subprocess.Popen[bytes]"](), list[Run]()
    end = time.monotonic() + seconds
    while (waiting or running) and time.monotonic() < end:
        for run, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[run]
            print(f"{run.name}: {'done' if code == 0 else f'failed with exit code {code}'}", flush=True)
            if code:
                again = run not in failed
                failed.append(run)
                waiting += [run] * again
            elif run in failed:
                failed.remove(run)
        while waiting and sum(run.share for run in running) + waiting[0].share <= 1 + 1e-6:
            run = waiting.pop(0)
            running[run] = start(run)
        time.sleep(nap)
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.wait()
    return sorted({run.name for run in (*failed, *running, *waiting)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help='"RECIPE [KEY=VALUE ...] [share=PART]"')
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs and their logs")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop then; go on with the same command"
    )
    arguments = parser.parse_args()
    try:
        runs = [parsed(text) for text in arguments.runs]
        for run in runs:
            recipes.load(run.recipe, run.changes)
    except ValueError as error:
        parser.error(str(error))
    if len({run.name for run in runs}) < len(runs):
        parser.error("two of the runs are the same.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    missing = train_all(runs, lambda run: training(run, arguments.out), arguments.seconds)
    if missing:
        sys.exit(f"not finished: {', '.join(missing)}; see {arguments.out}/NAME.log")


if __name__ == "__main__":
    main()
