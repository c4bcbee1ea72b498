"""The options of one enqueued job, and the start of its record, which they determine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypedDict

from penstock.core.arguments import check_flag, check_number, check_whole, shown, utf8_size
from penstock.core.clock import milliseconds
from penstock.jobs.constants import DUE_IS_DATE, EXPIRES_IS_DATE, IN_SHARDS, OWN_ID, TAGS, UNIQUE_KEY
from penstock.jobs.record import draft
from penstock.jobs.retry import LONGEST_DELAY, is_date
from penstock.jobs.tags import check_tags, pack_tags
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.unique import Unique

LONGEST_RESULT_TTL: Final = 10 * 365 * 86400.0
"""Seconds. A record stores it in five bytes, as milliseconds."""


class EnqueueManyOptions(TypedDict, total=False):
    """The keyword arguments of `put_many`, for type checkers. `Options` describes them."""

    delay: float
    at: datetime | None
    priority: int
    tenant: str
    expires: float | datetime | None
    result_ttl: float | None
    durable: bool
    tags: Sequence[str]


class EnqueueOptions(EnqueueManyOptions, total=False):
    """The keyword arguments of `put`, for type checkers. `Options` describes them."""

    id: str | None
    unique: Unique | None


@dataclass(frozen=True, slots=True)
class Options:
    """How one job is enqueued. Times are seconds from now, or dates with a time zone.

    delay, at     do not start before; give at most one of them
    priority      0 (most urgent) to 9 (least urgent)
    tenant        tenants share a queue fairly; at most 255 bytes of UTF-8; "" is a tenant like any other
    expires       do not start after: a job that has not started by then expires
    result_ttl    how long the result is kept, in seconds; 0: not at all; None: as the task says, else the app
    id            an id of your own, at most 200 bytes of UTF-8: while a job with this id waits, runs or is a dead
                  letter, enqueueing it again changes nothing
    unique        which calls are doubles of this one, and for how long (see `Unique`); None: as the task says
    durable       return only when the write is on disk or on a replica
    tags          at most eight texts of up to 64 bytes, such as "order:17": every list of jobs can be filtered by one.
                  A task's own tags are added to them

    Raises ValueError for an invalid value.
    """

    delay: float = 0.0
    at: datetime | None = None
    priority: int = 5
    tenant: str = ""
    expires: float | datetime | None = None
    result_ttl: float | None = None
    id: str | None = None
    durable: bool = False
    unique: Unique | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._check_times()
        if self.tags != ():
            object.__setattr__(self, "tags", check_tags("tags", self.tags))
        if self.unique is not None:
            from penstock.jobs.unique import Unique

            if not isinstance(self.unique, Unique):
                raise ValueError(f"unique={shown(self.unique)}: give Unique(…)")
        if self.unique is not None and self.unique.debounce is not None and not self.is_due_now:
            raise ValueError("delay and Unique(debounce=…): the debounce is the delay; give one of them")
        check_whole("enqueue", "priority", self.priority, 0, 9, "0 (most urgent) to 9 (least)")
        if not isinstance(self.tenant, str) or utf8_size("tenant", self.tenant) > 255:
            raise ValueError(f"tenant={shown(self.tenant)}: at most 255 bytes of UTF-8")
        if self.id is not None and not (isinstance(self.id, str) and 1 <= utf8_size("id", self.id) <= 200):
            raise ValueError(f"id={shown(self.id)}: 1 to 200 bytes of UTF-8")
        check_flag("enqueue", "durable", self.durable)

    def _check_times(self) -> None:
        check_number("enqueue", "delay", self.delay, 0, LONGEST_DELAY, f"seconds from 0 to {LONGEST_DELAY:.0f}")
        if self.at is not None and self.delay:
            raise ValueError("delay and at: give one of them")
        if self.at is not None:
            _check_date("at", self.at)
        if isinstance(self.expires, datetime):
            _check_date("expires", self.expires)
        elif self.expires is not None:
            check_number("enqueue", "expires", self.expires, 1e-6, LONGEST_DELAY, "seconds above 0, or a date")
        if self.result_ttl is not None:
            check_number("enqueue", "result_ttl", self.result_ttl, 0, LONGEST_RESULT_TTL, "seconds from 0 to ten years")

    @property
    def is_due_now(self) -> bool:
        return not self.delay and self.at is None

    @property
    def is_plain(self) -> bool:
        """Whether the job has no special option: ready at once, never expires, not durable, no id of your own."""
        return not self.delay and self.at is None and self.expires is None and self.id is None and not self.durable


def options_of(where: str, chosen: Mapping[str, Any]) -> Options:
    """The options of one job. Raises ConfigurationError for one that does not exist, ValueError for a bad value."""
    try:
        return Options(**chosen)
    except TypeError:
        known = [one.name for one in fields(Options)]
        if unknown := [name for name in chosen if name not in known]:
            from penstock.jobs.other_words import unknown_option

            raise unknown_option(where, unknown, known) from None
        raise


def _check_date(name: str, date: datetime) -> None:
    if not is_date(date):
        raise ValueError(f"{name}={shown(date)}: a date with a time zone, e.g. datetime.now(UTC), after 1970")


@lru_cache(maxsize=4096)
def record_start(options: Options, result_ttl: float, flags: int, task: str, powers: int = 0) -> bytes:
    """The record of a job up to its powers and its payload. Cached, because many jobs have the same options."""
    due, due_is_date = _date_or_delay(options.at, options.delay)
    expires, expires_is_date = _date_or_delay(options.expires)
    how = DUE_IS_DATE * due_is_date | EXPIRES_IS_DATE * expires_is_date | OWN_ID * (options.id is not None)
    return draft(
        flags=flags,
        how=how,
        priority=options.priority,
        tenant=options.tenant.encode(),
        task=task.encode(),
        delay_ms=due,
        expires_ms=expires,
        ttl_ms=milliseconds(result_ttl),
        powers=powers,
    )


def job_start(
    settings: Settings, options: Options, flags: int = 0, task: str = "", ttl: float | None = None, powers: int = 0
) -> bytes:
    """The record of a new job up to its powers and its payload. `task`: its name; `ttl`: its `result_ttl`."""
    if options.unique is not None and options.unique.debounce is not None:
        options = replace(options, delay=options.unique.debounce, unique=None)
    kept = next(t for t in (options.result_ttl, ttl, settings.result_ttl) if t is not None)
    return record_start(options, kept, flags, task, powers)


def value_sections(options: Options, *, in_shards: bool) -> dict[int, bytes]:
    """The powers of a bare value, as `pack_sections` takes them."""
    sections: dict[int, bytes] = {}
    if options.unique is not None:
        from penstock.jobs.unique import exact_section

        sections[UNIQUE_KEY] = exact_section(options.unique)
        if in_shards:
            sections[IN_SHARDS] = b""
    if options.tags:
        sections[TAGS] = pack_tags(options.tags)
    return sections


def _date_or_delay(date: datetime | float | None, default: float = 0.0) -> tuple[int, bool]:
    """Milliseconds, and whether they count from 1970 (a date) rather than from now (a delay)."""
    if isinstance(date, datetime):
        return milliseconds(date.timestamp()), True
    return milliseconds(default if date is None else date), False
