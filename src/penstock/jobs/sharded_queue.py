"""The part of a queue that is about its shards: how many it has, which of them a verb acts on, and adding some."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from penstock.core.operations import Operation, verb
from penstock.errors import ConfigurationError
from penstock.jobs.operating import OperatedQueue

if TYPE_CHECKING:
    from penstock.jobs.shards import Shards


class ShardedQueue(OperatedQueue):
    """A queue that may have shards. It is itself the first of them."""

    shards: Shards[Self] | None

    def split(self, shards: int, queue: Callable[[str], Self]) -> None:
        """Spread the tenants over `shards` slots. `queue` returns the queue of a name. See `Penstock.queue`."""
        from penstock.jobs.shards import made_shards

        made = made_shards(self, shards, queue)
        for one in made.all if made is not None else ():
            one.shards = made

    @property
    def is_split(self) -> bool:
        """Whether this is a queue with shards, and not one of its further shards."""
        return self.shards is not None and self.shards.all[0] is self

    @property
    def parts(self) -> tuple[Self, ...]:
        """The shards of this queue, or the queue itself."""
        return self.shards.queues if self.shards is not None and self.is_split else (self,)

    @property
    def family(self) -> tuple[Self, ...]:
        """All shards of the queue that this one is a shard of; or the queue itself."""
        return (self,) if self.shards is None else self.shards.queues

    def fresh_parts(self) -> Operation[tuple[Self, ...]]:
        """The shards that the server knows now, or the queue itself. A round trip if it has shards."""
        if self.shards is not None and self.is_split:
            return (yield from self.shards.refresh())
        return (self,)

    def homes_of(self, tenant: str) -> Operation[tuple[Self, ...]]:
        """The shards that may hold jobs of a tenant, or the queue itself. A round trip if it has shards."""
        if self.shards is not None and self.is_split:
            yield from self.shards.refresh()
            return self.shards.tenants.homes(tenant)
        return (self,)

    @property
    def is_sharded(self) -> bool:
        """Whether this is a queue with shards, or one of its shards."""
        return self.shards is not None

    @verb
    def check_shards(self) -> Operation[None]:
        """Ask the server for the number of shards. Workers and the first enqueue of a program do it themselves.

        The first program of all stores its number. Raises ConfigurationError if the queue has shards, and this program
        names none. One round trip; none if this program has asked already.
        """
        return self.agree_on_shards()

    def agree_on_shards(self) -> Operation[None]:
        if self.shards is not None:
            yield from self.shards.check()
        elif "~" not in self.name:
            from penstock.jobs.shards import check_unsplit

            yield from check_unsplit(self)

    @verb
    def add_shards(self, number: int) -> Operation[bool]:
        """Give the queue this many shards, while programs use it. Returns whether the change is closed already.

        Each tenant that is to move stays in its old shard while that has a job of it in any state, dead letters
        included. So its jobs keep their order, and none is lost or doubled. Workers serve the new shards within 10 s,
        and close the change when no tenant is left to move.

        Raises ConfigurationError for a number below the present one, while another change is open, and while a schedule
        that was added at run time belongs to a tenant that would move. A few round trips for each shard, and one for
        each weight of a tenant.
        """
        return self.add_shards_operation(number)

    def add_shards_operation(self, number: int) -> Operation[bool]:
        if self.shards is None or not self.is_split:
            raise ConfigurationError(
                f"queue {self.name}: name its shards first, as in app.queue({self.name!r}, shards=2), in all programs"
            )
        yield from self.shards.add(number)
        return (yield from self.shards.finish_change())

    @verb
    def finish_adding_shards(self) -> Operation[bool]:
        """Close a change of shards that is open, if no tenant is left to move. Returns whether none is open.

        Workers do this by themselves. One round trip for each 1000 tenants of the old shards, and a few more.
        """
        if self.shards is None:
            return True
        yield from self.shards.refresh()
        return (yield from self.shards.finish_change())

    def known_homes(self, tenant: str) -> tuple[Self, ...]:
        """As `homes_of`, as far as this program knows. No round trip."""
        return self.shards.tenants.homes(tenant) if self.shards is not None and self.is_split else (self,)

    def spread_tenant(self, tenant: str, shards: int) -> Operation[None]:
        """See `Tenant.spread`."""
        if self.shards is None or not self.is_split:
            raise ConfigurationError(f"queue {self.name} has no shards over which a tenant could be spread")
        yield from self.shards.spread(tenant, shards)

    def shard_of(self, tenant: str) -> Self:
        """The shard of a tenant's next job, as far as this program knows; the queue itself if it has no shards."""
        return self.shards.tenants.place(tenant)[0] if self.shards is not None and self.is_split else self
