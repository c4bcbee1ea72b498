"""Requests of an operator to workers: to claim no more jobs, or to stop. `cancelling.lua` holds them in the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.core.operations import RoundTrip
from penstock.jobs.bindings import QueueBindings, worker_name

Word: TypeAlias = Literal["quiet", "stop"]
"""Claim no more jobs, and stay; end when the running jobs have finished."""


class Registered(NamedTuple):
    """A registration of a worker: its name, its incarnation, and how many jobs that has claimed."""

    name: str
    incarnation: bytes
    held: int


def registrations(bindings: QueueBindings, cursor: str, count: int) -> RoundTrip[tuple[str, list[Registered]]]:
    """Those of about `count` workers, and the next cursor. The first and the last cursor are "0"."""

    def read(reply: Sequence[Any]) -> tuple[str, list[Registered]]:
        _, following, *rows = reply
        found = [Registered(worker_name(rows[at + 3]), rows[at], rows[at + 2]) for at in range(0, len(rows), 6)]
        return following.decode(), found

    return bindings._call("scan_workers", (bindings.clock.now_ms, count, cursor), read)


def ask_workers(bindings: QueueBindings, word: Word, incarnations: Sequence[bytes]) -> RoundTrip[list[int]]:
    """Send a request to incarnations. Returns for each GONE, STORED or NOTIFIED."""
    return bindings._call("ask_workers", (bindings.clock.now_ms, word, *incarnations), list)
