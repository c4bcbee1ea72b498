"""The keys of locks, semaphores, read-write locks, rate limits and transactions: their tables, and their names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from penstock.core.keys import check_tag_repeatable, check_text, hash_tag
from penstock.errors import ConfigurationError

LINE = {
    "line": ("ZSET", "request -> ticket", "TTL"),
    "looks": ("ZSET", "request -> when it comes by itself", "TTL"),
    "offers": ("ZSET", "request -> until when it must take what it was handed", "TTL"),
    "gone": ("ZSET", "process that did not take it -> since when", "TTL"),
    "inbox:": ("LIST", "messages for one process", "TTL"),
}
"""Of a lock or a semaphore that somebody waits for."""


LOCK = {"fence": ("STRING", "the last fence", "TTL"), **LINE}
"""Beside the lock itself, a STRING with a TTL whose key is the name given."""


SEMAPHORE = {
    "holders": ("ZSET", "permit -> until when it is held", "TTL"),
    "limit": ("STRING", "the limit that was set", "the user"),
    "fence": ("STRING", "the last fence of one who was alone", "TTL"),
    **LINE,
}
"""A read-write lock is one: a reader takes one permit, a writer all."""


CALLS = {"call:": ("STRING", "number and answer of a caller's last call", "TTL")}
"""Where a call that is sent again is recognised."""


RATE = {
    "bucket": ("STRING", "server microseconds at which it is full again", "TTL"),
    "window": ("ZSET", "unit -> the moment it was let through at, or will be", "TTL"),
    "free:": ("ZSET", "a future slot that was handed back -> its moment; one key a kind", "TTL"),
    **CALLS,
}


COMMON_INBOX = "penstock:inbox:"
"""Begins the inbox of a process for all locks and semaphores of one server; on a cluster each has its own."""


@dataclass(frozen=True)
class LockKeys:
    """The names of one lock's keys. The lock itself is at the very name given, as other libraries have it; the keys
    beside it share its slot. They have no prefix of the app: who shares the lock shares its line."""

    name: str

    def __post_init__(self) -> None:
        check_tag_repeatable("lock name", check_text("lock", self.name))

    @property
    def _tag(self) -> str | None:
        return hash_tag(self.name)

    @cached_property
    def base(self) -> str:
        return f"penstock:lock:{self.name}:" if self._tag else f"penstock:{{{self.name}}}:lock:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """What every script of the lock declares: `base` and the lock."""
        return (self.base, self.name)

    @cached_property
    def inbox(self) -> str:
        return self.base + "inbox:"


@dataclass(frozen=True)
class SemaphoreKeys:
    """The names of the keys of one semaphore, or read-write lock."""

    prefix: str
    name: str
    sort: str = "semaphore"

    def __post_init__(self) -> None:
        if "}" in check_text(self.sort, self.name):
            raise ConfigurationError(f"{self.sort} name {self.name!r}: leave out the '}}', it would end the hash tag")

    @cached_property
    def base(self) -> str:
        return f"{{{self.prefix}:{self.sort}:{self.name}}}:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """What every script of the semaphore declares: `base` and `holders`."""
        return (self.base, self.base + "holders")

    @cached_property
    def inbox(self) -> str:
        return self.base + "inbox:"


@dataclass(frozen=True)
class RateKeys:
    """The names of one rate limit's keys."""

    prefix: str
    name: str

    def __post_init__(self) -> None:
        if "}" in check_text("rate limit", self.name):
            raise ConfigurationError(f"rate limit name {self.name!r}: leave out the '}}', it would end the hash tag")

    @cached_property
    def base(self) -> str:
        return f"{{{self.prefix}:rate:{self.name}}}:"

    def declared(self, kind: str) -> tuple[str, str]:
        """What every script of the limit declares: `base`, and the bucket or the window."""
        return (self.base, self.base + kind)


@dataclass(frozen=True)
class TransactionKeys:
    """Where a transaction remembers that it was done: in the slot of the keys it is about, one of which is `key`."""

    key: str

    def __post_init__(self) -> None:
        check_tag_repeatable("key", self.key)

    @cached_property
    def base(self) -> str:
        return f"penstock:{{{hash_tag(self.key) or self.key}}}:transaction:"
