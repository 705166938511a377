"""Where trials are kept: Optuna's database, a SQLite file in the sweep's folder, or PostgreSQL for many machines.

A worker gives signs of life. A trial whose worker is silent for two of them has failed, and Optuna lets another
worker make it again, with the same values. Its folder stays the same, so it goes on from its checkpoint.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from gatewise.export.saved.schema import maybe, record, text
from gatewise.lab.data.corpus import load_data
from gatewise.lab.files import read_json, write_json
from gatewise.lab.sweep.plan import DENSE, Plan
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.training.assembly import objective_of
from gatewise.lab.training.progress import shown_quality

TRIALS, ABOUT = "trials.db", "sweep.json"  # of the folder: the trials, and where they are kept
PLAN = "plan"  # of a study
RUN, MEASURED = "run", "measured"  # of a trial
HEARTBEAT = 20  # seconds between signs of life
RETRIES = 3  # of a trial that ended its worker
WAIT = {"postgresql": {"connect_timeout": 10}, "sqlite": {"timeout": 60}}  # seconds
FORM = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"
MADE_TWICE = re.compile("already exists|UNIQUE constraint")  # by two workers that found the database empty
ENOUGH, WARM_UP = 5, 0.3  # trials before one is stopped early, and the part of its epochs it always has


@contextmanager
def opened(address: str | None, folder: Path, heartbeat: int = HEARTBEAT) -> Iterator[RDBStorage]:
    """Optuna's storage without a word of its own; where it fails, one sentence without a password."""
    url, verbosity = url_of(address, folder), optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.simplefilter("ignore", UserWarning)  # a network of which nothing is left is a point, too
            storage = made(url, heartbeat)
            try:
                yield storage
            finally:
                storage.remove_session()
    except Exception as error:
        reason = reason_of(error, url.password)
        if reason is None:
            raise
        raise SweepError(
            f"{without_password(url)}: cannot be used for a sweep ({reason}). When it can, run the same line: trials "
            "go on from their checkpoints."
        ) from error
    finally:
        optuna.logging.set_verbosity(verbosity)


def made(url: URL, heartbeat: int, attempts: int = 20) -> RDBStorage:
    kind = url.get_backend_name()
    if kind == "sqlite":
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    try:
        return RDBStorage(
            # Optuna looks for {SCHEMA_VERSION} in it.
            url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}"),
            engine_kwargs={"connect_args": WAIT[kind], "poolclass": NullPool},
            heartbeat_interval=heartbeat,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )
    except SQLAlchemyError as error:
        if attempts == 1 or not MADE_TWICE.search(str(error)):
            raise
    time.sleep(0.2)
    return made(url, heartbeat, attempts - 1)


def url_of(address: str | None, folder: Path) -> URL:
    if address is None:
        return URL.create("sqlite", database=str(folder / TRIALS))
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise SweepError(f"--storage: this is no address of a database; write it as {FORM}.") from None
    if url.drivername not in ("postgresql", "postgresql+psycopg", "postgres") or not url.database:
        raise SweepError(
            f"--storage {without_password(url)}: many machines share a database of PostgreSQL, {FORM}. On one leave "
            "--storage out."
        )
    return url.set(drivername="postgresql+psycopg")


def without_password(url: URL) -> str:
    bare = url.difference_update_query(["password"])._replace(password=None)
    return str(bare.set(drivername=url.get_backend_name()))


def reason_of(error: BaseException | None, password: Any) -> str | None:
    """What the database said, which may stand behind what Optuna then stumbled over; never its password."""
    while error is not None and not isinstance(error, SQLAlchemyError):
        error = error.__cause__ or error.__context__
    said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return None if error is None else said.replace(str(password or "\n"), "***")


# Studies, one of sparse networks and one of their dense rivals.


def study_name(name: str, kind: str) -> str:
    return f"{name} {kind}" if kind == DENSE else name


def joined(plan: Plan, storage: RDBStorage, data_dir: str | Path | None) -> dict[str, optuna.Study]:
    """The studies of a plan, begun or gone on with. The first objective is called `valid_ppl`, say."""
    judged = objective_of(plan.recipe, load_data(plan.recipe, data_dir))
    up = "maximize" if judged.higher_is_better else "minimize"
    studies = {}
    for kind in plan.kinds:
        studies[kind] = study = optuna.create_study(
            storage=storage,
            study_name=study_name(plan.name, kind),
            directions=[up if name == "quality" else "minimize" for name in plan.objectives],
            sampler=optuna.samplers.TPESampler(multivariate=True, group=True),
            pruner=optuna.pruners.MedianPruner(ENOUGH, round(WARM_UP * plan.recipe.train.epochs) + 1),
            load_if_exists=True,
        )
        if PLAN not in study.user_attrs:
            study.set_metric_names([f"valid_{judged.quality}", *plan.objectives[1:]])
            study.set_user_attr(PLAN, plan.to_dict())
        refuse_other(study, plan)
    return studies


def refuse_other(study: optuna.Study, plan: Plan) -> None:
    before, now = study.user_attrs[PLAN], plan.to_dict()
    differs = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if differs:
        listed = ", ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differs[:4])
        raise SweepError(
            f"the study {study.study_name!r} is another sweep: {listed}. Go on as it began, or give "
            "this one another --name."
        )


def runs_of(trials: Sequence[FrozenTrial]) -> set[str]:
    """A trial that failed before it had a name began no run."""
    return {
        trial.user_attrs.get(RUN, str(trial.number))
        for trial in trials
        if RUN in trial.user_attrs or trial.state != TrialState.FAIL
    }


def shown(found: Mapping[str, float], quality: str) -> str:
    """`valid_ppl 110.03, 45,120 bytes, 3.1 us`"""
    parts = [f"{quality} {shown_quality(found['quality'])}", f"{found['bytes']:,.0f} bytes"]
    return ", ".join([*parts, *([f"{found['time']:.1f} us"] if "time" in found else [])])


# The folder.


def read_about(folder: Path) -> dict[str, Any]:
    """The sweep's name and its database; empty where none has begun."""
    found: dict[str, Any] = read_json(folder / ABOUT, dict, record(name=text, storage=maybe(text)))
    return found


def write_about(folder: Path, name: str, address: str | None) -> None:
    about = {"name": name, "storage": None if address is None else without_password(make_url(address))}
    if (before := read_about(folder) or about) != about:
        raise SweepError(
            f"{folder}: holds the sweep {before['name']!r}, in {before['storage'] or TRIALS}. Name another --out."
        )
    write_json(folder / ABOUT, about)
