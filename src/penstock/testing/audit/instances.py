"""Finds the queues, directories, mailboxes, chats and channels of an app, and pairs each with its audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from penstock.messages.keys import LogKeys
from penstock.ops.key_tables import kind_of, split_key
from penstock.testing.audit.directories import DirectoryAudit
from penstock.testing.audit.messages import ChannelAudit, LogAudit
from penstock.testing.audit.queues import QueueAudit
from penstock.testing.audit.stored_keys import Instance, StoredKey


class Audit(Protocol):
    """Checks that the keys of one instance agree with each other."""

    def problems(self) -> Iterator[str]:
        """A sentence for each contradiction: there must be none at any time."""
        ...

    def leftovers(self) -> Iterator[str]:
        """A sentence for each trace of work in progress: there must be none once everything is at rest."""
        ...


_AUDITS: dict[str, type[QueueAudit | DirectoryAudit | LogAudit]] = {
    "queue": QueueAudit,
    "directory": DirectoryAudit,
    "chat": LogAudit,
    "mailbox": LogAudit,
    "files": ChannelAudit,
}


def audits(keys: Iterable[StoredKey]) -> dict[Instance, Audit]:
    """An audit for each instance of a kind that has one. Locks have none: their keys cannot contradict each other."""
    return {
        instance: _AUDITS[kind](contents)
        for instance, contents in _contents(keys).items()
        if (kind := kind_of(instance.name)) in _AUDITS
    }


def _contents(keys: Iterable[StoredKey]) -> dict[Instance, dict[str, Any]]:
    """Instance -> (rest of the key's name after the hash tag -> content), without the keys that expire."""
    contents: dict[Instance, dict[str, Any]] = {}
    for key in keys:
        if key.instance is not None and key.content is not None:
            contents.setdefault(key.instance, {})[key.rest] = key.content
    return contents


def missing_from_index(keys: Iterable[StoredKey]) -> Iterator[str]:
    """A sentence for each chat that is not in the index of one of its members.

    The member would never find that chat. A chat in the index that the member is not in is not a fault: a later read
    removes it.
    """
    contents = _contents(keys)
    indexes = {instance: found.get("mine", {}) for instance, found in contents.items()}
    for (prefix, name), found in contents.items():
        kind, chat = LogKeys.read(name)
        if kind == "chat":
            yield from _missing_members(prefix, chat, LogAudit(found), indexes)


def _missing_members(prefix: str, chat: str, log: LogAudit, indexes: Mapping[Instance, Any]) -> Iterator[str]:
    for member in log.members:
        name = split_key(LogKeys(prefix, "chats", member).base + "mine")
        if name is None or chat.encode() not in indexes.get(Instance(prefix, name.instance), {}):
            yield f"chat {chat!r}: not in the index of {member!r}"
