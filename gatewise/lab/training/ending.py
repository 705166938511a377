"""The end of a run: quality and counts of its network, the compact model on disk, and what result.json tells."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatewise.compact import compress
from gatewise.export import CheckpointError, save
from gatewise.export.card import CARD
from gatewise.lab import provenance
from gatewise.lab.analyse import map_gates
from gatewise.lab.card import card_of
from gatewise.lab.data.encoding import ENCODING, content_of, encoding_of
from gatewise.lab.files import GATES, MODEL, RunError, write_json, write_whole
from gatewise.lab.training.evaluation import Evaluator
from gatewise.report import Report, measure

if TYPE_CHECKING:
    from gatewise.lab.training.trainer import Run


@dataclass(frozen=True)
class Ending:
    quality: dict[str, float]
    report: Report
    model_bytes: int


def conclude(run: Run) -> Ending:
    """Evaluate, count, cut and save the network as it stands."""
    quality, report = run.qualities(), measure(run.model)
    compact = compress(copy.deepcopy(run.model).eval())
    trained = quality[f"test_{run.quality}"]
    cut = Evaluator(compact, run.objective, run.test_feed, run.device, graph=False)()[run.quality]
    quality[f"compact_test_{run.quality}"] = cut
    if abs(trained - cut) > run.objective.same * abs(trained):
        warnings.warn(
            f"{run.recipe.name}: test {run.quality} is {trained:.4g} before compress() and {cut:.4g} after it; they "
            "should agree to rounding. The run is saved; please report this.",
            stacklevel=2,
        )
    folder, encoding = run.options.out, content_of(encoding_of(run.corpus))
    try:
        # What is there is the run's: who begins one in a folder of others' files is refused before.
        saved = save(compact.cpu(), folder / MODEL, overwrite=True, attached={ENCODING: encoding})
    except CheckpointError as error:
        raise RunError(f"{error} The run goes on with --resume.") from error
    if run.sparsifier is not None:
        write_json(
            folder / GATES,
            {name: layer.to_dict() for name, layer in map_gates(run.model).items()},
            indent=None,
        )
    return Ending(quality, report, saved.stored_bytes)


def write_card(run: Run, result: dict[str, Any], ending: Ending) -> None:
    text = card_of(run.recipe, result, ending.report)
    write_whole(run.options.out / CARD, text.encode())


def result_of(run: Run, epoch: int, ending: Ending) -> dict[str, Any]:
    """What result.json holds; after a refit, with the network that it began with."""
    result: dict[str, Any] = {
        "name": run.recipe.name,
        "title": run.recipe.title,
        "quality": ending.quality,
        "epoch": epoch,
        "counts": ending.report.to_dict(),
        "expect": dict(run.recipe.expect),
        "seed": run.recipe.train.seed,
        "seconds": run.position.seconds,
        "peak_memory": provenance.peak_memory(run.device),
        "graph": run.update.graph is not None,
        **({"ranks": run.ranks.size} if run.ranks.size > 1 else {}),
        "model_bytes": ending.model_bytes,
        "data": {
            "sizes": run.about,
            "note": run.corpus.note,
            "vectors": str(run.coverage),
            "digest": run.digest,
        },
        "hardware": provenance.hardware(run.device),
        "versions": provenance.versions(),
        "command": provenance.command(),
        "commit": provenance.commit(),
        "recipe": run.recipe.steering(),
    }
    budget = run.position.before.get("budget") if run.budget is None else run.budget.to_dict()
    result |= {} if budget is None else {"budget": budget}
    return result | ({"before_refit": run.position.before} if run.position.before else {})
