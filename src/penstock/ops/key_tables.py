"""All keys that Penstock writes: the key tables of all nouns, and the lookup of the row for a given key.

Each noun declares its keys in its own `keys.py`: suffix -> (type, content, what deletes it). A key name has up to
three pieces, which `split_key` returns:

    {penstock:mail}:jobs                    prefix "penstock", instance "mail" (a queue), rest "jobs"
    {penstock:semaphore:market}:holders     prefix "penstock", instance "semaphore:market", rest "holders"
    penstock:{invoice:7}:lock:fence         no prefix, instance "lock:invoice:7", rest "fence"
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.completion import keys as _completion
from penstock.core.keys import TABLES as TABLES_OF_NOUNS
from penstock.files import keys as _files
from penstock.jobs.keys import QUEUE
from penstock.locks import keys as _locks
from penstock.messages import keys as _messages

PROBE = {"probe": ("STRING", "a write that `penstock doctor` times", "TTL")}

# Each of these modules adds its tables when it is imported, as that of `jobs` does.
_IMPORTED = (_completion, _files, _locks, _messages)

TABLES = {**TABLES_OF_NOUNS, "queue": {**QUEUE, **PROBE}}
"""Kind of component -> its key table. The kind is the first word of an instance; the instance of a queue is its name
alone."""

HELD_LOCKS = "penstock:*:fence"
"""A SCAN pattern with one match for each lock that was held within the last hour."""

_APP_KEY = re.compile(r"\{([^:}]+):([^}]+)\}:(.+)", re.DOTALL)
_SHARD_TAG = re.compile(r"^([^:~]+~\d+)\.\d+$")  # see `shard_tag` in jobs/keys.py
# penstock:{invoice:7}:lock:fence; penstock:lock:{user:7}:invoice:fence for a name with a hash tag
_LOCK_KEY = re.compile(r"penstock:(?:\{([^}]+)\}:lock:|lock:(.+):)([^:]+)", re.DOTALL)
_TRANSACTION_KEY = re.compile(r"penstock:\{([^}]+)\}:transaction:(replay:.+)", re.DOTALL)


class KeyName(NamedTuple):
    """The name of a key, in pieces. `prefix` is the app's; "" for a lock's extra keys and for keys of transactions."""

    prefix: str
    instance: str
    rest: str


def split_key(key: str) -> KeyName | None:
    """The name of a key that Penstock may have written; None for any other key."""
    if found := _APP_KEY.fullmatch(key):
        return KeyName(found[1], _SHARD_TAG.sub(r"\1", found[2]), found[3])
    if found := _TRANSACTION_KEY.fullmatch(key):
        return KeyName("", f"transaction:{found[1]}", found[2])
    if found := _LOCK_KEY.fullmatch(key):
        return KeyName("", f"lock:{found[1] or found[2]}", found[3])
    return None


def kind_of(instance: str) -> str:
    """Which kind of component an instance is: `semaphore` for "semaphore:market", `queue` for "mail"."""
    return re.split("[:/]", instance)[0] if ":" in instance else "queue"


def table_row(instance: str, rest: str) -> tuple[str, str, str] | None:
    """The row of a key in its table: (type, content, what deletes it); None if no table has it."""
    return TABLES.get(kind_of(instance), {}).get(_suffix(rest))


def _suffix(rest: str) -> str:
    """`rest` as the tables spell it: "lane:" for "lane:5:acme"."""
    first, colon, _ = rest.partition(":")
    return first + colon


class KeyOwner(NamedTuple):
    """The owner of a key without a TTL, which must not outlive it.

    The owner is a `member` of the sorted set `key`, or `key` itself if `member` is "".
    """

    key: str
    member: str


_LOGS = {"mailbox", "chat", "files"}


def owner_of(instance: str, rest: str) -> KeyOwner:
    """The owner of a key without a TTL.

    `rest` is the rest of the key's name after the hash tag. The owner's key has the same hash tag.
    """
    kind, _, name = rest.partition(":")
    if kind_of(instance) in _LOGS:
        return KeyOwner("state", "")
    if kind in {"held", "batches"}:
        return KeyOwner("leases", name)
    if kind in {"lane", "front"}:
        level, _, tenant = name.partition(":")
        return KeyOwner(f"rotation:{level}", tenant)
    if kind == "parked":
        return KeyOwner("parking", "")
    if kind == "mine":
        return KeyOwner("mine", "")
    return KeyOwner("meta", "")


def probe_key(prefix: str, number: int) -> str:
    """A key that `penstock doctor` writes for some seconds. Because of the `?`, no queue can have the same hash tag."""
    return f"{{{prefix}:?{number}}}:probe"
