"""The keys of locks, semaphores, elections, latches, barriers, rate limits and transactions: tables and names."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.cached import cached_property
from penstock.core.keys import REPLAY, TABLES, check_slot_shareable, check_text, hash_tag
from penstock.errors import ConfigurationError

WAITERS = {
    "waiters": ("ZSET", "request -> ticket", "TTL"),
    "checks": ("ZSET", "request -> when it tries again if no message arrives", "TTL"),
    "offers": ("ZSET", "request -> until when it can take what was handed over to it", "TTL"),
    "unresponsive": ("ZSET", "face that did not take an offer -> since when", "TTL"),
}
"""Keys of a lock, a semaphore or a rate limit while requests wait for it."""

BROKEN = {"broken": ("HASH", "token of a holding that an operator ended -> the reason", "TTL")}


LOCK = {
    "fence": ("STRING", "the last fence", "TTL"),
    "holder": ("STRING", "where the owner is notified when the lock is broken", "TTL"),
    **BROKEN,
    **WAITERS,
}
"""The other keys of a lock. The lock itself is a STRING with a TTL, under the name that the user gave."""


SEMAPHORE = {
    "holders": ("ZSET", "permit -> until when it is held", "TTL"),
    "limit": ("STRING", "the limit that `set_limit` stored", "the user"),
    "fence": ("STRING", "the last fence of a holder of all permits", "TTL"),
    "notices": ("HASH", "token -> where the holder is notified when its permits are taken away", "TTL"),
    **BROKEN,
    **WAITERS,
}
"""A read-write lock is a semaphore: a reader takes one permit, a writer all of them."""


RATE_LIMIT = {
    "bucket": ("STRING", "server microseconds at which it is full again, and the numbers of the limit", "TTL"),
    "window": ("ZSET", "unit -> when it was used", "TTL"),
    "units": ("STRING", "how many units the waiters want together", "TTL"),
    "swept": ("STRING", "exists for a second after the waiters were checked", "TTL"),
    **WAITERS,
    **REPLAY,
}


ELECTION = {
    "leader": ("HASH", "the leader, or the candidate for whom the leadership is reserved", "TTL"),
    "term": ("STRING", "the last term", "TTL"),
    "observers": ("ZSET", "face that waits for the next leader -> number of the last event when it registered", "TTL"),
    **BROKEN,
    **WAITERS,
}


LATCH = {
    "state": ("HASH", "how much is left", "TTL"),
    "counted": ("SET", "ids that were counted", "TTL"),
    "waiting": ("ZSET", "face that waits -> number of the last event when it registered", "TTL"),
    **REPLAY,
}


BARRIER = {
    "state": ("HASH", "the present generation", "TTL"),
    "present": ("ZSET", "party that waits -> until when it counts as alive", "TTL"),
    "unproven": ("ZSET", "party that was not probed yet, once all are here", "TTL"),
    "asked": ("ZSET", "party that seems to be dead -> until when it can prove that it is alive", "TTL"),
    "ended": ("HASH", "generation -> how it ended", "TTL"),
    "waiting": ("ZSET", "face that waits -> number of the last event when it registered", "TTL"),
    **REPLAY,
}


TABLES.update(
    {
        "lock": LOCK,
        "semaphore": SEMAPHORE,
        "rwlock": SEMAPHORE,
        "rate": RATE_LIMIT,
        "transaction": REPLAY,
        "election": ELECTION,
        "latch": LATCH,
        "barrier": BARRIER,
    }
)


@dataclass(frozen=True)
class LockKeys:
    """The keys of one lock.

    The lock itself is stored under the name as given, as in other lock libraries. The other keys are in its slot and do
    not have the app's prefix, so apps that share a lock share its waiters.
    """

    name: str

    def __post_init__(self) -> None:
        check_slot_shareable("lock name", check_text("lock", self.name))

    @property
    def _tag(self) -> str | None:
        return hash_tag(self.name)

    @cached_property
    def base(self) -> str:
        return f"penstock:lock:{self.name}:" if self._tag else f"penstock:{{{self.name}}}:lock:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script of the lock declares: `base` and the lock."""
        return (self.base, self.name)


@dataclass(frozen=True)
class SemaphoreKeys:
    """The keys of one semaphore or read-write lock."""

    prefix: str
    name: str
    kind: str = "semaphore"

    def __post_init__(self) -> None:
        _check_tag_part(self.kind, self.name)

    @cached_property
    def base(self) -> str:
        return f"{{{self.prefix}:{self.kind}:{self.name}}}:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script of the semaphore declares: `base` and `holders`."""
        return (self.base, self.base + "holders")


@dataclass(frozen=True)
class ElectionKeys:
    """The keys of one election."""

    prefix: str
    name: str

    def __post_init__(self) -> None:
        _check_tag_part("election", self.name)

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script of the election declares: `base` and `leader`."""
        base = f"{{{self.prefix}:election:{self.name}}}:"
        return (base, base + "leader")


@dataclass(frozen=True)
class LatchKeys:
    """The keys of one latch."""

    prefix: str
    name: str

    def __post_init__(self) -> None:
        _check_tag_part("latch", self.name)

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script of the latch declares: `base` and `state`."""
        base = f"{{{self.prefix}:latch:{self.name}}}:"
        return (base, base + "state")


@dataclass(frozen=True)
class BarrierKeys:
    """The keys of one barrier."""

    prefix: str
    name: str

    def __post_init__(self) -> None:
        _check_tag_part("barrier", self.name)

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script of the barrier declares: `base` and `state`."""
        base = f"{{{self.prefix}:barrier:{self.name}}}:"
        return (base, base + "state")


@dataclass(frozen=True)
class RateLimitKeys:
    """The keys of one rate limit."""

    prefix: str
    name: str

    def __post_init__(self) -> None:
        _check_tag_part("rate limit", self.name)

    @cached_property
    def base(self) -> str:
        return f"{{{self.prefix}:rate:{self.name}}}:"

    def declared(self, kind: str) -> tuple[str, str]:
        """The keys that every script of the limit declares: `base`, and the bucket or the window."""
        return (self.base, self.base + kind)


@dataclass(frozen=True)
class TransactionKeys:
    """The key that stores the reply of a transaction for replays. `key`: any key of the transaction, for its slot."""

    key: str

    def __post_init__(self) -> None:
        check_slot_shareable("key", self.key)

    @cached_property
    def base(self) -> str:
        return f"penstock:{{{hash_tag(self.key) or self.key}}}:transaction:"


def _check_tag_part(kind: str, name: str) -> None:
    """Raise ConfigurationError for a name that cannot be part of a hash tag."""
    if "}" in check_text(kind, name):
        raise ConfigurationError(f"{kind} name {name!r}: leave out the '}}', which would end the hash tag")
