"""Calls become rows of the outbox, in a transaction that somebody else has begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from penstock.app import Penstock
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.job import Job
from penstock.jobs.middleware import EnqueueContext, JobDraft
from penstock.jobs.task import Call
from penstock.sql import schema
from penstock.sql.rows import CHUNK, OutboxRow, draw_nonce, lane_of

R = TypeVar("R")

_INSERT: Final = insert(schema.outbox).returning(schema.outbox.c.number, schema.outbox.c.nonce)


class Executes(Protocol):
    """A connection of SQLAlchemy, or one of Django that takes the same statements."""

    @property
    def dialect(self) -> Any: ...
    def execute(self, statement: Any, parameters: Any = ..., /) -> Any: ...


def write_calls(
    connection: Executes, app: Penstock, calls: Sequence[Call[R]], verb: str
) -> tuple[list[Job[R]], list[OutboxRow]]:
    """Write rows, inside the `enqueue` hooks of the app. Returns the jobs in order, and the rows.

    Raises BadCall for what is no call, or unique, or waits for others, and ConfigurationError for a queue with shards,
    and where the tables are missing. `verb`: the caller, for error messages.
    """
    jobs: list[Job[R]] = []
    queues: dict[str, list[tuple[JobDraft, bool]]] = {}
    for call in calls:
        _check(call, verb)
        key, record = call.draft()
        queue = call.task.queue.name
        jobs.append(call.job(key))
        queues.setdefault(queue, []).append(
            (JobDraft(queue, key, record, app.settings.seal), call.task.options.durable)
        )
    rows: list[OutboxRow] = []
    for queue, drafts in queues.items():
        with app.middleware.around_enqueue(EnqueueContext(queue, [draft for draft, _ in drafts])):
            for start in range(0, len(drafts), CHUNK):
                rows += _insert(connection, queue, drafts[start : start + CHUNK])
    return jobs, rows


def _check(call: Any, verb: str) -> None:
    if not isinstance(call, Call):
        raise BadCall(f"{verb} takes calls, as in task.call(…), not {type(call).__name__}")
    task = call.task
    if task.unique is not None:
        raise BadCall(
            f"{task.name}() is unique, and the outbox takes no unique calls: whether it is a double is known only when "
            "the queue gets it, after the commit. Give it an id of its own, by using(id=…)"
        )
    if task.queue.shards.named is not None:
        raise ConfigurationError(
            f"queue {task.queue.name} has shards, and the outbox takes no calls for it: enqueue {task.name}() after "
            "the commit, or use a queue without shards"
        )


def _insert(connection: Executes, queue: str, drafts: Iterable[tuple[JobDraft, bool]]) -> list[OutboxRow]:
    made = [
        OutboxRow(0, draw_nonce(), queue, draft.key, lane_of(draft.tenant), draft.record, durable)
        for draft, durable in drafts
    ]
    columns = ("nonce", "queue", "job", "lane", "record", "durable")
    values = [{name: getattr(row, name) for name in columns} | {"durable": int(row.durable)} for row in made]
    try:
        numbers = {nonce: number for number, nonce in connection.execute(_INSERT, values)}
    except DBAPIError as error:
        raise schema.missing_table(error, connection.dialect.name) or error from error
    return [row._replace(number=numbers[row.nonce]) for row in made]
