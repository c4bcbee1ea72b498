"""Which shard of a queue holds a tenant's jobs: the table of shards, and what a program knows by it.

"3 8 0"           version 3, eight shards
"4 12 8"          version 4, twelve shards; it had eight, and tenants are still moving
"5 12 0 [...]"    and some tenants are spread over several shards
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from penstock.jobs.record import has_powers

_REMEMBERED: Final = 10_000
"""Tenants whose shard a program remembers."""

S = TypeVar("S")


class Table(NamedTuple):
    """Where the tenants belong.

    before  the number of shards before the change that is open; 0: none is
    spread  tenants that are spread over several shards, and over how many
    """

    version: int
    number: int
    before: int
    spread: tuple[tuple[str, int], ...] = ()

    @classmethod
    def read(cls, text: str) -> Table:
        version, number, before, *rest = text.split(" ", 3)
        spread = msgspec.json.decode(rest[0], type=tuple[tuple[str, int], ...]) if rest else ()
        return cls(int(version), int(number), int(before), spread)

    @property
    def text(self) -> str:
        rest = f" {msgspec.json.encode(self.spread).decode()}" if self.spread else ""
        return f"{self.version} {self.number} {self.before}{rest}"


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


class TenantMap(Generic[S]):
    """Where the tenants belong by one table."""

    def __init__(self, shards: Sequence[S], table: Table) -> None:
        self._shards = shards
        self.table = table
        self._places: dict[str, tuple[S, bool]] = {}
        self._moved: set[str] = set()
        self._spread = dict(table.spread)

    @property
    def is_settled(self) -> bool:
        """Whether the table is the server's, and no change was open when it was read."""
        return self.table.version > 0 and not self.table.before

    def place(self, tenant: str) -> tuple[S, bool]:
        """The shard to which a tenant's next job is sent, and whether that may have handed the tenant over by now."""
        found = self._places.get(tenant)
        if found is None:
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            new = shard_number(tenant, self.table.number)
            old = shard_number(tenant, self.table.before) if self.table.before else new
            stays = old == new or tenant in self._moved
            found = self._places[tenant] = (self._shards[new if stays else old], not stays)
        return found

    def home(self, tenant: str, key: str, record: bytes) -> tuple[S, bool]:
        """As `place`, for one job. A tenant that is spread has one shard for its jobs with powers, and several others.

        The job's id decides, so that an id of your own is in one shard whenever it is used.
        """
        number = self._spread.get(tenant) if self._spread else None
        if number is None or has_powers(record):
            return self.place(tenant)
        most = self.table.number
        step = shard_number(key, min(number, most)) * most // min(number, most)
        return self._shards[(shard_number(tenant, most) + step) % most], False

    def is_spread(self, tenant: str) -> bool:
        """Whether the tenant is, or was, spread over several shards, so that any shard may have jobs of it."""
        return tenant in self._spread

    def homes(self, tenant: str) -> tuple[S, ...]:
        """The shards that may hold jobs of a tenant: while a change is open, its old and its new one."""
        if tenant in self._spread:
            return tuple(self._shards[: self.table.number])
        numbers = {shard_number(tenant, n) for n in (self.table.before or self.table.number, self.table.number)}
        return tuple(self._shards[n] for n in sorted(numbers))

    def note_moved(self, tenants: Iterable[str]) -> None:
        """These tenants belong to their new shard for good."""
        for tenant in tenants:
            self._moved.add(tenant)
            self._places.pop(tenant, None)
