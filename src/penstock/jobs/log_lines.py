"""The log of a job, as others read and follow it. `notes.lua` keeps the lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.operations import RoundTrip
from penstock.jobs.constants import LOG_BYTES
from penstock.jobs.following import Followed, FollowedPage
from penstock.jobs.notes import LogLine, read_notes
from penstock.settings import Seal

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings
    from penstock.jobs.shard import Shard


def read_log(
    bindings: QueueBindings,
    key: str,
    after: str,
    address: str,
    *,
    register: bool,
    last: int = 0,
    seal: Seal | None = None,
) -> RoundTrip[FollowedPage[LogLine]]:
    """Read the kept lines behind a position; "": all, or the `last` ones. If `register`, the listener at `address` is
    notified of further ones; else it is deregistered.
    """

    def read(reply: Sequence[Any]) -> FollowedPage[LogLine]:
        lives, is_known, expires_in, notes = reply
        lines = _behind(read_notes(notes, seal).log, after)[-last:]
        return FollowedPage(bool(lives), bool(is_known), None if expires_in < 0 else expires_in / 1000, True, lines)

    return bindings._call("read_log", (bindings.clock.now_ms, key, address, int(register)), read)


def _behind(lines: Sequence[LogLine], after: str) -> list[LogLine]:
    """The lines behind this position. The order of the lines counts, because the server's clock may have gone back; the
    times count only if the line at the position is not kept any longer."""
    ids = [line.id for line in lines]
    if after in ids:
        return [*lines[ids.index(after) + 1 :]]
    return [line for line in lines if not after or _numbers(line.id) > _numbers(after)]


def _numbers(position: str) -> tuple[int, int]:
    at, _, number = position.partition("-")
    return int(at), int(number)


class JobLines(Followed[LogLine]):
    """The log of one job, from `job.log()`: iterate over it with `for` or `async for`.

    The loop gets each line that is kept and each one that the job still logs, in order, and ends when the job does. The
    server keeps the last 16 KiB of lines; a loop that is slower than the job misses those that were dropped meanwhile.
    """

    _what = "log"
    _others = ("progress ", "output")
    _part = LogLine
    _form = re.compile(r"(\d{1,15})-([1-9]\d{0,4})\Z", re.ASCII)
    _give = "a line of this log, or its `id`, such as '1767225600000-1'"

    def __init__(
        self, shard: Shard, key: str, after: LogLine | str | None, wait: float | None, *, last: int | None = None
    ) -> None:
        super().__init__(shard, key, after, wait, last=last, most=LOG_BYTES)

    def _request(self, address: str, *, register: bool) -> RoundTrip[FollowedPage[LogLine]]:
        seal, bindings = self._shard.settings.seal, self._shard.bindings
        return read_log(bindings, self._key, self._after, address, register=register, last=self._last, seal=seal)
