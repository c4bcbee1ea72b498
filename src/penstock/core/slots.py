"""Slot arithmetic of a cluster, and what names a node."""

from __future__ import annotations

import binascii
from typing import TypeAlias

Node: TypeAlias = tuple[str, int]  # host and port; of a unix socket its path and 0


SLOTS = 16384


def slot(key: str) -> int:
    """The cluster slot of a key: of what stands between its first `{` and the next `}`, if anything does."""
    start = key.find("{")
    if start >= 0 and (end := key.find("}", start + 1)) > start + 1:
        key = key[start + 1 : end]
    return binascii.crc_hqx(key.encode(), 0) % SLOTS
