"""The grammar of keys: which names may be part of a key, and which part of a key decides on its slot.

All keys of one component instance share a hash tag, `{prefix:name}`, and so have the same slot. Scripts declare the key
`base`, which is the tag and a colon, and append to it. No key is named `base` alone. Each noun has a key table in its
`keys.py`: suffix -> (type, content, what deletes the key).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.core.arguments import shown, utf8_size
from penstock.errors import ConfigurationError

MAX_NAME_BYTES = 1024
"""The limit of `check_text`. A name is sent with every call that uses it, so it should be short."""

REPLAY = {"replay:": ("STRING", "number of a caller's last call and its answer", "TTL")}
"""The row of `idempotency.lua` in the key table of each noun that has numbered calls."""

WAKE_CHANNELS = "penstock:wake:"
"""First part of the name of every channel of wake-ups. It is the same for all apps: locks belong to no app."""

TABLES: dict[str, Mapping[str, tuple[str, str, str]]] = {}
"""Kind of component -> its key table. Each `keys.py` adds its own when it is imported."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
_NAME_WITH_COLONS = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z")
_LABEL = re.compile(r"[^{}\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}\Z")


def check_name(kind: str, name: str, *, colons: bool = False) -> str:
    """Return a name that may be part of a key and of a job id: ASCII letters, digits, `_`, `-` and `.`.

    This function and the next three raise ConfigurationError, whose message states the rule. `kind`: the kind of thing
    that has the name, for the message. `colons`: allow `:` as well, for a name that is part of no id.
    """
    if not (_NAME_WITH_COLONS if colons else _NAME).match(check_is_text(kind, name)):
        others = "'_', '-', '.' or ':', because the name is part of keys"
        if not colons:
            others = "'_', '-' or '.', because the name is part of ids"
        raise ConfigurationError(f"{kind} name {shown(name)}: use 1 to 100 letters (a to z), digits, {others}")
    return name


def check_label(kind: str, name: str) -> str:
    """Return a name that may be part of a hash tag: any characters but braces, spaces and control characters."""
    if not _LABEL.match(check_is_text(kind, name)):
        raise ConfigurationError(
            f"{kind} name {shown(name)}: use 1 to 200 characters without braces, spaces and control characters"
        )
    return name


def check_text(kind: str, name: str) -> str:
    """Return a name of any Unicode text, of at most MAX_NAME_BYTES."""
    size = utf8_size(f"{kind} name", check_is_text(kind, name))
    if not 1 <= size <= MAX_NAME_BYTES:
        short = repr(name) if size < 60 else f"{name[:20]!r}…"
        raise ConfigurationError(
            f"{kind} name {short} has {size:,} bytes: use 1 to {MAX_NAME_BYTES:,}, or a digest of it"
        )
    return name


def check_is_text(kind: str, name: Any) -> str:
    """Return a name that is a text. Bytes and numbers are refused: two programs could make different names of them."""
    if not isinstance(name, str):
        fix = f"; write name.decode() or {shown(name.decode(errors='replace'))}" if isinstance(name, bytes) else ""
        raise ConfigurationError(f"{kind} name {shown(name)}: a text (str), not {type(name).__name__}{fix}")
    return name


def key_pattern(prefix: str, rest: str = "") -> str:
    """A pattern for SCAN that matches all keys of an app, or those that end in `rest` after their tag.

    For tests, diagnosis and operators. Nothing that serves work may scan.
    """
    return "{" + re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + ":*" + (rest and "}:" + rest)


class Component(NamedTuple):
    """The component that a key belongs to. `str` makes a text for people: `mailbox 'ada'`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {shown(self.name)}"


# {penstock:mail}:jobs, {penstock:semaphore:market}:holders; penstock:{invoice:7}:lock:fence
_OF_APP = re.compile(r"\{[^:}]+:(?:([^:/}]+)[^:}]*:)?([^}]+)\}:", re.DOTALL)
_OF_LOCK = re.compile(r"penstock:(?:\{([^}]+)\}:(lock|transaction):|lock:(.+):)", re.DOTALL)


def component_of(key: str) -> Component:
    """The component that a key belongs to, read from its name. A key that is not Penstock's is its own component."""
    if found := _OF_APP.match(key):
        return Component(found[1] or "queue", found[2])
    if found := _OF_LOCK.match(key):
        return Component(found[2] or "lock", found[1] or found[3])
    return Component("key", key)


def hash_tag(key: str) -> str | None:
    """The hash tag of a key, without its braces; None if the whole key decides on the slot."""
    _, brace, rest = key.partition("{")
    tag, closing, _ = rest.partition("}")
    return tag if brace and closing and tag else None


def check_slot_shareable(what: str, key: str) -> None:
    """Raise ConfigurationError unless other keys can be given the slot of this key.

    They get it by a hash tag: the tag of this key or, if it has none, the whole key, which then may not contain `}`.
    """
    if hash_tag(key) is None and "}" in key:
        raise ConfigurationError(
            f"{what} {key!r}: no other key can have its slot; leave out the '}}', "
            f"or put what is to be the hash tag between braces: {{tag}}:rest"
        )


def key_with_tag(tag: str) -> str:
    """A key with this hash tag. Raises ConfigurationError for a text that cannot be a tag."""
    if "{" in tag or "}" in check_text("tag", tag):
        raise ConfigurationError(f"tag {tag!r}: write only the text between the braces")
    return f"{{{tag}}}"


def wake_channel(face: str, tag: str = "") -> str:
    """The channel on which a face receives wake-ups. `tag`: on a cluster, any text in the slot that they come from."""
    return f"{WAKE_CHANNELS}{{{tag}}}:{face}" if tag else WAKE_CHANNELS + face
