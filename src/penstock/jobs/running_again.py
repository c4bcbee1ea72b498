"""Running a job that has ended again, as a new job: with the arguments kept beside its row, or with others."""

from __future__ import annotations

from typing import Final

from penstock.core.operations import Operation, RoundTrip
from penstock.errors import CannotRunAgain, JobNotFound
from penstock.jobs.constants import (
    AFTER_OTHERS,
    CALL,
    DEAD,
    IN_SHARDS,
    KEPT_RECORD,
    LIMITED,
    LIMITS,
    SEALED,
    TAGS,
    UNIQUE,
    UNIQUE_KEY,
    WAITING,
)
from penstock.jobs.editing import EncodedCall, check_call, other_task, without_seal
from penstock.jobs.finished import OUTCOMES, FinishedJob
from penstock.jobs.finished_list import locate_row
from penstock.jobs.record import Record, StoredJob, draft, pack_sections
from penstock.jobs.retention import Retention
from penstock.jobs.shard import Shard
from penstock.jobs.shard_table import whole_name
from penstock.jobs.shards import ShardMap
from penstock.jobs.status import Status, status_of

_KEPT_POWERS: Final = (UNIQUE_KEY, LIMITS, AFTER_OTHERS, TAGS, SEALED)


def find_ended(shards: ShardMap, job_id: str, call: EncodedCall | None) -> Operation[tuple[FinishedJob, Record | None]]:
    """The row of a job that has ended, and, unless a call replaces it, the record that was kept.

    Raises as `Queue.run_again`.
    """
    if call is not None:
        check_call("run_again", call)
    shard = shards.of_job(job_id)
    row, block = yield from locate_end(shard, shard.key_of(job_id))
    if call is not None:
        if call.task.name != row.task:
            raise other_task(row.id, call)
        if shard.settings.seal is None:
            before: Record | None = yield read_kept_record(shard, row, block)
            if before is not None and before.sealed_by is not None:
                raise without_seal(row.id)
        return row, None
    kept: Record | None = yield read_kept_record(shard, row, block)
    if kept is None:
        raise (yield from _why_not_kept(shard, row))
    return row, kept


def locate_end(shard: Shard, key: str) -> Operation[tuple[FinishedJob, int]]:
    """The row of a job that has ended, and the number of its block. Raises CannotRunAgain for a job that has not ended,
    and JobNotFound for one without a row.
    """
    job_id = f"{shard.name}:{key}"
    stored: StoredJob = yield shard.bindings.show(key)
    if stored.record is not None:
        status = status_of(stored)
        raise CannotRunAgain(
            f"job {job_id} is a dead letter: requeue it, and the same job runs again"
            if status is Status.DEAD
            else f"job {job_id} is {status}: it can run again when it has ended"
        )
    located = yield from locate_row(shard, key)
    if located is None:
        raise JobNotFound(
            f"no row of job {job_id}: never enqueued here, or its row is gone; `penstock queue keep "
            f"{whole_name(shard.name)}` keeps more rows with --finished, and for longer with --finished-age"
        )
    return located


def read_kept_record(shard: Shard, row: FinishedJob, block: int) -> RoundTrip[Record | None]:
    """The record of a job that has ended, if it was kept. `block`: the block in which its row is."""
    return shard.bindings._call("read_kept_record", (block, shard.key_of(row.id)), Record.read)


def draft_again(kept: Record, job_id: str, *, in_shards: bool) -> bytes:
    """A draft of the same call, which is due now and does not expire. `job_id`: of the job that has ended.

    What is sealed stays sealed. The results of jobs for which the old one has waited are among its arguments.
    """
    found = kept.sections
    sections: dict[int, bytes] = {power: found[power] for power in _KEPT_POWERS if power in found}
    if kept.state == WAITING:
        if kept.indexes_of_results:
            raise CannotRunAgain(
                f"job {job_id} ended before the jobs had completed whose results are among its arguments: "
                "enqueue the call anew"
            )
        sections.pop(AFTER_OTHERS, None)
    if in_shards and not sections.keys().isdisjoint((UNIQUE_KEY, LIMITS)):
        sections[IN_SHARDS] = b""
    start = draft(
        flags=kept.flags & (CALL | UNIQUE | LIMITED),
        how=0,
        priority=kept.priority,
        tenant=kept.tenant.encode(),
        task=kept.task.encode(),
        delay_ms=0,
        expires_ms=0,
        ttl_ms=kept.ttl,
        trace=kept.trace.encode(),
        powers=sum(sections),
    )
    return start + pack_sections(sections) + kept.payload


def _why_not_kept(shard: Shard, row: FinishedJob) -> Operation[CannotRunAgain]:
    """Why a job has a row and no arguments, and what to do. One round trip."""
    name = whole_name(shard.name)
    if row.outcome == OUTCOMES[DEAD]:
        reason = "it was a dead letter, and its arguments were removed with it"
    elif (yield Retention.of(shard.bindings)).arguments:
        reason = f"its record was larger than {KEPT_RECORD:,} bytes, or it ended before queue {name} kept arguments"
    else:
        reason = (
            f"queue {name} does not keep them; from now on it does after `penstock queue keep {name} --arguments`, or "
            "queue.keep(arguments=True) with its other limits"
        )
    return CannotRunAgain(f"job {row.id} has left no arguments: {reason}. With arguments of your own it can run again")
