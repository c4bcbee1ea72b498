"""The grammar of keys: which names may stand in a key, and what decides on its slot.

All keys of one component instance share a hash tag, `{prefix:name}`, and so live in one slot. Scripts declare
`base` (the tag and a colon; never a key itself) and make the others from it. The table of a noun's keys is in its
own `keys.py`.
"""

from __future__ import annotations

import re

from penstock.errors import ConfigurationError

REPLAY = {"replay:": ("STRING", "number of a caller's last call and its answer", "TTL")}
"""In every table of a noun whose scripts recognise repeated calls (see `idempotency.lua`)."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")


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


def pattern(prefix: str, rest: str = "") -> str:
    """What all keys of an app match, or those with this rest, for SCAN: in tests, in diagnosis and for operators, never
    where work is served."""
    return "{" + re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + ":*" + (rest and "}:" + rest)


MAX_NAME_BYTES = 1024
"""Of a name in any script; it stands in each of its instance's keys, requests or messages."""


def check_text(kind: str, name: str) -> str:
    """A name with any Unicode in it, or ConfigurationError with the fix."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{kind} name {name!r}: half a character (a lone surrogate) cannot be sent") from None
    if not 1 <= size <= MAX_NAME_BYTES:
        shown = repr(name) if size < 60 else f"{name[:20]!r}…"
        raise ConfigurationError(
            f"{kind} name {shown} has {size:,} bytes: use 1 to {MAX_NAME_BYTES:,}, or a digest of it"
        )
    return name


def hash_tag(key: str) -> str | None:
    """What stands between the first brace and the next closing one: where there is something, that alone decides on
    the slot."""
    _, brace, rest = key.partition("{")
    tag, closing, _ = rest.partition("}")
    return tag if brace and closing and tag else None


def check_tag_repeatable(what: str, key: str) -> None:
    """ConfigurationError for a key whose slot no other key can have."""
    if hash_tag(key) is None and "}" in key:
        raise ConfigurationError(
            f"{what} {key!r}: no other key can have its slot; leave out the '}}', "
            f"or put what is to be the hash tag between braces: {{tag}}:rest"
        )


def key_with_tag(tag: str) -> str:
    """A key with this hash tag, or ConfigurationError."""
    if "{" in tag or "}" in check_text("tag", tag):
        raise ConfigurationError(f"tag {tag!r}: what stands between the braces, without them")
    return f"{{{tag}}}"
