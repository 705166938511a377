"""Mutation testing by sample: which tests catch random one-line faults in library code?

    pytest --cov=gatewise --cov-context=test --durations=0 > durations.txt    # which test runs which line
    python tests/faults.py draw faults.json --count 100                       # the faults, of the code as it stands
    python tests/faults.py run faults.json --durations durations.txt          # adds to each the test that catches it
    python tests/faults.py again faults.json                                  # does that test still catch it?

A fault is kept as text, so that the same ones can be asked of later code: a line that is gone is left out. Each is
tried in the source itself, which is put back afterwards. Only tests that run the line are asked, quick ones of many
files first, for 20 seconds: not caught means not caught by these.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LABORATORY = {"lab", "analyse", "cli", "recipes", "sweep", "tasks"}
OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", " is not ": " is ", " not in ": " in ",
    " and ": " or ", " or ": " and ", " + ": " - ", " - ": " + ", " * ": " + ", " // ": " * ",
}  # fmt: skip
SECONDS = 20  # of tests, by their usual time, for one fault
TESTS = 40
NO_SUCH_TEST = "pytest ends with 4"


def faults_of(path: Path) -> Iterator[dict[str, Any]]:
    """Every fault of a module: another operator, condition, number or truth value, or a call left out."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        if not line or node.end_lineno != line:  # type: ignore[attr-defined]
            continue
        old = lines[line - 1]
        start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        part, new = old[start:end], None
        match node:
            case ast.Compare(ops=[_]) | ast.BoolOp(values=[_, _]) | ast.BinOp():
                first = node.values[0] if isinstance(node, ast.BoolOp) else getattr(node, "left", None)
                second = getattr(node, "right", None) or (
                    node.values[1] if isinstance(node, ast.BoolOp) else node.comparators[0]  # type: ignore[union-attr]
                )
                between = old[first.end_col_offset : second.col_offset]  # type: ignore[union-attr]
                sign = next((s for s in OPERATORS if s.strip() == between.strip()), None)
                if sign is not None:
                    swapped = between.replace(sign.strip(), OPERATORS[sign].strip())
                    new = old[: first.end_col_offset] + swapped + old[second.col_offset :]  # type: ignore[union-attr]
            case ast.Constant(value=bool() as value):
                new = old[:start] + str(not value) + old[end:]
            case ast.Constant(value=int() as value):
                new = old[:start] + str(value + 1) + old[end:]
            case ast.UnaryOp(op=ast.Not()):
                new = old[:start] + part.removeprefix("not ") + old[end:]
            case ast.Expr(value=ast.Call()):
                new = old[:start] + "pass" + old[end:]
            case ast.IfExp(test=test):
                new = old[: test.col_offset] + "not (" + old[test.col_offset : test.end_col_offset] + ")"
                new += old[test.end_col_offset :]
        if new is not None and new != old:
            where = [k for k, other in enumerate(lines) if other == old].index(line - 1)
            yield {"file": str(path.relative_to(ROOT)), "old": old, "new": new, "which": where}


def draw(count: int, seed: int) -> list[dict[str, Any]]:
    """So many faults at random, at most one a line."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for path in sorted((ROOT / "gatewise").rglob("*.py")):
        if path.relative_to(ROOT / "gatewise").parts[0] not in LABORATORY:
            for fault in faults_of(path):
                found.setdefault((fault["file"], fault["old"], fault["which"]), []).append(fault)
    chance = random.Random(seed)
    return [chance.choice(found[line]) for line in chance.sample(sorted(found), count)]


def place_of(fault: dict[str, Any]) -> tuple[Path, int] | None:
    """Where the line stands now: in its file, or in another one that has it once."""
    path = ROOT / fault["file"]
    if path.exists():
        lines = [k for k, line in enumerate(path.read_text().splitlines(), 1) if line == fault["old"]]
        if len(lines) > fault["which"]:
            return path, lines[fault["which"]]
    holding = []
    for other in (ROOT / "gatewise").rglob("*.py"):
        holding += [
            (other, k) for k, line in enumerate(other.read_text().splitlines(), 1) if line == fault["old"]
        ]
    return holding[0] if len(holding) == 1 else None


def usual_times(durations: Path) -> dict[str, float]:
    """Seconds of all cases of every test in pytest's list; quicker ones are not in it."""
    found = re.findall(r"^([\d.]+)s call +(\S.*)$", durations.read_text(), re.M)
    times: dict[str, float] = {}
    for seconds, name in found:
        test = name.partition("[")[0].strip()
        times[test] = times.get(test, 0.0) + float(seconds)
    return times


def tests_for(path: Path, line: int, contexts: Any, times: dict[str, float]) -> list[str]:
    """Quick tests that run the line, of many files by turns; where only the import runs it, those of its folder."""
    here = contexts(path).get(line, [])
    # All cases of a test: what stands in brackets may hold any sign.
    names = sorted({name.partition("|")[0].partition("[")[0] for name in here if name})
    if not names:
        folder = ROOT / "tests" / path.relative_to(ROOT / "gatewise").parts[0]
        return [str(folder)] if folder.is_dir() else []
    by_file: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: times.get(name, 0.0)):
        by_file.setdefault(name.partition("::")[0], []).append(name)
    chosen, spent = [], 0.0
    for turn in range(max(map(len, by_file.values()))):
        for own in by_file.values():
            if turn < len(own) and len(chosen) < TESTS and spent + times.get(own[turn], 0.0) <= SECONDS:
                chosen.append(own[turn])
                spent += times.get(own[turn], 0.0)
    return chosen or names[:1]


def caught_by(path: Path, line: int, new: str, tests: list[str]) -> str | None:
    """The first test that fails, or what else ends the run; None: all pass."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    lines[line - 1] = new + "\n"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        path.write_text("".join(lines))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return "it never ends"
    finally:
        path.write_text(text)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", done.stdout, re.M)
    return failed[1] if failed else f"pytest ends with {done.returncode}"


def run(faults: list[dict[str, Any]], file: Path, durations: Path) -> None:
    from coverage import CoverageData

    data = CoverageData(str(ROOT / ".coverage"))
    data.read()
    times = usual_times(durations)
    for k, fault in enumerate(faults):
        if "caught" in fault:
            continue
        place = place_of(fault)
        if place is None:
            fault["caught"] = "gone"
        else:
            tests = tests_for(*place, lambda path: data.contexts_by_lineno(str(path)), times)
            fault["caught"] = caught_by(*place, fault["new"], tests) if tests else None
        print(f"{k + 1:3d} {fault['file']}: {fault['new'].strip()[:70]}  ->  {fault['caught']}", flush=True)
        file.write_text(json.dumps(faults, indent=1) + "\n")
    gone = sum(fault["caught"] == "gone" for fault in faults)
    caught = sum(fault["caught"] not in (None, "gone") for fault in faults)
    print(f"{caught} of {len(faults) - gone} are caught, {gone} are gone")


def again(faults: list[dict[str, Any]]) -> None:
    """Asks the test that caught a fault, or its whole file where it is gone, of the code as it is now."""
    counts = dict.fromkeys(("caught", "missed", "gone"), 0)
    for fault in faults:
        if not (fault["caught"] or "").startswith("tests/"):
            continue
        place = place_of(fault)
        if place is None:
            counts["gone"] += 1
            continue
        test, file = fault["caught"], fault["caught"].partition("::")[0]
        found = caught_by(*place, fault["new"], [test])
        if found == NO_SUCH_TEST:
            found = caught_by(*place, fault["new"], [file]) if (ROOT / file).exists() else None
        counts["caught" if found else "missed"] += 1
        if not found:
            print(f"missed: {fault['file']}: {fault['new'].strip()[:90]}  ({test})", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("draw", "run", "again"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--durations", type=Path)
    given = parser.parse_args()
    if given.command == "draw":
        given.file.write_text(json.dumps(draw(given.count, given.seed), indent=1) + "\n")
    elif given.command == "again":
        again(json.loads(given.file.read_text()))
    else:
        run(json.loads(given.file.read_text()), given.file, given.durations)


if __name__ == "__main__":
    main()
