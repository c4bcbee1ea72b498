"""`penstock worker ls`, `quiet` and `stop`: the workers of each queue, and requests to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.text import Text

from penstock.cli.where import HERE, AsJson, Where
from penstock.errors import ConfigurationError
from penstock.jobs.counts import WorkerInfo
from penstock.ops.wording import age, ago, lost, size
from penstock.terminal.tables import cell, headings, note, show, show_list

ASKED = {"quiet": "quiet", "stop": "stopping"}
"""The states of workers that were asked for something."""


def ls(*, queue: str | None = None, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the workers of each queue, and programs that claim without a worker.

    Parameters
    ----------
    queue
        List only this queue.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        workers, now = inspector.workers.all(queue), inspector.now()
    columns = headings("worker:name", "queue:name", "jobs", "at once", "memory", "since", "release:name", "state:name")
    lines = ((*_row(one, now), _state(one)) for one in workers)
    show_list(workers, columns, lines, none="There are no workers.", as_json=as_json)


def _row(one: WorkerInfo, now: float) -> tuple[str, ...]:
    since = "" if one.since is None else ago(one.since, now)
    memory = "" if one.memory is None else size(one.memory)
    return one.name or "(a program)", one.queue, f"{one.held:,}", f"{one.concurrency or ''}", memory, since, one.release


def _state(one: WorkerInfo) -> Text:
    if one.lease <= 0:
        return cell(lost(one.lease), "red")
    state = "busy" if one.held else "idle"
    return cell(f"{ASKED.get(one.asked, state)}, lease {age(one.lease)}")


def quiet(*names: str, where: Where = HERE) -> None:
    """Ask workers to claim no more jobs. Running jobs finish, and the workers stay until they are stopped.

    Parameters
    ----------
    names
        The workers as `penstock worker ls` prints them: host:pid.
    """
    _ask(where, "quiet", names, "is asked to claim no more jobs")


def stop(*names: str, where: Where = HERE) -> None:
    """Ask workers to stop when their running jobs have finished. Their supervisors do not replace them.

    Parameters
    ----------
    names
        The workers as `penstock worker ls` prints them: host:pid.
    """
    _ask(where, "stop", names, "is asked to stop when its jobs have finished")


def _ask(where: Where, word: Literal["quiet", "stop"], names: Sequence[str], what: str) -> None:
    if not names:
        raise ConfigurationError("name the workers, as `penstock worker ls` prints them: host:pid")
    with where.open() as inspector:
        for request in inspector.workers.ask(list(dict.fromkeys(names)), word):
            show(f"{request.name} {what}.")
            if not request.notified:
                note(
                    f"{request.name} did not get the message: a worker with jobs sees the request within its lease; "
                    "ask an idle one again"
                )
