"""The keys of a log with readers and of a user's index of chats: their tables, and how their names are made.

A table has a row for each key: suffix -> (type, content, what deletes it).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.cached import cached_property
from penstock.core.keys import REPLAY, TABLES, check_text
from penstock.errors import ConfigurationError

LOG = {
    "state": ("HASH", "first and last number, bytes, limits", "the mailbox, or the chat's last member"),
    "log": ("STREAM", "number-ms -> message", "the last reader of a message"),
    "readers": ("ZSET", "reader -> last number it acknowledged", "the reader"),
    "seen": ("HASH", "reader -> when it last pulled", "the reader"),
    "devices": ("HASH", "member -> its devices", "the member"),
    "before": ("STRING", "number of the last message, if the log was deleted", "TTL"),
    "sent": ("HASH", "sender and message id -> position of the message", "TTL"),
    "sent_order": ("LIST", "the same senders and ids, oldest first", "TTL"),
    "sent_counts": ("HASH", "sender -> how many ids of its messages are kept", "TTL"),
    "waiting": ("ZSET", "address of a face that waits for a message -> last event when it registered", "TTL"),
    "standby": ("ZSET", "address of a face that waits for the end of a lease -> last event when it registered", "TTL"),
    "wanting": ("ZSET", "address of a waiting sender -> bytes of space it needs", "TTL"),
    "watching": ("ZSET", "reader -> when to notify its member", "the reader"),
    "own": ("HASH", "member -> numbers of its own messages that it has not acknowledged", "the member"),
    "removed": ("ZSET", "message without a body -> number", "the last reader of a message"),
    "dead": ("ZSET", "position of a dead letter -> when it died", "an operator, or the mailbox"),
    "letters": ("HASH", "position of a dead letter -> the message and the reason", "an operator, or the mailbox"),
    "next": ("HASH", "shared reader -> first number that no worker has claimed", "the reader"),
    "claimed:": ("ZSET", "claim -> number; one key for each shared reader", "the reader"),
    "leased:": ("ZSET", "claim -> when its lease ends; one key for each shared reader", "the reader"),
    "idle": ("ZSET", "shared reader with idle workers -> number of the last message that one of them knows of", "TTL"),
    "idle:": ("ZSET", "address of an idle worker -> until when it waits; one key for each shared reader", "TTL"),
    "woken": ("HASH", "shared reader -> which of its workers was woken last", "TTL"),
    "claim:": ("STRING", "the claims that a call returned", "TTL"),
    **REPLAY,
}
"""A numbered log with readers: a mailbox or a chat."""


CHATS = {
    "mine": ("ZSET", "chat -> when it was added; negative while the join is pending", "the user's last chat"),
    "news": ("ZSET", "chat -> when its last hint arrived", "TTL"),
    "waiting": ("ZSET", "address of a face that waits for a hint -> last event when it registered", "TTL"),
}
"""The index of one user's chats (see `chats.lua`)."""

TABLES.update(mailbox=LOG, chat=LOG, chats=CHATS)


def check_reader(kind: str, name: str) -> str:
    """Return the name if it is valid. Raises ConfigurationError, also for NUL, which separates a member from its
    device."""
    if "\0" in check_text(kind, name):
        raise ConfigurationError(f"{kind} name {name!r}: use one without NUL")
    return name


def check_device(name: str) -> str:
    """Return the name of a device, or "" for a member without devices. Raises ConfigurationError."""
    return name if name == "" else check_reader("device", name)


@dataclass(frozen=True)
class LogKeys:
    """The names of one log's keys, `{penstock:chat:ops}:…`, or of a user's index of chats, `{penstock:chats:ada}:…`.

    `kind` is mailbox, chat, files or chats.
    """

    prefix: str
    kind: str
    name: str

    def __post_init__(self) -> None:
        check_reader(self.kind, self.name)

    @cached_property
    def base(self) -> str:
        """The hash tag and a colon. A closing brace in the name is escaped, since it would end the tag."""
        return f"{{{self.prefix}:{self.kind}:{self.name.replace('%', '%25').replace('}', '%7D')}}}:"

    @cached_property
    def declared(self) -> tuple[str, str]:
        """The keys that every script declares: `base`, and the key that exists for as long as the log or index does."""
        return (self.base, self.base + ("mine" if self.kind == "chats" else "state"))

    @cached_property
    def log(self) -> str:
        """The key of the messages themselves, for a plain XRANGE."""
        return self.base + "log"

    @staticmethod
    def read(name: str) -> tuple[str, str]:
        """Kind and name of the log, from the part of a hash tag that follows the prefix."""
        kind, _, rest = name.partition(":")
        return kind, rest.replace("%7D", "}").replace("%25", "%")
