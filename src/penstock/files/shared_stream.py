"""Several processes that share one receiver: each block goes to one of them, under a lease, in no order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, RunInThread
from penstock.errors import FileDamaged, FilesError
from penstock.files.bindings import ChannelBindings, ShareReply
from penstock.files.records import ABORT, DATA, BlockHeader, ChannelRecord, read_block
from penstock.files.stream import ReceiverStream, blocks_missed
from penstock.messages.bindings import default_on
from penstock.messages.log import ask_until, check_wait

T = TypeVar("T")

CLAIMED_RECORDS = 4
"""Records that one process claims together. With more of them the other processes would be idle at the end."""


class SharedStream(ReceiverStream[T]):
    """The items of one of several processes that share a receiver. `make_items` turns a block into items.

    A checkpoint is a number n: the first n of `self._claims` are done.
    """

    def __init__(
        self, channel: ChannelBindings, driver: Driver, receiver: str, wait: float | None, lease: float,
        make_items: Callable[[BlockHeader, bytes], Iterable[T]],
    ) -> None:  # fmt: skip
        check_wait("receive", wait)
        super().__init__()
        self._channel = channel
        self._driver = driver
        self._receiver = receiver
        self._wait = wait
        self._claim_lease = lease
        self._make_items = make_items
        self._claims: list[bytes] = []
        """Claims of the records that were processed."""
        self._records: list[tuple[bytes, ChannelRecord]] = []
        """Claims and records that were not processed yet."""
        self._given = self._done = self._reached = 0
        self._ended = False

    def fill(self) -> Operation[None]:
        while not self._ready and self._error is None and not self._ended:
            if not self._records and not (yield from self._claim()):
                return
            yield RunInThread(self._process)

    def _process(self) -> None:
        """Turn claimed records into ready items, until an error occurs."""
        while self._records and self._error is None:
            claim, record = self._records.pop(0)
            self._claims.append(claim)
            try:
                if record.kind == DATA:
                    for item in self._make_items(*read_block(record)):
                        self._ready.append((item, len(self._claims)))
                elif record.kind == ABORT:
                    raise FileDamaged(record.body.decode(errors="replace"))
            except FilesError as error:
                self._error = error
            self._reached = len(self._claims)

    def _claim(self) -> Operation[bool]:
        """Settle what was given and wait for records. Returns False if the wait is over."""
        unsettled = [(self._claims, self._take_counts())]
        self._claims, self._given, self._done = [], 0, 0

        def ask(address: str, ttl: float) -> RoundTrip[ShareReply]:
            claims, counts = unsettled.pop() if unsettled else ([], b"")
            return self._share(CLAIMED_RECORDS, claims, counts, address, ttl)

        reply = yield from ask_until(
            lambda reply: reply.records or reply.status in {"ENDED", "MISSED"}, ask, self._channel, self._wait,
            own_address=True, shared_reader=self._receiver, interval=self._channel.settings.sleep,
            due=lambda reply: 0.0 if reply.status == "LOST" else reply.due_in,
        )  # fmt: skip
        self._ended = reply.status == "ENDED"
        if reply.status == "MISSED":
            self._error = blocks_missed(self._channel, self._receiver, reply.missed, reply.first)
            return True
        self._records = list(zip(reply.claims, reply.records, strict=True))
        return self._ended or bool(self._records)

    def _share(
        self, limit: int, claims: list[bytes], counts: bytes, address: str = "", ttl: float = 0.0
    ) -> RoundTrip[ShareReply]:
        return self._channel.share(
            self._receiver, mint_id(), lease=self._claim_lease, limit=limit, counts=counts, claims=claims,
            address=address, ttl=ttl,
        )  # fmt: skip

    def commit(self) -> Operation[None]:
        """If another process has one of the claims by now, nothing is settled or counted."""
        given = self._given
        done, self._claims = self._claims[:given], self._claims[given:]
        self._ready = deque((item, claims - given) for item, claims in self._ready)
        self._reached -= given
        self._given = self._done = 0
        if done:
            yield self._share(0, done, self._take_counts())

    def leave(self) -> Operation[None]:
        self._given = self._done
        yield from self.commit()
        rest = self._claims + [claim for claim, _ in self._records]
        self._claims, self._records = [], []
        self._ready.clear()
        if rest and not self._ended:
            # A receiver or a channel that is gone needs no release: the other processes have received everything.
            yield default_on(b"NOT_A_MEMBER GONE", self._channel.settle_claims(self._receiver, "release", rest), None)
