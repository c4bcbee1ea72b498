"""The schedules of an app: put, list, pause, trigger and remove them at run time."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Any

from penstock.core.arguments import shown, utf8_size
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, verb
from penstock.errors import BadCall, ConfigurationError, ScheduleNotFound
from penstock.jobs.job import Job
from penstock.jobs.queue import Queue
from penstock.jobs.schedule import ScheduleDefinition, ScheduleInfo, StoredSchedule, check_name
from penstock.jobs.schedule_bindings import ScheduleBindings
from penstock.jobs.shard import Shard
from penstock.jobs.task import Call
from penstock.jobs.timing import Missed, Timing


class Schedules:
    """The schedules of the queues of an app. A schedule has a name, or the id `queue:name`.

    A bare name is searched for in the queues that the app uses, with one round trip for each queue before the right
    one. Methods for one schedule raise ScheduleNotFound for an unknown one.
    """

    def __init__(self, driver: Driver, queue: Callable[[str], Queue], names: Callable[[], Iterable[str]]) -> None:
        self._driver = driver
        self._queue = queue
        self._names = names

    @verb
    def add(
        self,
        name: str,
        call: Call[Any],
        *,
        schedule: str = "",
        timezone: str = "UTC",
        every: float | None = None,
        missed: Missed = "one",
    ) -> Operation[ScheduleInfo]:
        """Enqueue this call from now on: at the times of a cron line, or at an interval.

        name      at most 120 bytes of UTF-8, without a colon, and unique in the queue of the call
        call      `task.call(…)`. Options of `task.using` hold for each job, except `id`, `at` and `durable`
        schedule  a cron line: minute, hour, day, month, weekday
        timezone  of the cron line, such as Europe/Berlin
        every     seconds between two ticks, from 1; the first is one interval from now
        missed    for ticks that passed while no worker ran: "one" job for the latest of them, "skip" all that are more
                  than a minute late, or "all", a job for each

        It replaces a schedule of this name that was added before; one that is paused stays paused. Raises BadCall for
        anything but a call, and ConfigurationError for invalid times, and for a name that the code of live workers
        declares. Three round trips.
        """
        return add_schedule(name, call, Timing(schedule, timezone, every, missed))

    @verb
    def list(self) -> Operation[list[ScheduleInfo]]:
        """The schedules of all queues that the app uses, by queue and name. One round trip for each 100 of a queue."""
        found: builtins.list[ScheduleInfo] = []
        for shard in self._shards():
            found += yield from schedules_of(shard)
        return found

    def _shards(self) -> builtins.list[Shard]:
        """Those of all queues that the app uses, each once."""
        known = {shard.name: shard for name in self._names() for shard in self._queue(name).shards.current.known}
        return [known[name] for name in sorted(known)]

    @verb
    def get(self, name: str) -> Operation[ScheduleInfo]:
        """One schedule. One round trip."""
        shard, now, stored = yield from self._find(name)
        return ScheduleInfo.of(shard.name, stored, now, shard.settings.seal)

    @verb
    def pause(self, name: str) -> Operation[None]:
        """Enqueue nothing until `resume`, whatever workers start meanwhile. Two round trips."""
        shard, _, stored = yield from self._find(name)
        yield ScheduleBindings(shard.bindings).pause(stored.name)

    @verb
    def resume(self, name: str) -> Operation[None]:
        """Continue with the next tick from now on; ticks that passed meanwhile are skipped. Two round trips.

        An orphaned schedule, which no live worker declares, stays until it is removed.
        """
        shard, now, stored = yield from self._find(name)
        yield ScheduleBindings(shard.bindings).resume(stored.name, stored.timing.following(now))

    @verb
    def trigger(self, name: str) -> Operation[Job[Any]]:
        """Enqueue its call now, also if it is paused. Its ticks are unaffected. Two round trips."""
        shard, _, stored = yield from self._find(name)
        return (yield from trigger(self._queue(shard.name), stored))

    @verb
    def remove(self, name: str) -> Operation[None]:
        """Remove the schedule. Its jobs stay. Two round trips.

        If the code declares it, the next worker that starts with that code adds it again: pause it instead.
        """
        shard, _, stored = yield from self._find(name)
        yield ScheduleBindings(shard.bindings).remove(stored.name)

    def _find(self, name: str) -> Operation[tuple[Shard, int, StoredSchedule]]:
        if not isinstance(name, str):
            raise BadCall(f'schedule {shown(name)}: give its name, or its id "queue:name"')
        utf8_size("schedule", name)
        if ":" in name:
            return (yield from find_schedule(self._queue(name.partition(":")[0]).shards.current.known, name))
        return (yield from find_schedule(self._shards(), name))


def add_schedule(name: str, call: Call[Any], timing: Timing) -> Operation[ScheduleInfo]:
    """See `Schedules.add`."""
    if not isinstance(call, Call):
        raise BadCall(f"schedules.add takes a call, as in task.call(…), not {type(call).__name__}")
    options = call.task.options
    if options.id is not None or options.at is not None or options.durable:
        raise ConfigurationError(f"schedule {name!r}: its jobs cannot share an id or a date, nor be durable")
    definition = ScheduleDefinition(check_name(name), timing.check(), call.draft()[1])
    shard = yield from _settled_shard(name, call)
    bindings = ScheduleBindings(shard.bindings)
    now, _ = yield bindings.show(name)
    (word,) = yield bindings.define("put", [(definition, timing.following(now))])
    if word == "declared":
        raise ConfigurationError(
            f"schedule {name!r} of queue {shard.name} is declared by the code of live workers: choose another name"
        )
    if call.task.queue.shards.named is not None and (yield from _settled_shard(name, call)) is not shard:
        yield bindings.remove(name)
        raise ConfigurationError(f"schedule {name!r}: shards were added to queue {shard.name} meanwhile: add it again")
    now, stored = yield bindings.show(name)
    if stored is None:
        raise ScheduleNotFound(f"schedule {shard.name}:{name} was removed at the same time")
    return ScheduleInfo.of(shard.name, stored, now, shard.settings.seal)


def _settled_shard(name: str, call: Call[Any]) -> Operation[Shard]:
    """The shard of a schedule. Raises ConfigurationError while its tenant moves to another shard."""
    queue, tenant = call.task.queue, call.task.options.tenant
    snapshot = yield from queue.shards.refresh()
    if snapshot.is_moving(tenant):
        raise ConfigurationError(
            f"schedule {name!r}: tenant {tenant!r} of queue {queue.name} moves to another shard at present: add the "
            "schedule when that is done"
        )
    return snapshot.for_new(tenant)


def find_schedule(shards: Iterable[Shard], name: str) -> Operation[tuple[Shard, int, StoredSchedule]]:
    """The schedule of this name, or id, in the first of these shards that has it, and the server's time in ms."""
    searched = []
    for shard in shards:
        now, stored = yield ScheduleBindings(shard.bindings).show(name.rpartition(":")[2])
        if stored is not None:
            return shard, now, stored
        searched.append(shard.name)
    raise ScheduleNotFound(f"no schedule {name!r} in the queues {', '.join(searched) or '(none)'}")


def schedules_of(shard: Shard) -> Operation[list[ScheduleInfo]]:
    """All schedules of a shard, by name. One round trip for each 100."""
    bindings = ScheduleBindings(shard.bindings)
    found: dict[str, ScheduleInfo] = {}
    cursor = "0"
    while True:
        now, cursor, page = yield bindings.scan(cursor)
        found |= {one.name: ScheduleInfo.of(shard.name, one, now, shard.settings.seal) for one in page}
        if cursor == "0":
            return [found[name] for name in sorted(found)]


def trigger(queue: Queue, stored: StoredSchedule) -> Operation[Job[Any]]:
    """Enqueue the call of a schedule now."""
    key = stored.job_id(mint_id())
    job: Job[Any] = Job(queue.first, key)
    yield from queue.enqueue_drafts([(key, stored.draft)], durable=False, jobs=[job])
    return job
