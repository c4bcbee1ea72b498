"""The keys of contacts and directories: their tables and their names."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.cached import cached_property
from penstock.core.keys import REPLAY, TABLES

CONTACTS = {
    "meta": ("HASH", "rules, and a counter of uses", "the last contact"),
    "used": ("ZSET", "card -> the number of its last use; by frequency, with the number of uses", "the last contact"),
    **REPLAY,
}


DIRECTORY = {
    "meta": ("HASH", "rules and counts", "the last name"),
    "names": ("ZSET", "element -> 0", "the name"),
    "ids:": ("HASH", "id -> card; one key for each hundred or so", "the name"),
    "weighed": ("ZSET", "element -> 0, of names with a weight", "the name"),
    "top:": ("ZSET", "element -> its negative weight; one key for each prefix that many names share", "the name"),
    "payloads": ("HASH", "name and id -> payload", "the name"),
    **REPLAY,
}


TABLES.update(contacts=CONTACTS, directory=DIRECTORY)


@dataclass(frozen=True)
class CompletionKeys:
    """The keys of one user's contacts, or of one directory in one slot: `{penstock:contacts:user:17}:…`"""

    prefix: str
    kind: str
    name: str

    @cached_property
    def base(self) -> str:
        return f"{{{self.prefix}:{self.kind}:{self.name}}}:"

    @cached_property
    def names(self) -> str:
        """The sorted set of a directory that a search reads, for a comparison without a script."""
        return self.base + "names"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script declares: `base` and `meta`."""
        return (self.base, self.base + "meta")
