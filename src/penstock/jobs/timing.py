"""When a schedule has its ticks: the times of a cron line in a time zone, or a fixed interval.

All times are milliseconds since 1970 by the server's clock.
"""

from __future__ import annotations

import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from penstock.core.arguments import is_number, shown
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Missed: TypeAlias = Literal["one", "skip", "all"]
"""After ticks that passed without a worker: one job for the latest, no job, or a job for each."""

MOST_TICKS: Final = 100
"""Missed ticks whose jobs one round trip enqueues."""

_GRACE: Final = 60_000
"""Milliseconds. With `missed="skip"` a tick that is later than this has been missed."""

_RECENT: Final = 3 * 3_600_000
_CLOCK_CHANGE: Final = 26 * 3_600_000
"""Milliseconds. Clocks change by less than a day; zones have skipped one, when they moved across the date line."""

_SHORTEST, _LONGEST = 1.0, 10 * 365 * 86400.0


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The times of a schedule, and what happens to those that were missed.

    Raises ConfigurationError for a cron line without a time, an unknown zone, or an interval out of range.
    """

    cron: str = ""
    timezone: str = "UTC"
    every: float | None = None
    """Seconds. Give either this or a cron line."""
    missed: Missed = "one"

    def check(self) -> Timing:
        """Raise ConfigurationError if there is no time at all; returns itself. Decoding runs no checks."""
        if bool(self.cron) == (self.every is not None):
            raise ConfigurationError(
                'a schedule has either a cron line, such as schedule="0 7 * * *", or every=seconds'
            )
        if self.missed not in ("one", "skip", "all"):
            raise ConfigurationError(f"missed={self.missed!r}: use 'one', 'skip' or 'all'")
        if self.every is not None:
            if self.timezone != "UTC":
                raise ConfigurationError("timezone: an interval (every=) has no time zone; only a cron line has")
            if not is_number(self.every, _SHORTEST, _LONGEST):
                raise ConfigurationError(f"every={shown(self.every)}: seconds from 1 to ten years")
            return self
        if not isinstance(self.cron, str) or not isinstance(self.timezone, str):
            raise ConfigurationError(
                f'schedule={shown(self.cron)}, timezone={shown(self.timezone)}: two texts, such as "0 7 * * *" and '
                '"Europe/Berlin"'
            )
        _ = self._zone
        if len(self.cron.split()) != 5:  # some releases of cronsim read a sixth
            raise self._unreadable("it has five fields; for seconds use every=")
        self._cron_from(datetime.datetime.now(datetime.UTC), reverse=False)
        if self.following(_now_ms()) is None:
            raise ConfigurationError(f"schedule {self.cron!r}: no date matches it in the next fifty years")
        return self

    @property
    def _zone(self) -> ZoneInfo:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # imported here, because few programs have schedules

        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigurationError(
                f"timezone {self.timezone!r} is unknown: use a name such as Europe/Berlin. If that fails too, this "
                "machine has no time zones: install the package tzdata"
            ) from None

    def _cron_from(self, start: datetime.datetime, *, reverse: bool) -> islice[datetime.datetime]:
        from cronsim import CronSim, CronSimError

        try:
            return islice(CronSim(self.cron, start, reverse=reverse), None)
        except CronSimError as error:
            raise self._unreadable(f"{str(error)[:1].lower()}{str(error)[1:]}") from None

    def _unreadable(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"schedule {shown(self.cron)}: {reason}; write minute, hour, day, month and weekday, such as "
            '"0 7 * * mon-fri"'
        )

    def _local(self, ms: int) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(ms // 1000, datetime.UTC).astimezone(self._zone)

    def following(self, after: int) -> int | None:
        """The first tick after this time, or None. An interval begins at `after`."""
        if self.every is not None:
            return after + round(self.every * 1000)
        tick = next(self._cron_from(self._local(after), reverse=False), None)
        return None if tick is None else round(tick.timestamp() * 1000)

    def due(self, expected: int, now: int) -> tuple[list[int], int | None]:
        """The ticks for which jobs are enqueued now, and the tick after them. `expected`: the tick that is due.

        With `missed="all"`, at most a hundred ticks; the following one may have passed as well.
        """
        ticks, following = self._some(expected, now, MOST_TICKS)
        if self.missed == "all":
            return ticks, following
        if following is not None and following <= now:
            ticks = [self._latest(following, now)]
            following = self.following(ticks[0])
        if self.missed == "skip" and now - ticks[-1] > _GRACE:
            return [], following
        return ticks[-1:], following

    def _some(self, first: int, now: int, most: int) -> tuple[list[int], int | None]:
        """Up to `most` ticks from `first` to `now`, and the one after them."""
        ticks, following = [first], self.following(first)
        while following is not None and following <= now and len(ticks) < most:
            ticks.append(following)
            following = self.following(following)
        return ticks, following

    def _latest(self, least: int, now: int) -> int:
        """The latest tick up to `now`. `least`: an earlier tick."""
        if self.every is not None:
            interval = round(self.every * 1000)
            return least + (now - least) // interval * interval
        latest = self._last_between(max(least, now - _RECENT), now)
        if latest is None:
            # Near a change of the clocks, the search backward finds other times than the one forward: so it only says
            # where to begin. A second later, because it begins before the time that it is given.
            earlier = next(self._cron_from(self._local(now + 1000), reverse=True), None)
            begin = least if earlier is None else round(earlier.timestamp() * 1000) - _CLOCK_CHANGE
            latest = self._last_between(max(least, begin), now)
        return least if latest is None else latest

    def _last_between(self, begin: int, end: int) -> int | None:
        """The last tick after `begin` and up to `end`."""
        latest = None
        for tick in self._cron_from(self._local(begin), reverse=False):
            at = round(tick.timestamp() * 1000)
            if at > end:
                break
            latest = at
        return latest


def _now_ms() -> int:
    return round(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
