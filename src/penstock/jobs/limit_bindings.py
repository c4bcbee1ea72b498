"""The scripts of `limit_settings.lua`, `holds.lua` and `bookings.lua` as round trips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import RoundTrip

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings
    from penstock.jobs.limits import LimitInfo


class LimitBindings:
    """Builds the round trips about the limits of one queue. Sends nothing itself.

    key  name=key, as the server knows it
    """

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def limits(self, keys: int) -> RoundTrip[list[LimitInfo]]:
        """The limits, each with up to `keys` of its keys that have parked jobs, and as many that are closed."""
        from penstock.jobs.limits import read_limits

        return self._queue._call("show_limits", (self._queue.clock.now_ms, keys), read_limits)

    def set_limit(self, name: str, most: int, interval: int, burst: int) -> RoundTrip[bool]:
        """Set the numbers of a limit. False: no job has used it yet."""
        return self._queue._call("set_limit", (self._queue.clock.now_ms, name, most, interval, burst), bool)

    def hold_limit(self, key: str, at: int, *, is_date: bool, must_exist: bool = True) -> RoundTrip[int]:
        """Close a key, for `at` ms or until that date; 0 opens it. Returns until when, server ms; or
        UNKNOWN_RATE, or OUT_OF_RANGE.
        """
        args = (*UNNUMBERED, self._queue.clock.now_ms, key, at, int(is_date), int(must_exist))
        return self._queue._call("hold_limit", args, int)

    def hold(self, incarnation: str, token: bytes, key: str, ms: int) -> RoundTrip[int]:
        """Close a key of a running job. Returns until when, server ms; -1: the incarnation does not hold the job."""
        args = (*UNNUMBERED, self._queue.clock.now_ms, incarnation, token, key, ms)
        return self._queue._call("hold", args, int)

    def used(self, incarnation: str, token: bytes, key: str, units: int) -> RoundTrip[int]:
        """Book the units that a running job has taken by now. Returns what was booked before; -1: it is not held."""
        return self._queue._call("used", (self._queue.clock.now_ms, incarnation, token, key, units), int)
