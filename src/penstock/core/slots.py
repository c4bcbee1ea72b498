"""Cluster slots, and how a node is named."""

from __future__ import annotations

import binascii
from typing import TypeAlias

Node: TypeAlias = tuple[str, int]
"""Host and port; for a unix socket its path and 0."""


SLOTS = 16384


def slot(key: str) -> int:
    """The cluster slot of a key: the CRC16 of its hash tag or, if it has none, of the whole key.

    The hash tag is the text between the first `{` and the next `}`, unless that is empty. See the Redis Cluster
    Specification, "Hash tags".
    """
    start = key.find("{")
    if start >= 0 and (end := key.find("}", start + 1)) > start + 1:
        key = key[start + 1 : end]
    # A key with half of a character is refused with a clear error when its command is packed.
    return binascii.crc_hqx(key.encode(errors="surrogatepass"), 0) % SLOTS
