"""Lets a server fall back to an older state, as after a lossy fail-over: all keys of a pattern, copied and restored."""

from __future__ import annotations

from typing import Any

Snapshot = dict[bytes, tuple[bytes, int]]


def keys_of(client: Any, pattern: str) -> list[bytes]:
    return [*client.scan_iter(match=pattern, count=1000)]


def take_snapshot(client: Any, pattern: str = "*") -> Snapshot:
    copied = {key: (client.dump(key), max(0, client.pttl(key))) for key in keys_of(client, pattern)}
    return {key: one for key, one in copied.items() if one[0] is not None}


def fall_back(client: Any, snapshot: Snapshot, pattern: str = "*") -> None:
    for key in keys_of(client, pattern):
        client.delete(key)
    for key, (value, ttl) in snapshot.items():
        client.restore(key, ttl, value)
