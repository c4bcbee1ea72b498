"""Every key of Penstock: the tables of all nouns, and how to tell from a key which row it is."""

from __future__ import annotations

import re

from penstock.completion.keys import CONTACTS, DIRECTORY
from penstock.files.keys import FILES
from penstock.jobs.keys import QUEUE
from penstock.locks.keys import CALLS, LOCK, RATE_LIMIT, SEMAPHORE
from penstock.messages.keys import CHATS, LOG

PROBE = {"probe": ("STRING", "a write that `penstock doctor` times", "TTL")}


TABLES = (QUEUE, PROBE)


COMPONENTS = {
    "contacts": CONTACTS, "directory": DIRECTORY, "lock": LOCK, "semaphore": SEMAPHORE, "rwlock": SEMAPHORE,
    "rate": RATE_LIMIT, "transaction": CALLS, "mailbox": LOG, "chat": LOG, "chats": CHATS, "files": FILES,
}  # fmt: skip
"""What stands before the name -> the table; a queue has its name alone."""


_KEY = re.compile(r"\{([^:}]+):([^}]+)\}:(.+)", re.DOTALL)


_LOCK_KEY = re.compile(r"penstock:(?:\{([^}]+)\}:lock:|lock:(.+):|(inbox:))((?:inbox:)?[^:]+)", re.DOTALL)


_TRANSACTION_KEY = re.compile(r"penstock:\{([^}]+)\}:transaction:(call:.+)", re.DOTALL)


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
