"""Counts that are exact: a function from lines to counts, whose answers and the place in the files are settled in one
step.

A crash repeats the work, not the effect: what was counted is in the totals together with the cursor that says so, or
not at all. The counts of a receiver lie in sorted sets and can be read while it runs.
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
from penstock.files.bindings import Totals
from penstock.files.channel import Channel
from penstock.files.lines import CutLine
from penstock.files.receiver import Batch
from penstock.files.stream import Stream

Tables: TypeAlias = Mapping[str, Mapping[str, int]]
Function: TypeAlias = Callable[[Batch], Tables | Tally]

MOST = 20_000
"""Different keys in one step, and those of a block: some twenty milliseconds of server time."""

LINES = 500_000
"""Counted at most before they are settled: what is counted once more after a crash takes a second or two."""

SHOWN = 1000
"""Rejected lines that are kept, and shown at once."""

_pack = msgspec.msgpack.Encoder().encode
_row = msgspec.json.Encoder().encode


class Unsettled:
    """What was counted and not settled yet."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.keys = self.lines = self._bad = 0
        self._tables: dict[str, Counter[str]] = {}
        self._rows: list[str] = []

    @property
    def is_much(self) -> bool:
        """Enough for one step."""
        return self.keys > MOST or self.lines > LINES

    def take(self) -> bytes:
        """As `counts.lua` has it; then it begins anew."""
        packed = b""
        if self.lines or self._rows:
            packed = _pack((self.lines, self._bad, self._tables, self._rows))
        self._begin()
        return packed

    def add(self, lines: int, found: Tally) -> None:
        self.lines += lines
        for name, counts in found.tables.items():
            table = self._tables.setdefault(name, Counter())
            before = len(table)
            table.update(counts)
            self.keys += len(table) - before

    def reject(self, file: str, number: int, reason: str) -> None:
        self._bad += 1
        self.note(file, number, reason)

    def note(self, file: str, number: int, reason: str) -> None:
        if len(self._rows) < SHOWN:
            self._rows.append(_row((file, number, reason)).decode())


class Aggregate:
    """A function that counts what comes through a channel. It may be called as before; `run` lets it count.

    Its counts belong to the receiver as which it runs: a second receiver counts everything once more, for itself.
    """

    def __init__(self, function: Function, channel: Channel, receiver: str | None) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "aggregate")
        if iscoroutinefunction(function):
            raise ConfigurationError(f"{self.__name__} only counts lines: write it with def, and await its run.aio()")
        self.__doc__ = function.__doc__
        self.receiver = channel.receiver(receiver or self.__name__)
        self._log = channel.log
        self._driver = channel._driver

    def __call__(self, batch: Batch) -> Tables | Tally:
        return self.__wrapped__(batch)

    def __repr__(self) -> str:
        return f"<Aggregate {self.__name__} of {self._log.label}>"

    # --- count ---

    @verb
    def run(
        self, *, wait: float | None = None, share: bool = False, lease: float | None = None
    ) -> Operation[Totals]:  # fmt: skip
        """Count until the channel is closed and all was counted; answers with the totals.

        wait   seconds to wait for more, then it returns; None: until the channel is closed
        share  several processes count together, each block in one of them: for what was sent with `send_lines`.
               Without it a second process waits, and takes over when the first is gone
        lease  of shared blocks: seconds in which the function must be through with four of them, or another process
               counts them, too, and only one of the two is settled; None: the app's setting

        The function is given a batch of lines (see `Receiver.batches`) and answers with counts, table -> key -> count,
        or `Tally` if it rejects lines. What it answers must depend on these lines alone: after a crash it is asked
        again. A line longer than a megabyte, a file that is damaged or that its sender gave up, are noted among the
        rejected. What the function raises ends the run, and nothing of its batch is counted; run again, it is given
        that batch again.

        Raises BlocksMissed once where this receiver was passed over; run again, it goes on. LeaseLost where another
        process took over, which counts what was not settled here. BadCall for an answer that is no counts, FilesError
        where files that were sent as bytes are to be shared. One round trip a megabyte.
        """
        unsettled = Unsettled()
        stream = self.receiver.batches(wait=wait, share=share, lease=lease)
        stream.along(unsettled.take)
        return self._run(stream, unsettled)

    def _run(self, stream: Stream[Batch], unsettled: Unsettled) -> Operation[Totals]:
        try:
            while True:
                yield from stream.fill()
                found = yield RunInThread(partial(self._count, stream, unsettled))
                error = stream.fault()
                if not found and error is None:
                    break
                if error is not None:
                    if not isinstance(error, FileDamaged | BlocksMissed):
                        raise error
                    unsettled.note("", 0, str(error))
                if unsettled.is_much or isinstance(error, BlocksMissed):
                    yield from stream.commit()
                if isinstance(error, BlocksMissed):
                    raise error
        except BaseException:
            yield from stream.leave()
            raise
        totals: Totals = yield self._log.totals(self.receiver.name)
        return totals

    def _count(self, stream: Stream[Batch], unsettled: Unsettled) -> bool:
        """What is ready, or as much of it as one step should settle; whether there was anything."""
        found = False
        for batch in stream.taken():
            found = True
            numbers: Sequence[int] = range(batch.first, batch.first + len(batch))
            good = batch
            if any(type(line) is CutLine for line in batch):
                good, numbers = _without_cut(batch, unsettled)
            try:
                answer = self.__wrapped__(good)
            except Exception as error:
                error.add_note(
                    f"raised by {self.__name__} for lines {batch.first:,} to {batch.first + len(batch) - 1:,} of "
                    f"{batch.file}, which come again: a line that is no good belongs into Tally(tables, rejected=…)"
                )
                raise
            tally = self._checked(answer, len(good))
            unsettled.add(len(batch), tally)
            for place, reason in tally.rejected.items():
                unsettled.reject(batch.file, numbers[place], reason)
            if unsettled.is_much:
                break
        return found

    def _checked(self, answer: object, lines: int) -> Tally:
        if (fault := _fault(answer, lines)) is not None:
            raise BadCall(
                f"{self.__name__} must answer with counts, as {{'table': {{'key': 1}}}}, or with a Tally: {fault}"
            )
        tally = answer if isinstance(answer, Tally) else Tally(answer)  # type: ignore[arg-type]
        for name in tally.tables:
            check_name("table", name)
        return tally

    # --- what was counted ---

    @verb
    def totals(self) -> RoundTrip[Totals]:
        """How many lines were counted and rejected so far, and which tables there are. One round trip."""
        return self._log.totals(self.receiver.name)

    @verb
    def top(self, table: str, n: int = 10, *, offset: int = 0) -> RoundTrip[dict[str, int]]:
        """The keys with the highest counts, highest first. One round trip, O(log keys + n)."""
        if not 1 <= n <= 10_000 or offset < 0:
            raise ValueError(f"top(n={n}, offset={offset}): n 1 to 10,000, offset 0 or more")
        return self._log.top(self.receiver.name, check_name("table", table), offset, n)

    @verb
    def count(self, table: str, *keys: str) -> RoundTrip[dict[str, int]]:
        """The counts of these keys, 0 where there is none. One round trip."""
        if not 1 <= len(keys) <= 1000:
            raise ValueError(f"count() of {len(keys)} keys: name 1 to 1,000 behind the table")
        return self._log.of_keys(self.receiver.name, check_name("table", table), keys)

    @verb
    def table(self, table: str) -> Operation[dict[str, int]]:
        """All of a table, highest counts first. A round trip for each 10,000 keys; what is counted meanwhile may be
        missing."""
        return self._table(check_name("table", table))

    def _table(self, table: str) -> Operation[dict[str, int]]:
        found: dict[str, int] = {}
        at = 0
        while page := (yield self._log.top(self.receiver.name, table, at, 10_000)):
            found |= page
            at += len(page)
        return found

    @verb
    def rejected(self, limit: int = 100, offset: int = 0) -> RoundTrip[list[tuple[str, int, str]]]:
        """File, number and reason of rejected lines; the first thousand are kept. Number 0: of a file as a whole. One
        round trip."""
        if not 1 <= limit <= SHOWN or offset < 0:
            raise ValueError(f"rejected(limit={limit}, offset={offset}): limit 1 to {SHOWN:,}, offset 0 or more")
        return self._log.rejected(self.receiver.name, offset, limit)

    @verb
    def reset(self) -> RoundTrip[bool]:
        """Forget what was counted; where it is in the files stays. One round trip."""
        return self._log.forget_counts(self.receiver.name)


def _fault(answer: object, lines: int) -> str | None:
    """What cannot be counted, in what a function answered for so many lines."""
    tables, rejected = answer if isinstance(answer, Tally) else (answer, {})
    if not isinstance(tables, Mapping) or not isinstance(rejected, Mapping):
        return f"{answer!r} is none of these"
    for name, counts in tables.items():
        if not _is_text(name) or not isinstance(counts, Mapping):
            return f"{name!r}: {counts!r} is no name and its table"
        for key, n in counts.items():
            if not _is_text(key) or type(n) is not int or not -(2**53) < n < 2**53:
                return f"{key!r}: {n!r} in table {name!r} is no text and its count"
    for place, reason in rejected.items():
        if type(place) is not int or not 0 <= place < lines or not _is_text(reason):
            return f"{place!r}: {reason!r} is no place among {lines:,} lines and the reason for rejecting it"
    return None


def _is_text(value: object) -> bool:
    """Of whole characters: half of one (a lone surrogate) cannot be sent."""
    return type(value) is str and (value.isascii() or value.encode(errors="ignore").decode() == value)


def _without_cut(batch: Batch, unsettled: Unsettled) -> tuple[Batch, list[int]]:
    good, numbers = Batch(), list[int]()
    good.file, good.first = batch.file, batch.first
    for number, line in enumerate(batch, batch.first):
        if type(line) is CutLine:
            unsettled.reject(batch.file, number, f"longer than {len(line):,} bytes")
        else:
            good.append(line)
            numbers.append(number)
    return good, numbers
