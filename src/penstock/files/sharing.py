"""Several workers that share the blocks of one receiver: each block to one of them, for a lease, in no order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, RunInThread
from penstock.errors import FileDamaged, FilesError
from penstock.files.bindings import ChannelBindings, Shared
from penstock.files.blocks import ABORT, DATA, Header, Record, block
from penstock.files.intake import missed
from penstock.files.stream import Stream
from penstock.messages.bindings import default_on
from penstock.messages.log import ask_until, check_wait

T = TypeVar("T")

AT_ONCE = 4
"""Records that one worker claims together. More would leave the others idle at the end."""


class Sharing(Stream[T]):
    """One worker. `make`: what becomes of a block."""

    def __init__(
        self, log: ChannelBindings, driver: Driver, who: str, wait: float | None, lease: float,
        make: Callable[[Header, bytes], Iterable[T]],
    ) -> None:  # fmt: skip
        check_wait("receive", wait)
        super().__init__()
        self._log = log
        self._driver = driver
        self._who = who
        self._wait = wait
        self._lease = lease
        self._make = make
        self._claims: list[bytes] = []
        self._records: list[tuple[bytes, Record]] = []
        self._given = self._done = self._reached = 0
        self.ended = False

    def fill(self) -> Operation[None]:
        while not self._ready and self._error is None and not self.ended:
            if not self._records and not (yield from self._claim()):
                return
            yield RunInThread(self._work)

    def _work(self) -> None:
        """`_reached`: how many claims are done with when all is that is ready."""
        while self._records and self._error is None:
            claim, record = self._records.pop(0)
            self._claims.append(claim)
            try:
                if record.kind == DATA:
                    for item in self._make(*block(record)):
                        self._ready.append((item, len(self._claims)))
                elif record.kind == ABORT:
                    raise FileDamaged(record.body.decode(errors="replace"))
            except FilesError as error:
                self._error = error
            self._reached = len(self._claims)

    def _claim(self) -> Operation[bool]:
        """Whether there is anything to do."""
        settled = [(self._claims, self._counted())]
        self._claims, self._given, self._done = [], 0, 0

        def ask(address: str, stay: float) -> RoundTrip[Shared]:
            claims, counted = settled.pop() if settled else ([], b"")
            return self._share(AT_ONCE, claims, counted, address, stay)

        answer = yield from ask_until(
            lambda answer: answer.records or answer.state in {"ENDED", "MISSED"},
            ask, self._log, self._wait, due=lambda answer: 0.0 if answer.state == "LOST" else answer.due,
        )  # fmt: skip
        self.ended = answer.state == "ENDED"
        if answer.state == "MISSED":
            self._error = missed(self._log, self._who, answer.missed, answer.first)
            return True
        self._records = list(zip(answer.claims, answer.records, strict=True))
        return self.ended or bool(self._records)

    def _share(
        self, limit: int, claims: list[bytes], counted: bytes, address: str = "", stay: float = 0.0
    ) -> RoundTrip[Shared]:
        return self._log.share(
            self._who,
            mint_id(),
            lease=self._lease,
            limit=limit,
            counted=counted,
            claims=claims,
            address=address,
            stay=stay,
        )

    def commit(self) -> Operation[None]:
        """What another has by now is neither settled nor counted here."""
        given = self._given
        done, self._claims = self._claims[:given], self._claims[given:]
        self._ready = deque((item, place - given) for item, place in self._ready)
        self._reached -= given
        self._given = self._done = 0
        if done:
            yield self._share(0, done, self._counted())

    def leave(self) -> Operation[None]:
        self._given = self._done
        yield from self.commit()
        rest = self._claims + [claim for claim, _ in self._records]
        self._claims, self._records = [], []
        self._ready.clear()
        if rest and not self.ended:
            yield default_on(
                b"STRANGER GONE", self._log.settle_claims(self._who, "release", rest), None
            )  # others had all
