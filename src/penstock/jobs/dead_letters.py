"""The dead letters of a queue: list them, run them again, delete them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.core.arguments import check_whole, shown
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import ConfigurationError
from penstock.jobs.editing import EncodedCall, requeue_edited
from penstock.jobs.failures import Attempt, Failures
from penstock.jobs.job import info_of
from penstock.jobs.record import Record, Seen, StoredJob
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap
from penstock.jobs.tags import TAG_RULE, is_tag

if TYPE_CHECKING:
    from penstock.jobs.dead_groups import DeadGroups
    from penstock.jobs.job_list import BulkProgress

_CHANGED_TOGETHER: Final = 50
"""Dead letters that one round trip requeues or removes. The script reads each record whole, and they may be large."""

_EXAMINED: Final = 10_000
"""Dead letters of a shard that a search by tag examines."""

_READ_TOGETHER: Final = 500

_HIGHEST_OFFSET: Final = 10**9
"""More than a queue can hold. The server refuses numbers of more than 64 bits, in words about a damaged key."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that failed for good: it runs again only if it is requeued.

    died               seconds since 1970 by the server's clock
    reason, traceback  of the last failure
    task               the name of its task; "" for a bare value
    worker             `host:pid` of the worker that ran it last
    attempts           runs that failed
    deliveries         how often it was handed to a worker
    crashes            how often in a row its process died while no other job ran there
    failures           the last five attempts, the latest first, as far as 16 KiB hold them
    body               the value that was put; for the call of a task `[task, arguments]`
    tags               as `using(tags=…)` and its task have set them
    """

    id: str
    died: float
    reason: str
    traceback: str
    worker: str
    attempts: int
    deliveries: int
    crashes: int
    tenant: str
    body: Any
    task: str = ""
    failures: tuple[Attempt, ...] = ()
    tags: tuple[str, ...] = ()


class DeadLetters:
    """The dead letters of one queue. They are kept until they are requeued or removed."""

    def __init__(self, shards: ShardMap) -> None:
        self._shards = shards

    @property
    def _driver(self) -> Driver:
        return self._shards.first._driver

    @verb
    def list(self, limit: int = 50, offset: int = 0, *, tag: str | None = None) -> Operation[list[DeadLetter]]:
        """A page of dead letters, the latest first. One round trip for each MiB; with shards, at least one for each.

        tag  only those with this tag, among the latest 10,000 of each shard
        """
        check_whole("list", "limit", limit, 1, 1000, "1 to 1000")
        check_whole("list", "offset", offset, 0, _HIGHEST_OFFSET, f"0 to {_HIGHEST_OFFSET:,}")
        if tag is not None and not is_tag(tag):
            raise ConfigurationError(f"list(tag={shown(tag)}): {TAG_RULE}")
        known = (yield from self._shards.refresh()).known
        if len(known) == 1 and tag is None:
            return (yield from _page(known[0], limit, offset))
        letters: builtins.list[DeadLetter] = []
        for shard in known:  # each is read from its latest one on
            if tag is None:
                letters += yield from _page(shard, offset + limit, 0)
            else:
                letters += yield from _tagged(shard, offset + limit, tag)
        return sorted(letters, key=lambda one: -one.died)[offset : offset + limit]

    @verb
    def requeue(self, *ids: str, call: EncodedCall | None = None) -> Operation[int]:
        """Make these jobs ready again, with all their counts at 0. Returns how many of the ids were dead letters.

        What is kept of their failed attempts stays.

        call  run one dead letter with these arguments, as in `requeue(id, call=send.call("bo@example.com"))`. Its
              unique key and its limits follow from them. The old arguments become an entry of `JobInfo.failures`. Two
              round trips. Raises UniqueKeyHeld, and BadCall for the call of another task, or if some arguments are
              results of other jobs. Then the dead letter stays as it is

        One round trip for each 50.
        """
        if call is not None:
            return self._requeue_edited(ids, call)
        return self._change(ids, lambda shard, keys: shard.bindings.requeue(keys))

    def _requeue_edited(self, ids: Sequence[str], call: EncodedCall) -> Operation[int]:
        if len(ids) != 1:
            raise ValueError(
                f"requeue(call=…) with {len(ids)} ids: give one, because each job has arguments of its own"
            )
        shard = self._shards.of_job(ids[0])
        return int((yield from requeue_edited(shard.bindings, shard.key_of(ids[0]), call)))

    @verb
    def remove(self, *ids: str) -> Operation[int]:
        """Delete these dead letters. Returns how many of the ids were dead letters. One round trip for each 50."""
        return self._change(ids, lambda shard, keys: shard.bindings.remove_dead(keys))

    @verb
    def groups(self, most: int = 10_000) -> Operation[DeadGroups]:
        """The dead letters grouped by task and error, the largest group first.

        most  how many dead letters to examine, the latest first; the answer says how many there are

        Jobs whose errors differ only in numbers, ids or quoted texts are in one group; see `error_shape`. Two round
        trips for each 500.
        """
        from penstock.jobs.dead_groups import find_groups

        return find_groups(self._shards, most)

    @verb
    def requeue_group(self, key: str) -> Operation[BulkProgress]:
        """Make the dead letters of one group ready again, by its `key`: all present ones, also those that `groups` did
        not examine.

        A job that dies meanwhile is left out, and one whose unique key another job holds stays dead. Raises
        ConfigurationError for a text that is not a key. Two round trips for each 500 dead letters of the queue, and one
        for each 100 of the group.
        """
        from penstock.jobs.dead_groups import change_group

        return change_group(self._shards, key, "requeue")

    @verb
    def remove_group(self, key: str) -> Operation[BulkProgress]:
        """Delete the dead letters of one group. Arguments and cost as of `requeue_group`."""
        from penstock.jobs.dead_groups import change_group

        return change_group(self._shards, key, "remove")

    def _change(self, ids: Iterable[str], change: Callable[[Shard, Sequence[str]], RoundTrip[int]]) -> Operation[int]:
        total = 0
        by_shard: dict[Shard, builtins.list[str]] = {}
        for job_id in ids:
            shard = self._shards.of_job(job_id)
            by_shard.setdefault(shard, []).append(shard.key_of(job_id))
        for shard, keys in by_shard.items():
            for start in range(0, len(keys), _CHANGED_TOGETHER):
                total += yield change(shard, keys[start : start + _CHANGED_TOGETHER])
        return total


def dead_letter(shard: Shard, key: str, died: float, record: Record, failures: bytes | None) -> DeadLetter:
    """A dead letter from what the server has stored about it."""
    info = info_of(f"{shard.name}:{key}", StoredJob(record, failures, None), shard.settings.seal)
    return DeadLetter(
        id=info.id,
        died=died,
        reason=info.reason,
        traceback=info.traceback,
        worker=Failures.read(failures).worker,
        failures=info.failures,
        body=info.body,
        **Seen(record).values(DeadLetter),
    )


def _tagged(shard: Shard, limit: int, tag: str) -> Operation[list[DeadLetter]]:
    """The latest dead letters with a tag. One round trip for each MiB, and for each 500."""
    letters: list[DeadLetter] = []
    examined = 0
    while examined < _EXAMINED and len(letters) < limit:
        rows = yield shard.bindings.list_dead(examined, _READ_TOGETHER)
        if not rows:
            break
        examined += len(rows)
        letters += [dead_letter(shard, *row) for row in rows if row[2] is not None and tag in row[2].tags]
    return letters


def _page(shard: Shard, limit: int, offset: int) -> Operation[list[DeadLetter]]:
    """One round trip for each MiB."""
    letters, end = [], offset + limit
    while offset < end:
        rows = yield shard.bindings.list_dead(offset, end - offset)
        if not rows:
            break
        offset += len(rows)
        letters += [dead_letter(shard, *row) for row in rows if row[2] is not None]
    return letters
