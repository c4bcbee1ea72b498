"""Cursors as text: where a list continues, as a caller keeps it between two pages."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TypeVar

import msgspec

T = TypeVar("T")


def cursor_text(position: msgspec.Struct) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(position)).decode().rstrip("=")


def read_cursor(text: str, kind: type[T]) -> T | None:
    """What the text stands for; None if it is no cursor of this kind."""
    try:
        return msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (ValueError, msgspec.MsgspecError):
        return None


def refused_cursor(text: str) -> ValueError:
    """The error of a page that got another text."""
    return ValueError(f"page(cursor={text[:60]!r}): give the cursor of an earlier page")
