"""Dead letters grouped by task and error, and actions on one group."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from penstock.core.arguments import check_whole, is_text, shown
from penstock.core.operations import Operation, RoundTrip
from penstock.errors import ConfigurationError
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.failures import Failures
from penstock.jobs.job_list import BulkProgress, Cursor, Jobs, further, job_filter
from penstock.jobs.listing import FoundJob, ListingBindings
from penstock.jobs.shards import ShardMap

MOST: Final = 10_000
"""Dead letters that `groups` examines by default, the latest first."""

_HIGHEST: Final = 1_000_000

_SLICE: Final = 500
"""Dead letters that one page brings."""

_LONGEST_ERROR: Final = 200

_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_WORD: Final = r"[^\s'\"`=(){}\[\],;]"
_VARIABLE: Final = re.compile(rf"{_WORD}*[\d@](?:{_WORD}*(?<![:.]))?")
_REPEATED: Final = re.compile(r"#(?:[\s,]+#)+")

GroupAction: TypeAlias = Literal["requeue", "remove"]


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one task that failed alike. Times are seconds since 1970 by the server's clock.

    key          names the group: eight hexadecimal digits
    task         its name; "" for bare values
    error        the reason without what differs from job to job; see `error_shape`
    count        how many of the examined dead letters belong to it
    first, last  when the first and the last of them died
    example      the id of the last one, and its reason
    """

    key: str
    task: str
    error: str
    count: int
    first: float
    last: float
    example: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """Groups of dead letters, the largest first.

    examined  how many dead letters were examined, the latest first, of about `of`
    """

    groups: list[DeadGroup]
    examined: int
    of: int


def error_shape(reason: str) -> str:
    """A reason without what differs from job to job, so that jobs that failed alike have the same one.

    A quoted text becomes '…'. A word that contains a digit or an @, such as an id, a number, a date or an address,
    becomes #, and several such words in a row become one #. At most 200 characters of the first line.

        "KeyError: 'user-17'"                       KeyError: '…'
        "ValueError: order 4711 of ada@example.com" ValueError: order # of #
    """
    text = _QUOTED.sub("'…'", reason.partition("\n")[0])
    text = _REPEATED.sub("#", _VARIABLE.sub("#", text))
    return " ".join(text.split())[:_LONGEST_ERROR]


def group_key(task: str, error: str) -> str:
    """The key of the group of this task and this shape of an error."""
    return hashlib.blake2b(f"{task}\0{error}".encode(errors="backslashreplace"), digest_size=4).hexdigest()


def find_groups(shards: ShardMap, most: int) -> Operation[DeadGroups]:
    """See `DeadLetters.groups`."""
    check_whole("groups", "most", most, 1, _HIGHEST, f"from 1 to {_HIGHEST:,}")
    found: dict[str, DeadGroup] = {}
    progress = BulkProgress()
    walk = _Walk(shards)
    while walk.is_left and progress.examined < most:
        letters = yield from walk.step(min(_SLICE, most - progress.examined))
        progress = walk.progress
        for one in letters:
            before = found.get(one.key)
            found[one.key] = one if before is None else _joined(before, one)
    return DeadGroups(sorted(found.values(), key=lambda one: -one.count), progress.examined, progress.of)


def change_group(shards: ShardMap, key: str, action: GroupAction) -> Operation[BulkProgress]:
    """See `DeadLetters.requeue_group` and `remove_group`."""
    if not is_text(key, 8, 8) or re.fullmatch("[0-9a-f]{8}", key) is None:
        raise ConfigurationError(f"group {shown(key)}: give the key of a group, eight hexadecimal digits, as listed")
    found = done = 0
    walk = _Walk(shards)
    while walk.is_left:
        letters = yield from walk.step(_SLICE)
        rows = [row for row, one in zip(walk.rows, letters, strict=True) if one.key == key]
        found += len(rows)
        while rows:
            reached, changed = yield ListingBindings(walk.bindings).change(action, rows[:100])
            done, rows = done + changed, rows[reached:]
    return replace(walk.progress, found=found, done=done)


class _Walk:
    """Walks the dead letters of a queue from the latest on. Each is a group of one."""

    def __init__(self, shards: ShardMap) -> None:
        self._shards = shards
        self._at: Cursor | None = None
        self._jobs: Jobs | None = None
        self.is_left = True
        self.progress = BulkProgress()
        self.rows: Sequence[FoundJob] = ()
        self.bindings = shards.first.bindings
        self._seal = shards.first.settings.seal

    def step(self, limit: int) -> Operation[list[DeadGroup]]:
        """The next dead letters, in the order of `rows`. Two round trips, or more if their failures are large."""
        if self._jobs is None:
            self._jobs = Jobs((yield from self._shards.refresh()).known, job_filter(state="dead"))
        shard, found, self._at = yield from self._jobs.next_rows(limit, self._at)
        self.is_left, self.rows = self._at is not None, found.rows
        self.bindings = shard.bindings
        self.progress = further(self.progress, found)
        failures: list[bytes | None] = []
        while len(failures) < len(self.rows):
            rest = [row.key for row in self.rows[len(failures) :]]
            failures += yield _failures(shard.bindings, rest)
        return list(self._each(shard.name, failures))

    def _each(self, queue: str, failures: Sequence[bytes | None]) -> Iterator[DeadGroup]:
        for row, failure in zip(self.rows, failures, strict=True):
            reason = Failures.read(failure, self._seal).reason
            task, error, died = row.record.task, error_shape(reason), row.record.since / 1000
            yield DeadGroup(group_key(task, error), task, error, 1, died, died, f"{queue}:{row.key}", reason)


def _joined(group: DeadGroup, one: DeadGroup) -> DeadGroup:
    latest = one if one.last > group.last else group
    first, last = min(group.first, one.first), max(group.last, one.last)
    return replace(latest, count=group.count + one.count, first=first, last=last)


def _failures(bindings: QueueBindings, keys: Sequence[str]) -> RoundTrip[list[bytes | None]]:
    """Why these jobs failed last; fewer than asked for if they are large."""
    return bindings._call("failures", tuple(keys), list)
