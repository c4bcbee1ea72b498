"""The keys of contacts and directories: their tables, and their names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

CONTACTS = {
    "meta": ("HASH", "shape and counter", "the last contact"),
    "recent": ("LIST", "cards, the last one first", "the last contact"),
    "often": ("ZSET", "card -> uses and turn of the last", "the last contact"),
    "producer:": ("STRING", "number of its last call and the answer", "TTL"),
}


DIRECTORY = {
    "meta": ("HASH", "shape and counts", "the last name"),
    "names": ("ZSET", "member -> 0", "the name"),
    "ids:": ("HASH", "id -> card; one key for each hundred or so", "the name"),
    "weighed": ("ZSET", "member -> 0, of names with a weight", "the name"),
    "top:": ("ZSET", "member -> - weight; one key a prefix that many have", "the name"),
    "producer:": ("STRING", "number of its last call and the answer", "TTL"),
}


@dataclass(frozen=True)
class ComponentKeys:
    """The names of the keys of one instance of a component: `{penstock:contacts:user:17}:…`"""

    prefix: str
    component: str
    name: str

    @cached_property
    def base(self) -> str:
        return f"{{{self.prefix}:{self.component}:{self.name}}}:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """What every script declares: `base` and `meta`."""
        return (self.base, self.base + "meta")
