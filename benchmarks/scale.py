"""What a second process brings: one run by two ranks, or two runs side by side. Word PTB small on a short text, CPU.

    python benchmarks/scale.py TEXT --out benchmarks/results/scale_cpu.json

Two numbers for each way, all processes together: updates a second in the fastest epoch, and processor time an update.
The second one hardly depends on what else the machine does: it is a longer run minus a shorter one, so that startup,
loading and the end of a run fall out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine_line

RECIPE = "ptb-word-small-prune-wgn"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
WAYS = {"one run by one process": (1, 1), "one run by two ranks": (1, 2), "two runs side by side": (2, 1)}


def started(text: Path, out: Path, epochs: int, ranks: int) -> subprocess.Popen[bytes]:
    changes = ["data.task=words", f"data.path={text}", f"train.epochs={epochs}", "train.schedule=constant"]
    command = [sys.executable, *(TORCHRUN if ranks == 2 else []), "-m", "gatewise", "train", RECIPE]
    command += ["--device", "cpu", "--out", str(out)]
    for change in changes:
        command += ["--set", change]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ran(way: str, text: Path, epochs: int) -> tuple[float, int, float]:
    """Updates a second, updates, processor seconds; an update of two ranks is one."""
    runs, ranks = WAYS[way]
    before = processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(k) for k in range(runs)]
        processes = [started(text, out, epochs, ranks) for out in outs]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{way}: a run failed.")
        lines = [[json.loads(line) for line in (out / "metrics.jsonl").open()] for out in outs]
    rate = sum(max(own[0]["updates"] / line["train_seconds"] for line in own) for own in lines)
    return rate, sum(own[-1]["updates"] for own in lines), processor_seconds() - before


def main(args: argparse.Namespace) -> None:
    found = {}
    for way in WAYS:
        (_, few, little), (rate, many, much) = (
            ran(way, args.text, epochs) for epochs in (1, 1 + args.epochs)
        )
        found[way] = {
            "updates_per_second": rate,
            "processor_ms_per_update": 1e3 * (much - little) / (many - few),
        }
    result = {"machine": machine_line(), "recipe": RECIPE, "text": args.text.name, "ways": found}
    print(json.dumps(result, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
