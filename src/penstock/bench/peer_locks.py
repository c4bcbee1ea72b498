"""Locks of Penstock and of other libraries, as their users write them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from penstock.app import Penstock

Maker: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Makes the lock of this name for one use, as in `with make("x"):`."""

LEASE = 10


def penstock(address: str) -> Maker:
    app = Penstock(address)
    return lambda name: app.lock(name, lease=LEASE)


def redis_py(address: str) -> Maker:
    client = _redis(address)
    return lambda name: client.lock(name, timeout=LEASE)


def python_redis_lock(address: str) -> Maker:
    import redis_lock  # type: ignore[import-not-found, unused-ignore]

    client = _redis(address)
    return lambda name: redis_lock.Lock(client, name, expire=LEASE)


def _redis(address: str) -> Any:
    import redis

    return redis.Redis.from_url(address.replace("valkey", "redis", 1))


def installed(address: str) -> dict[str, Maker]:
    """The lock makers of the installed libraries by package name, Penstock first."""
    found = {}
    for name, connect in MAKERS.items():
        try:
            found[name] = connect(address)
        except ImportError:
            continue
    return found


MAKERS: dict[str, Callable[[str], Maker]] = {
    "penstock": penstock, "redis": redis_py, "python-redis-lock": python_redis_lock,
}  # fmt: skip
