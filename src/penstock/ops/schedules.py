"""Questions about schedules, and changes to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.core.operations import Operation, RoundTrip, verb
from penstock.errors import ConfigurationError
from penstock.jobs.job import Job
from penstock.jobs.schedule import ScheduleInfo, StoredSchedule
from penstock.jobs.schedule_bindings import ScheduleBindings
from penstock.jobs.schedules import add_schedule, find_schedule, schedules_of, trigger
from penstock.jobs.shard import Shard
from penstock.jobs.shard_table import whole_name
from penstock.jobs.task import Call, Task
from penstock.jobs.timing import Missed, Timing
from penstock.ops.probe import queue_names
from penstock.ops.questioner import Questioner


class ScheduleQuestioner(Questioner):
    """Lists and changes the schedules of all queues. `name` is that of a schedule, or `queue:name`.

    A bare name costs one round trip for each 1000 keys of the server, and one for each queue. Each change returns the
    schedule, and raises PenstockError for an unknown or an ambiguous name.
    """

    @verb
    def all(self, queue: str | None = None) -> Operation[list[ScheduleInfo]]:
        """The schedules of one queue, or of every queue, sorted by queue and name."""
        found = []
        names = yield from queue_names(self._prefix)
        for name in names if queue is None else [one for one in names if queue in (one, whole_name(one))]:
            found += yield from schedules_of(self._shard(name))
        return found

    @verb
    def show(self, name: str) -> Operation[ScheduleInfo]:
        """One schedule, with its last runs."""
        shard, now, stored = yield from self._find(name)
        return ScheduleInfo.of(shard.name, stored, now, shard.settings.seal)

    @verb
    def add(
        self,
        name: str,
        task: str,
        arguments: Mapping[str, Any],
        *,
        schedule: str = "",
        timezone: str = "UTC",
        every: float | None = None,
        missed: Missed = "one",
    ) -> Operation[ScheduleInfo]:
        """Add a schedule for a task of the app, as `app.schedules.add` does. Raises UnknownTask."""
        definition = self._app.registry.find(task)
        call: Call[Any] = Task(definition.function, definition, self._app.queue(definition.queue)).call(**arguments)
        return add_schedule(name, call, Timing(schedule, timezone, every, missed))

    @verb
    def pause(self, name: str) -> Operation[ScheduleInfo]:
        return self._change(name, lambda bindings, one, _: bindings.pause(one.name))

    @verb
    def resume(self, name: str) -> Operation[ScheduleInfo]:
        return self._change(name, lambda bindings, one, now: bindings.resume(one.name, one.timing.following(now)))

    @verb
    def remove(self, name: str) -> Operation[ScheduleInfo]:
        return self._change(name, lambda bindings, one, _: bindings.remove(one.name))

    @verb
    def trigger(self, name: str) -> Operation[Job[Any]]:
        """Enqueue the call of a schedule now."""
        shard, _, stored = yield from self._find(name)
        return (yield from trigger((yield from self._open_any(whole_name(shard.name))), stored))

    def _change(
        self, name: str, change: Callable[[ScheduleBindings, StoredSchedule, int], RoundTrip[bool]]
    ) -> Operation[ScheduleInfo]:
        """Apply a change. Returns the present schedule, or the last one before it was removed."""
        shard, now, stored = yield from self._find(name)
        bindings = ScheduleBindings(shard.bindings)
        yield change(bindings, stored, now)
        now, changed = yield bindings.show(stored.name)
        return ScheduleInfo.of(shard.name, changed or stored, now, shard.settings.seal)

    def _find(self, name: str) -> Operation[tuple[Shard, int, StoredSchedule]]:
        queue, colon, _ = name.partition(":")
        if colon:
            return (yield from find_schedule([self._shard(queue)], name))
        found = []
        names = yield from queue_names(self._prefix)
        known: list[str] = []
        for one in names:
            some = yield from schedules_of(self._shard(one))
            known += [schedule.name for schedule in some]
            found += [schedule.id for schedule in some if schedule.name == name]
        if not found:
            raise self._not_found("schedule", name, known)
        if len(found) > 1:
            raise ConfigurationError(f"several queues have a schedule {name!r}: name one of {', '.join(found)}")
        return (yield from find_schedule([self._shard(found[0].partition(":")[0])], name))
