"""A rate limit: at most `limit` units in `per` seconds across all hosts, granted in order of arrival."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from copy import copy
from types import EllipsisType
from typing import Any, TypeVar, cast

from penstock.core.arguments import check_number, check_wait, check_whole, is_whole, shown
from penstock.core.cost import CallCost, Cost, check_cost, whole_units
from penstock.core.idempotency import IdempotencyKey, release_key, take_key
from penstock.core.ids import mint_token
from penstock.core.operations import Driver, Listen, Listener, Operation, RoundTrip, verb
from penstock.errors import RateLimited
from penstock.locks.answers import Allowance, LimitKind, RateLimitInfo
from penstock.locks.constants import MOST_WAITERS
from penstock.locks.decorating import guard_calls
from penstock.locks.keys import RateLimitKeys
from penstock.locks.last_tries import LastTries
from penstock.locks.rate_bindings import RateLimitBindings, RateReply

F = TypeVar("F", bound=Callable[..., Any])

MAX_WINDOW = 10_000
"""The highest `limit` of a window: the server stores each unit until it has left the window."""

MAX_WINDOW_REQUEST = 1000
"""The most units that one request takes from a window; each costs a microsecond of server time."""

MAX_SECONDS = 366 * 86400.0
"""The longest `per`, and the longest time in which a bucket may fill."""


class RateLimit:
    """A rate limit in the server: `with app.rate_limit("api", limit=100, per=60):`. See `Penstock.rate_limit`.

    Many threads and tasks may share one object. It is a context manager, and also a decorator for `def` and `async def`
    functions: each call of the function then waits until its units are allowed. `cost` says how many units that is.
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
        cost: Cost = 1,
    ) -> None:
        keys = RateLimitKeys(prefix, name)
        if kind not in ("bucket", "window"):
            raise ValueError(f"rate_limit(kind={shown(kind)}): 'bucket' or 'window'")
        check_number("rate_limit", "per", per, 0.001, MAX_SECONDS, "seconds from 0.001 to a year")
        most = MAX_WINDOW if kind == "window" else int(per * 1_000_000)
        check_whole("rate_limit", "limit", limit, 1, most, f"from 1 to {most:,}, with per={per} and this kind")
        if burst is not None and kind == "window":
            raise ValueError(f"rate_limit(burst={shown(burst)}): a window has no burst; leave it out, or use a bucket")
        if burst is not None:
            most = int(max(limit, MAX_SECONDS * limit / per))
            check_whole("rate_limit", "burst", burst, 1, most, "from 1 to the units that a year allows")
        check_wait("rate_limit", wait)
        check_cost("rate_limit", cost)
        self.name = name
        self.limit = limit
        self.per = per
        self.burst = limit if burst is None else burst
        self.kind = kind
        self._wait = wait
        self._cost = cost
        self._driver = driver
        capacity = self.burst if kind == "bucket" else limit
        self._max_units = capacity if kind == "bucket" else min(limit, MAX_WINDOW_REQUEST)
        if isinstance(cost, int | float):
            self._units(None, cost)
        self.bindings = RateLimitBindings(keys, kind, capacity=capacity, limit=limit, per=per)

    def __repr__(self) -> str:
        return f"<rate limit {self.name!r}: {self.limit} in {self.per:g} s>"

    @verb
    def try_acquire(self, n: int | None = None, *, cost: float | None = None) -> RoundTrip[Allowance]:
        """Use `n` units if they are allowed now, in addition to those of all requests that wait. Never waits.

        `n` and `cost`: see `acquire`. One round trip; a call that the driver sends again counts once.
        """
        n = self._units(n, cost)
        key = take_key()

        def read(reply: RateReply) -> Allowance:
            release_key(key)
            return Allowance(reply.outcome == "granted", reply.seconds, reply.remaining)

        return self.bindings.acquire(self.bindings.pack("", n), key, join=False).then(read)

    @verb
    def acquire(
        self, n: int | None = None, *, cost: float | None = None, wait: float | EllipsisType | None = ...
    ) -> Operation[Allowance]:
        """Wait until `n` units are allowed, in order of arrival, and use them.

        n     how many units; if `n` and `cost` are left out, the limit's own `cost`, which is 1 by default
        cost  instead of `n`, for amounts that are not whole numbers: it is rounded up, to 1 at least
        wait  the most seconds to wait; None: for ever. If it is left out, the limit's own `wait` applies

        If the requests before this one need longer than `wait`, RateLimited is raised at once. It is also raised if
        10,000 requests wait already. A cancelled wait uses nothing. One round trip if the units are allowed; a request
        that waits sends one to join the waiters and one when its units are allowed.
        """
        n = self._units(n, cost)
        if isinstance(wait, EllipsisType):
            wait = self._wait
        else:
            check_wait("acquire", wait)
        return self._acquire(n, wait)

    @verb
    def info(self) -> RoundTrip[RateLimitInfo]:
        """The units that are left, the numbers of the limit as they were last used, and the waiters. One round trip."""
        return self.bindings.info()

    @verb
    def reset(self) -> RoundTrip[bool]:
        """Forget the units that were used, so that all are allowed now, to the requests that wait first.

        Returns False if no units were used. One round trip; a call that the driver sends again also forgets what was
        used in between.
        """
        return self.bindings.reset()

    def _acquire(self, n: int, wait: float | None) -> Operation[Allowance]:
        # The key identifies the request, so it stays in use until the end of the wait.
        key, token = take_key(), mint_token()
        deadline = None if wait is None else time.monotonic() + wait
        packed = self.bindings.pack(token, n)
        try:
            while (reply := (yield self.bindings.acquire(packed, key, join=False, max_wait=wait))).outcome == "again":
                pass
            if reply.outcome == "refused" and (wait is None or reply.seconds <= wait):
                listener = yield Listen(self.bindings.declared[0])
                packed = self.bindings.pack(token, n, listener.address)
                try:
                    reply = yield from self._wait_until_allowed(packed, key, listener, deadline)
                finally:
                    listener.close()
        except BaseException:
            yield self.bindings.withdraw(packed, key)
            release_key(key)
            raise
        release_key(key)
        if reply.outcome == "granted":
            return Allowance(True, 0.0, reply.remaining)
        raise self._refusal(reply, wait)

    def _wait_until_allowed(
        self, packed: bytes, key: IdempotencyKey, listener: Listener, deadline: float | None
    ) -> Operation[RateReply]:
        tries, ticket, declared, messages = LastTries.of(self._driver), 0, self.bindings.declared, list[str]()
        with tries.waiting(declared, listener, checks_offers=True):
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                reply = yield self.bindings.acquire(packed, key, ticket, join=left != 0, max_wait=left)
                tries.note_offer(declared, reply.offer_ends)
                if ticket and not messages and reply.found_dead:
                    tries.wake_others(listener)
                if reply.outcome == "waits":
                    ticket = reply.ticket
                    messages = yield from tries.sleep(declared, listener, reply.seconds, deadline)
                elif reply.outcome != "again":
                    return cast(RateReply, reply)

    def _refusal(self, reply: RateReply, wait: float | None) -> RateLimited:
        if reply.outcome == "full":
            why = f"{MOST_WAITERS:,} requests wait already; try again later"
        else:
            why = f"allowed in {reply.seconds:.3f} s, wait={wait} is less"
        return RateLimited(
            f"rate limit {self.name!r}, {self.limit} in {self.per:g} s: {why}", retry_after=reply.seconds
        )

    def _units(self, n: int | None, cost: float | None) -> int:
        """The units that a request uses. Raises ValueError if that is never allowed."""
        given = f"n={shown(n)}"
        if n is None or cost is not None:
            cost = self._fixed_cost() if cost is None else cost
            given, units = f"cost={shown(cost)}", whole_units(cost)
            if units is None or n is not None:
                raise ValueError(f"rate limit {self.name!r}: {given}: a number of units from 0; leave out n")
            n = max(1, units)
        if not is_whole(n, 1, self._max_units):
            raise ValueError(
                f"rate limit {self.name!r}: {given} is never allowed at once; from 1 to {self._max_units:,}"
            )
        return n

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
        if isinstance(self._cost, int | float):
            return guard_calls(function, self)
        called = inspect.signature(function)
        cost = CallCost(f"rate limit {self.name!r}", self._cost, [*called.parameters])

        def of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RateLimit:
            bound = called.bind(*args, **kwargs)
            bound.apply_defaults()
            one = copy(self)
            one._cost = cost.of_call(bound.arguments.__getitem__)
            return one

        return guard_calls(function, self, of_call)

    def _fixed_cost(self) -> float:
        """The cost for `with` and `acquire()`. Raises ValueError if only a call of a decorated function has a cost."""
        if isinstance(self._cost, int | float):
            return self._cost
        raise ValueError(
            f"rate limit {self.name!r}: its cost follows from the arguments of a call, so it works only as a "
            "decorator: in a `with` block give cost=<a number>, or call acquire(cost=…)"
        )
