"""The server's clock as one app's scripts see it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from penstock.app import Penstock


class MovableClock:
    """Stands still from now on, and moves when it is told: delays, leases and expiry follow it, for this app alone.

    Of other apps and processes it moves nothing, nor what the server itself forgets: results are kept by its own clock.
    `with MovableClock(app) as clock` gives the app the server's clock back at the end.
    """

    def __init__(self, app: Penstock) -> None:
        self._clock = app.clock
        self._clock.now_ms = int(time.time() * 1000)

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock.now_ms / 1000

    def advance(self, seconds: float) -> None:
        """Move on by this many seconds. Raises ValueError for a step back: a server's clock does not go there."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): a clock goes forward")
        self._clock.now_ms += round(seconds * 1000)

    def advance_to(self, date: datetime | float) -> None:
        """Move on to a date, or to seconds since 1970; a date of the past changes nothing."""
        seconds = date.timestamp() if isinstance(date, datetime) else date
        self._clock.now_ms = max(self._clock.now_ms, round(seconds * 1000))

    def __repr__(self) -> str:
        return f"<MovableClock {datetime.fromtimestamp(self.now, UTC).isoformat()}>"

    def __enter__(self) -> MovableClock:
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.now_ms = 0
