"""Several processes that share one receiver: each block goes to one of them, under a lease, in no order.

The leases are renewed for as long as the process lives, however long it works on a block. So `lease` bounds only the
wait for the blocks of a process that died or froze. Each block is settled by itself: a process that lost a block loses
the work on that block alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from penstock.core.arguments import check_wait
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, RunInThread
from penstock.core.renewal import Renewer, now
from penstock.errors import FileDamaged, FilesError
from penstock.files.bindings import ChannelBindings
from penstock.files.dead_files import FileFailure
from penstock.files.leases import ClaimsLease
from penstock.files.records import ABORT, DATA, BlockHeader, ChannelRecord, is_upload_id, read_block
from penstock.files.replies import ShareReply
from penstock.files.settlement import CountPiece, may_settle_again, settle
from penstock.files.stream import ReceiverStream, blocks_missed, channel_restarted
from penstock.messages.bindings import default_on
from penstock.messages.log import ask_until

T = TypeVar("T")

CLAIMED_RECORDS = 16
"""Records that one process claims together, up to a megabyte. With more of them the other processes would be idle at
the end; with fewer, small files would take a round trip each."""


SETTLED_KEYS = 800
"""The most keys that one call adds for claims that are settled together."""


class SharedStream(ReceiverStream[T]):
    """The items of one of several processes that share a receiver. `make_items` turns a block into items.

    A checkpoint is a number n: the first n of `self._claims` are done.
    """

    def __init__(
        self,
        channel: ChannelBindings,
        driver: Driver,
        renewer: Renewer,
        receiver: str,
        wait: float | None,
        lease: float,
        make_items: Callable[[BlockHeader, bytes | memoryview], Iterable[T]],
    ) -> None:
        check_wait("receive", wait)
        super().__init__()
        self._channel = channel
        self._driver = driver
        self._renewer = renewer
        self._receiver = receiver
        self._wait = wait
        self._claim_lease = lease
        self._make_items = make_items
        self._claims: list[bytes] = []
        """Claims of the records that were processed."""
        self._collected: list[list[CountPiece]] = []
        """The counts of the first claims of `_claims`, one for each, which are ready to be settled."""
        self._records: list[tuple[bytes, ChannelRecord]] = []
        """Claims and records that were not processed yet."""
        self._lease: ClaimsLease | None = None
        self._given = self._done = self._reached = 0
        self._ended = False

    def fill(self) -> Operation[None]:
        while not self._ready and self._error is None and not self._ended:
            if not self._records and not (yield from self._claim()):
                return
            yield RunInThread(self._process)
        if not self._ready and self._error is not None:
            yield from self._settle_error()

    def _settle_reached(self) -> Operation[bool]:
        if last := (yield from self._settle_all_but_last(self._take_settled(len(self._claims)))):
            yield from self._settle_group(last)
        self._given = self._done = self._reached = 0
        return True

    def _process(self) -> None:
        """Turn claimed records into ready items, until an error occurs."""
        while self._records and self._error is None:
            claim, record = self._records.pop(0)
            items: Sequence[T] = ()
            try:
                if record.kind == DATA:
                    items = [*self._make_items(*read_block(record))]
                elif record.kind == ABORT:
                    raise FileDamaged(record.body.decode(errors="replace"))
            except FilesError as error:
                self._error = error
                if isinstance(error, FileDamaged) and record.kind == DATA:
                    id = record.upload_id if is_upload_id(record.upload_id) else f"{record.number}"
                    self._failures.append((id, FileFailure("", "", str(error))))
            # A claim is done with the last of its items.
            self._ready.extend((item, len(self._claims)) for item in items[:-1])
            self._claims.append(claim)
            self._ready.extend((item, len(self._claims)) for item in items[-1:])
            self._reached = len(self._claims)

    @property
    def deliveries(self) -> int:
        """How often the block of the item that was given last has been delivered."""
        return int(self._claims[self._given - 1].split(b":")[1]) if self._given else 1

    def _next(self, stop: type[Exception]) -> T:
        self._collect(self._given)
        return super()._next(stop)

    def take_ready(self) -> Iterator[T]:
        for item in super().take_ready():
            yield item
            self._collect(self._given)

    def _collect(self, done: int) -> None:
        """Note the counts of the first `done` claims. The counts since the last call belong to the last one of them,
        because the others had no items."""
        if done > len(self._collected):
            self._collected += [[] for _ in range(done - len(self._collected))]
            self._collected[-1] = self._take_counts()

    def _take_settled(self, done: int) -> list[tuple[bytes, list[CountPiece]]]:
        """The first `done` claims with their counts; later claims remain."""
        self._collect(min(done, self._given))
        without_counts = done - len(self._collected)
        settled = list(zip(self._claims[:done], self._collected + [[]] * without_counts, strict=True))
        self._claims, self._collected = self._claims[done:], []
        if self._lease is not None:
            self._lease.claims = self._claims + [claim for claim, _ in self._records]
        return settled

    def _claim(self) -> Operation[bool]:
        """Settle the given items and wait for records. Returns False if the wait is over."""
        self._stop_renewing()
        last = yield from self._settle_all_but_last(self._take_settled(len(self._claims)))
        unsettled = [last]
        self._given = self._done = self._reached = 0
        asked = 0.0

        def ask(address: str, ttl: float) -> RoundTrip[ShareReply]:
            nonlocal asked
            asked = now()
            return self._share(CLAIMED_RECORDS, unsettled.pop() if unsettled else [], address, ttl)

        while True:
            reply = yield from ask_until(
                lambda reply: reply.records or reply.status in {"ENDED", "MISSED", "RESTARTED", "PENDING", "BUSY"},
                ask,
                self._channel,
                self._wait,
                own_address=True,
                shared_reader=self._receiver,
                interval=self._channel.settings.sleep,
                due=lambda reply: reply.due_in,
            )
            if not (yield from may_settle_again(self._channel, self._receiver, reply.status)):
                break
            unsettled = [last]
        self._ended = reply.status == "ENDED"
        if reply.status == "MISSED":
            self._error = blocks_missed(self._channel, self._receiver, reply.missed, reply.first)
            return True
        if reply.status == "RESTARTED":
            self._error = channel_restarted(self._channel, self._receiver, reply.first - 1)
            return True
        self._records = list(zip(reply.claims, reply.records, strict=True))
        if self._records:
            self._lease = ClaimsLease(self._channel, self._receiver, [*reply.claims], self._claim_lease, asked)
            self._renewer.keep(self._lease)
        return self._ended or bool(self._records)

    def _settle_all_but_last(
        self, settled: list[tuple[bytes, list[CountPiece]]]
    ) -> Operation[list[tuple[bytes, bytes]]]:
        """Settle claims in calls with a bounded number of keys each. Returns the claims for the last call, with their
        counts."""
        group: list[tuple[bytes, bytes]] = []
        keys = 0
        for claim, pieces in settled:
            more = sum(piece.keys for piece in pieces)
            if group and keys + more > SETTLED_KEYS:
                yield from self._settle_group(group)
                group, keys = [], 0
            if len(pieces) > 1:

                def call(counts: bytes, claim: bytes = claim) -> RoundTrip[ShareReply]:
                    return self._share(0, [(claim, counts)])

                yield from settle(self._channel, self._receiver, pieces, call)
            else:
                group.append((claim, b"".join(piece.packed for piece in pieces)))
                keys += more
        return group

    def _settle_group(self, group: list[tuple[bytes, bytes]]) -> Operation[None]:
        while True:
            reply: ShareReply = yield self._share(0, group)
            if not (yield from may_settle_again(self._channel, self._receiver, reply.status)):
                return

    def _stop_renewing(self) -> None:
        if self._lease is not None:
            self._lease.renewing, self._lease = False, None

    def _share(
        self, limit: int, settled: Sequence[tuple[bytes, bytes]], address: str = "", ttl: float = 0.0
    ) -> RoundTrip[ShareReply]:
        return self._channel.share(
            self._receiver, mint_id(), lease=self._claim_lease, limit=limit, settled=settled, address=address, ttl=ttl
        )

    def commit(self) -> Operation[None]:
        """Skips a claim that another process has taken over, with its counts."""
        given = max(self._given, len(self._collected))
        settled = self._take_settled(given)
        self._ready = deque((item, claims - given) for item, claims in self._ready)
        self._reached -= given
        self._given = self._done = 0
        if last := (yield from self._settle_all_but_last(settled)):
            yield from self._settle_group(last)

    def leave(self) -> Operation[None]:
        self._stop_renewing()
        self._given = self._done
        yield from self.commit()
        rest = self._claims + [claim for claim, _ in self._records]
        self._claims, self._records = [], []
        self._ready.clear()
        if rest and not self._ended:
            # A receiver or a channel that is gone needs no release: the other processes have received everything.
            yield default_on(b"NOT_A_MEMBER GONE", self._channel.settle_claims(self._receiver, "release", rest), None)
