"""Every key of the house, once: its name, its type, what it holds, and who deletes it.

All keys of one component instance share a hash tag, `{prefix:name}`, and so live in one slot. Scripts declare
`base` (the tag and a colon; never a key itself) and make the others from it; the leak check in
`penstock.testing` and a test read the tables below, so a key that is not here fails a test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from penstock.errors import ConfigurationError

OWNED = "the queue"
"""Not deleted while the queue has settings, counts or jobs."""

QUEUE = {
    "meta": ("HASH", "counters and switches", OWNED),
    "weights": ("HASH", "tenant -> weight", OWNED),
    "jobs": ("HASH", "id -> record", "the job"),
    "tenants": ("HASH", "tenant -> counts", "the job"),
    "age": ("HASH", "second -> jobs ready since then", "the job"),
    "ages": ("ZSET", "the seconds of `age`", "the job"),
    "schedule": ("ZSET", "entry -> due ms", "the job"),
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
    "producer:": ("STRING", "number of its last enqueue", "TTL"),
    "user:": ("any", "keys of the user's own in the queue's slot", "the user"),
}
"""suffix -> (type, what it holds, what deletes it). A suffix that ends in a colon begins many keys."""

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

PROBE = {"probe": ("STRING", "a write that `penstock doctor` times", "TTL")}

TABLES = (QUEUE, PROBE)

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

LOG = {
    "state": ("HASH", "first and last number, bytes, what to keep", "the mailbox, or the chat's last member"),
    "log": ("STREAM", "number-ms -> message", "the last reader of a message"),
    "readers": ("ZSET", "reader -> last number it acknowledged", "the reader"),
    "seen": ("HASH", "reader -> when it last pulled", "the reader"),
    "devices": ("HASH", "member -> its devices", "the member"),
    "sent": ("ZSET", "message id -> number", "TTL"),
    "waiting": ("ZSET", "address -> what it waits for", "TTL"),
    "wanting": ("ZSET", "address of who waits for space -> how much", "TTL"),
    "watching": ("ZSET", "reader -> when to tell its member", "the reader"),
    "next": ("HASH", "reader -> first number none of its workers claimed", "the reader"),
    "claimed:": ("ZSET", "claim -> number; one key a reader", "the reader"),
    "leased:": ("ZSET", "claim -> until when; one key a reader", "the reader"),
    "claim:": ("STRING", "what a claim answered", "TTL"),
    "producer:": ("STRING", "number of its last call and the answer", "TTL"),
    "inbox:": ("LIST", "messages for one process", "TTL"),
}
"""A numbered log with readers: a mailbox, a chat."""

FILES = {
    **LOG,
    "ends": ("LIST", "bytes up to the end of each message that is there", "the last reader of a message"),
    "owners": ("HASH", "receiver -> the process that receives, and until when", "the receiver, or TTL"),
    "marks": ("HASH", "receiver -> where it is in the files it has begun", "the receiver, or TTL"),
    "sources": ("HASH", "what is sent -> how far, and by whom", "TTL, or who deletes the channel"),
    "sent_at": ("ZSET", "what is sent whole -> when; the last 10,000", "TTL, or who deletes the channel"),
    "vanished": ("ZSET", "receiver that was passed over -> its cursor", "the receiver"),
    "finished": ("ZSET", "receiver that has had all -> when", "TTL, or who deletes the channel"),
    "totals:": ("HASH", "lines, rejected, tables; one key a receiver", "who deletes the channel, or the counts"),
    "counts:": ("ZSET", "key -> count; one key a receiver and table", "who deletes the channel, or the counts"),
    "rejected:": ("LIST", "lines that were no good; one key a receiver", "who deletes the channel, or the counts"),
}
"""A channel of files: a log, and what sender, receivers and aggregates note beside it."""

CHATS = {
    "mine": ("ZSET", "chat -> since when, negative while it is being joined", "the user's last chat"),
    "news": ("ZSET", "chat -> when it was hinted at", "TTL"),
    "waiting": ("ZSET", "address -> 0", "TTL"),
    "inbox:": ("LIST", "messages for one process", "TTL"),
}
"""The chats of one user, an index that is repaired by reading."""

COMPONENTS = {
    "contacts": CONTACTS, "directory": DIRECTORY, "lock": LOCK, "semaphore": SEMAPHORE, "rwlock": SEMAPHORE,
    "rate": RATE, "transaction": CALLS, "mailbox": LOG, "chat": LOG, "chats": CHATS, "files": FILES,
}  # fmt: skip
"""What stands before the name -> the table; a queue has its name alone."""

COMMON_INBOX = "penstock:inbox:"
"""Begins the inbox of a process for all locks and semaphores of one server; on a cluster each has its own."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
_KEY = re.compile(r"\{([^:}]+):([^}]+)\}:(.+)", re.DOTALL)
_LOCK_KEY = re.compile(r"penstock:(?:\{([^}]+)\}:lock:|lock:(.+):|(inbox:))((?:inbox:)?[^:]+)", re.DOTALL)
_TRANSACTION_KEY = re.compile(r"penstock:\{([^}]+)\}:transaction:(call:.+)", re.DOTALL)


def check_name(kind: str, name: str) -> str:
    """A name that can stand in a key and in a job id, or ConfigurationError with the fix."""
    if not _NAME.match(name):
        raise ConfigurationError(f"{kind} name {name!r}: use 1 to 100 letters, digits, '_', '-' or '.'")
    return name


_LABEL = re.compile(r"[^{}\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}\Z")


def check_label(kind: str, name: str) -> str:
    """A name in any script that can stand in a hash tag, or ConfigurationError with the fix."""
    if not _LABEL.match(name):
        raise ConfigurationError(f"{kind} name {name!r}: use 1 to 200 characters without braces, spaces and controls")
    return name


def kind_of(name: str) -> str:
    """Of what component an instance is, by what stands behind the prefix in its tag; a queue has its name alone."""
    return re.split("[:/]", name)[0] if ":" in name else "queue"


def parts(key: str) -> tuple[str, str, str] | None:
    """Prefix, name and the rest of a key of ours; None for another's.

    Where it is not a queue's, its sort stands before the name, as in `semaphore:market:17`; and what is beside
    a lock or belongs to a transaction has no prefix, as in ("", "lock:invoice:7", "line").
    """
    if found := _KEY.fullmatch(key):
        return (found[1], found[2], found[3])
    if found := _TRANSACTION_KEY.fullmatch(key):
        return ("", f"transaction:{found[1]}", found[2])
    if found := _LOCK_KEY.fullmatch(key):
        return ("", f"lock:{found[1] or found[2] or ''}", (found[3] or "") + found[4])
    return None


LOCKS = "penstock:*:fence"
"""What a key of each lock that was held lately matches, for SCAN: where an operator looks for them."""


def pattern(prefix: str, rest: str = "") -> str:
    """What all keys of an app match, or those with this rest, for SCAN: in tests, in diagnosis and for operators, never
    where work is served."""
    return "{" + re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + ":*" + (rest and "}:" + rest)


def row(name: str, rest: str) -> tuple[str, str, str] | None:
    """The line of the tables for a key, by the second and the third of its `parts`; None: in none of them."""
    kind = kind_of(name)
    suffix = rest.partition(":")[0] + ":" if ":" in rest else rest
    tables = TABLES if kind == "queue" else (COMPONENTS.get(kind, {}),)
    return next((table[suffix] for table in tables if suffix in table), None)


def owner(rest: str) -> tuple[str, str]:
    """What must be there while a key without a TTL is: a sorted set and the member in it, or ("meta", "")."""
    kind, _, name = rest.partition(":")
    if kind == "held":
        return "leases", name
    if kind in {"lane", "front"}:
        level, _, tenant = name.partition(":")
        return f"turns:{level}", tenant
    if kind == "mine":
        return "mine", ""
    suffix = kind + ":" if ":" in rest else rest
    return ("state", "") if suffix in FILES and suffix not in QUEUE else ("meta", "")


def probe_key(prefix: str, number: int) -> str:
    """A key that `penstock doctor` writes for some seconds, to see whether it is safe; no queue has this slot."""
    return f"{{{prefix}:?{number}}}:probe"


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


MOST_BYTES = 1024
"""Of a name in any script; it stands in each of its instance's keys, requests or messages."""


def check_text(kind: str, name: str) -> str:
    """A name with any Unicode in it, or ConfigurationError with the fix."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{kind} name {name!r}: half a character (a lone surrogate) cannot be sent") from None
    if not 1 <= size <= MOST_BYTES:
        shown = repr(name) if size < 60 else f"{name[:20]!r}…"
        raise ConfigurationError(f"{kind} name {shown} has {size:,} bytes: use 1 to {MOST_BYTES:,}, or a digest of it")
    return name


def tag_in(key: str) -> str | None:
    """What stands between the first brace and the next closing one: where there is something, that alone decides on
    the slot."""
    _, brace, rest = key.partition("{")
    tag, closing, _ = rest.partition("}")
    return tag if brace and closing and tag else None


def check_repeatable(what: str, key: str) -> None:
    """ConfigurationError for a key whose slot no other key can have."""
    if tag_in(key) is None and "}" in key:
        raise ConfigurationError(
            f"{what} {key!r}: no other key can have its slot; leave out the '}}', "
            f"or put what is to be the hash tag between braces: {{tag}}:rest"
        )


@dataclass(frozen=True)
class LockKeys:
    """The names of one lock's keys. The lock itself is at the very name given, as other libraries have it; the keys
    beside it share its slot. They have no prefix of the app: who shares the lock shares its line."""

    name: str

    def __post_init__(self) -> None:
        check_repeatable("lock name", check_text("lock", self.name))

    @property
    def _tag(self) -> str | None:
        return tag_in(self.name)

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
        check_repeatable("key", self.key)

    @cached_property
    def base(self) -> str:
        return f"penstock:{{{tag_in(self.key) or self.key}}}:transaction:"


def in_tag(tag: str) -> str:
    """A key with this hash tag, or ConfigurationError."""
    if "{" in tag or "}" in check_text("tag", tag):
        raise ConfigurationError(f"tag {tag!r}: what stands between the braces, without them")
    return f"{{{tag}}}"


def check_reader(kind: str, name: str) -> str:
    """The same without NUL, which parts a member from its device."""
    if "\0" in check_text(kind, name):
        raise ConfigurationError(f"{kind} name {name!r}: use one without NUL")
    return name


@dataclass(frozen=True)
class LogKeys:
    """The names of one log's keys: `{penstock:chat:ops}:…`, and of a user's index of chats: `{penstock:chats:ada}:…`"""

    prefix: str
    kind: str
    name: str

    def __post_init__(self) -> None:
        check_reader(self.kind, self.name)

    @cached_property
    def base(self) -> str:
        # A brace would end the hash tag.
        return f"{{{self.prefix}:{self.kind}:{self.name.replace('%', '%25').replace('}', '%7D')}}}:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """What every script declares: `base` and the key that is there as long as the others are."""
        return (self.base, self.base + ("mine" if self.kind == "chats" else "state"))

    @cached_property
    def inbox(self) -> str:
        return self.base + "inbox:"

    @cached_property
    def log(self) -> str:
        """The messages themselves, for a plain XRANGE."""
        return self.base + "log"

    @staticmethod
    def read(name: str) -> tuple[str, str]:
        """Kind and name, from what stands behind the prefix in a hash tag."""
        kind, _, rest = name.partition(":")
        return kind, rest.replace("%7D", "}").replace("%25", "%")
