"""The keys of one queue: a table of what they hold, and their names."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from penstock.core.cached import cached_property
from penstock.core.keys import REPLAY, TABLES, check_name
from penstock.core.slots import SLOTS, slot

OWNED = "the queue"
"""The owner of keys that are kept as long as the queue has settings, counts or jobs."""

MOST_SHARDS: Final = 32
"""A worker takes a turn in each shard that has jobs, so more would only add round trips."""

_TOLERANCE: Final = 64
"""The most slots between a shard and its position on the circle."""

QUEUE = {
    "meta": ("HASH", "the row of counts, switches and times; who watches the clock; the table of shards", OWNED),
    "intake": ("LIST", "while it is open: calls that were accepted and are in no lane yet", "the next script"),
    "moved": ("SET", "tenants that this shard has handed over to another", "the end of the change of shards"),
    "windows": ("ZSET", "tenant of a shard -> until when a window or bucket of a key is in use, server ms", "TTL"),
    "owed:": (
        "ZSET",
        "tenant -> virtual time that it owes for runs, if charged by time; for each level",
        "TTL",
    ),
    "weights": ("HASH", "tenant -> weight", OWNED),
    "jobs": ("HASH", "id -> record", "the job"),
    "tenants": ("HASH", "tenant -> counts", "the job"),
    "age": ("HASH", "second -> jobs ready since then", "the job"),
    "ages": ("ZSET", "the seconds of `age`", "the job"),
    "parked_age": ("HASH", "second -> parked jobs that have waited since then", "the job"),
    "parked_ages": ("ZSET", "the seconds of `parked_age`", "the job"),
    "history:": ("LIST", "counts of the last hour and the last day; one key for each interval", "TTL"),
    "expiring": ("ZSET", "id of a waiting job -> when it expires, server ms", "the job"),
    "delayed": ("ZSET", "entry -> due ms", "the job"),
    "schedules": ("HASH", "name -> a call that is enqueued again and again", "the operator, or the code"),
    "runs": ("HASH", "name -> how the last ten jobs of a schedule ended", "the schedule"),
    "ticks": ("ZSET", "schedule, or outbox:<queue> -> when a worker is offered it, server ms", "the schedule"),
    "outbox:": (
        "LIST",
        "what is for another queue: number, verb, id, text of each entry",
        "the worker that delivers it",
    ),
    "inbox": ("HASH", "queue -> number of the last entry that was received from it", OWNED),
    "receipts": ("ZSET", "number of a call that its sender keeps -> accepted at, server ms", "TTL"),
    "unique": ("HASH", "key -> the job that holds it", "the job"),
    "throttle:": ("STRING", "until when no other job of this key is enqueued, and the first job", "TTL"),
    "failures": ("HASH", "id -> its last failed attempts", "the job"),
    "steps:": ("HASH", "what a durable job has recorded, and its signals; one key for each job", "the job"),
    "children:": ("SET", "children of a durable job that have not ended; one key for each parent", "the parent"),
    "orphans:": ("SET", "children of a parent that has ended, which are to be cancelled", "the next turns"),
    "notes": ("HASH", "id -> progress and log lines", "the job"),
    "output:": ("STREAM", "what a job emits while it runs; one key for each job", "TTL"),
    "listeners": ("HASH", "id -> addresses to notify", "the job"),
    "listeners:": ("SET", "further addresses of a job with many", "the job"),
    "unnotified": ("LIST", "ids of finished jobs with listeners to notify", "the next turn"),
    "dead": ("ZSET", "id -> died at ms", "the operator"),
    "rotation:": ("ZSET", "tenant -> virtual time; one key for each level", "the job"),
    "heads:": ("HASH", "tenant -> first entry of its lane; one key for each level", "the job"),
    "lane:": ("LIST", "further entries; one key for each level and tenant", "the job"),
    "front:": ("LIST", "entries that are claimed before those of the lane", "the job"),
    "lingering": (
        "ZSET",
        "level:tenant -> when its lane is offered although it has no whole batch, server ms",
        "the job",
    ),
    "suspects": ("ZSET", "entry -> ready since ms", "the job"),
    "limits": ("HASH", "name -> the numbers of a limit", OWNED),
    "places": ("HASH", "name=key -> places in use, and parked jobs", "the job"),
    "parking": ("ZSET", "name=key of each with parked jobs", "the job"),
    "holds": ("ZSET", "name=key of a rate that is closed -> until when, server ms", "TTL"),
    "admitted": ("ZSET", "name=key, level, generation, id of jobs that have a place and were not claimed", "the job"),
    "admissions": ("ZSET", "name=key -> when to look for a free place, server ms", "the job, or its time"),
    "rate:": ("STRING", "microseconds at which the bucket of a rate is full", "TTL"),
    "pauses": ("HASH", "task or tenant -> paused, or resumed with parked jobs", OWNED),
    "parked:": ("any", "lanes of parked jobs; four keys for each name=key, level and tenant", "the job"),
    "waiting": ("HASH", "job -> how many others it waits for", "the job"),
    "predecessors:": (
        "LIST",
        "the jobs that a job waits or waited for, and its children",
        "the job that waits, then TTL",
    ),
    "opened": ("ZSET", "job whose flow is being enqueued -> when it is given up, server ms", "the flow, or its time"),
    "inputs:": ("STRING", "results that a waiting job wants", "the job that waits"),
    "dependents": ("HASH", "job -> the job that waits for it", "the job"),
    "dependents:": ("LIST", "the jobs that wait for a job, if they are several", "the job"),
    "events": ("LIST", "ends of jobs that others wait for", "the next turns"),
    "finished": ("STRING", "the last rows of ended jobs", "TTL"),
    "finished:": ("LIST", "blocks of rows of ended jobs", "TTL"),
    "arguments:": ("HASH", "id -> record of an ended job that may run again; one key for each block of rows", "TTL"),
    "failed": ("STRING", "the last rows of jobs that became dead letters", "TTL"),
    "failed:": ("LIST", "blocks of rows of jobs that became dead letters", "TTL"),
    "workers": ("HASH", "incarnation -> its registration: since when, name, release and so on", "the incarnation"),
    "releases": ("HASH", "code of a release -> how many workers have it, and its name", "its last incarnation"),
    "tasks:": ("SET", "the tasks that a release knows; one key for each code", "its last incarnation"),
    "leases": ("ZSET", "incarnation -> alive until ms", "the incarnation"),
    "held:": ("HASH", "id -> claim, and its own state; one key for each incarnation", "the incarnation"),
    "batches:": ("HASH", "first claim and number of jobs -> what the claims of a batch share", "the incarnation"),
    "owners": ("HASH", "id -> incarnation that holds the job, and since when", OWNED),
    "cancels:": ("SET", "what an incarnation is asked to do: tokens of jobs to cancel, quiet, stop", "TTL"),
    "settled:": ("SET", "tokens that an incarnation settled outside of its turns", "TTL"),
    "sleepers": ("ZSET", "address -> idle until ms", "the sleeper, or the next wake-up"),
    "results": ("HASH", "id -> how the job ended, and until when that is kept", "the next turns"),
    "ends:": ("LIST", "ends of results, and their ids; one key for each class of ttl", "the next turns"),
    **REPLAY,
    "user:": ("any", "keys of the user's own in the queue's slot", "the user"),
}
"""suffix -> (type, content, owner: what deletes it). A suffix that ends in a colon begins the names of many keys."""

TABLES["queue"] = QUEUE

STORE = {"beat": ("STRING", "the highest number that a store of calls has reported", "TTL")}
"""The keys of a store outside of the server, whose calls get receipts: `{penstock:store:4f…}:beat`."""

TABLES["store"] = STORE


def beat_key(prefix: str, store: str) -> str:
    """The key of a store. `store`: its random name."""
    return f"{{{prefix}:store:{store}}}:beat"


def check_queue_name(name: Any) -> str:
    """Return the name of a queue, or of a shard (`mail~3`). Raises ConfigurationError for anything else."""
    queue, tilde, number = name.partition("~") if isinstance(name, str) else (name, "", "")
    is_shard = tilde and number.isascii() and number.isdecimal() and number[0] != "0" and int(number) < MOST_SHARDS
    check_name("queue", queue if is_shard else name)
    return str(name)


def shard_tag(prefix: str, name: str) -> str:
    """The hash tag of a further shard, such as `penstock:mail~3.57`. The last number is chosen for its slot.

    If the nodes have equal ranges of slots, each gets equally many shards, as far as the number allows it. With random
    slots, one node of three had half of the shards.
    """
    queue, _, number = name.partition("~")
    wanted = slot(f"{{{prefix}:{queue}}}") + round(_position(int(number)) * SLOTS)
    for attempt in count():
        tag = f"{prefix}:{name}.{attempt}"
        if (slot(f"{{{tag}}}") - wanted + _TOLERANCE) % SLOTS <= 2 * _TOLERANCE:
            return tag
    raise AssertionError("unreachable")


def _position(number: int) -> float:
    """The position of a shard on the circle of slots, from 0 to 1: thirds first, then their halves, and so on."""
    block, third = divmod(number, 3)
    position, part = 0.0, 0.5
    while block:
        position, part, block = position + part * (block % 2), part / 2, block // 2
    return (third + position) / 3


@dataclass(frozen=True)
class QueueKeys:
    """The names of one queue's keys."""

    prefix: str
    queue: str

    @cached_property
    def base(self) -> str:
        tag = shard_tag(self.prefix, self.queue) if "~" in self.queue else f"{self.prefix}:{self.queue}"
        return f"{{{tag}}}:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script of the queue declares: `base` and `meta`."""
        return (self.base, self.base + "meta")

    @property
    def pattern(self) -> str:
        """Matches all keys of the queue, for SCAN."""
        return self.base + "*"

    def user(self, name: str) -> str:
        """A key of the user's own in the queue's slot, for a transaction that also enqueues."""
        return f"{self.base}user:{name}"
