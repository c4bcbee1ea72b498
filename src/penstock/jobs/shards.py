"""The shards of one queue: which of them holds the jobs of which tenant.

    queue "mail" with 3 shards      {penstock:mail}      shard 0; the table: version, shards, shards before
                                    {penstock:mail~1.9}  shard 1; the last number makes its slot fit (`shard_tag`)
                                    {penstock:mail~2.4}  shard 2

All keys of a shard are in one slot, so each shard can be on a node of its own and use its CPU. While shards are added,
a tenant that is to move stays in its old shard until that has none of its jobs (see shards.lua). A queue that this
program does not split has one shard, and no table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.operations import Operation, Parallel, RoundTrip
from penstock.errors import ConfigurationError
from penstock.jobs.keys import MOST_SHARDS, check_queue_name
from penstock.jobs.record import has_powers
from penstock.jobs.shard import Shard
from penstock.jobs.shard_table import Table, shard_name, shard_number

if TYPE_CHECKING:
    from penstock.jobs.shard_bindings import Elsewhere

log = logging.getLogger("penstock.queue")

R = TypeVar("R")
T = TypeVar("T")

_REMEMBERED: Final = 10_000
"""Tenants whose shard a program remembers."""


class ShardSnapshot:
    """The shards by one table. A bulk enqueue uses one snapshot from its first chunk to its last.

    With two tables, a later job of a tenant could overtake an earlier one. The table of a snapshot never changes. While
    a change of shards is open, the snapshot remembers the tenants that are known to have moved.

    known  the shards that the queue has
    """

    def __init__(self, known: Sequence[Shard], table: Table) -> None:
        self.table = table
        self.known = tuple(known)
        self._chosen: dict[str, tuple[Shard, bool]] = {}
        self._moved: set[str] = set()
        self._spread = dict(table.spread)

    @property
    def is_settled(self) -> bool:
        """Whether the table is the server's, and no change was open when it was read."""
        return self.table.version > 0 and not self.table.before

    def for_new(self, tenant: str, key: str = "", record: bytes = b"") -> Shard:
        """The shard to which a tenant's next job is sent.

        key, record  of the job. A tenant that is spread has one shard for its jobs with powers, and several for its
                     other jobs. The key of such a job decides between those, so that an id of your own always leads to
                     the same shard. Without a record: the shard for jobs with powers
        """
        number = self._spread_over(tenant, record)
        if number is None:
            return self._choose(tenant)[0]
        most = self.table.number
        offset = shard_number(key, min(number, most)) * most // min(number, most)
        return self.known[(shard_number(tenant, most) + offset) % most]

    def is_moving(self, tenant: str, record: bytes = b"") -> bool:
        """Whether `for_new` names the tenant's old shard, which may have handed the tenant over by now."""
        return self._spread_over(tenant, record) is None and self._choose(tenant)[1]

    def _spread_over(self, tenant: str, record: bytes) -> int | None:
        """Over how many shards the tenant is spread; None: this job has its one shard."""
        return self._spread.get(tenant) if self._spread and record and not has_powers(record) else None

    def _choose(self, tenant: str) -> tuple[Shard, bool]:
        found = self._chosen.get(tenant)
        if found is None:
            if len(self._chosen) >= _REMEMBERED:
                self._chosen.clear()
            new = shard_number(tenant, self.table.number)
            old = shard_number(tenant, self.table.before) if self.table.before else new
            stays = old == new or tenant in self._moved
            found = self._chosen[tenant] = (self.known[new if stays else old], not stays)
        return found

    def may_hold(self, tenant: str) -> tuple[Shard, ...]:
        """The shards that may hold jobs of a tenant: while a change is open, its old and its new one."""
        if tenant in self._spread:
            return self.known
        numbers = {shard_number(tenant, n) for n in (self.table.before or self.table.number, self.table.number)}
        return tuple(self.known[n] for n in sorted(numbers))

    def is_spread(self, tenant: str) -> bool:
        """Whether the tenant is, or was, spread over several shards, so that any shard may have jobs of it."""
        return tenant in self._spread

    def note_moved(self, tenants: Iterable[str]) -> None:
        """Note that these tenants belong to their new shard for good."""
        for tenant in tenants:
            self._moved.add(tenant)
            self._chosen.pop(tenant, None)


class ShardMap:
    """The shards of one queue, as this program knows them.

    first    has the table, and all jobs of a queue that is not split
    named    with how many shards the queue begins if it is new; None: this program does not split it
    current  the latest snapshot
    """

    def __init__(self, name: str, make: Callable[[str], Shard]) -> None:
        """`make`: makes the shard of a name."""
        self._make = make
        self.first = make(name)
        self._shards = {0: self.first}
        self.named: int | None = None
        self.current = ShardSnapshot([self.first], Table(0, 1, 0))
        """Version 0: the server was not asked yet."""
        self.searched: tuple[int, str] = (0, "0")
        """Where `finish_change` continues."""
        self._is_fresh = self._is_unsplit = False

    @classmethod
    def stored(cls, name: str, make: Callable[[str], Shard], text: str) -> ShardMap:
        """The shards by a table that was just read from the server; "": the queue has none."""
        made = cls(name, make)
        if text:
            made.split(Table.read(text).number)
            made.adopt(text)
            made._is_fresh = True
        return made

    def split(self, number: int) -> None:
        """Spread the tenants over `number` shards, or over those that the server knows. See `Penstock.queue`."""
        name = self.first.name
        if isinstance(number, bool) or number not in range(1, MOST_SHARDS + 1):
            raise ConfigurationError(f"shards={number!r} of queue {name}: use 1 to {MOST_SHARDS}")
        if "~" in name:
            raise ConfigurationError(f"queue {name} is a shard, and cannot be split again")
        if self.named not in (None, number):
            raise ConfigurationError(
                f"shards={number} of queue {name}: this program has named {self.named} before; name it once"
            )
        if self.named is None:
            self.current = self._snapshot(Table(0, number, 0))
            self.named = number

    @property
    def possible(self) -> tuple[Shard, ...]:
        """All shards that the queue may ever have, and a worker may have to serve."""
        return tuple(map(self.numbered, range(1 if self.named is None else MOST_SHARDS)))

    def numbered(self, number: int) -> Shard:
        """The shard with this number, which the queue may not have yet."""
        if number not in self._shards:
            self._shards.setdefault(number, self._make(shard_name(self.first.name, number)))
        return self._shards[number]

    def _snapshot(self, table: Table) -> ShardSnapshot:
        return ShardSnapshot([self.numbered(number) for number in range(table.number)], table)

    @property
    def is_checked(self) -> bool:
        """Whether the server was asked for the table."""
        return self.current.table.version > 0

    def of_job(self, job_id: str) -> Shard:
        """The shard that a job's id names. Raises ConfigurationError for an id without it if there are several."""
        if self.named is None:
            return self.first
        name, colon, _ = job_id.partition(":")
        queue, tilde, _ = name.partition("~")
        if colon and queue == self.first.name:
            with suppress(ConfigurationError):
                return self.numbered(int(check_queue_name(name).partition("~")[2]) if tilde else 0)
        raise ConfigurationError(
            f"job id {job_id!r}: queue {self.first.name} has shards, so write the whole id, as in job.id"
        )

    # --- the table ---

    def check(self) -> Operation[None]:
        """Ask the server for the table, once. The first program that asks stores its number. One round trip.

        Raises ConfigurationError if the server has shards of a queue that this program does not split.
        """
        if self.named is None:
            yield from self._check_unsplit()
        elif not self.is_checked:
            yield from self.refresh()
            if (number := self.current.table.number) < self.named:
                log.warning(
                    "queue %s has %d shards in the server, and this program names %d: add them with "
                    "`penstock queue split %s --shards %d`",
                    self.first.name,
                    number,
                    self.named,
                    self.first.name,
                    self.named,
                )

    def _check_unsplit(self) -> Operation[None]:
        from penstock.jobs.shard_bindings import ShardBindings

        name = self.first.name
        if self._is_unsplit or "~" in name:
            return
        text = yield ShardBindings(self.first.bindings).table(0)
        if text and (number := Table.read(text).number) > 1:
            raise ConfigurationError(
                f"queue {name} has {number} shards in the server, and this program names none: write "
                f"app.queue({name!r}, shards={number}) where the app is defined, or use another name"
            )
        self._is_unsplit = True

    def refresh(self) -> Operation[ShardSnapshot]:
        """Ask the server for the table, and return the latest snapshot. One round trip; none without shards."""
        if self.named is not None and not self._is_fresh:
            from penstock.jobs.shard_bindings import ShardBindings

            self.adopt((yield ShardBindings(self.first.bindings).table(self.named)))
        self._is_fresh = False
        return self.current

    def adopt(self, text: str) -> None:
        """Use a table of the server from now on, unless it is older than the present one."""
        table = Table.read(text)
        if table.version > self.current.table.version:
            self.current = self._snapshot(table)
            self.searched = (0, "0")

    def learn(self, refusal: Elsewhere, used: ShardSnapshot) -> None:
        """Learn from the refusal of a call, whose shard the snapshot `used` had chosen."""
        if refusal.table:
            self.adopt(refusal.table)
        used.note_moved(refusal.tenants)


# --- questions and settings of a whole queue ---


def ask_all(
    shards: ShardMap, ask: Callable[[Shard], RoundTrip[T]], join: Callable[[Sequence[T]], R]
) -> RoundTrip[R] | Operation[R]:
    """Ask each shard, and join the answers. One round trip; with shards two, the second one to each node."""
    if shards.named is None:
        return ask(shards.first).then(lambda answer: join([answer]))
    return _ask_known(shards, ask, join)


def _ask_known(
    shards: ShardMap, ask: Callable[[Shard], RoundTrip[T]], join: Callable[[Sequence[T]], R]
) -> Operation[R]:
    known = (yield from shards.refresh()).known
    return join((yield Parallel(tuple(map(ask, known)))))


def set_all(shards: ShardMap, act: Callable[[Shard], RoundTrip[T]]) -> Operation[list[T]]:
    """Change all shards, also those that are added at the same time. One round trip for each, and one more."""
    done: dict[Shard, T] = {}
    while missing := [shard for shard in (yield from shards.refresh()).known if shard not in done]:
        for shard in missing:
            done[shard] = yield act(shard)
        if shards.named is None:
            break
    return [*done.values()]
