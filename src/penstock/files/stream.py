"""The items that a receiver gets from a channel, whether it receives alone (`exclusive_stream.py`) or shares the work
(`shared_stream.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from penstock.core.operations import Driver, Operation, refuse_for_in_loop, verb
from penstock.errors import BlocksMissed, ChannelRestarted, FileDamaged, FileNotSaved, FilesError
from penstock.files.bindings import ChannelBindings
from penstock.files.dead_files import FileFailure
from penstock.files.records import keep_freed_memory
from penstock.files.settlement import CountPiece

T = TypeVar("T")

PASSING = FileDamaged, FileNotSaved, BlocksMissed
"""Errors after which a receiver continues with the next file or block."""


class ReceiverStream(Generic[T]):
    """The items of one receiver: `for item in stream` or `async for`.

    An item is done when the loop asks for the next one. Items that are done are settled in the server with the next
    pull, and when a `with stream:` statement ends.

    An item is paired with a checkpoint, which says what can be settled once that item is done. Subclasses choose what a
    checkpoint is.
    """

    _driver: Driver
    _channel: ChannelBindings
    _receiver: str
    _may_be_stale = False
    """Another process may have received the ready items in the meantime: ask the server before they are given."""

    def __init__(self) -> None:
        keep_freed_memory()
        self._ready: deque[tuple[T, Any]] = deque()
        self._error: FilesError | None = None
        """Raised after the ready items."""
        self._settled_error: FilesError | None = None
        """The error, once it is settled with everything before it, so that no other process meets it again."""
        self._failures: list[tuple[str, FileFailure]] = []
        """Dead files with their ids that the server does not have yet."""
        self._take_counts: Callable[[], list[CountPiece]] = list
        self._given: Any = None
        """Checkpoint of the item that the loop has now."""
        self._done: Any = None
        """Checkpoint of the last item that the loop is done with."""
        self._reached: Any = None
        """Checkpoint of everything that was made ready."""

    @property
    def deliveries(self) -> int:
        """How often the block of the last item has been delivered, this time included. Always 1 for a process that
        receives alone, because the server does not count its deliveries."""
        return 1

    def fill(self) -> Operation[None]:
        """Return when an item is ready, an error has occurred, or the stream has ended. If this takes a call to the
        server, everything that was given is settled with it."""
        raise NotImplementedError

    def commit(self) -> Operation[None]:
        """Settle everything that was given so far. Ready items that were not given remain."""
        raise NotImplementedError

    def leave(self) -> Operation[None]:
        """Settle the items that are done, and stop receiving. The other items go to the next process."""
        raise NotImplementedError

    def commit_with(self, take_counts: Callable[[], list[CountPiece]]) -> None:
        """From now on, settle the items together with the counts that this function returns, both or neither."""
        self._take_counts = take_counts

    @verb
    def fetch(self) -> Operation[None]:
        """Settle the items that are done, and wait for more, in one round trip. For a loop that you write yourself."""
        return self.fill()

    @verb
    def settle(self) -> Operation[None]:
        """Settle the items that are done, and let another process receive. Two round trips."""
        return self.leave()

    def take_ready(self) -> Iterator[T]:
        """Give the ready items one by one; the caller may stop early, and take the rest later."""
        while self._ready:
            item, self._given = self._ready.popleft()
            yield item

    def take_error(self) -> FilesError | None:
        """The error that follows the ready items, once they are all given."""
        if self._ready or self._error is None:
            return None
        error, self._error, self._settled_error = self._error, None, None
        self._given = self._reached
        return error

    def _next(self, stop: type[Exception]) -> T:
        self._done = self._given
        if self._ready:
            item, self._given = self._ready.popleft()
            return item
        error = self.take_error()
        try:
            raise stop if error is None else error
        finally:
            del error  # its traceback has this frame, and would keep the stream alive, and so its lease

    @property
    def _needs_filling(self) -> bool:
        is_open = self._error is None or self._error is not self._settled_error
        return self._may_be_stale or (not self._ready and is_open)

    def _note_failures(self) -> Operation[None]:
        """Store the dead files in the server. This comes before their records are settled: a crash then loses none."""
        while self._failures:
            id, failure = self._failures[0]
            yield self._channel.note_dead_file(self._receiver, id, failure)
            self._failures.pop(0)

    def _settle_error(self) -> Operation[bool]:
        """Settle the error that comes next and everything before it, if it concerns one file or records that are gone.
        Returns False if another process has taken over."""
        self._settled_error = self._error
        if not isinstance(self._error, PASSING):
            return True
        yield from self._note_failures()
        return (yield from self._settle_reached())

    def _settle_reached(self) -> Operation[bool]:
        """Settle everything that was made ready. Returns False if another process has taken over."""
        raise NotImplementedError

    def __iter__(self) -> ReceiverStream[T]:
        refuse_for_in_loop()
        return self

    def __next__(self) -> T:
        if self._needs_filling:
            self.fetch()
        return self._next(StopIteration)

    def __aiter__(self) -> ReceiverStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._needs_filling:
            await self.fetch.aio()
        return self._next(StopAsyncIteration)

    def _finish(self, error: object) -> None:
        """At the end of a `with` block: unless it raised, the current item is done, too."""
        if error is None:
            self._done = self._given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._finish(error)
        self.settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._finish(error)
        await self.settle.aio()


def blocks_missed(channel: ChannelBindings, receiver: str, records: int, first: int) -> BlocksMissed:
    """The error for a receiver that was passed over, and whose next record is number `first`."""
    return BlocksMissed(
        f"{receiver!r} was away for too long: {records} records of {channel.label} were dropped before it received "
        f"them. It continues with record {first}; files that had begun before that are not whole"
    )


def channel_restarted(channel: ChannelBindings, receiver: str, cursor: int) -> ChannelRestarted:
    """The error for a receiver whose channel began again, and which continues after record number `cursor`."""
    return ChannelRestarted(
        f"{channel.label} began again while {receiver!r} received: it was deleted and created again, or its server "
        f"fell back to an older state. {receiver!r} continues after record {cursor}, its cursor in the server, and may "
        "receive some blocks again"
    )
