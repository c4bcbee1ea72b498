"""A semaphore: at most so many permits over all hosts, in order of arrival, whatever their clocks say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from penstock.core.operations import Driver, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.core.scripts import Library
from penstock.errors import PermitTimeout
from penstock.locks.keys import SemaphoreKeys
from penstock.locks.leased import Holding, Leased, Party, Terms, check_times, waiting_parties

MOST_PERMITS = 1000
"""Permits of one request; each costs a microsecond of server time."""

SHOWN = 100
"""Holders and waiters that `info` names."""


@cache
def scripts() -> Library:
    return Library("locks/line.lua", "locks/semaphore.lua")


@dataclass(frozen=True, slots=True)
class SemaphoreInfo:
    """What the server knows of a semaphore: the limit that was set in it, if one was, how many permits are held and by
    whom, and who waits, first come first (at most a hundred of each are named)."""

    name: str
    limit: int | None
    held: int
    holders: tuple[Party, ...]
    waiting: int
    waiters: tuple[Party, ...]


class Permit(Holding):
    """Permits in hand: as many as were asked for, taken and given back together."""

    _leased: Semaphore

    @property
    def permits(self) -> int:
        return self._leased.terms.permits


class Semaphore(Leased[Permit]):
    """A semaphore of the server's: `with app.semaphore("market:17", limit=5) as permit:`. See `Penstock.semaphore`."""

    def __init__(
        self,
        name: str,
        prefix: str,
        driver: Driver,
        renewer: Renewer,
        *,
        limit: int,
        permits: int,
        lease: float,
        wait: float | None,
        on_loss: Callable[[Permit], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> None:
        _check_limit("semaphore", limit)
        if not 1 <= permits <= min(limit, MOST_PERMITS):
            raise ValueError(
                f"semaphore(permits={permits}, limit={limit}): from 1 to the limit, {MOST_PERMITS} at most"
            )
        check_times("semaphore", lease, wait)
        keys = SemaphoreKeys(prefix, name)
        terms = Terms(f"semaphore {name!r}", lease, wait, keys.declared, keys.inbox, permits, limit)
        super().__init__(terms, driver, renewer, on_loss=on_loss, cancel_on_loss=cancel_on_loss)
        self.name = name
        self.scripts = scripts()

    def _held(self, token: str, request: bytes, fence: int, asked: float) -> Permit:
        return Permit(self, token, request, fence, asked)

    def _timeout(self) -> PermitTimeout:
        n = self.terms.permits
        return PermitTimeout(f"{self.terms.what} had no {n} permit{'s' * (n > 1)} free within {self.terms.wait} s")

    def _refused(self, detail: int) -> ValueError:
        return ValueError(
            f"{self.terms.what}: permits={self.terms.permits}, but its limit was set to {detail} in the server; "
            "ask for less, or set_limit() higher"
        )

    @verb
    def set_limit(self, limit: int | None) -> RoundTrip[None]:
        """Change the limit for everybody, whatever they say; None: what each says counts again. One round trip.

        More room wakes who fits. With less, who holds permits keeps them: it takes effect as they are given back.
        Stays until it is changed.
        """
        if limit is not None:
            _check_limit("set_limit", limit)
        return RoundTrip(self.scripts["set_limit"], self.terms.declared, (limit or 0,), lambda _: None)

    @verb
    def info(self) -> RoundTrip[SemaphoreInfo]:
        """The limit that was set, who holds permits and who waits. One round trip."""
        return RoundTrip(self.scripts["show"], self.terms.declared, (SHOWN,), self._info)

    def _info(self, reply: Sequence[Any]) -> SemaphoreInfo:
        at, limit, held, alive, waiting, *rows = reply
        found = [
            (member.decode(errors="replace").rpartition("/")[0], (int(till) - at / 1000) / 1000)
            for member, till in zip(alive[0::2], alive[1::2], strict=True)
        ]
        holders = tuple(
            Party.of(token, None, members[0][1], len(members))
            for token, members in ((token, list(group)) for token, group in groupby(sorted(found), lambda one: one[0]))
        )
        set_ = None if limit is None else int(limit)
        return SemaphoreInfo(self.name, set_, held, holders, waiting, waiting_parties(at, rows))


def _check_limit(what: str, limit: int) -> None:
    if not 1 <= limit <= 2**31:
        raise ValueError(f"{what}(limit={limit}): 1 or more permits")
