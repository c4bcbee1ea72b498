"""The table of the shards of a queue, as the server stores it, and the shard of a tenant by its number.

"3 8 0"           version 3, eight shards
"4 12 8"          version 4, twelve shards; it had eight, and tenants are still moving
"5 12 0 [...]"    and some tenants are spread over several shards
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

import msgspec


class Table(NamedTuple):
    """Where the tenants belong.

    before  the number of shards before the change that is open; 0: no change is open
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
    """The name of the queue to which a shard belongs; of a queue, its own name."""
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
