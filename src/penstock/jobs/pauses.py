"""Pauses of a scope of a queue: the jobs of one task, or of one tenant. `pauses.lua` holds them in the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from penstock.core.arguments import shown
from penstock.errors import BadCall
from penstock.jobs.limits import unpacked
from penstock.jobs.options import Options

_TASK, _TENANT = "p:task=", "p:tenant="
_PAUSED: Final = b"1"


class Named(Protocol):
    """A task."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PausedPart:
    """A scope of a queue that is paused: a `task`, with `tenant` None, or a `tenant`, with `task` None.

    parked  its jobs that were parked; those that were cancelled since then count until a script meets them
    paused  False: it was resumed, and its parked jobs become ready again, some hundred at a time
    """

    task: str | None
    tenant: str | None
    parked: int
    paused: bool


def part_name(queue: str, task: Named | str | None, tenant: str | None) -> str | None:
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


def read_pauses(reply: Sequence[Any]) -> list[PausedPart]:
    """The reply of `show_pauses`."""
    found = []
    for name, status, packed in zip(reply[0::3], reply[1::3], reply[2::3], strict=True):
        part = name.decode(errors="replace")
        levels = unpacked(packed)[3]
        parked = sum(int(n) for n in levels[1::3]) if levels else 0
        task = part.removeprefix(_TASK) if part.startswith(_TASK) else None
        tenant = part.removeprefix(_TENANT) if task is None else None
        found.append(PausedPart(task, tenant, parked, status == _PAUSED))
    return found


def joined_pauses(found: Sequence[Sequence[PausedPart]]) -> list[PausedPart]:
    """The pauses of a queue from those of its shards."""
    joined: dict[tuple[str | None, str | None], PausedPart] = {}
    for one in (one for pauses in found for one in pauses):
        known = joined.get((one.task, one.tenant)) or replace(one, parked=0)
        joined[one.task, one.tenant] = replace(one, parked=known.parked + one.parked, paused=known.paused or one.paused)
    return sorted(joined.values(), key=lambda one: (one.task is None, one.task or one.tenant or ""))
