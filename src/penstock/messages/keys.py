"""The keys of a log with readers, and of a user's index of chats: their tables, and their names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from penstock.core.keys import check_text
from penstock.errors import ConfigurationError

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


CHATS = {
    "mine": ("ZSET", "chat -> since when, negative while it is being joined", "the user's last chat"),
    "news": ("ZSET", "chat -> when it was hinted at", "TTL"),
    "waiting": ("ZSET", "address -> 0", "TTL"),
    "inbox:": ("LIST", "messages for one process", "TTL"),
}
"""The chats of one user, an index that is repaired by reading."""


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
