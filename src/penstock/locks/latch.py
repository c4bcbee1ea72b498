"""A latch: processes wait until it was counted down to zero, for instance by the processes that prepare their work."""

from __future__ import annotations

from typing import Any

from penstock.core.arguments import check_number, check_whole
from penstock.core.keys import check_text
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import ConfigurationError, LatchTimeout
from penstock.locks.answers import LatchInfo
from penstock.locks.keys import LatchKeys
from penstock.locks.meeting_bindings import LatchBindings, LatchReply
from penstock.locks.watching import check_timeout, look_until

MAX_COUNT = 1_000_000

LONGEST_TTL = 366 * 86400.0


def check_ttl(what: str, ttl: Any) -> None:
    """Raise ValueError unless `ttl` is a time for which the server may keep something."""
    check_number(what, "ttl", ttl, 1, LONGEST_TTL, "seconds from 1 to a year, counted from the last call")


class Latch:
    """A latch in the server: `app.latch("import", count=3).wait()`. See `Penstock.latch`."""

    def __init__(self, name: str, prefix: str, driver: Driver, *, count: int, ttl: float) -> None:
        check_whole("latch", "count", count, 1, MAX_COUNT, f"a whole number from 1 to {MAX_COUNT:,}")
        check_ttl("latch", ttl)
        self.name = name
        self.count = count
        self._driver = driver
        self.bindings = LatchBindings(LatchKeys(prefix, name), count, ttl)

    def __repr__(self) -> str:
        return f"<latch {self.name!r}: {self.count}>"

    @verb
    def count_down(self, n: int = 1, *, id: str | None = None) -> RoundTrip[int]:
        """Count down by `n`, and return how much is left. At 0 the latch is open, and further calls change nothing.

        id  counts only once, however often it is passed; for work that may be done twice, such as a job that runs
            again after a crash

        One round trip; a call that the driver sends again counts once.
        """
        check_whole("count_down", "n", n, 1, self.count, f"a whole number from 1 to the count, {self.count:,}")
        return self.bindings.count_down(n, "" if id is None else check_text("count_down id", id)).then(self._left)

    @verb
    def wait(self, timeout: float | None = None) -> Operation[None]:
        """Wait until the latch is open: at most `timeout` seconds, None for ever. Raises LatchTimeout.

        One round trip if it is open. A wait sends one command when it begins, one when it ends, and one in five
        minutes.
        """
        check_timeout("wait", timeout)
        return self._wait(timeout)

    def _wait(self, timeout: float | None) -> Operation[None]:
        left = yield from look_until(lambda left: left == 0, self._look, self.bindings.declared[0], timeout)
        if left:
            raise LatchTimeout(f"latch {self.name!r}: {left} of {self.count} were not counted down within {timeout} s")

    @verb
    def info(self) -> RoundTrip[LatchInfo]:
        """How much is left, and how many wait. One round trip. A latch that was not used yet has its whole count."""
        return self.bindings.info().then(lambda found: found or LatchInfo(self.name, self.count, self.count, 0, 0.0))

    def _look(self, address: str, ttl: float) -> RoundTrip[int]:
        return self.bindings.look(address, ttl).then(self._left)

    def _left(self, reply: LatchReply) -> int:
        if reply.left < 0:
            raise ConfigurationError(
                f"latch {self.name!r}: count={self.count}, but it was created with {reply.count}; "
                "pass the same count everywhere, or choose another name for another latch"
            )
        return reply.left
