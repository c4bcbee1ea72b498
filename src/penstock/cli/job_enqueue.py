"""`penstock job enqueue`: one call of a task, from the terminal."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from penstock.cli.ages import Age
from penstock.cli.where import HERE, Where, check_bounds
from penstock.errors import ConfigurationError
from penstock.jobs.options import EnqueueOptions, Options
from penstock.terminal.tables import note, show


def enqueue(
    task: str,
    arguments: str = "{}",
    /,
    *,
    queue: str | None = None,
    delay: Age | None = None,
    tenant: str = "",
    priority: int = 5,
    tag: Annotated[list[str] | None, Parameter(negative=())] = None,
    where: Where = HERE,
) -> None:
    """Enqueue a call of a task.

    With --app, the arguments are checked against the task, and its limits, its unique key and its queue apply. Without
    it, the call is sent as it is to --queue, and a worker finds out whether it fits.

    Parameters
    ----------
    task
        The name of the task.
    arguments
        A JSON object with the arguments by name, or a JSON array with those by position.
    queue
        The queue; with --app, that of the task by default.
    delay
        Let the job wait for this time first: 90s, 15m, 12h, 7d or 2w.
    tenant
        The tenant of the job.
    priority
        From 0, the most urgent, to 9.
    tag
        A tag of the job, such as order:17. May be given up to eight times.
    """
    check_bounds("--priority", priority, 0, 9)
    if where.app is None and queue is None:
        raise ConfigurationError("name the queue, --queue NAME, or the app that has the task, --app module:name")
    values = _decoded(arguments)
    options = EnqueueOptions(delay=delay or 0.0, tenant=tenant, priority=priority, tags=tag or ())
    try:
        Options(**options)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    with where.open(creates=True) as inspector:
        if where.app is not None:
            job = inspector.jobs.enqueue(task, values, queue=queue, **options)
        else:
            job = inspector.jobs.enqueue_unchecked(task, values, queue=str(queue), **options)
    show(f"Enqueued {job.id}.")
    if where.app is None:
        note("not checked: without --app, parameters, limits and the unique key of the task are not known")


def _decoded(arguments: str) -> dict[str, Any] | list[Any]:
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any] | list[Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"arguments {arguments[:60]!r}: neither a JSON object nor a JSON array ({error}): write "
            '\'{"to": "ada@example.com"}\''
        ) from None
