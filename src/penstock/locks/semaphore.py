"""A semaphore: limits how many permits are held at a time across all hosts. Waiters are served in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.arguments import check_whole, is_whole, shown
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.errors import PermitTimeout
from penstock.locks.answers import SemaphoreInfo
from penstock.locks.bindings import AcquireReply, SemaphoreBindings
from penstock.locks.breaking import Breakable
from penstock.locks.constants import MOST_PERMITS
from penstock.locks.keys import SemaphoreKeys
from penstock.locks.lease import Grant, Lease
from penstock.locks.leased import HoldOptions, LeasedResource


class Permit(Lease):
    """Permits that are held: as many as were asked for, acquired and released together."""

    _source: Semaphore

    @property
    def permits(self) -> int:
        """How many permits this is."""
        return self._source.bindings.request.permits


class Semaphore(LeasedResource[Permit, SemaphoreBindings], Breakable):
    """A semaphore in the server: `with app.semaphore("market:17", limit=5) as permit:`. See `Penstock.semaphore`."""

    def __init__(
        self,
        name: str,
        prefix: str,
        driver: Driver,
        renewer: Renewer,
        options: HoldOptions,
        *,
        limit: int,
        permits: int,
    ) -> None:
        keys = SemaphoreKeys(prefix, name)
        _check_limit("semaphore", limit)
        if not is_whole(permits, 1, min(limit, MOST_PERMITS)):
            raise ValueError(
                f"semaphore(permits={shown(permits)}, limit={limit}): from 1 to the limit, {MOST_PERMITS} at most"
            )
        super().__init__("semaphore", f"semaphore {name!r}", driver, renewer, options)
        self.bindings = SemaphoreBindings(keys, self.lease, permits, limit)
        self.name = name

    def _new_lease(self, token: str, packed: bytes, grant: Grant) -> Permit:
        return Permit(self, token, packed, grant)

    def _waits_for_itself(self, own: Sequence[Lease], refusal: AcquireReply) -> bool:
        held = sum(lease._source.bindings.request.permits for lease in own)
        return held + self.bindings.request.permits > refusal.limit

    def _timeout_error(self) -> PermitTimeout:
        n = self.bindings.request.permits
        return PermitTimeout(f"{self.what} did not have {n} free permit{'s' * (n > 1)} within {self.wait} s")

    def _refused_error(self, refused: int) -> ValueError:
        return ValueError(
            f"{self.what}: permits={self.bindings.request.permits}, but its limit was set to {refused} in the server; "
            "ask for less, or set_limit() higher"
        )

    @verb
    def set_limit(self, limit: int | None) -> Operation[None]:
        """Store a limit in the server, which replaces the limit of every program until it is changed again.

        None removes it, and each program's own limit applies again. After a higher limit, the waiters that now fit are
        served at once. After a lower one, holders keep their permits, and new permits are granted once enough of the
        old ones have been released. One round trip.
        """
        if limit is not None:
            _check_limit("set_limit", limit)
        return self._set_limit(limit)

    def _set_limit(self, limit: int | None) -> Operation[None]:
        while (yield self.bindings.set_limit(limit)):
            pass

    def breakable_parts(self) -> list[SemaphoreBindings]:
        return [self.bindings]

    @verb
    def info(self) -> RoundTrip[SemaphoreInfo]:
        """The limit that was stored, the holders and the waiters. One round trip."""
        return self.bindings.info()


def _check_limit(what: str, limit: int) -> None:
    check_whole(what, "limit", limit, 1, 2**31, "1 or more permits")
