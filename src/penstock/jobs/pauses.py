"""Pauses of a scope of a queue: the jobs of one task, or of one tenant. `pauses.lua` holds them in the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from penstock.core.arguments import is_text, shown
from penstock.core.ids import process_name
from penstock.errors import BadCall
from penstock.jobs.constants import PAUSE, PAUSED
from penstock.jobs.limits import unpacked
from penstock.jobs.options import Options

_TASK, _TENANT = "p:task=", "p:tenant="
_LONGEST_AUTHOR: Final = 120


class Named(Protocol):
    """A task."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PausedScope:
    """A scope that is paused: a `task` of a queue, a `tenant` of it, or, without either, the whole queue.

    parked  its jobs that were parked; those that were cancelled since then count until a script meets them. The jobs of
            a queue that is paused as a whole are not parked
    paused  False: it was resumed, and its parked jobs become ready again, some fifty at a time
    since   when it was paused or resumed, in seconds since 1970 by the server's clock
    by      the author of that
    """

    task: str | None
    tenant: str | None
    parked: int
    paused: bool
    since: float = 0.0
    by: str = ""

    @property
    def name(self) -> str:
        """`queue`, `task send_email` or `tenant acme`."""
        if self.task is not None:
            return f"task {self.task}"
        return "queue" if self.tenant is None else f"tenant {self.tenant or '(none)'}"


def scope_name(queue: str, task: Named | str | None, tenant: str | None) -> str | None:
    """The scope as the server names it; None: the whole queue. Raises BadCall for both, and for an empty name."""
    if task is not None and tenant is not None:
        raise BadCall(f"queue {queue}: pause a task or a tenant, one at a time")
    if task is not None:
        name = task if isinstance(task, str) else getattr(task, "name", None)
        if not isinstance(name, str):
            raise BadCall(f"queue {queue}: task={shown(task)}: a task, or its name")
        if not name:
            raise BadCall(f"queue {queue}: bare values have no task: pause the queue, or a tenant")
        return _TASK + name
    if tenant is not None:
        return _TENANT + Options(tenant=tenant).tenant  # which checks the name
    return None


def read_pauses(reply: Sequence[Any]) -> list[PausedScope]:
    """The reply of `show_pauses`."""
    whole, *scopes = reply
    found = [PausedScope(None, None, 0, True, *read_pause(whole)[1:])] if whole else []
    for name, stored, packed in zip(scopes[0::3], scopes[1::3], scopes[2::3], strict=True):
        levels = unpacked(packed)[3]
        parked = sum(int(n) for n in levels[1::3]) if levels else 0
        task, tenant = named_scope(name)
        found.append(PausedScope(task, tenant, parked, *read_pause(stored)))
    return found


def read_pause(stored: bytes) -> tuple[bool, float, str]:
    """Whether a scope is paused, the time of its pause, and its author."""
    at, by = PAUSE["at"][0], PAUSE["by"][0]
    return stored[:at] == PAUSED, int.from_bytes(stored[at:by]) / 1000, stored[by:].decode(errors="replace")


def named_scope(name: bytes) -> tuple[str | None, str | None]:
    """Task and tenant of a scope, which has one of the two."""
    scope = name.decode(errors="replace")
    task = scope.removeprefix(_TASK) if scope.startswith(_TASK) else None
    return task, scope.removeprefix(_TENANT) if task is None else None


SCOPES_NAMED: Final = 10
"""How many of the scopes that stay paused an answer names."""


def resume_command(queue: str, scope: PausedScope) -> str:
    """The command line that resumes a scope."""
    import shlex

    option = ["--task", scope.task] if scope.task is not None else []
    if scope.tenant is not None:
        option = ["--tenant", scope.tenant]
    return shlex.join(["penstock", "queue", "resume", queue, *option])


def pause_author(by: str | None) -> str:
    """Who pauses a scope; None: this process. Raises BadCall for a text that is empty or too long."""
    if by is None:
        return process_name()
    if not is_text(by, 1, _LONGEST_AUTHOR):
        raise BadCall(f"pause(by={shown(by)}): the author of the pause, in 1 to {_LONGEST_AUTHOR} bytes of UTF-8")
    return by


def joined_pauses(found: Sequence[Sequence[PausedScope]]) -> list[PausedScope]:
    """The pauses of a queue from those of its shards."""
    joined: dict[tuple[str | None, str | None], PausedScope] = {}
    for one in (one for pauses in found for one in pauses):
        known = joined.get((one.task, one.tenant)) or replace(one, parked=0)
        joined[one.task, one.tenant] = replace(one, parked=known.parked + one.parked, paused=known.paused or one.paused)
    return sorted(joined.values(), key=lambda one: (one.task is None, one.tenant is None, one.task or one.tenant or ""))
