"""`penstock doctor`: check whether the server is fit for Penstock, and show remedies."""

from __future__ import annotations

from rich.text import Text

from penstock.cli.exits import Exit
from penstock.cli.outbox import Database, check_database
from penstock.cli.where import HERE, AsJson, Where
from penstock.ops.doctor import LOCKS
from penstock.ops.wording import many
from penstock.terminal.tables import show, show_beside, show_json

OUTBOX = "outbox"
"""A topic that is checked for a database."""

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    topic: str | None = None, /, *, database: Database = None, where: Where = HERE, as_json: AsJson = False
) -> Exit:
    """Check the server's health and show findings with remedies. Exit code 1 if something fails.

    Takes some seconds. Writes nothing but a key of its own, which it deletes.

    Parameters
    ----------
    topic
        Check only this topic: server, memory, persistence, replicas, latency, clock, cluster, rights, keys or
        queues. The topic `locks` is checked only on request: it contends for a lock and a semaphore for some seconds
        and reports violations. The topic `outbox` needs --database.
    database
        Check the outbox of this database as well. Also set by PENSTOCK_DATABASE, for the topic `outbox`.
    as_json
        Print one JSON document.
    """
    if topic == OUTBOX:
        results = check_database(database)
    else:
        with where.open() as inspector:
            results = inspector.prove_locks() if topic == LOCKS else inspector.doctor(topic)
        results += check_database(database) if database is not None else []
    failed = sum(result.level == "fail" for result in results)
    if as_json:
        show_json({"ok": not failed, "results": results})
        return Exit.FAILED if failed else Exit.OK
    for result in results:
        server = f"{result.server}: " if result.server else ""
        level = (f"{result.level:5}", _STYLES[result.level])
        show_beside(Text.assemble(level, (f"{result.topic:13}", "dim")), server + result.message)
        if result.advice:
            show_beside(Text.assemble(" " * 18, ("-> ", "dim")), result.advice)
    warned = sum(result.level == "warn" for result in results)
    show("", f"{many(failed, 'failure')}, {many(warned, 'warning')}.")
    return Exit.FAILED if failed else Exit.OK
