"""A rate limit: so many in so much time over all hosts, by the server's clock, in order of arrival."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from types import EllipsisType
from typing import Any, Literal, TypeVar, cast

from penstock.core.idempotency import Caller, answered, next_call
from penstock.core.operations import Driver, Operation, RoundTrip, Sleep, verb
from penstock.core.scripts import Library
from penstock.errors import RateLimited
from penstock.locks.keys import RateKeys

F = TypeVar("F", bound=Callable[..., Any])

MOST_REMEMBERED = 10_000
"""Units of a window, each of which is kept in the server for as long as it counts."""

MOST_AT_ONCE = 1000
"""Units of one request to a window; each costs a microsecond of server time."""

LONGEST = 366 * 86400.0
"""Seconds: of `per`, of a wait, and of the time that fills a bucket."""


@cache
def scripts() -> Library:
    return Library("locks/line.lua", "core/call.lua", "locks/rate.lua")


@dataclass(frozen=True, slots=True)
class Allowance:
    """The answer of a rate limit; true when it is allowed.

    allowed    whether it is
    wait       seconds until it would be, 0.0 when it is; nothing is kept for who comes again
    remaining  how many more would be allowed now
    """

    allowed: bool
    wait: float
    remaining: int

    def __bool__(self) -> bool:
        return self.allowed


class RateLimit:
    """A rate limit of the server's: `with app.rate_limit("api", limit=100, per=60):`. See `Penstock.rate_limit`.

    One object may be used by many threads and tasks, as a context manager, and as a decorator of `def` and `async def`
    functions, each call of which then waits for its turn.
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
        kind: Literal["bucket", "window"] = "bucket",
        wait: float | None = None,
    ) -> None:
        if kind not in {"bucket", "window"}:
            raise ValueError(f"rate_limit(kind={kind!r}): 'bucket' or 'window'")
        if not 0.001 <= per <= LONGEST:
            raise ValueError(f"rate_limit(per={per}): seconds from 0.001 to a year")
        most = MOST_REMEMBERED if kind == "window" else int(per * 1_000_000)
        if not 1 <= limit <= most:
            raise ValueError(f"rate_limit(limit={limit}, per={per}): from 1 to {most:,}, with this `per` and this kind")
        if burst is not None and kind == "window":
            raise ValueError(f"rate_limit(burst={burst}): a window has none; leave it out, or take a bucket")
        if burst is not None and not 1 <= burst <= max(limit, LONGEST * limit / per):
            raise ValueError(f"rate_limit(burst={burst}): from 1 to what is let through in a year")
        self.name = name
        self.limit = limit
        self.per = per
        self.burst = limit if burst is None else burst
        self.kind = kind
        self._wait = _check_wait("rate_limit", wait)
        self._driver = driver
        self._keys = RateKeys(prefix, name).declared(kind)
        # Rounded up, so that it never is faster than was asked for.
        self._interval = -int(-per * 1_000_000 // limit)

    def __repr__(self) -> str:
        return f"<rate limit {self.name!r}: {self.limit} in {self.per:g} s>"

    @verb
    def try_acquire(self, n: int = 1) -> RoundTrip[Allowance]:
        """Whether n more are allowed now; if so, they count. One round trip; sent again it counts once."""
        caller = next_call()

        def read(found: Allowance) -> Allowance:
            answered(caller)
            return found

        return self._take(self._check(n), 0, caller).then(read)

    @verb
    def acquire(self, n: int = 1, *, wait: float | EllipsisType | None = ...) -> Operation[Allowance]:
        """Wait until n more are allowed. `wait`: seconds at most, None for ever; left out, as the limit says.

        The server knows at once when that will be: it is reserved in the one round trip, in order of arrival, and slept
        for; or RateLimited is raised at once, because it would be later than `wait`. A wait that is cancelled hands it
        back.
        """
        self._check(n)
        return self._acquire(n, self._wait if isinstance(wait, EllipsisType) else _check_wait("acquire", wait))

    def _acquire(self, n: int, wait: float | None) -> Operation[Allowance]:
        # It is busy until the end of the wait: by its number what was reserved is handed back.
        caller = next_call()
        try:
            found = yield self._take(n, -1 if wait is None else int(min(wait, LONGEST) * 1_000_000), caller)
            if found and found.wait:
                yield Sleep(found.wait)
        except BaseException:
            yield self._back(n, caller)
            answered(caller)
            raise
        answered(caller)
        if not found:
            raise RateLimited(
                f"rate limit {self.name!r}, {self.limit} in {self.per:g} s: allowed in {found.wait:.3f} s, "
                f"wait={wait} is less",
                retry_after=found.wait,
            )
        return Allowance(True, 0.0, found.remaining)

    def _check(self, n: int) -> int:
        most = min(self.limit, MOST_AT_ONCE) if self.kind == "window" else self.burst
        if not 1 <= n <= most:
            raise ValueError(f"rate limit {self.name!r}: n={n} is never allowed at once; from 1 to {most:,}")
        return n

    def _take(self, n: int, most: int, caller: Caller) -> RoundTrip[Allowance]:
        args = (self._held, int(self.per * 1_000_000), self._interval, most)
        return RoundTrip(
            scripts()["let_through"], self._keys, (caller.id, caller.number, self.kind, n, *args), _allowance
        )

    def _back(self, n: int, caller: Caller) -> RoundTrip[int]:
        args = (caller.id, caller.number, self.kind, n, self._held, self._interval)
        return RoundTrip(scripts()["hand_back"], self._keys, args, int)

    @property
    def _held(self) -> int:
        return self.burst if self.kind == "bucket" else self.limit

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
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: put `with limit:` where it does its work")
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                await self.acquire.aio()
                return await function(*args, **kwargs)

            return cast(F, awaited)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            self.acquire()
            return function(*args, **kwargs)

        return cast(F, called)


def _allowance(reply: Sequence[int]) -> Allowance:
    return Allowance(bool(reply[0]), reply[1] / 1_000_000, reply[2])


def _check_wait(what: str, wait: float | None) -> float | None:
    if wait is not None and not wait >= 0:
        raise ValueError(f"{what}(wait={wait}): seconds from 0, or None for ever")
    return wait
