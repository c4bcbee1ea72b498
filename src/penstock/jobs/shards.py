"""The shards of one queue: which queue of its own, under a hash tag of its own, holds the jobs of which tenant.

    queue "mail" with 3 shards      {penstock:mail}      shard 0, and the number of shards
                                    {penstock:mail~1}    shard 1
                                    {penstock:mail~2}    shard 2

Each shard is a queue as any other, with all its keys in one slot, and so has a slot, a node and a CPU of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar
from zlib import crc32

from penstock.core.operations import Operation
from penstock.errors import ConfigurationError
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.keys import MOST_SHARDS

if TYPE_CHECKING:
    from penstock.jobs.unique import Unique


class Shard(Protocol):
    """The parts of a queue that this module uses."""

    name: str
    bindings: QueueBindings

    @property
    def shards(self) -> Shards[Self] | None: ...


S = TypeVar("S", bound=Shard)


def shard_name(queue: str, number: int) -> str:
    return f"{queue}~{number}" if number else queue


def whole_name(name: str) -> str:
    """The name of the queue that this queue or shard is a part of."""
    return name.partition("~")[0]


def shard_number(tenant: str, shards: int) -> int:
    """The shard of a tenant. A jump hash: with one shard more, only the tenants of the new one have another shard.

    Jobs without a tenant are in shard 0. From: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm".
    """
    key, number, following = crc32(tenant.encode()), 0, 0
    while following < shards:
        number = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((number + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return number


class Shards(Generic[S]):
    """The shards of one queue, as many as this program names. All of its shards share this object."""

    def __init__(self, queues: Sequence[S]) -> None:
        self.queues = tuple(queues)
        self._next_first = 0
        self.is_checked = False
        """Whether the server has the same number of shards."""
        self.is_used = False
        """Whether a job was already given to a shard, so that the number is fixed."""

    def of(self, tenant: str) -> S:
        """The shard that holds the jobs of a tenant."""
        self.is_used = True
        return self.queues[shard_number(tenant, len(self.queues))]

    def rotated(self) -> tuple[S, ...]:
        """All shards, each time with another one first."""
        first = self._next_first
        self._next_first = (first + 1) % len(self.queues)
        return self.queues[first:] + self.queues[:first]

    def named(self, job_id: str) -> S:
        """The shard of a job. Raises ConfigurationError for an id without its queue."""
        name, colon, _ = job_id.partition(":")
        for queue in self.queues if colon else ():
            if queue.name == name:
                return queue
        raise ConfigurationError(
            f"job id {job_id!r}: queue {self.queues[0].name} has {len(self.queues)} shards, so write the whole id, "
            "as in job.id"
        )

    def check(self) -> Operation[None]:
        """Agree with the server on the number of shards, once. One round trip."""
        if not self.is_checked:
            yield from agree_with_server(self.queues[0], len(self.queues))
            self.is_checked = True


def made_shards(queue: S, number: int, queue_named: Callable[[str], S]) -> Shards[S] | None:
    """So many shards of a queue; None if it has as many. Raises ConfigurationError; see `Penstock.queue`."""
    if number not in range(1, MOST_SHARDS + 1):
        raise ConfigurationError(f"shards={number!r} of queue {queue.name}: use 1 to {MOST_SHARDS}")
    if "~" in queue.name:
        raise ConfigurationError(f"queue {queue.name} is a shard, and cannot be split again")
    present = queue.shards
    if number == (1 if present is None else len(present.queues)):
        return None
    if present is not None and present.is_used:
        raise ConfigurationError(
            f"shards={number} of queue {queue.name}: this program has used it with {len(present.queues)} already"
        )
    return Shards([queue, *(queue_named(shard_name(queue.name, each)) for each in range(1, number))])


def check_unique_key(what: str, unique: Unique, tenant: str, *, uses_tenant: bool) -> None:
    """Raise ConfigurationError unless the key of a unique job in a queue with shards contains the tenant.

    Each shard knows only its own keys, so other keys would be unique within a shard and not within the queue.
    """
    if unique.exact is not None and tenant not in unique.exact:
        raise ConfigurationError(
            f"{what}: Unique(exact={unique.exact!r}): its queue has shards, which know only the keys of their own "
            f"tenants: write the tenant, here {tenant!r}, into the key"
        )
    if unique.exact is None and not uses_tenant:
        raise ConfigurationError(
            f"{what}: unique: its queue has shards, which know only the keys of their own tenants: write the tenant "
            f"into the key, as in Unique({'{tenant}:' + (unique.key or '{order}')!r})"
        )


def check_limit_key(what: str, key: str, *, uses_tenant: bool) -> None:
    """Raise ConfigurationError unless the key of a limit in a queue with shards contains the tenant."""
    if not uses_tenant:
        raise ConfigurationError(
            f"{what}: its queue has shards, which count only the jobs of their own tenants: write the tenant into the "
            f"key, as in key={'{tenant}' + (':' + key if key else '')!r}"
        )


def agree_with_server(queue: Shard, shards: int) -> Operation[None]:
    """Have the server store the number of shards of a queue, unless it has one. One round trip.

    Raises ConfigurationError if the server has another number, or if the queue already has jobs and no shards.
    """
    stored = yield queue.bindings.agree_on_shards(shards)
    if stored == 0:
        raise ConfigurationError(
            f"queue {queue.name} has jobs in one slot already: it can be split when these and "
            "their dead letters are gone; or use another name"
        )
    if stored != shards:
        raise ConfigurationError(
            f"queue {queue.name} has {stored} shards in the server, and this program says {shards}: write "
            f"app.queue({queue.name!r}, shards={stored}) where the app is defined, or use another name"
        )
