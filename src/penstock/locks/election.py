"""An election: one of several processes leads, until it resigns, dies or loses touch with the server.

A leader stops leading by its own clock some time before its lease ends in the server (`notice`), so that its work has
ended when the next leader begins.
"""

from __future__ import annotations

from typing import Any

from penstock.core.arguments import check_number, shown
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewer, renew_at
from penstock.errors import ElectionTimeout
from penstock.locks.answers import ElectionInfo, Leader
from penstock.locks.breaking import Breakable
from penstock.locks.election_bindings import ElectionBindings, Sighting
from penstock.locks.keys import ElectionKeys
from penstock.locks.lease import Grant, Lease
from penstock.locks.leased import HoldOptions, LeasedResource
from penstock.locks.watching import check_timeout, look_until

MAX_VALUE_BYTES = 1024

_NEVER_LOOKED = "?"

MOST_NOTICE = 0.8
"""The largest fraction of the lease that may be used as notice: the rest must suffice for renewals."""


class Leadership(Lease):
    """The leadership of this process.

    term   a number that is higher for each leader, even after a failover. Send it with each write, and let the storage
           reject a term lower than the highest it has seen: that stops a late leader
    lost   is set, and `on_loss` called, at least `notice` seconds before another process can be elected, unless this
           process was frozen, or its leadership was broken by an operator or deleted
    """

    _source: Election

    @property
    def term(self) -> int:
        """A number that is higher for each later leader: a store that checks it refuses earlier leaders."""
        return self._fence

    @verb
    def resign(self) -> Operation[None]:
        """Stop leading; the first candidate is elected by the same script call. The end of a `with` block does this.

        Raises LeaseLost if the leadership was lost before. May be repeated. One round trip.
        """
        return self._release()

    def _certain_until(self, requested_at: float, lease: float) -> float:
        return super()._certain_until(requested_at, lease) - self._source.notice

    def _plan_renewal(self, requested_at: float) -> None:
        super()._plan_renewal(requested_at)
        self.renew_at = min(self.renew_at, renew_at(requested_at, self.lease - self._source.notice))


class Election(LeasedResource[Leadership, ElectionBindings], Breakable):
    """An election in the server: `with app.election("importer") as leader:`. See `Penstock.election`."""

    def __init__(
        self,
        name: str,
        prefix: str,
        driver: Driver,
        renewer: Renewer,
        options: HoldOptions,
        *,
        notice: float | None,
        value: str,
    ) -> None:
        keys = ElectionKeys(prefix, name)
        super().__init__("election", f"election {name!r}", driver, renewer, options)
        lease = self.lease
        if notice is not None:
            most = MOST_NOTICE * lease
            check_number(
                "election", "notice", notice, 0, most, f"seconds from 0 to {most:g}, {MOST_NOTICE} of the lease"
            )
        self.name = name
        self.notice = lease / 3 if notice is None else notice
        self.value = _checked_value(value)
        self.bindings = ElectionBindings(keys, lease, value)

    def _new_lease(self, token: str, packed: bytes, grant: Grant) -> Leadership:
        return Leadership(self, token, packed, grant)

    def _timeout_error(self) -> ElectionTimeout:
        return ElectionTimeout(f"{self.what}: another process led for all of {self.wait} s")

    @verb
    def campaign(self) -> Operation[Leadership]:
        """Wait until this process leads, in order of arrival, for at most `wait` seconds. Raises ElectionTimeout.

        The leadership is renewed until it is resigned. One round trip if no process leads; otherwise one or two, and
        while it waits the process sends a command about every five seconds. `acquire` does the same.
        """
        return self._acquire()

    @verb
    def leader(self) -> RoundTrip[Leader | None]:
        """The process that leads; None if no process does. One round trip."""
        return self.bindings.info().then(lambda info: info.leader)

    def observe(self) -> Observation:
        """Iterate over the leaders: `for leader in election.observe():` or `async for`.

        The first is the present leader; the others follow as they are elected. None stands for a time without a leader,
        which is noticed when the lease of a leader that died has ended. Changes that follow each other quickly may be
        skipped. Observing sends a command for each change. While nothing changes, all observers of one election in this
        process send one command together for each lease.
        """
        return Observation(self, self._driver)

    def breakable_parts(self) -> list[ElectionBindings]:
        return [self.bindings]

    @verb
    def info(self) -> RoundTrip[ElectionInfo]:
        """The leader and the candidates. One round trip."""
        return self.bindings.info()

    def current_info(self) -> RoundTrip[ElectionInfo]:
        """`info` for another operation to yield."""
        return self.bindings.info()


class Observation:
    """An endless iterator over the leaders of one election, for one loop at a time."""

    def __init__(self, election: Election, driver: Driver) -> None:
        self._election = election
        self._driver = driver
        self._known = _NEVER_LOOKED
        """The token of the leader that the loop knows, or ""."""

    @verb
    def fetch(self, timeout: float | None = None) -> Operation[Leader | None]:
        """Wait at most `timeout` seconds (None: for ever) until the leader is another than in the last call. Returns
        the present leader, which is the same as before if the time is over; None if no process leads.

        The first call returns at once. One round trip, and while nothing changes one for each lease, which all
        observers in this process share.
        """
        check_timeout("fetch", timeout)
        return self._fetch(timeout)

    def _fetch(self, timeout: float | None) -> Operation[Leader | None]:
        sighting: Sighting = yield from look_until(
            lambda sighting: _token(sighting.leader) != self._known,
            self._look,
            self._election.bindings.declared[0],
            timeout,
            lambda sighting: sighting.look_in,
        )
        self._known = _token(sighting.leader)
        return sighting.leader

    def _look(self, address: str, ttl: float) -> RoundTrip[Sighting]:
        return self._election.bindings.observe(address, ttl, self._known)

    def __iter__(self) -> Observation:
        return self

    def __next__(self) -> Leader | None:
        return self.fetch()

    def __aiter__(self) -> Observation:
        return self

    async def __anext__(self) -> Leader | None:
        return await self.fetch.aio()


def _token(leader: Leader | None) -> str:
    return "" if leader is None else leader.token


def _checked_value(value: Any) -> str:
    """Return `value` if a leader may announce it, else raise ValueError."""
    try:
        if isinstance(value, str) and len(value.encode()) <= MAX_VALUE_BYTES:
            return value
    except UnicodeEncodeError:
        pass
    raise ValueError(f"election(value={shown(value)}): a text of at most {MAX_VALUE_BYTES:,} bytes")
