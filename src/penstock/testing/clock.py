"""The server's clock as the scripts of one app see it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from penstock.app import Penstock


class MovableClock:
    """A clock that does not advance until a test moves it. It sets the time of one app's delays, leases and expiry.

    Other apps and processes are not affected. Neither is the server, which expires results by its own clock.
    At the end of `with MovableClock(app) as clock:` the app returns to the server's clock.
    """

    def __init__(self, app: Penstock) -> None:
        self._clock = app.clock
        self._clock.now_ms = int(time.time() * 1000)

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock.now_ms / 1000

    def advance(self, seconds: float) -> None:
        """Move the clock forward by this many seconds. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): a clock only moves forward")
        self._clock.now_ms += round(seconds * 1000)

    def advance_to(self, date: datetime | float) -> None:
        """Move the clock forward to a date, or to seconds since 1970. A date in the past changes nothing."""
        seconds = date.timestamp() if isinstance(date, datetime) else date
        self._clock.now_ms = max(self._clock.now_ms, round(seconds * 1000))

    def __repr__(self) -> str:
        return f"<MovableClock {datetime.fromtimestamp(self.now, UTC).isoformat()}>"

    def __enter__(self) -> MovableClock:
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.now_ms = 0
