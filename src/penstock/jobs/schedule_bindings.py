"""The scripts of `schedule.lua` as round trips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.operations import Arg, RoundTrip
from penstock.jobs.schedule import ScheduleDefinition, StoredSchedule

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings


@dataclass(frozen=True, slots=True)
class Tick:
    """The jobs of one schedule that are due, and its next tick (None: no other follows).

    times  ms of the ticks that get a job; empty if all of them were missed and are skipped
    """

    schedule: StoredSchedule
    times: Sequence[int]
    jobs: Sequence[tuple[str, bytes]]
    following: int | None


class ScheduleBindings:
    """Builds the round trips about the schedules of one queue. Sends nothing itself."""

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def _call(self, name: str, *args: Arg, read: Any) -> RoundTrip[Any]:
        return self._queue._call(name, (self._queue.clock.now_ms, *args), read)

    def define(
        self,
        how: Literal["declare", "renew", "put"],
        definitions: Iterable[tuple[ScheduleDefinition, int | None]],
    ) -> RoundTrip[list[str]]:
        """Write schedules, each with its next tick (see `define_schedules`). Returns a word for each."""
        args: list[Arg] = []
        for one, following in definitions:
            args += (one.name, one.hash, round(one.released * 1000), following or 0, one.spec, one.draft)
        return self._call("define_schedules", how, *args, read=lambda reply: [word.decode() for word in reply])

    def tick(self, ticks: Iterable[Tick]) -> RoundTrip[list[bool]]:
        """Enqueue the jobs of ticks. Returns for each whether it counted; it does not if another worker was first."""
        args: list[Arg] = []
        for one in ticks:
            stored = one.schedule
            last = one.times[-1] if one.times else stored.next_tick
            args += (stored.name, stored.version, stored.next_tick, last, one.following or 0, len(one.jobs))
            args += [part for job in one.jobs for part in job]
        return self._call("tick", *args, read=lambda reply: [bool(word) for word in reply])

    def show(self, name: str) -> RoundTrip[tuple[int, StoredSchedule | None]]:
        """The server's time in ms, and the schedule, or None."""

        def read(reply: Sequence[Any]) -> tuple[int, StoredSchedule | None]:
            now, packed, runs = reply
            return now, None if packed is None else StoredSchedule.read(name.encode(), packed, runs)

        return self._call("show_schedule", name, read=read)

    def scan(self, cursor: str, count: int = 100) -> RoundTrip[tuple[int, str, list[StoredSchedule]]]:
        """The server's time in ms, the next cursor ("0": this was the last page), and a page of schedules."""

        def read(reply: Sequence[Any]) -> tuple[int, str, list[StoredSchedule]]:
            now, following, found, runs = reply
            rows = zip(found[0::2], found[1::2], runs, strict=True)
            return now, following.decode(), [StoredSchedule.read(*row) for row in rows]

        return self._call("scan_schedules", cursor, count, read=read)

    def pause(self, name: str) -> RoundTrip[bool]:
        return self._call("switch_schedule", name, 0, 0, read=bool)

    def resume(self, name: str, following: int | None) -> RoundTrip[bool]:
        return self._call("switch_schedule", name, 1, following or 0, read=bool)

    def remove(self, name: str) -> RoundTrip[bool]:
        return self._call("remove_schedule", name, read=bool)
