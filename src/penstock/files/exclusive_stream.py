"""A process that receives alone: it pulls records, checks them, and turns them into items.

Subclasses decide what the items are: blocks, batches of lines, saved files. They do so in the hooks of
`record_hooks.py`. While records become items, the next ones are on their way.

With the receiver's cursor, the server stores its state: the files that have begun and, for each, how much was received,
its digest so far, and the line that continues in its next block. So the next process resumes exactly there, and the
blocks of several files may alternate.

Only one process at a time owns a receiver, under a lease. The others wait until it gives the receiver back, its lease
runs out, or, on the same host, it dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from penstock.core.arguments import check_wait
from penstock.core.ids import may_be_alive, mint_token
from penstock.core.operations import Driver, Operation, Receive, RoundTrip, RunInThread, Send
from penstock.core.renewal import Renewer, now
from penstock.errors import FileDamaged, FileNotSaved, FilesError, LeaseLost
from penstock.files.bindings import ChannelBindings
from penstock.files.dead_files import FileFailure
from penstock.files.download import Checkpoint, Download, ReceiverState, decode_state, encode_state
from penstock.files.leases import ReceiverLease
from penstock.files.record_hooks import RecordHooks
from penstock.files.records import (
    ABORT,
    BEGIN,
    CLOSE,
    DATA,
    END,
    ChannelRecord,
    chain_digest,
    is_upload_id,
    read_begin,
    read_block,
    read_end,
)
from penstock.files.replies import ReceiveReply
from penstock.files.settlement import CountPiece, may_settle_again, settle
from penstock.files.stream import blocks_missed, channel_restarted
from penstock.messages.log import ask_until, trim_rest

T = TypeVar("T")

MAX_EMPTY_REPLIES = 3
"""After this many replies in a row without records that must exist, the records have vanished. A single such reply only
means that another process trimmed at that moment."""

READY_ITEMS = 16
"""How many items are made ready together."""

FINISHED_TOGETHER = 100
"""The most items that wait to be finished together."""

_streams_here: WeakValueDictionary[str, ExclusiveStream[Any]] = WeakValueDictionary()
"""The streams of this process that are alive, by token."""


class ExclusiveStream(RecordHooks[T]):
    """The items of a receiver, for one process and one loop at a time.

    `wait`: the stream ends when nothing has arrived for that many seconds; None: when the channel is closed.
    """

    def __init__(
        self, channel: ChannelBindings, driver: Driver, renewer: Renewer, receiver: str, wait: float | None
    ) -> None:
        check_wait("receive", wait)
        super().__init__()
        self._channel = channel
        self._driver = driver
        self._renewer = renewer
        self._receiver = receiver
        self._wait = wait
        self._token = ""
        self._renew_token()
        self._ended = False
        self._calls = 0
        self._dead_token = ""
        self._lease: ReceiverLease | None = None
        self._records: deque[ChannelRecord] = deque()
        self._items: Iterator[tuple[T, Checkpoint]] | None = None
        """The items of the record that is being processed."""
        self._resume_from(Checkpoint(0, ReceiverState()))

    def _renew_token(self) -> None:
        """Use a new token: to the server this is then another process, which does not own the receiver."""
        _streams_here.pop(self._token, None)
        self._token = mint_token()
        _streams_here[self._token] = self

    def _resume_from(self, checkpoint: Checkpoint) -> None:
        self._position = checkpoint.number
        """Number of the last record that was pulled."""
        self._position_id = ""
        """Its position, which shows the server whether the channel began again; "" if it is unknown."""
        self._reached_in_server = checkpoint.number
        """The receiver's cursor, as the server returned it last."""
        self._next_limit = 0
        self._empty_replies = 0
        self._downloads = dict(checkpoint.state.downloads)
        self._reached = self._given = self._done = self._settled = checkpoint
        self._processed = checkpoint.number
        """Number of the last record that was turned into items."""
        self._ahead: tuple[ReceiveReply, float] | None = None
        """The records that come next, and when they were asked for."""
        self._late_error: tuple[FilesError, Checkpoint] | None = None
        """Raised after the items that are finished together."""
        self._on_resume()

    # --- from records to items ---

    def _make_ready(self) -> None:
        """Turn pulled records into ready items, until there are some or an error occurs."""
        while self._error is None and len(self._ready) < READY_ITEMS:
            if self._items is None:
                if self._may_be_stale:
                    return
                waiting = self._unfinished()
                if waiting and (waiting >= FINISHED_TOGETHER or not self._records or self._late_error):
                    self._items = self._finished_items()
                elif self._late_error:
                    (self._error, self._reached), self._late_error = self._late_error, None
                    return
                elif self._records:
                    self._items = self._items_of(self._records.popleft())
                else:
                    return
            before = len(self._ready)
            self._ready.extend(islice(self._items, READY_ITEMS))
            if len(self._ready) < before + READY_ITEMS:
                # The generator is exhausted. It refers to this stream, which must die as soon as a loop abandons it.
                self._items = None

    def _items_of(self, record: ChannelRecord) -> Iterator[tuple[T, Checkpoint]]:
        try:
            for item in self._process(record):
                # An END that still has items for this file is not done yet.
                is_unfinished_end = record.kind == END and record.upload_id in self._downloads
                yield item, self._checkpoint(record.number - is_unfinished_end)
        except FilesError as error:
            self._note_failure(record, error)
            for upload_id in self._downloads.keys() & (self._downloads if record.kind == CLOSE else {record.upload_id}):
                del self._downloads[upload_id]
                self._on_dropped(record.number, upload_id)
            if self._unfinished():
                self._late_error = error, self._checkpoint(record.number)
            else:
                self._error = error
        self._processed = record.number
        self._reached = self._checkpoint(record.number)

    def _note_failure(self, record: ChannelRecord, error: FilesError) -> None:
        """Make the file a dead file, unless its own sender has given it up."""
        if isinstance(error, FileDamaged | FileNotSaved) and record.kind in {BEGIN, DATA, END}:
            download = self._downloads.get(record.upload_id)
            id = record.upload_id if is_upload_id(record.upload_id) else f"{record.number}"
            name, source = (download.name, download.source) if download else ("", "")
            self._failures.append((id, FileFailure(name, source, str(error))))

    def _finished_items(self) -> Iterator[tuple[T, Checkpoint]]:
        for item, checkpoint in self._finish_waiting():
            if isinstance(item, FilesError):
                self._error, self._reached = item, checkpoint
                return
            yield item, checkpoint
        self._reached = self._checkpoint(self._processed)

    def _checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(number, ReceiverState(dict(self._downloads)))

    def _process(self, record: ChannelRecord) -> Iterator[T]:
        """Check a record and return its items. Raises FileDamaged."""
        download = self._downloads.get(record.upload_id)
        if record.kind == BEGIN:
            begin = read_begin(record)
            if not is_upload_id(record.upload_id):
                raise FileDamaged(f"{begin.name}: record {record.number} has no valid upload id: no sender wrote it")
            self._downloads[record.upload_id] = Download(
                begin.name, begin.lines, begin.unpacked, begin.offset, lines_given=begin.lines_before,
                source=begin.source, mode=begin.mode, modified=begin.modified, size=begin.size,
            )  # fmt: skip
            self._on_begin(record, begin)
        elif record.kind == CLOSE and self._downloads:
            names = ", ".join(sorted(download.name for download in self._downloads.values()))
            raise FileDamaged(f"{self._channel.label} was closed before these files were sent whole: {names}")
        elif download is None:  # the file began before this receiver joined, or is damaged
            return
        elif record.kind == DATA:
            header, data = read_block(record)
            if header.offset != download.offset:
                raise FileDamaged(f"{header.name} is damaged: its block at byte {download.offset:,} is missing")
            self._downloads[record.upload_id] = replace(
                download, offset=header.offset + len(data), digest=chain_digest(download.digest, header.digest)
            )
            yield from self._on_block(record, header, data)
        elif record.kind == END:
            end = read_end(record)
            if (end.size, end.digest) != (download.offset, download.digest):
                raise FileDamaged(
                    f"{download.name} is damaged: {download.offset:,} of {end.size:,} bytes arrived, or other bytes "
                    "than were sent"
                )
            if not download.spooled:
                del self._downloads[record.upload_id]
            yield from self._on_end(record, download)
            self._downloads.pop(record.upload_id, None)
        elif record.kind == ABORT:
            raise FileDamaged(record.body.decode(errors="replace"))

    # --- operations ---

    def fill(self) -> Operation[None]:
        try:
            yield from self._fill()
        except BaseException:
            self._restart()
            raise

    def _fill(self) -> Operation[None]:
        while True:
            if self._may_be_stale:
                yield from self._confirm_lease()
            if not self._ready and self._error is not None and not (yield from self._settle_error()):
                self._restart()
                continue
            if self._ready or self._error is not None or self._ended:
                return
            yield RunInThread(self._make_ready)
            if self._ready or self._error is not None or self._records:
                continue
            if not (yield from self._pull()):
                return

    @property
    def _may_be_stale(self) -> bool:  # type: ignore[override]
        """Whether this process was frozen for longer than its lease, so that another may have taken over."""
        return self._lease is not None and self._lease.valid_until < now()

    def _confirm_lease(self) -> Operation[None]:
        lease = self._lease
        if lease is None or not (yield lease.renewal(now())):
            self._take_counts()
            self._restart()
        elif not lease.renewing:
            self._renewer.keep(lease)

    def _restart(self) -> None:
        """Drop everything, and ask the server for a new start: this process cannot know how many of the items that it
        gave are settled."""
        self._stop_renewing()
        self._dead_token = self._token
        self._renew_token()
        self._discard()

    def _stop_renewing(self) -> None:
        if self._lease is not None:
            self._lease.renewing, self._lease = False, None

    def _discard(self) -> None:
        """Drop everything that was pulled and not given."""
        self._records.clear()
        self._ready.clear()
        self._failures.clear()
        self._error = None
        self._items = None
        self._resume_from(Checkpoint(0, ReceiverState()))

    def _settle_reached(self) -> Operation[bool]:
        self._given = self._done = self._reached
        pieces = self._take_counts()
        if not self._ended and (pieces or self._done != self._settled):
            reply = yield from self._settle(pieces)
            if reply.status == "HELD" or reply.is_new_owner:
                return False
            yield from self._note_settled(reply)
        return True

    def _pull(self) -> Operation[bool]:
        """Settle the given items and wait for records. Returns False if the wait is over."""
        yield from self._note_failures()
        self._given = self._done = self._reached
        pieces = self._take_counts()
        if len(pieces) > 1:
            asked = now()
            reply = yield from self._settle(pieces)
            if reply.status == "ENDED" or reply.is_new_owner:
                self._stop_renewing()
                return (yield from self._accept(reply, asked))
            pieces = []
        if self._ahead is not None:
            (reply, asked), self._ahead = self._ahead, None
            yield from self._accept(reply, asked)
        else:
            reply, asked = yield from self._ask(pieces)
            if not (yield from self._accept(reply, asked)):
                return False
            if not self._records or reply.last <= self._position:
                return True
            pieces = []
        yield from self._pull_ahead(pieces)
        return True

    def _ask(self, pieces: Sequence[CountPiece]) -> Operation[tuple[ReceiveReply, float]]:
        """Settle the given items and wait for records. Returns the reply, and when it was asked for."""
        self._stop_renewing()
        settled, counts = self._settled, b"".join(piece.packed for piece in pieces)
        unsettled = [(self._done, counts)]
        asked = 0.0

        def ask(address: str, ttl: float) -> RoundTrip[ReceiveReply]:
            nonlocal asked
            asked = now()
            call = self._receive(unsettled.pop() if unsettled else None, self._next_limit, address, ttl)
            return call.then(self._note_reply)

        while True:
            reply = yield from ask_until(
                self._is_answer, ask, self._channel, self._wait,
                due=lambda reply: reply.due_in, local_check=self._check_for_death,
            )  # fmt: skip
            if self._holder_is_dead(reply):
                self._dead_token = reply.holder
            elif (yield from may_settle_again(self._channel, self._receiver, reply.status)):
                self._settled, unsettled = settled, [(self._done, counts)]
            else:
                return reply, asked

    def _pull_ahead(self, pieces: Sequence[CountPiece]) -> Operation[None]:
        """Settle the given items and ask for more records, while those that were pulled become items."""
        settled, asked = self._settled, now()
        counts = b"".join(piece.packed for piece in pieces)
        sent = yield Send(self._receive((self._done, counts), self._next_limit))
        yield RunInThread(self._make_ready)
        reply = self._note_reply((yield Receive(sent)))  # not before: the thread would continue with dropped records
        if (yield from may_settle_again(self._channel, self._receiver, reply.status)):
            self._settled = settled
            reply = yield from self._settle(pieces)
        if reply.status == "ENDED" or reply.is_new_owner:
            # Another process has received in the meantime, or the channel began again: drop the items that are ready.
            self._stop_renewing()
            self._discard()
            yield from self._accept(reply, asked)
        elif reply.records:
            self._ahead = reply, asked

    def _receive(
        self, unsettled: tuple[Checkpoint, bytes] | None, limit: int, address: str = "", ttl: float = 0.0
    ) -> RoundTrip[ReceiveReply]:
        self._calls += 1
        settled: dict[str, Any] = {}
        if unsettled is not None:
            checkpoint, counts = unsettled
            if counts or checkpoint != self._settled:
                state = encode_state(checkpoint.state)
                settled = {"acked": checkpoint.number, "receiver_state": state, "counts": counts}
                self._settled = checkpoint
        return self._channel.receive(
            self._receiver,
            self._token,
            self._calls,
            lease=self._channel.settings.lease,
            limit=limit,
            dead_token=self._dead_token,
            reached=self._reached_in_server,
            after=self._position,
            position=self._position_id,
            address=address,
            ttl=ttl,
            **settled,
        )

    def _note_reply(self, reply: ReceiveReply) -> ReceiveReply:
        """Note the cursor of every reply, also while the stream keeps waiting, because the server may fall back. A
        process that lost the receiver drops its token, too: after a fall-back the server might know it as the owner."""
        if reply.receiver_state:
            decode_state(reply.receiver_state)
        if reply.status == "OK":
            self._reached_in_server = reply.cursor
        elif reply.status == "HELD" and self._position:
            self._restart()
        return reply

    def _is_answer(self, reply: ReceiveReply) -> bool:
        return (
            reply.status in {"ENDED", "PENDING", "BUSY"}
            or self._holder_is_dead(reply)
            or (reply.status == "OK" and (reply.is_new_owner or reply.last > self._position or bool(reply.records)))
        )

    def _holder_is_dead(self, reply: ReceiveReply) -> bool:
        """Whether the process that receives was on this host, and has died."""
        return reply.status == "HELD" and not may_be_alive(reply.holder, _streams_here)

    def _check_for_death(self, reply: ReceiveReply) -> Callable[[], bool] | None:
        return partial(self._holder_is_dead, reply) if reply.status == "HELD" else None

    def _accept(self, reply: ReceiveReply, asked: float) -> Operation[bool]:
        """Apply a reply. Returns False if it has neither records nor any other change."""
        if reply.status == "ENDED":
            self._ended = True
            self._resume_from(Checkpoint(0, ReceiverState()))
            yield RunInThread(self._on_new_owner)
            yield from self._retry_dead_files()
            return True
        if reply.status != "OK":
            return False
        if not reply.is_new_owner:
            yield RunInThread(partial(self._on_settled, self._settled.number))
        yield from trim_rest(self._channel, reply.more_to_trim)
        if reply.is_new_owner:
            self._dead_token = ""
            state = decode_state(reply.receiver_state) if reply.receiver_state else ReceiverState()
            self._resume_from(Checkpoint(reply.cursor, state))
            self._position_id = reply.cursor_id
            yield RunInThread(self._on_new_owner)
            yield from self._retry_dead_files()
        if reply.restarted:
            self._error = channel_restarted(self._channel, self._receiver, reply.cursor)
        if missed := self._missed(reply):
            for upload_id in self._downloads:
                self._on_dropped(reply.first - 1, upload_id)
            self._resume_from(Checkpoint(reply.first - 1, ReceiverState()))
            self._settled = Checkpoint(reply.cursor, ReceiverState())
            self._error = blocks_missed(self._channel, self._receiver, missed, reply.first)
        self._reached_in_server = reply.cursor
        self._next_limit = reply.next_limit
        self._empty_replies = 0 if reply.records or reply.is_new_owner or missed else self._empty_replies + 1
        if not reply.records:
            if self._empty_replies >= MAX_EMPTY_REPLIES and reply.last > self._position:
                raise self._channel.state_lost("log")
            if reply.is_new_owner or missed or reply.last > self._position:
                return True
            yield self._channel.give_back(self._receiver, self._token)
            return False
        self._records.extend(reply.records)
        self._position, self._position_id = reply.records[-1].number, reply.records[-1].position
        lease = ReceiverLease(self._channel, self._receiver, self._token, self._channel.settings.lease, asked)
        if self._lease is None or self._lease.valid_until < lease.valid_until:
            self._stop_renewing()
            self._lease = lease
            self._renewer.keep(lease)
        return True

    def _missed(self, reply: ReceiveReply) -> int:
        """How many records were dropped before this receiver received them."""
        return max(0, reply.first - 1 - (reply.cursor if reply.is_new_owner else self._position))

    def commit(self) -> Operation[None]:
        """Raises LeaseLost if another process has taken over; then the caller drops its items and leaves."""
        self._done = self._given
        yield from self._note_failures()
        reply = yield from self._settle(self._take_counts())
        if reply.restarted:
            raise channel_restarted(self._channel, self._receiver, reply.cursor)
        if reply.status == "HELD" or reply.is_new_owner:
            raise LeaseLost(
                f"another process receives {self._channel.label} as {self._receiver!r} by now: drop what was not "
                "settled"
            )
        yield from self._note_settled(reply)

    def _note_settled(self, reply: ReceiveReply) -> Operation[None]:
        if reply.status == "ENDED":
            self._ended = True
            yield RunInThread(self._on_new_owner)
        else:
            yield RunInThread(partial(self._on_settled, self._settled.number))

    def _settle(self, pieces: Sequence[CountPiece]) -> Operation[ReceiveReply]:
        def send(counts: bytes) -> RoundTrip[ReceiveReply]:
            return self._receive((done, counts), 0).then(self._note_reply)

        done = self._done
        if len(pieces) > 1:
            self._settled = done  # as `_receive` does: if a deposit fails, `leave` must not settle without the counts
        return (yield from settle(self._channel, self._receiver, pieces, send))

    def leave(self) -> Operation[None]:
        self._stop_renewing()
        try:
            if not self._ended and self._calls:
                self._given = self._done
                if self._done != self._settled:
                    yield from self.commit()
                if not self._ended:
                    yield self._channel.give_back(self._receiver, self._token)
        finally:
            self._renew_token()
            self._discard()
