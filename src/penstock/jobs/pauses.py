"""Pauses of a part of a queue: the jobs of one task, or of one tenant. `pauses.lua` holds them in the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.core.operations import Operation, Parallel
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.limits import unpacked
from penstock.jobs.options import Options

if TYPE_CHECKING:
    from penstock.jobs.operating import OperatedQueue
    from penstock.jobs.task import Task

_TASK, _TENANT = "p:task=", "p:tenant="
_PAUSED: Final = b"1"


@dataclass(frozen=True, slots=True)
class PausedPart:
    """A part of a queue that is paused: a task or a tenant; the other one is None.

    parked  its jobs that were set aside; those that were cancelled since then are counted until they are met
    paused  False: it was resumed, and the parked jobs are handed out again, some hundred at a time
    """

    task: str | None
    tenant: str | None
    parked: int
    paused: bool


def part_name(queue: str, task: Task[..., Any] | str | None, tenant: str | None) -> str | None:
    """The part as the server names it; None: the whole queue. Raises BadCall for both, and for an empty name."""
    if task is not None and tenant is not None:
        raise BadCall(f"queue {queue}: pause a task or a tenant, one at a time")
    if task is not None:
        name = task if isinstance(task, str) else task.name
        if not name:
            raise BadCall(f"queue {queue}: bare values have no task: pause the queue, or a tenant")
        return _TASK + name
    if tenant is not None:
        return _TENANT + Options(tenant=tenant).tenant  # which checks the name
    return None


def switch_pause(
    shards: Sequence[OperatedQueue], on: bool, task: Task[..., Any] | str | None, tenant: str | None
) -> Operation[None]:
    """Pause or resume a queue or a part of it. One round trip for each shard."""
    part = part_name(shards[0].name, task, tenant)
    for shard in shards:
        if part is None:
            yield shard.bindings.set_switch("paused", on)
        elif (yield shard.bindings.pause_part(part, on)) < 0:
            raise ConfigurationError(
                f"queue {shard.name}: 1000 tasks and tenants are paused, which is the most: pause the queue"
            )


def pauses_of(shards: Sequence[OperatedQueue]) -> Operation[list[PausedPart]]:
    """The paused parts of a queue, from those of its shards."""
    found: dict[tuple[str | None, str | None], PausedPart] = {}
    for one in (one for part in (yield Parallel(tuple(shard.bindings.pauses() for shard in shards))) for one in part):
        known = found.get((one.task, one.tenant), replace(one, parked=0))
        found[one.task, one.tenant] = replace(one, parked=known.parked + one.parked, paused=known.paused or one.paused)
    return sorted(found.values(), key=lambda one: (one.task is None, one.task or one.tenant or ""))


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
