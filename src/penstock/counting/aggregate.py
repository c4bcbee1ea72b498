"""Exact counts of the lines of a channel: a function counts batches of lines, and the server adds up what it returns.

The server adds counts and moves the receiver's cursor past their lines in one script: both or neither. So after a crash
a batch may be given to the function again, but it is counted once. The counts of a receiver are kept in sorted sets,
which can be read while it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import TypeAlias

import msgspec

from penstock.core.keys import check_name
from penstock.core.operations import Operation, RoundTrip, RunInThread, verb
from penstock.counting.tally import Tally
from penstock.errors import BadCall, BlocksMissed, ConfigurationError, FileDamaged
from penstock.files.batches import Batch
from penstock.files.bindings import Totals, UncountedLine
from penstock.files.channel import Channel
from penstock.files.lines import CutLine
from penstock.files.stream import ReceiverStream

Tables: TypeAlias = Mapping[str, Mapping[str, int]]
Function: TypeAlias = Callable[[Batch], Tables | Tally]

MAX_KEYS = 20_000
"""Different keys after which counts are settled. A script call has at most that many, and those of one more batch:
about twenty milliseconds of server time."""

MAX_LINES = 500_000
"""Lines after which counts are settled: after a crash it takes a second or two to count so many again."""

MAX_REJECTED = 1000
"""Rejected lines that are kept for `rejected`; further ones are only counted."""

PAGE = 10_000
"""Keys in one round trip of `top` and `table`."""

_pack = msgspec.msgpack.Encoder().encode
_encode_rejected = msgspec.json.Encoder().encode


class UnsettledCounts:
    """Counts that the server does not know yet."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.keys = self.lines = self._rejected = 0
        self._tables: dict[str, Counter[str]] = {}
        self._rejected_rows: list[str] = []

    @property
    def is_enough(self) -> bool:
        """Whether there are so many counts that they must be settled now."""
        return self.keys > MAX_KEYS or self.lines > MAX_LINES

    def take(self) -> bytes:
        """Return the counts, packed for `counts.lua`, and begin again at zero."""
        packed = b""
        if self.lines or self._rejected_rows:
            packed = _pack((self.lines, self._rejected, self._tables, self._rejected_rows))
        self._clear()
        return packed

    def add(self, lines: int, tally: Tally) -> None:
        self.lines += lines
        for name, counts in tally.tables.items():
            table = self._tables.setdefault(name, Counter())
            before = len(table)
            table.update(counts)
            self.keys += len(table) - before

    def reject(self, file: str, number: int, reason: str, source: str) -> None:
        self._rejected += 1
        self.note(file, number, reason, source)

    def note(self, file: str, number: int, reason: str, source: str = "") -> None:
        """Add a row to those that `rejected` returns, without counting a rejected line."""
        if len(self._rejected_rows) < MAX_REJECTED:
            self._rejected_rows.append(_encode_rejected((file, number, reason, source)).decode())


class Aggregate:
    """A function that counts the lines of a channel. `run` receives them, calls the function, and stores its counts in
    the server. Called directly, the function only returns its counts.

    The counts belong to a receiver. An aggregate with another receiver counts everything once more, for itself.
    """

    def __init__(self, function: Function, channel: Channel, receiver: str | None) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "aggregate")
        if iscoroutinefunction(function):
            raise ConfigurationError(f"{self.__name__} only counts lines: write it with def, and await its run.aio()")
        self.__doc__ = function.__doc__
        self.receiver = channel.receiver(receiver or self.__name__)
        self._channel = channel.bindings
        self._driver = channel._driver

    def __call__(self, batch: Batch) -> Tables | Tally:
        return self.__wrapped__(batch)

    def __repr__(self) -> str:
        return f"<Aggregate {self.__name__} of {self._channel.label}>"

    # --- count ---

    @verb
    def run(
        self, *, wait: float | None = None, share: bool = False, lease: float | None = None
    ) -> Operation[Totals]:  # fmt: skip
        """Count until the channel is closed and everything is counted. Returns the totals.

        wait   seconds to wait for more lines before it returns; None: it returns when the channel is closed
        share  several processes count together, and each block is counted by one of them; needs files that were sent
               with `send_lines`. Without it a second process waits, and takes over when the first is gone
        lease  with `share`: seconds until the blocks of a process that died or froze go to another process; None: the
               app's setting. The function may take longer: a living process keeps its blocks

        The function gets a batch of lines (see `Receiver.batches`). It returns counts as table -> key -> count, or a
        `Tally` if it rejects lines. The result must depend on these lines alone, because the function may get them
        again after a crash. A line longer than a megabyte is rejected. `rejected` also lists a file that is damaged, or
        that its sender gave up.

        If the function raises, so does `run`. Nothing of that batch is counted, and the next run begins with it. Also
        raises:

        BlocksMissed  the receiver was silent for longer than the channel's `patience`; the next run continues after
                      the gap
        LeaseLost     another process took over; it counts everything that was not settled here
        BadCall       the function returned something other than counts
        FilesError    with `share`: a file was not sent with `send_lines`

        One round trip for each megabyte.
        """
        unsettled = UnsettledCounts()
        stream = self.receiver.batches(wait=wait, share=share, lease=lease)
        stream.commit_with(unsettled.take)
        return self._run(stream, unsettled)

    def _run(self, stream: ReceiverStream[Batch], unsettled: UnsettledCounts) -> Operation[Totals]:
        try:
            while True:
                yield from stream.fill()
                counted_any = yield RunInThread(partial(self._count, stream, unsettled))
                error = stream.take_error()
                if not counted_any and error is None:
                    break
                if error is not None:
                    if not isinstance(error, FileDamaged | BlocksMissed):
                        raise error
                    unsettled.note("", 0, str(error))
                if unsettled.is_enough or isinstance(error, BlocksMissed):
                    yield from stream.commit()
                if isinstance(error, BlocksMissed):
                    raise error
        except BaseException:
            yield from stream.leave()
            raise
        totals: Totals = yield self._channel.totals(self.receiver.name)
        return totals

    def _count(self, stream: ReceiverStream[Batch], unsettled: UnsettledCounts) -> bool:
        """Count the batches that are ready, up to the limits of one script call. Returns False if no batch was
        ready."""
        counted_any = False
        for batch in stream.take_ready():
            counted_any = True
            lines = len(batch)
            numbers: Sequence[int] = range(batch.first, batch.first + lines)
            whole_lines = batch
            if any(type(line) is CutLine for line in batch):
                whole_lines, numbers = _without_cut_lines(batch, unsettled)
            try:
                result = self.__wrapped__(whole_lines)
            except Exception as error:
                error.add_note(
                    f"raised by {self.__name__} for lines {batch.first:,} to {batch.first + lines - 1:,} of "
                    f"{batch.file}. The next run gets them again: to skip a bad line, return Tally(tables, rejected=…)"
                )
                raise
            tally = self._checked(result, len(numbers))
            unsettled.add(lines, tally)
            for index, reason in tally.rejected.items():
                unsettled.reject(batch.file, numbers[index], reason, batch.source)
            if unsettled.is_enough:
                break
        return counted_any

    def _checked(self, result: object, lines: int) -> Tally:
        if (fault := _fault(result, lines)) is not None:
            raise BadCall(f"{self.__name__} must return counts, as {{'table': {{'key': 1}}}}, or a Tally: {fault}")
        tally = result if isinstance(result, Tally) else Tally(result)  # type: ignore[arg-type]
        for name in tally.tables:
            check_name("table", name)
        return tally

    # --- the counts ---

    @verb
    def totals(self) -> RoundTrip[Totals]:
        """How many lines were counted and rejected so far, and which tables there are. One round trip."""
        return self._channel.totals(self.receiver.name)

    @verb
    def top(self, table: str, n: int = 10, *, offset: int = 0) -> RoundTrip[dict[str, int]]:
        """The keys with the highest counts, highest first. One round trip, O(log keys + n)."""
        if not 1 <= n <= PAGE or offset < 0:
            raise ValueError(f"top(n={n}, offset={offset}): n 1 to {PAGE:,}, offset 0 or more")
        return self._channel.top_counts(self.receiver.name, check_name("table", table), offset, n)

    @verb
    def count(self, table: str, *keys: str) -> RoundTrip[dict[str, int]]:
        """The counts of these keys, 0 for a key without a count. One round trip."""
        if not 1 <= len(keys) <= 1000:
            raise ValueError(f"count() of {len(keys)} keys: name 1 to 1,000 after the table")
        return self._channel.counts_of(self.receiver.name, check_name("table", table), keys)

    @verb
    def table(self, table: str) -> Operation[dict[str, int]]:
        """A whole table, highest counts first. One round trip for each 10,000 keys; keys that are counted in the
        meantime may be missing."""
        return self._table(check_name("table", table))

    def _table(self, table: str) -> Operation[dict[str, int]]:
        counts: dict[str, int] = {}
        offset = 0
        while page := (yield self._channel.top_counts(self.receiver.name, table, offset, PAGE)):
            counts |= page
            offset += len(page)
        return counts

    @verb
    def rejected(self, limit: int = 100, offset: int = 0) -> RoundTrip[list[UncountedLine]]:
        """File, line number and reason of rejected lines, and as `source` of each the host that has the file; the first
        thousand are kept. Number 0 means the file as a whole. One round trip."""
        if not 1 <= limit <= MAX_REJECTED or offset < 0:
            raise ValueError(f"rejected(limit={limit}, offset={offset}): limit 1 to {MAX_REJECTED:,}, offset 0 or more")
        return self._channel.rejected(self.receiver.name, offset, limit)

    @verb
    def reset(self) -> RoundTrip[bool]:
        """Delete the counts. The receiver keeps its cursor, so lines that were counted are not counted again. One round
        trip."""
        return self._channel.forget_counts(self.receiver.name)


def _fault(result: object, lines: int) -> str | None:
    """The reason why this cannot be the result of a counting function for this many lines, or None."""
    tables, rejected = result if isinstance(result, Tally) else (result, {})
    if not isinstance(tables, Mapping) or not isinstance(rejected, Mapping):
        return f"{result!r} is neither"
    for name, counts in tables.items():
        if not _is_text(name) or not isinstance(counts, Mapping):
            return f"{name!r}: {counts!r} is not the name of a table with its counts"
        for key, n in counts.items():
            if not _is_text(key) or type(n) is not int or not -(2**53) < n < 2**53:
                return f"{key!r}: {n!r} in table {name!r} is not a text with its count, an int below 2**53"
    for index, reason in rejected.items():
        if type(index) is not int or not 0 <= index < lines or not _is_text(reason):
            return f"{index!r}: {reason!r} is not the index of one of {lines:,} lines with the reason for rejecting it"
    return None


def _is_text(value: object) -> bool:
    """Whether this is a str of whole characters: half of one (a lone surrogate) cannot be sent."""
    return type(value) is str and (value.isascii() or value.encode(errors="ignore").decode() == value)


def _without_cut_lines(batch: Batch, unsettled: UnsettledCounts) -> tuple[Batch, list[int]]:
    """The lines that were not cut, and their numbers; cut lines are rejected."""
    whole, numbers = list[bytes](), list[int]()
    for number, line in enumerate(batch, batch.first):
        if type(line) is CutLine:
            unsettled.reject(batch.file, number, f"longer than {len(line):,} bytes", batch.source)
        else:
            whole.append(line)
            numbers.append(number)
    return Batch(whole, batch.file, batch.first, batch.source), numbers
