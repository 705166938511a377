"""Where trials are kept: a journal file in the sweep's folder, or a PostgreSQL database that many machines share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gatewise.lab.sweep.space import SweepError

JOURNAL = "journal.log"
HEARTBEAT = 60  # seconds; a worker that is silent for twice as long is dead
CONNECT = 10  # seconds
TABLES = 0x6761746577697365  # the number of an advisory lock: "gatewise"
SCHEMES = ("postgresql", "postgresql+psycopg", "postgres")


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Its log says again what we say, and parts that we use are marked experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def opened(url: str | None, folder: Path, heartbeat: int = HEARTBEAT) -> Iterator[Any]:
    """Optuna's storage, and no word of its own; where a database fails, one sentence without its password."""
    with quiet_optuna():
        if url is None:
            yield open_journal(folder / JOURNAL)
            return
        storage = open_database(url, heartbeat)
        try:
            with answering(url):
                yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()


def open_database(url: str, heartbeat: int) -> Any:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    parts = checked_url(url)
    options = {"connect_args": {"connect_timeout": CONNECT}, "pool_pre_ping": True}
    try:
        with one_at_a_time(parts, options):
            return RDBStorage(
                parts.render_as_string(hide_password=False),
                engine_kwargs=options,
                heartbeat_interval=heartbeat,
                grace_period=2 * heartbeat,
            )
    except (SQLAlchemyError, OSError, RuntimeError) as error:
        raise SweepError(
            f"{without_password(url)}: cannot be used for a sweep ({reason_of(error, parts.password)}). See that the "
            "server runs, and that address, user and password are right."
        ) from error


@contextmanager
def one_at_a_time(parts: Any, options: dict[str, Any]) -> Iterator[None]:
    """Optuna makes its tables in an empty database, and fails where two workers do so at once."""
    from sqlalchemy import create_engine, text

    engine = create_engine(parts, **options)
    try:
        with engine.connect() as connection:  # the lock ends with it
            connection.execute(text(f"SELECT pg_advisory_lock({TABLES})"))
            yield
    finally:
        engine.dispose()


@contextmanager
def answering(url: str) -> Iterator[None]:
    """A database that stops while a sweep runs is one sentence, too."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except Exception as error:
        # Optuna, which cannot tell the end of a trial, then stumbles over a variable: the reason stands behind it.
        kinds = (SQLAlchemyError, StorageInternalError)
        behind = next((one for one in chain_of(error) if isinstance(one, kinds)), None)
        if behind is None:
            raise
        raise SweepError(
            f"{without_password(url)}: has gone ({reason_of(behind, checked_url(url).password)}). Run the same line "
            "again when it is back: trials go on from their checkpoints."
        ) from error


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def open_journal(path: Path) -> Any:
    from optuna.storages import JournalStorage

    from gatewise.lab.sweep.journal import Journal

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(Journal(path))
    except OSError as error:
        raise SweepError(f"{path}: cannot be used for a sweep ({error.strerror or error}).") from error
    except ValueError as error:
        if isinstance(error, SweepError):
            raise
        raise SweepError(
            f"{path}: is no journal of a sweep, or it is damaged ({error}). Restore it from a copy, or name another "
            "--out."
        ) from error


def checked_url(url: str) -> Any:
    """The parts of a PostgreSQL URL, with the driver that gatewise[sweep] brings."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    form = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"
    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        raise SweepError(f"--storage: this is no address of a database; write it as {form}.") from None
    if parts.drivername.startswith("sqlite"):
        raise SweepError(
            "--storage: SQLite is not made for several workers. Leave --storage out for a journal file, which is, or "
            f"name {form}."
        )
    if parts.drivername not in SCHEMES:
        raise SweepError(f"--storage {parts.drivername}://...: only PostgreSQL is known here: {form}.")
    if not parts.database:
        raise SweepError(f"--storage {without_password(url)}: it names no database; write it as {form}.")
    return parts.set(drivername="postgresql+psycopg")


def without_password(url: str) -> str:
    from sqlalchemy.engine import URL, make_url

    parts = make_url(url)
    query = {key: value for key, value in parts.query.items() if key != "password"}
    bare = URL.create(parts.drivername, parts.username, None, parts.host, parts.port, parts.database, query)
    return str(bare.render_as_string())


def reason_of(error: BaseException, password: Any) -> str:
    """The first line of what the database said; never its password."""
    while error.__cause__ is not None and not hasattr(error, "orig"):
        error = error.__cause__
    said = str(getattr(error, "orig", None) or error).strip().splitlines()
    line = next((line.strip() for line in said if line.strip()), type(error).__name__)
    return line.replace(str(password), "***") if password else line
