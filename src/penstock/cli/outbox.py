"""`penstock outbox …`: calls that wait in the database of a program until a queue has them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypeVar

from cyclopts import Parameter

from penstock.cli.exits import Exit
from penstock.cli.where import HERE, AsJson, Flag, Limit, Where, Yes, confirm
from penstock.config import Configuration
from penstock.errors import ConfigurationError
from penstock.ops.wording import age, many
from penstock.terminal.tables import headings, note, show, show_json, show_table

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from penstock.sql import Backlog, Outbox
    from penstock.sql.operating import CheckResult

T = TypeVar("T")

Database: TypeAlias = Annotated[str | None, Parameter(show_default=False)]

_COLUMNS = headings("number", "job:name", "state:text", "age", "task:text", "tenant:text", "reason:text")


def relay(*, database: Database = None, metrics_port: int | None = None, where: Where = HERE) -> None:
    """Send the calls that programs have committed but not sent. Runs until it is stopped.

    A program sends its calls itself after the commit. This command sends those that are left because a program died, or
    because the server was away. Run one or more for each database.

    Parameters
    ----------
    database
        The database, for example postgresql://user@host/shop. Also set by PENSTOCK_DATABASE.
    metrics_port
        Serve the metrics of the outbox for Prometheus on this port.
    """
    engine = open_database(database)
    from sqlalchemy.ext.asyncio import AsyncEngine

    from penstock.sql import Outbox
    from penstock.sql.connecting import database_errors

    with where.connect(creates=True, patient=True) as app:
        outbox = Outbox(app, engine)

        async def run() -> None:
            task = asyncio.current_task()
            loop = asyncio.get_running_loop()
            assert task is not None
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, task.cancel)
            note(f"relays the outbox of {engine.url.render_as_string(hide_password=True)}")
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await outbox.relay()
            finally:
                if isinstance(engine, AsyncEngine):
                    await engine.dispose()
                else:
                    engine.dispose()
                await app.aclose()

        with database_errors(engine), _metrics(outbox, metrics_port):
            asyncio.run(run())


@contextlib.contextmanager
def _metrics(outbox: Outbox, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    from penstock.cli.metrics import served_outbox

    with served_outbox(outbox, port):
        yield


def ls(
    *,
    database: Database = None,
    state: Literal["waiting", "sending", "sent", "held"] | None = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show how many calls wait in the outbox, for how long, and the oldest of them.

    Parameters
    ----------
    database
        The database, for example postgresql://user@host/shop. Also set by PENSTOCK_DATABASE.
    state
        Only the calls that wait, are being sent, were sent, or are held.
    limit
        How many calls at most.
    as_json
        Print one JSON document.
    """
    from penstock.sql.operating import list_rows
    from penstock.sql.rows import backlog

    counts, calls = _ask(
        open_database(database), lambda connection: (backlog(connection), list_rows(connection, limit, state or ""))
    )
    if as_json:
        return show_json({"backlog": counts, "calls": calls})
    show(backlog_text(counts))
    if calls:
        lines = (
            (one.number, one.id, one.state, age(one.age), one.task, one.tenant, one.reason.partition(":")[0])
            for one in calls
        )
        show_table(_COLUMNS, lines)
    for reason in dict.fromkeys(one.reason for one in calls if one.reason):
        show(f"held: {reason}")


def backlog_text(counts: Backlog) -> str:
    waiting = f"{many(counts.waiting, 'call waits', 'calls wait')}"
    oldest = f", the oldest for {age(counts.oldest)}" if counts.waiting else ""
    return f"{waiting}{oldest}; {counts.sent:,} sent and not deleted yet; {counts.held:,} held."


def retry(*numbers: int, database: Database = None, all_: Annotated[Flag, Parameter(name="--all")] = False) -> Exit:
    """Send calls that are held, some or all, whatever their age.

    First check whether their effect has happened already: a call that is held may have been enqueued before.

    Parameters
    ----------
    numbers
        The numbers of calls, as `outbox ls` shows them.
    database
        The database, for example postgresql://user@host/shop. Also set by PENSTOCK_DATABASE.
    all_
        All that are held.
    """
    from penstock.sql.operating import retry_held

    chosen = _chosen(numbers, all_)
    done = _ask(open_database(database), lambda connection: retry_held(connection, chosen))
    show(f"{many(done, 'call')} will be sent by a relay.")
    return _exit(done, numbers)


def rm(
    *numbers: int,
    database: Database = None,
    all_: Annotated[Flag, Parameter(name="--all")] = False,
    yes: Yes = False,
) -> Exit:
    """Delete calls that are held, some or all. They will never be enqueued.

    Parameters
    ----------
    numbers
        The numbers of calls, as `outbox ls` shows them.
    database
        The database, for example postgresql://user@host/shop. Also set by PENSTOCK_DATABASE.
    all_
        All that are held.
    yes
        Do not ask.
    """
    from penstock.sql.operating import remove_held

    chosen, engine = _chosen(numbers, all_), open_database(database)
    what = "all held calls" if chosen is None else many(len(chosen), "held call")
    confirm(f"This deletes {what} of {engine.url.render_as_string(hide_password=True)}.", yes=yes)
    done = _ask(engine, lambda connection: remove_held(connection, chosen))
    show(f"Deleted {many(done, 'call')}.")
    return _exit(done, numbers)


def _chosen(numbers: Sequence[int], all_: bool) -> list[int] | None:
    if bool(numbers) == all_:
        raise ConfigurationError("name the numbers of held calls, or --all; penstock outbox ls lists them")
    return None if all_ else list(numbers)


def _exit(done: int, numbers: Sequence[int]) -> Exit:
    return Exit.FAILED if done < len(set(numbers)) else Exit.OK


def _ask(engine: Engine | AsyncEngine, work: Callable[[Connection], T]) -> T:
    """Run a function in a transaction, and close the connections."""
    from penstock.sql.connecting import in_database

    try:
        return in_database(engine, work)
    finally:
        getattr(engine, "sync_engine", engine).dispose()


def check_database(address: str | None) -> list[CheckResult]:
    """The doctor's findings about the outbox of a database."""
    engine = open_database(address)
    from penstock.sql.operating import diagnose_outbox

    try:
        return diagnose_outbox(engine)
    finally:
        getattr(engine, "sync_engine", engine).dispose()


def open_database(address: str | None) -> Engine | AsyncEngine:
    """The engine for --database, or what is configured instead. Raises ConfigurationError."""
    found = Configuration().text("database", address)
    if found is None:
        raise ConfigurationError(
            "name the database: --database postgresql://user@host/shop, or PENSTOCK_DATABASE, or database in "
            "[tool.penstock]"
        )
    try:
        from penstock.sql.connecting import open_engine
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"this command needs more packages ({error}): pip install 'penstock[sql]'") from None
    return open_engine(found)
