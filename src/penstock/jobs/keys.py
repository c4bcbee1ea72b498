"""The keys of one queue: their table, and their names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from penstock.core.keys import REPLAY

OWNED = "the queue"
"""Not deleted while the queue has settings, counts or jobs."""


QUEUE = {
    "meta": ("HASH", "counters and switches", OWNED),
    "weights": ("HASH", "tenant -> weight", OWNED),
    "jobs": ("HASH", "id -> record", "the job"),
    "tenants": ("HASH", "tenant -> counts", "the job"),
    "age": ("HASH", "second -> jobs ready since then", "the job"),
    "ages": ("ZSET", "the seconds of `age`", "the job"),
    "delayed": ("ZSET", "entry -> due ms", "the job"),
    "reasons": ("HASH", "id -> why it failed last", "the job"),
    "waiters": ("HASH", "id -> addresses to tell", "the job"),
    "dead": ("ZSET", "id -> died at ms", "the operator"),
    "turns:": ("ZSET", "tenant -> virtual time; one key a level", "the job"),
    "lane:": ("LIST", "entries; one key a level and tenant", "the job"),
    "front:": ("LIST", "entries that go before the lane", "the job"),
    "suspects": ("ZSET", "entry -> ready since ms", "the job"),
    "workers": ("HASH", "incarnation -> since and what it says of itself", "the incarnation"),
    "leases": ("ZSET", "incarnation -> alive until ms", "the incarnation"),
    "held:": ("HASH", "id -> claim; one key an incarnation", "the incarnation"),
    "turn:": ("STRING", "last turn of an incarnation", "TTL"),
    "settled:": ("SET", "tokens of one incarnation settled one by one", "TTL"),
    "sleepers": ("ZSET", "address -> asleep until ms", "the sleeper, or the next wake-up"),
    "inbox:": ("LIST", "messages for one process", "TTL"),
    "done:": ("STRING", "how a job ended", "TTL"),
    **REPLAY,
    "user:": ("any", "keys of the user's own in the queue's slot", "the user"),
}
"""suffix -> (type, what it holds, what deletes it). A suffix that ends in a colon begins many keys."""


@dataclass(frozen=True)
class QueueKeys:
    """The names of one queue's keys."""

    prefix: str
    queue: str

    @cached_property
    def base(self) -> str:
        return f"{{{self.prefix}:{self.queue}}}:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """What every script of the queue declares: `base` and `meta`."""
        return (self.base, self.base + "meta")

    @cached_property
    def inbox(self) -> str:
        return self.base + "inbox:"

    @property
    def every(self) -> str:
        """Matches all keys of the queue, for a SCAN that clears them away."""
        return self.base + "*"

    def user(self, name: str) -> str:
        """A key of the user's own in the queue's slot, for transactions with the queue."""
        return f"{self.base}user:{name}"
