"""`penstock doctor`: what is well with the server, what is not, and what to do."""

from __future__ import annotations

from rich.text import Text

from penstock.cli.exits import Exit
from penstock.cli.where import HERE, AsJson, Where
from penstock.ops.doctor import LOCKS
from penstock.ops.wording import many
from penstock.terminal.tables import show, show_beside, show_json

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(topic: str | None = None, /, *, where: Where = HERE, as_json: AsJson = False) -> Exit:
    """Examine the server, and say of each thing whether it is well and what to do. Exit code 1 if something fails.

    Takes some seconds. Writes nothing but a key of its own, which it deletes.

    Parameters
    ----------
    topic
        Only this: server, memory, persistence, replicas, latency, clock, cluster, rights, keys or queues. And `locks`,
        only if asked for: contend for a lock and a semaphore for some seconds, and judge who held what.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        findings = inspector.prove_locks() if topic == LOCKS else inspector.doctor(topic)
    failed = sum(finding.level == "fail" for finding in findings)
    if as_json:
        show_json({"ok": not failed, "findings": findings})
        return Exit.FAILED if failed else Exit.OK
    for finding in findings:
        place = f"{finding.server}: " if finding.server else ""
        level = (f"{finding.level:5}", _STYLES[finding.level])
        show_beside(Text.assemble(level, (f"{finding.topic:13}", "dim")), place + finding.found)
        if finding.advice:
            show_beside(Text.assemble(" " * 18, ("-> ", "dim")), finding.advice)
    warned = sum(finding.level == "warn" for finding in findings)
    show("", f"{many(failed, 'failure')}, {many(warned, 'warning')}.")
    return Exit.FAILED if failed else Exit.OK
