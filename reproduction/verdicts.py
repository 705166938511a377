"""How a claim is judged: runs in; a verdict, its numbers, and the same in a line out. For claims.py."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from behaviour import Gradients, gradients, output_only_constants, own_gradients, trace
from gate_patterns import FULL, ONLY_OUTPUT, OutputOnly, compared, live_gates, rates
from stored import StoredRun

from gatewise.lab.analyse.gate_map import CONSTANT
from gatewise.lab.finished.reproduce import QUALITY, numbers, shown

HOLDS, FAILS = "holds", "does not hold"
STEPS = (1, 5, 10, 50)
SETTLED = 0.95  # |tanh c| from which on h is +-o to 5 %
SHORT, LONG = 0.05, 0.1  # ratios up to which, and from which on, a neuron is that
ALIKE, CLEARLY = 0.8, 0.05  # so much of the overlap of two seeds; so much more than by chance

Runs = list[StoredRun]  # the seeds of a row
Found = tuple[str, Any, str]  # verdict, numbers, the same in a line
Layers = Mapping[str, Mapping[str, float]]  # what compared() says of each


def verdict(answers: Iterable[bool]) -> str:
    return HOLDS if all(answers) else FAILS


def by_layer(answers: Iterable[bool]) -> str:
    layers = list(answers)
    where = [f"layer {k}" for k, fine in enumerate(layers, 1) if fine]
    return HOLDS if len(where) == len(layers) else f"holds in {', '.join(where)}" if where else FAILS


def listed(values: Iterable[float], form: str = "") -> str:
    return ", ".join(format(value, form) for value in values)


def listed_counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def keeps_g(runs: Runs) -> Found:
    live = {run.seed: live_gates(run.last_layer) for run in runs}
    kept = {run.seed: len(run.last_layer["neurons"]) for run in runs}
    fine = (4 * live[seed]["g"] >= 3 * n >= 12 * live[seed]["o"] for seed, n in kept.items())
    line = "; ".join(f"{n} neurons, live: {listed_counts(live[seed])}" for seed, n in kept.items())
    return verdict(fine), {"neurons": kept, "live": live}, line


def many_output_only(runs: Runs) -> Found:
    found = [OutputOnly.of(run) for run in runs]
    none = [run.last_layer["patterns"].count(CONSTANT) for run in runs]
    line = "; ".join(f"{f.neurons} of {f.kept} ({f.by_chance:.1f} by chance)" for f in found)
    line += f"; besides, no live gate at all: {listed(none)}"
    fine = (f.neurons >= max(0.1 * f.kept, 2 * f.by_chance) for f in found)
    return verdict(fine), {"o_only": [asdict(f) for f in found], "no_live_gate": none}, line


def output_only_everywhere(*methods: Runs) -> Found:
    found = {runs[0].row: [OutputOnly.of(run) for run in runs] for runs in methods}
    line = "; ".join(
        f"{row.removeprefix('ptb-word-small-')} {listed((f.neurons / f.kept for f in own), '.0%')} "
        f"(by chance {statistics.mean(f.by_chance / f.kept for f in own):.2%})"
        for row, own in found.items()
    )
    fine = (f.neurons > 2 * f.by_chance for own in found.values() for f in own)
    return verdict(fine), {row: [asdict(f) for f in own] for row, own in found.items()}, line


def uses_nearly_all(runs: Runs) -> Found:
    live = [statistics.mean(rates(run.last_layer).values()) for run in runs]
    return verdict(share >= 0.9 for share in live), {"live_share": live}, listed(live, ".1%")


def as_two_seeds(layer: Mapping[str, float]) -> bool:
    return layer["overlap"] >= ALIKE * layer["two_seeds"]


def beyond_chance(layer: Mapping[str, float]) -> bool:
    return layer["overlap"] >= layer["by_chance"] + CLEARLY


def overlaps(layers: Layers) -> str:
    return "; ".join(
        f"layer {k}: {one['overlap']:.2f} (by chance {one['by_chance']:.2f}, two seeds {one['two_seeds']:.2f})"
        for k, one in enumerate(layers.values(), 1)
    )


def same_patterns(a: Runs, b: Runs) -> Found:
    layers = compared(a, b)
    compression = {runs[0].row: [run.result["counts"]["compression"] for run in runs] for runs in (a, b)}
    means = " and ".join(f"{statistics.mean(own):.1f}x" for own in compression.values())
    said = by_layer(as_two_seeds(one) and beyond_chance(one) for one in layers.values())
    return said, {"layers": layers, "compression": compression}, f"{overlaps(layers)}; compression {means}"


def less_compressed(a: Runs, b: Runs) -> Found:
    ours, other = (statistics.mean(run.result["counts"]["compression"] for run in runs) for runs in (a, b))
    found = {a[0].row: ours, b[0].row: other}
    return verdict([ours < other]), found, " against ".join(shown("compression", x) for x in (ours, other))


def other_structure(large: Runs, small: Runs) -> Found:
    layers = compared(large, small)
    live = {
        own[0].row: {name: rates(layer) for name, layer in own[0].gates.items()} for own in (large, small)
    }
    said = by_layer(not as_two_seeds(one) for one in layers.values())
    return said, {"layers": layers, "live_rates": live}, overlaps(layers)


def counted(without: Runs, having: Runs) -> dict[str, Any]:
    """W+N and W+G+N over all layers; fewer: every run of W+G+N has fewer than every run of W+N."""
    wn, wgn = ([numbers(run.result) for run in runs] for runs in (without, having))
    quality = next(key for key in QUALITY if key.startswith("test") and key in wn[0])
    found: dict[str, Any] = {quality: {"W+G+N": [r[quality] for r in wgn], "W+N": [r[quality] for r in wn]}}
    for key in ("neurons", "live_gates"):
        ours, theirs = ([sum(run[key]) for run in runs] for runs in (wgn, wn))
        state = (
            "fewer" if max(ours) < min(theirs) else "more" if min(ours) > max(theirs) else "within the seeds"
        )
        found[key] = {"W+G+N": ours, "W+N": theirs, "state": state}
    return found


def counts_line(found: Mapping[str, Any]) -> str:
    said = []
    for key, own in found.items():
        form, state = ("", f" ({own['state']})") if "state" in own else (".4g", "")
        said.append(
            f"{key.replace('_', ' ')} {listed(own['W+G+N'], form)} against {listed(own['W+N'], form)}{state}"
        )
    return "; ".join([*said[1:], said[0]])


def fewer(without: Runs, having: Runs) -> Found:
    found = counted(without, having)
    states = [found[key]["state"] for key in ("neurons", "live_gates")]
    partly = "holds for gates" if states[1] == "fewer" else FAILS
    return HOLDS if states == ["fewer", "fewer"] else partly, found, counts_line(found)


def not_fewer(without: Runs, having: Runs) -> Found:
    answer, found, said = fewer(without, having)
    return verdict([answer != HOLDS]), found, said


def settles(runs: Runs) -> Found:
    """From the stored constants alone, so for seeds without a network too."""
    found: dict[int, Any] = {}
    for run in runs:
        own = output_only_constants(run)
        size = {str(t): own.c(t).tanh().abs() for t in STEPS} | {"fixed point": own.end.tanh().abs()}
        found[run.seed] = {
            "neurons": len(own.neurons),
            "g_positive": int((own.g > 0).sum()),
            "forget_gate": [own.f.min().item(), own.f.max().item()],
            "fixed_point": own.end.tolist(),
            "tanh_c_median": {t: v.median().item() for t, v in size.items()},
            "tanh_c_least": {t: v.min().item() for t, v in size.items()},
            "settled": int((size["fixed point"] >= SETTLED).sum()),
        }
    line = "; ".join(
        f"step {t}: {listed((f['tanh_c_median'][str(t)] for f in found.values()), '.3f')} "
        f"(least {listed((f['tanh_c_least'][str(t)] for f in found.values()), '.2f')})"
        for t in STEPS
    )
    settled = (f"{f['settled']} of {f['neurons']}" for f in found.values())
    line += f"; |tanh c*| >= {SETTLED} in {', '.join(settled)}"
    return verdict(f["tanh_c_median"]["5"] >= SETTLED for f in found.values()), found, line


def monotone(runs: Runs) -> Found:
    found = {}
    for run in runs:
        seen, own = trace(run), trace(run).constants
        c = torch.cat([torch.zeros_like(seen.c[:1]), seen.c])
        # Rounding may turn the last steps before c*.
        towards_g = (c.diff(dim=0) * own.g.sign() >= -1e-6 * own.end.abs()).all(dim=1).all(dim=0)
        t = torch.arange(1, len(seen.c) + 1)[:, None, None]
        away = ((seen.c - own.c(t)) / own.end).abs().max().item()
        found[run.seed] = {"neurons": len(own.neurons), "steps": len(seen.c), "monotone": int(towards_g.sum()),
                           "off_formula": away}  # fmt: skip
    line = "; ".join(
        f"{f['monotone']} of {f['neurons']} over {f['steps']} words, at most {f['off_formula']:.0e} off c* (1 - f^t)"
        for f in found.values()
    )
    fine = (f["monotone"] == f["neurons"] and f["off_formula"] <= 1e-3 for f in found.values())
    return verdict(fine), found, line


def shows_o(runs: Runs) -> Found:
    found = {}
    for run in runs:
        seen = trace(run)
        h = seen.h * seen.constants.end.sign()
        both = torch.stack([h, seen.o]).flatten(1, 2)  # (2, T * B, K)
        both = both - both.mean(1, keepdim=True)
        correlation = (both[0] * both[1]).sum(0) / both.norm(dim=1).prod(0)
        away = ((h - seen.o).abs() / seen.o)[9:].mean(dim=(0, 1))  # from step 10 on
        found[run.seed] = {
            "correlation": {"median": correlation.median().item(), "least": correlation.min().item()},
            "away": {"median": away.median().item(), "most": away.max().item()},
        }
    line = "; ".join(
        f"correlation {f['correlation']['median']:.3f} (least {f['correlation']['least']:.3f}), apart by "
        f"{f['away']['median']:.2%} of o from step 10 on (most {f['away']['most']:.2%})"
        for f in found.values()
    )
    return (
        verdict(f["correlation"]["median"] >= 0.95 and f["away"]["median"] <= 0.05 for f in found.values()),
        found,
        line,
    )


def lags_by_pattern(seen: Gradients) -> dict[str, dict[str, float]]:
    """Medians over the neurons of a pattern, and how many of them are long."""
    found = {}
    for pattern, n in Counter(seen.patterns).most_common():
        own = torch.tensor([p == pattern for p in seen.patterns])
        median = {key: getattr(seen, key)[own].median().item() for key in ("near", "far", "ratio")}
        found[pattern] = {"neurons": n, **median, "long": int((seen.ratio[own] >= LONG).sum())}
    return found


def output_only_are_short(runs: Runs) -> Found:
    found = {run.seed: lags_by_pattern(gradients(run))[ONLY_OUTPUT] for run in runs}
    line = "; ".join(f"ratio {f['ratio']:.3f}, {f['long']} of {f['neurons']} long" for f in found.values())
    return verdict(f["ratio"] <= SHORT for f in found.values()), found, line


def full_are_long(runs: Runs) -> Found:
    found = {run.seed: lags_by_pattern(gradients(run)) for run in runs}
    pairs = [(f[FULL], f[ONLY_OUTPUT]) for f in found.values()]
    line = "; ".join(
        f"ratio {full['ratio']:.3f} against {short['ratio']:.3f}, gradient at lags 20-100 {full['far']:.1e} against "
        f"{short['far']:.1e}; {full['long']} of {full['neurons']} long"
        for full, short in pairs
    )
    return verdict(full["ratio"] >= 2 * short["ratio"] for full, short in pairs), found, line


def long_ones(seen: Sequence[Gradients]) -> Found:
    """How many of the long neurons have all gates live; pooled, since a seed has less than ten of them."""
    found = [{p: f["long"] for p, f in lags_by_pattern(one).items() if f["long"]} for one in seen]
    full, everybody = sum(f.get(FULL, 0) for f in found), sum(sum(f.values()) for f in found)
    line = "; ".join(f"{listed_counts(f) or 'none'} of {len(one.patterns)}" for f, one in zip(found, seen))
    return verdict([full >= 0.9 * everybody > 0]), found, f"long: {line}"


def long_are_full(runs: Runs) -> Found:
    return long_ones([gradients(run) for run in runs])


def long_by_themselves(runs: Runs) -> Found:
    return long_ones([own_gradients(run) for run in runs])


def all_long(runs: Runs) -> Found:
    found = {}
    for run in runs:
        seen = gradients(run)
        found[run.seed] = {
            "patterns": list(seen.patterns),
            "ratio": seen.ratio.tolist(),
            "near": seen.near.tolist(),
        }
    line = "; ".join(
        ", ".join(f"{p} {r:.2g}" for p, r in zip(f["patterns"], f["ratio"])) for f in found.values()
    )
    fine = (min(f["ratio"]) >= LONG and sum(r <= 1 / 3 for r in f["ratio"]) == 1 for f in found.values())
    return verdict(fine), found, f"ratios: {line}"
