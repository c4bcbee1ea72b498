"""A barrier: its parties wait for each other, and continue when all have arrived. It can be used again and again."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from penstock.core.arguments import check_number, check_whole
from penstock.core.idempotency import release_key, take_key
from penstock.core.ids import mint_token
from penstock.core.keys import check_text
from penstock.core.operations import Driver, Listen, Listener, Operation, RoundTrip, verb, wait_until_recheck
from penstock.errors import BarrierBroken, BarrierTimeout, ConfigurationError, PenstockError
from penstock.locks.answers import BarrierInfo, BarrierPass, Owner
from penstock.locks.constants import ABORTED, DIED, LATER, LEFT, MISMATCH, PASSED, TIMED_OUT, WAIT
from penstock.locks.keys import BarrierKeys
from penstock.locks.latch import check_ttl
from penstock.locks.meeting_bindings import BarrierBindings, BarrierReply
from penstock.locks.watching import check_timeout

MAX_PARTIES = 1000
"""When the last party arrives, all others are probed. One call of a script probes 150 of them; a probe takes some
microseconds of server time."""

LEASE_RULE = "seconds from 1 to an hour"


class Barrier:
    """A barrier in the server: `app.barrier("step", parties=4).wait()`. See `Penstock.barrier`."""

    def __init__(self, name: str, prefix: str, driver: Driver, *, parties: int, lease: float, ttl: float) -> None:
        check_whole("barrier", "parties", parties, 2, MAX_PARTIES, f"a whole number from 2 to {MAX_PARTIES:,}")
        check_number("barrier", "lease", lease, 1, 3600, LEASE_RULE)
        check_ttl("barrier", ttl)
        self.name = name
        self.parties = parties
        self._driver = driver
        # The keys must outlive the pause between two looks of a party.
        self.bindings = BarrierBindings(BarrierKeys(prefix, name), parties, lease, max(ttl, 3 * lease))

    def __repr__(self) -> str:
        return f"<barrier {self.name!r}: {self.parties} parties>"

    @verb
    def wait(self, timeout: float | None = None) -> Operation[BarrierPass]:
        """Wait until all parties have arrived: at most `timeout` seconds, None for ever.

        Raises BarrierBroken, in all parties of the generation, if a party died, left or timed out while it waited, or
        if `abort` was called. Raises BarrierTimeout if this party timed out, and ConfigurationError if the parties that
        wait already need another number. Each call waits in the present generation, so a barrier that has passed or
        broken can be used again.

        One round trip for the party that arrives last. The others send one more when it has arrived, and two in each
        `lease` to show that they are alive.
        """
        check_timeout("wait", timeout)
        return self._wait(timeout)

    def _wait(self, timeout: float | None) -> Operation[BarrierPass]:
        deadline, token = None if timeout is None else time.monotonic() + timeout, mint_token()
        listener = yield Listen(self.bindings.declared[0], shared=True)
        try:
            reply = yield from self._meet(self.bindings.party(token, listener.address), listener, deadline)
        finally:
            listener.close()
        if reply.outcome == PASSED:
            return BarrierPass(reply.generation, reply.index)
        if reply.outcome == MISMATCH:
            raise ConfigurationError(
                f"barrier {self.name!r}: parties={self.parties}, but those that wait need {reply.index}; "
                "pass the same number everywhere"
            )
        if reply.why == TIMED_OUT + token.encode():
            raise BarrierTimeout(
                f"barrier {self.name!r}: not all of the {self.parties} parties arrived within {timeout} s; "
                "those that waited get BarrierBroken"
            )
        raise BarrierBroken(f"barrier {self.name!r} is broken: {_reason(reply.why)}", generation=reply.generation)

    def _meet(self, party: bytes, listener: Listener, deadline: float | None) -> Operation[BarrierReply]:
        """Arrive, and look until the generation has ended or the deadline has passed. Returns how it ended."""
        key = take_key()
        reply = BarrierReply(generation=0, index=0, outcome=LATER)
        try:
            reply = yield self.bindings.arrive(key, party)
            while reply.outcome in {WAIT, LATER}:
                yield from wait_until_recheck(listener, reply.look_in, deadline)
                if deadline is not None and time.monotonic() >= deadline:
                    ended: BarrierReply = yield self.bindings.leave(key, party, reply.generation, TIMED_OUT)
                    reply = replace(ended, index=reply.index)
                elif reply.outcome == WAIT:
                    reply = yield self.bindings.look(party, reply.generation, reply.index)
                else:
                    release_key(key)
                    key = take_key()
                    reply = yield self.bindings.arrive(key, party)
        except BaseException:
            with contextlib.suppress(PenstockError):
                yield self.bindings.leave(key, party, reply.generation, LEFT)
            raise
        release_key(key)
        return reply

    @verb
    def abort(self, reason: str = "") -> RoundTrip[bool]:
        """Break the barrier: all parties that wait get BarrierBroken, which names the reason. False if no party waits.

        Call it when a party has failed before it arrived, so that the others do not wait in vain. One round trip.
        """
        return self.bindings.abort(check_text("abort reason", reason) if reason else "")

    @verb
    def info(self) -> RoundTrip[BarrierInfo]:
        """The parties that wait. One round trip."""
        return self.bindings.info().then(lambda found: found or BarrierInfo(self.name, self.parties, 0, 0, ()))


def _reason(why: bytes) -> str:
    """Why a generation broke, in words. `why`: see `BarrierReply`."""
    kind, what = why[:1], why[1:].decode(errors="replace")
    party = Owner.from_token(what, None)
    process = f"process {party.pid} on {party.host}" if party.host else "a party"
    reasons = {
        DIED: f"{process} died while it waited, or did not answer",
        LEFT: f"{process} stopped waiting",
        TIMED_OUT: f"{process} reached its time-out",
        ABORTED: f"it was aborted{f' ({what})' if what else ''}",
    }
    return reasons.get(kind, "the server no longer knows how this meeting ended")
