"""A rate limit: at most `limit` units in `per` seconds across all hosts, granted in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypeVar

from penstock.core.idempotency import release_key, take_key
from penstock.core.operations import Driver, Operation, RoundTrip, Sleep, verb
from penstock.errors import RateLimited
from penstock.locks.answers import Allowance
from penstock.locks.bindings import LimitKind, RateLimitBindings
from penstock.locks.decorating import guard_calls
from penstock.locks.keys import RateLimitKeys

F = TypeVar("F", bound=Callable[..., Any])

MAX_WINDOW = 10_000
"""The highest `limit` of a window: the server stores each unit until it has left the window."""

MAX_WINDOW_REQUEST = 1000
"""The most units that one request takes from a window; each costs a microsecond of server time."""

MAX_SECONDS = 366 * 86400.0
"""The longest `per`, the longest wait, and the longest time in which a bucket may fill."""


class RateLimit:
    """A rate limit in the server: `with app.rate_limit("api", limit=100, per=60):`. See `Penstock.rate_limit`.

    Many threads and tasks may share one object. It is a context manager, and also a decorator for `def` and `async def`
    functions: each call of the function then waits until it is allowed.
    """

    def __init__(
        self,
        name: str,
        prefix: str,
        driver: Driver,
        *,
        limit: int,
        per: float,
        burst: int | None = None,
        kind: LimitKind = "bucket",
        wait: float | None = None,
    ) -> None:
        if kind not in {"bucket", "window"}:
            raise ValueError(f"rate_limit(kind={kind!r}): 'bucket' or 'window'")
        if not 0.001 <= per <= MAX_SECONDS:
            raise ValueError(f"rate_limit(per={per}): seconds from 0.001 to a year")
        most = MAX_WINDOW if kind == "window" else int(per * 1_000_000)
        if not 1 <= limit <= most:
            raise ValueError(f"rate_limit(limit={limit}, per={per}): from 1 to {most:,}, with this `per` and this kind")
        if burst is not None and kind == "window":
            raise ValueError(f"rate_limit(burst={burst}): a window has no burst; leave it out, or use a bucket")
        if burst is not None and not 1 <= burst <= max(limit, MAX_SECONDS * limit / per):
            raise ValueError(f"rate_limit(burst={burst}): from 1 to the units that a year allows")
        self.name = name
        self.limit = limit
        self.per = per
        self.burst = limit if burst is None else burst
        self.kind = kind
        self._wait = _check_wait("rate_limit", wait)
        self._driver = driver
        capacity = self.burst if kind == "bucket" else limit
        self._max_units = capacity if kind == "bucket" else min(limit, MAX_WINDOW_REQUEST)
        self.bindings = RateLimitBindings(RateLimitKeys(prefix, name), kind, capacity=capacity, limit=limit, per=per)

    def __repr__(self) -> str:
        return f"<rate limit {self.name!r}: {self.limit} in {self.per:g} s>"

    @verb
    def try_acquire(self, n: int = 1) -> RoundTrip[Allowance]:
        """Whether `n` units are allowed now. If they are, they are used.

        One round trip; a call that the driver sends again counts once.
        """
        self._check(n)
        key = take_key()

        def read(allowance: Allowance) -> Allowance:
            release_key(key)
            return allowance

        return self.bindings.reserve(n, key, max_wait=0).then(read)

    @verb
    def acquire(self, n: int = 1, *, wait: float | EllipsisType | None = ...) -> Operation[Allowance]:
        """Wait until `n` units are allowed, and use them.

        wait  seconds at most, None for ever; the limit's own `wait` if it is left out

        The server knows at which moment they will be allowed. In one round trip it reserves them for that moment, in
        order of arrival, and this call sleeps until then. If that is longer than `wait`, RateLimited is raised at once
        and nothing is reserved. A cancelled wait hands its units back.
        """
        self._check(n)
        return self._acquire(n, self._wait if isinstance(wait, EllipsisType) else _check_wait("acquire", wait))

    def _acquire(self, n: int, wait: float | None) -> Operation[Allowance]:
        # The key identifies the reservation, so it stays in use until the end of the wait.
        key = take_key()
        try:
            max_wait = None if wait is None else min(wait, MAX_SECONDS)
            allowance = yield self.bindings.reserve(n, key, max_wait=max_wait)
            if allowance and allowance.wait:
                yield Sleep(allowance.wait)
        except BaseException:
            yield self.bindings.hand_back(n, key)
            release_key(key)
            raise
        release_key(key)
        if not allowance:
            raise RateLimited(
                f"rate limit {self.name!r}, {self.limit} in {self.per:g} s: allowed in {allowance.wait:.3f} s, "
                f"wait={wait} is less",
                retry_after=allowance.wait,
            )
        return Allowance(True, 0.0, allowance.remaining)

    def _check(self, n: int) -> None:
        if not 1 <= n <= self._max_units:
            raise ValueError(f"rate limit {self.name!r}: n={n} is never allowed at once; from 1 to {self._max_units:,}")

    # --- with, and as a decorator ---

    def __enter__(self) -> Allowance:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("`with` would block the running event loop: write `async with` here")
        return self.acquire()

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Allowance:
        return await self.acquire.aio()

    async def __aexit__(self, *_: object) -> None: ...

    def __call__(self, function: F) -> F:
        return guard_calls(function, self)


def _check_wait(what: str, wait: float | None) -> float | None:
    if wait is not None and not wait >= 0:
        raise ValueError(f"{what}(wait={wait}): seconds from 0, or None for ever")
    return wait
