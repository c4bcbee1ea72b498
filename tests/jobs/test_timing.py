"""When schedules have their ticks: cron lines over the changes of summer time, intervals, and missed ticks."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from penstock import ConfigurationError
from penstock.jobs.timing import Timing

CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),  # by half an hour
    "America/Santiago": ("2026-09-06", "2026-04-05"),  # at midnight
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),  # at midnight
}
"""Zone -> the days on which the clocks go forward and back."""

TIMES = {
    "Europe/Berlin": ("30 2", "30 2"),
    "America/New_York": ("30 2", "30 1"),
    "Australia/Lord_Howe": ("15 2", "45 1"),
    "America/Santiago": ("30 0", "30 23"),
    "Asia/Beirut": ("30 0", "30 23"),
}
"""Zone -> minute and hour that the first change skips, and that the second repeats (the evening before)."""


def ms(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def ticks(timing: Timing, start: int, end: int) -> list[int]:
    found, tick = [], timing.following(start)
    while tick is not None and tick < end:
        found.append(tick)
        tick = timing.following(tick)
    return found


def local(tick: int, zone: str) -> datetime:
    return datetime.fromtimestamp(tick / 1000, ZoneInfo(zone))


def around(zone: str, day: str) -> tuple[int, int]:
    """From three days before a day to three days after it, in the zone."""
    middle = date.fromisoformat(day)
    return ms(f"{middle - timedelta(3)}T12:00", zone), ms(f"{middle + timedelta(3)}T12:00", zone)


@pytest.mark.parametrize("zone", CHANGES)
def test_the_zones_change_their_clocks_on_these_days(zone: str):
    for day in CHANGES[zone]:
        offsets = {local(tick, zone).utcoffset() for tick in range(*around(zone, day), 3_600_000)}
        assert len(offsets) == 2, f"{zone} has one offset around {day}"


@pytest.mark.parametrize("change", [0, 1], ids=["forward", "back"])
@pytest.mark.parametrize("zone", CHANGES)
def test_a_daily_time_comes_once_a_day_also_where_the_clocks_skip_or_repeat_it(zone: str, change: int):
    timing = Timing(f"{TIMES[zone][change]} * * *", zone).check()
    start, end = around(zone, CHANGES[zone][change])
    found = ticks(timing, start, end)
    assert len(found) == 6
    assert all(22.5 <= (later - earlier) / 3_600_000 <= 25.5 for earlier, later in pairwise(found))


@pytest.mark.parametrize("change", [0, 1], ids=["forward", "back"])
@pytest.mark.parametrize("zone", CHANGES)
def test_noon_stays_noon(zone: str, change: int):
    found = ticks(Timing("0 12 * * *", zone), *around(zone, CHANGES[zone][change]))
    assert {local(tick, zone).hour for tick in found} == {12}
    assert len(found) == 5


@pytest.mark.parametrize("change", [0, 1], ids=["forward", "back"])
@pytest.mark.parametrize("zone", CHANGES)
def test_every_quarter_of_an_hour_comes_without_a_gap_and_without_a_double(zone: str, change: int):
    start, end = around(zone, CHANGES[zone][change])
    found = ticks(Timing("*/15 * * * *", zone), start, end)
    assert found == list(range(start + 900_000, end, 900_000))


def test_weekdays_and_names():
    timing = Timing("0 7 * * mon-fri", "Europe/Berlin")
    found = ticks(timing, ms("2026-11-20T08:00", "Europe/Berlin"), ms("2026-11-25T00:00", "Europe/Berlin"))
    assert [f"{local(tick, 'Europe/Berlin'):%a %H:%M}" for tick in found] == ["Mon 07:00", "Tue 07:00"]


def test_an_interval_counts_from_its_beginning():
    assert ticks(Timing(every=30), 5_000, 100_000) == [35_000, 65_000, 95_000]


HOURLY, EVERY = Timing("0 * * * *"), Timing(every=3600)
NOON = ms("2026-11-23T12:00")
HOUR = 3_600_000


@pytest.mark.parametrize("timing", [HOURLY, EVERY], ids=["cron", "every"])
@pytest.mark.parametrize("late", [0, 1, 59_999, HOUR - 1])
def test_a_tick_that_is_late_but_alone_is_served(timing: Timing, late: int):
    assert timing.due(NOON, NOON + late) == ([NOON], NOON + HOUR)


@pytest.mark.parametrize("timing", [HOURLY, EVERY], ids=["cron", "every"])
@pytest.mark.parametrize("hours", [1, 3, 99, 100, 5000])
def test_after_missed_ticks_one_job_runs_for_the_latest(timing: Timing, hours: int):
    assert timing.due(NOON, NOON + hours * HOUR + 5) == ([NOON + hours * HOUR], NOON + (hours + 1) * HOUR)


@pytest.mark.parametrize("change", [0, 1], ids=["forward", "back"])
@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize(
    "line", ["* * * * *", "*/5 * * * *", "*/7 0-3 * * *", "{} * * *", "0,30 */2 * * *", "59 23 * * sun,mon"]
)
def test_the_latest_missed_tick_is_the_last_of_those_that_would_have_come(zone: str, change: int, line: str):
    timing = Timing(line.format(TIMES[zone][change]), zone)
    start, end = around(zone, CHANGES[zone][change])
    found, night = [ticks(timing, start, end)[0]], (start + end) // 2 - 16 * HOUR
    near = range(night, night + 10 * HOUR, 1_740_000)  # from the evening before the change to the morning after it
    for now in sorted([*range(found[0], end, 4_980_000), *(at for at in near if at >= found[0])]):
        while (following := timing.following(found[-1])) is not None and following <= now:
            found.append(following)
        assert timing._latest(found[0], now) == found[-1], f"at {local(now, zone)}"


@pytest.mark.parametrize("timing", [Timing("0 * * * *", missed="skip"), Timing(every=3600, missed="skip")])
def test_skip_drops_ticks_that_are_more_than_a_minute_late(timing: Timing):
    assert timing.due(NOON, NOON + 60_000) == ([NOON], NOON + HOUR)
    assert timing.due(NOON, NOON + 60_001) == ([], NOON + HOUR)
    assert timing.due(NOON, NOON + 500 * HOUR) == ([NOON + 500 * HOUR], NOON + 501 * HOUR)
    assert timing.due(NOON, NOON + 500 * HOUR + 70_000) == ([], NOON + 501 * HOUR)


@pytest.mark.parametrize("timing", [Timing("0 * * * *", missed="all"), Timing(every=3600, missed="all")])
def test_all_gives_a_job_for_each_at_most_a_hundred_at_once(timing: Timing):
    assert timing.due(NOON, NOON + 2 * HOUR) == ([NOON, NOON + HOUR, NOON + 2 * HOUR], NOON + 3 * HOUR)
    found, following = timing.due(NOON, NOON + 250 * HOUR)
    assert (len(found), following) == (100, NOON + 100 * HOUR)


def test_a_date_that_comes_once_in_years_is_found():
    assert Timing("0 0 29 2 *").check().following(ms("2026-01-01")) == ms("2028-02-29")


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        (Timing("0 25 * * *"), "bad hour"),
        (Timing("0 7 * *"), "five fields"),
        (Timing("30 0 7 * * *"), "five fields; for seconds use every="),
        (Timing("0 0 31 2 *"), "bad day-of-month"),
        (Timing("0 7 * * mo"), "bad day-of-week"),
        (Timing("@daily"), "five fields"),
        (Timing("0 7 * * *", "Europe/Berln"), "timezone 'Europe/Berln' is unknown"),
        (Timing("0 7 * * *", "../etc/passwd"), "is unknown"),
        (Timing("0 7 * * *", every=30), "either a cron line"),
        (Timing(), "either a cron line"),
        (Timing(every=0.5), "seconds from 1"),
        (Timing(every=float("nan")), "seconds from 1"),
        (Timing(every=60, timezone="Europe/Berlin"), "has no time zone"),
        (Timing("0 7 * * *", missed="none"), "use 'one', 'skip' or 'all'"),  # type: ignore[arg-type]
    ],
)
def test_times_that_cannot_work_are_refused_with_the_reason(timing: Timing, words: str):
    with pytest.raises(ConfigurationError, match=words):
        timing.check()


def test_the_times_of_a_zone_are_those_of_its_clock():
    tick = Timing("0 7 * * *", "Asia/Tokyo").following(NOON)
    assert tick is not None
    assert datetime.fromtimestamp(tick / 1000, UTC) == datetime(2026, 11, 23, 22, 0, tzinfo=UTC)
