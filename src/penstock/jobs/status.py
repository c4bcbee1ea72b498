"""The states of a job as users see them."""

from __future__ import annotations

from enum import StrEnum

from penstock.jobs import constants
from penstock.jobs.record import StoredJob
from penstock.jobs.waits import WaitState


class Status(StrEnum):
    """The state of a job.

    WAITING    it waits for other jobs
    BLOCKED    it waits for other jobs, and one of them is a dead letter
    DELAYED    its due time is in the future
    SLEEPING   it is a durable job that sleeps or waits for a signal
    READY      it waits for a worker
    PARKED     it waits for a place in a limit, or its task or tenant is paused
    RUNNING    it is claimed
    COMPLETED  its task returned
    DEAD       it failed for good: it is a dead letter, which can be requeued
    CANCELLED  it was cancelled, before it ran or while it ran, or purged
    EXPIRED    its `expires` passed before it was started
    DROPPED    its task raised Drop
    UNKNOWN    it was never enqueued here, or it ended longer ago than its `result_ttl`
    """

    WAITING = "waiting"
    BLOCKED = "blocked"
    DELAYED = "delayed"
    SLEEPING = "sleeping"
    READY = "ready"
    PARKED = "parked"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


STATES = {
    constants.WAITING: Status.WAITING,
    constants.DELAYED: Status.DELAYED,
    constants.SLEEPING: Status.SLEEPING,
    constants.READY: Status.READY,
    constants.PARKED: Status.PARKED,
    constants.DEAD: Status.DEAD,
}
"""The letters in records; see `state` in `record.lua`. A running job has another one."""
ENDS = {
    constants.COMPLETED: Status.COMPLETED,
    constants.CANCELLED: Status.CANCELLED,
    constants.EXPIRED: Status.EXPIRED,
    constants.DROPPED: Status.DROPPED,
}
"""The letters of results; see `ending` in `results.lua`."""
OVER = frozenset((*ENDS.values(), Status.UNKNOWN))
"""The states of a job that has left its queue, of which at most a result and a row are kept."""


def status_of(stored: StoredJob) -> Status:
    if stored.owner is not None:
        return Status.RUNNING
    if stored.waits and WaitState.read(stored.waits).dead:
        return Status.BLOCKED
    if stored.record is not None:
        return STATES.get(stored.record.state, Status.UNKNOWN)
    return ENDS.get(stored.done[:1], Status.UNKNOWN) if stored.done else Status.UNKNOWN
