"""Exact counts of the lines of a channel: a function counts batches of lines, and the server adds up the results.

The server adds counts and moves the receiver's cursor past their lines in one script: both or neither. So after a crash
a batch may be given to the function again, but it is counted once. The counts of a receiver are kept in sorted sets,
which can be read while it runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from time import monotonic, sleep
from typing import Any, TypeAlias

from penstock.core.arguments import check_whole
from penstock.core.keys import check_name
from penstock.core.operations import Operation, RoundTrip, RunInThread, verb
from penstock.counting.dead_batches import CountingFailure, DeadBatches, encode_failure, unpack_batch
from penstock.counting.kinds import Declared, TimeWindow, Uniques, check_kind, read_stored
from penstock.counting.snapshot import Snapshot
from penstock.counting.tally import Tally, fault_of
from penstock.counting.unsettled import MAX_REJECTED, UnsettledCounts
from penstock.errors import BadCall, BlocksMissed, ChannelError, ConfigurationError, FileDamaged
from penstock.files.batches import LineBatch
from penstock.files.channel import Channel
from penstock.files.count_bindings import Totals, UncountedLine
from penstock.files.lines import CutLine
from penstock.files.settlement import settle, when_added
from penstock.files.stream import ReceiverStream

log = logging.getLogger("penstock")

Tables: TypeAlias = Mapping[str, Mapping[Any, Any]]
Function: TypeAlias = Callable[[LineBatch], Tables | Tally]

MAX_DELIVERIES = 20
"""With `max_attempts`: a shared block that was delivered this many times and never counted becomes a dead batch,
because it may have crashed the processes that received it."""

MAX_ERROR = 1000
"""The most characters of the error of a dead batch."""

RETRY_PAUSE = 0.1
"""Seconds before the second attempt to count a batch; the pause doubles each time, up to a second."""

PAGE = 10_000
"""Keys in one round trip of `top` and `table`."""


class Aggregate:
    """A function that counts the lines of a channel. `run` receives them, calls the function, and stores its counts in
    the server. Called directly, the function only returns its counts.

    The counts belong to a receiver. An aggregate with another receiver counts everything once more, for itself.
    """

    def __init__(
        self,
        function: Function,
        channel: Channel,
        receiver: str | None,
        tables: Declared | None = None,
        max_attempts: int | None = None,
    ) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "aggregate")
        if iscoroutinefunction(function):
            raise ConfigurationError(f"{self.__name__} only counts lines: write it with def, and await its run.aio()")
        self.__doc__ = function.__doc__
        self.receiver = channel.receiver(receiver or self.__name__)
        self._channel = channel.bindings
        self._driver = channel._driver
        if max_attempts is not None and not 1 <= max_attempts <= 100:
            raise ConfigurationError(f"max_attempts={max_attempts}: 1 to 100; None raises what the function raises")
        self._max_attempts = max_attempts
        self.dead = DeadBatches(self._channel, self.receiver.name, self._driver)
        """The batches that the function could not count, with `max_attempts`."""
        self._declared = dict(tables or {})
        for name, kind in self._declared.items():
            check_name("table", name, colons=True)
            check_kind(name, kind)

    def __call__(self, batch: LineBatch) -> Tables | Tally:
        return self.__wrapped__(batch)

    def __repr__(self) -> str:
        return f"<Aggregate {self.__name__} of {self._channel.label}>"

    # --- count ---

    @verb
    def run(self, *, wait: float | None = None, share: bool = False, lease: float | None = None) -> Operation[Totals]:
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

        If the function raises, so does `run`. Nothing of that batch is counted, and the next run begins with it. If
        the aggregate has `max_attempts`, the function is called that many times; then the batch becomes a dead batch,
        and the others are counted; see `dead`. Also raises:

        BlocksMissed  the receiver was silent for longer than the channel's `patience`; the next run continues after
                      the gap
        LeaseLost     another process took over; it counts everything that was not settled here
        BadCall       the function returned something other than counts
        FilesError    with `share`: a file was not sent with `send_lines`
        CountsRefused  a number would not be exact, or there would be more than 256 dead batches

        One round trip for each megabyte; with `max_attempts` two more, and two for each batch that is retried.
        """
        unsettled = UnsettledCounts(self._declared)
        stream = self.receiver.batches(wait=wait, share=share, lease=lease)
        stream.commit_with(unsettled.take)
        return self._run(stream, unsettled)

    def _run(self, stream: ReceiverStream[LineBatch], unsettled: UnsettledCounts) -> Operation[Totals]:
        yield from self._count_retried()
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
        yield from self._count_retried()
        return (yield from self._totals())

    def _count_retried(self) -> Operation[None]:
        """Count the dead batches that `dead.retry` has marked."""
        if self._max_attempts is None:
            return
        for batch in (yield self.dead.all()):
            if not batch.is_retried:
                continue
            packed: bytes = yield self._channel.dead_lines(self.receiver.name, batch.id)
            if not packed:  # another process was faster
                continue
            lines, numbers = unpack_batch(batch, packed)
            unsettled = UnsettledCounts(self._declared)
            known = ""
            try:
                tally: Tally = yield RunInThread(partial(self._tally, lines))
                self._add(unsettled, lines, numbers, tally)
            except Exception as error:
                known = encode_failure(
                    CountingFailure(batch.file, batch.first, batch.source, batch.attempts + 1, _description(error))
                )
            call = partial(self._channel.settle_dead_batch, self.receiver.name, batch.id, known=known)
            yield from settle(self._channel, self.receiver.name, unsettled.take(), call)

    def _count(self, stream: ReceiverStream[LineBatch], unsettled: UnsettledCounts) -> bool:
        """Count the batches that are ready, up to the limits of one script call. Returns False if no batch was
        ready."""
        counted_any = False
        for batch in stream.take_ready():
            counted_any = True
            numbers: Sequence[int] = range(batch.first, batch.first + len(batch))
            whole_lines = batch
            if any(type(line) is CutLine for line in batch):
                whole_lines, numbers = _without_cut_lines(batch, unsettled)
            tally = self._attempted(batch, whole_lines, numbers, unsettled, stream.deliveries)
            if tally is not None:
                self._add(unsettled, whole_lines, numbers, tally)
            if unsettled.is_enough:
                break
        return counted_any

    def _add(self, unsettled: UnsettledCounts, lines: LineBatch, numbers: Sequence[int], tally: Tally) -> None:
        unsettled.add(len(lines), tally)
        for index, reason in tally.rejected.items():
            unsettled.reject(lines.file, numbers[index], reason, lines.source)

    def _attempted(
        self, batch: LineBatch, lines: LineBatch, numbers: Sequence[int], unsettled: UnsettledCounts, deliveries: int
    ) -> Tally | None:
        """The counts of these lines of a batch. With `max_attempts`, a batch that cannot be counted becomes a dead
        batch, and None is returned."""
        most, attempts, reason = self._max_attempts, 0, ""
        if most is not None and deliveries > MAX_DELIVERIES:
            attempts, reason = deliveries - 1, f"delivered {deliveries - 1} times, and never counted"
        else:
            for attempts in range(1, (most or 1) + 1):
                try:
                    return self._tally(lines)
                except Exception as error:
                    reason = _description(error)
                    if most is None:
                        error.add_note(
                            f"raised by {self.__name__} for lines {batch.first:,} to {batch.first + len(batch) - 1:,} "
                            f"of {batch.file}. The next run gets them again: to skip a bad line, return "
                            "Tally(tables, rejected=…)"
                        )
                        raise
                    if attempts < most:
                        sleep(min(1.0, RETRY_PAUSE * 2 ** (attempts - 1)))
        log.warning(
            "%s cannot count lines %d to %d of %s, which are a dead batch now: %s",
            self.__name__,
            batch.first,
            batch.first + len(batch) - 1,
            batch.file,
            reason,
        )
        unsettled.add_dead(lines, numbers, CountingFailure(batch.file, batch.first, batch.source, attempts, reason))
        return None

    def _tally(self, lines: LineBatch) -> Tally:
        return self._checked(self.__wrapped__(lines), len(lines))

    def _checked(self, result: object, lines: int) -> Tally:
        if (fault := fault_of(result, lines, self._declared)) is not None:
            raise BadCall(f"{self.__name__} must return counts, such as {{'table': {{'key': 1}}}}, or a Tally: {fault}")
        tally = result if isinstance(result, Tally) else Tally(result)  # type: ignore[arg-type]
        for name in tally.tables:
            check_name("table", name, colons=True)
        return tally

    # --- the counts ---

    @verb
    def totals(self) -> Operation[Totals]:
        """How many lines were counted and rejected so far, and which tables there are. One round trip.

        This and the other methods that read counts never return a part of a settlement. If a process has died while it
        added counts of many keys, the first of these calls adds the rest, two round trips for each 500 keys.
        """
        return self._totals()

    def _totals(self) -> Operation[Totals]:
        return when_added(self._channel, self.receiver.name, self._channel.totals(self.receiver.name))

    @verb
    def top(
        self, table: str, n: int = 10, *, offset: int = 0, window: float | None = None
    ) -> Operation[dict[str, Any]]:
        """The keys with the highest numbers, highest first: counts, sums, or numbers of the declared kind. For First()
        and Last(), the keys whose values come last in the order. One round trip, O(log keys + n).

        window: a moment in the window to read, of a table that is declared as TimeWindow()

        Raises ValueError for a table of Uniques(), which the server cannot sort: use `table`.
        """
        check_whole("top", "n", n, 1, PAGE, f"1 to {PAGE:,}")
        check_whole("top", "offset", offset, 0, sys.maxsize, "0 or more")
        if isinstance(self._declared.get(table), Uniques):
            raise ValueError(f"top({table!r}): a table of Uniques() is not sorted, use table()")
        return self._page(self._stored_table(table, window), offset, n)

    @verb
    def count(self, table: str, *keys: str, window: float | None = None) -> Operation[dict[str, Any]]:
        """The numbers of these keys, 0 for a key without a count, or None for Min, Max, First and Last. One round
        trip."""
        if not 1 <= len(keys) <= 1000:
            raise ValueError(f"count() of {len(keys)} keys: name 1 to 1,000 after the table")
        ask = self._channel.counts_of(self.receiver.name, self._stored_table(table, window), keys, read_stored)
        return when_added(self._channel, self.receiver.name, ask)

    @verb
    def table(self, table: str, *, window: float | None = None) -> Operation[dict[str, Any]]:
        """A whole table, highest numbers first. One round trip for each 10,000 keys; keys that are counted in the
        meantime may be missing. `snapshot` reads tables as of one moment."""
        return self._table(self._stored_table(table, window))

    def _table(self, table: str) -> Operation[dict[str, Any]]:
        counts: dict[str, Any] = {}
        offset = 0
        while page := (yield from self._page(table, offset, PAGE)):
            counts |= page
            offset += len(page)
        return counts

    def _page(self, stored_table: str, offset: int, n: int) -> Operation[dict[str, Any]]:
        ask = self._channel.top_counts(self.receiver.name, stored_table, offset, n, read_stored)
        return when_added(self._channel, self.receiver.name, ask)

    def _stored_table(self, table: str, window: float | None) -> str:
        """The name of a table in the server."""
        check_name("table", table, colons=True)
        declared = self._declared.get(table)
        if (window is not None) != isinstance(declared, TimeWindow):
            how = "" if window is None else "not "
            raise ValueError(f"{table!r} is {how}declared as TimeWindow(): {_WINDOW_HINT}")
        return f"{table}@{declared.start(window)}" if isinstance(declared, TimeWindow) and window is not None else table

    @verb
    def windows(self, table: str) -> Operation[list[int]]:
        """The windows of a table that have counts: the seconds since 1970 at which each begins, earliest first. One
        round trip."""
        return self._windows(check_name("table", table, colons=True))

    def _windows(self, table: str) -> Operation[list[int]]:
        totals = yield from self._totals()
        starts = [name.partition("@") for name in totals.windows]
        return sorted(int(start) for name, _, start in starts if name == table)

    @verb
    def snapshot(self, *tables: str, wait: float = 10.0) -> Operation[Snapshot]:
        """The totals and whole tables, all as of one moment: every line is in all of them or in none. Without names,
        all tables; those of windows have the names `<table>@<start>`.

        If counts were added while it read, it begins again. After `wait` seconds it gives up and raises ChannelError.
        One round trip for each 10,000 keys, and two more.
        """
        for table in tables:
            check_name("table", table.partition("@")[0], colons=True)
        return self._snapshot(tables, monotonic() + wait)

    def _snapshot(self, tables: tuple[str, ...], until: float) -> Operation[Snapshot]:
        before = yield from self._totals()
        while True:
            found: dict[str, dict[str, Any]] = {}
            for name in tables or (*before.tables, *before.windows):
                found[name] = yield from self._table(name)
            after = yield from self._totals()
            if after.version == before.version:
                return Snapshot(after, found)
            if monotonic() > until:
                raise ChannelError(
                    f"counts of {self.receiver.name!r} were added during each reading of its tables: read fewer of "
                    "them, allow more time with wait=, or read when less is counted"
                )
            before = after

    @verb
    def rejected(self, limit: int = 100, offset: int = 0) -> Operation[list[UncountedLine]]:
        """File, line number and reason of rejected lines, and as `source` of each the host that has the file; the first
        thousand are kept. Number 0 means the file as a whole. One round trip."""
        check_whole("rejected", "limit", limit, 1, MAX_REJECTED, f"1 to {MAX_REJECTED:,}")
        check_whole("rejected", "offset", offset, 0, sys.maxsize, "0 or more")
        ask = self._channel.rejected(self.receiver.name, offset, limit)
        return when_added(self._channel, self.receiver.name, ask)

    @verb
    def reset(self) -> RoundTrip[bool]:
        """Delete the counts. The receiver keeps its cursor, so lines that were counted are not counted again. One round
        trip."""
        return self._channel.forget_counts(self.receiver.name)


_WINDOW_HINT = "give window=, a moment in the window to read, for such a table, and for no other"


def _description(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 1]}…"


def _without_cut_lines(batch: LineBatch, unsettled: UnsettledCounts) -> tuple[LineBatch, list[int]]:
    """The lines that were not cut, and their numbers; cut lines are rejected."""
    whole, numbers = list[bytes](), list[int]()
    for number, line in enumerate(batch, batch.first):
        if type(line) is CutLine:
            unsettled.lines += 1
            unsettled.reject(batch.file, number, f"longer than {len(line):,} bytes", batch.source)
        else:
            whole.append(line)
            numbers.append(number)
    return LineBatch(whole, batch.file, batch.first, batch.source), numbers
