"""What metrics.jsonl says about a run, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

QUALITIES = {
    "ppl": "perplexity",
    "bpc": "bits per character",
    "mse": "squared error",
    "word_error": "word error, %",
    "phoneme_error": "phoneme error, %",
    "word_error_unstressed": "word error without stress, %",
    "phoneme_error_unstressed": "phoneme error without stress, %",
}
# Neurons and gates by epoch are the paper's one-pass counts; a gate map of what was cut can have a few less.
COUNTED = {"neurons": "neurons, as the paper counts", "gates": "live gates, as the paper counts"}

Metrics = Sequence[Mapping[str, Any]]  # the lines of metrics.jsonl


def curve(metrics: Metrics, key: str, part: str | None = None) -> tuple[list[int], list[float]]:
    """Epochs and values of a key, or of a layer in it; mappings are summed up, missing values are left out."""
    epochs, values = [], []
    for line in metrics:
        value = line.get(key) if part is None else (line.get(key) or {}).get(part)
        if value is not None:
            epochs.append(int(line["epoch"]))
            values.append(total(value))
    return epochs, values


def total(value: Any) -> float:
    return sum(total(part) for part in value.values()) if isinstance(value, Mapping) else float(value)


def quality_key(metrics: Metrics) -> str | None:
    """`valid_ppl`, or whatever a run is judged by on the validation data."""
    return next((key for line in metrics for key in line if key.startswith("valid_")), None)


def rises(key: str) -> bool:
    """Whether more of a quality, `valid_accuracy`, is better."""
    return key.partition("_")[2] == "accuracy"


def named(key: str) -> str:
    split, _, quality = key.partition("_")
    return f"{QUALITIES.get(quality, quality)}, {'validation' if split == 'valid' else split}"
