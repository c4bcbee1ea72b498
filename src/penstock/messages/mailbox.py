"""A mailbox: many post, one reads, with one cursor or with several workers that each take some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.clock import Clock
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import LeaseLost
from penstock.messages.keys import LogKeys
from penstock.messages.log import Claims, Keep, Log, Look, Message, Pulling, Verdict, check_wait, unless
from penstock.settings import Settings

NOBODY = Look(0.0, 0, 1, 0, 0, -1, None, 0, 0)


@dataclass(frozen=True, slots=True)
class MailboxInfo:
    """What a sender may want to know. `pulled`: when its owner last pulled, seconds since 1970 by the server."""

    name: str
    last: int
    """Number of the last message; 0: none was ever posted."""
    unread: int
    bytes: int
    pulled: float | None


class Claimed:
    """A message in the hands of one worker: ack it before its lease runs out, or another gets it."""

    def __init__(self, box: Mailbox, claim: bytes, message: Message) -> None:
        self._box = box
        self._claim = claim
        self.message = message

    @property
    def _driver(self) -> Driver:
        return self._box._driver

    @property
    def id(self) -> int:
        return self.message.id

    @property
    def body(self) -> Any:
        return self.message.body

    @property
    def sender(self) -> str:
        return self.message.sender

    @property
    def at(self) -> float:
        return self.message.at

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""
        return int(self._claim.split(b":", 2)[1])

    def __repr__(self) -> str:
        return f"<Claimed {self._box.name} {self.id}>"

    @verb
    def ack(self) -> Operation[None]:
        """It is done with. Raises LeaseLost when another has it by now. One round trip."""
        return self._box.hand_in("ack", [self])

    @verb
    def release(self) -> Operation[None]:
        """Hand it back: another may have it at once. Raises LeaseLost. One round trip."""
        return self._box.hand_in("release", [self])

    @verb
    def extend(self, lease: float) -> Operation[None]:
        """Its lease now runs out in `lease` seconds from now. Raises LeaseLost. One round trip."""
        return self._box.hand_in("extend", [self], lease)


class Mailbox(Pulling):
    """A named mailbox of the app. It is there from the first post on, until `delete()`."""

    _missing = b"GONE"

    def __init__(self, name: str, driver: Driver, settings: Settings, clock: Clock) -> None:
        super().__init__(Log(LogKeys(settings.prefix, "mailbox", name), settings, clock), driver, "", "")
        self.name = name

    def __repr__(self) -> str:
        return f"<Mailbox {self.name}>"

    # --- who sends ---

    @verb
    def post(self, value: Any, *, sender: str = "", id: str | None = None, wait: float | None = 0.0) -> Operation[int]:
        """Post a value (anything JSON can hold); answers with its number.

        sender  who it is from, as you like
        id      your own id of the message: of those with one id that come within a day and a thousand messages, one is
                posted, and all get its number
        wait    seconds to wait for space in a mailbox that refuses more; 0 raises NoSpace at once, None waits for ever

        One round trip.
        """
        check_wait("post", wait)
        return self._post([(id or "", self._log.encode(value))], sender, wait)

    def _post(self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None) -> Operation[int]:
        numbers, _ = yield from self._log.posted(sender, messages, make=True, wait=wait)
        return int(numbers[0])

    @verb
    def post_many(
        self, values: Iterable[Any], *, sender: str = "", ids: Iterable[str] | None = None, wait: float | None = 0.0
    ) -> Operation[list[int]]:
        """Post many, 500 a round trip; each 500 whole or not at all. All are encoded before the first is sent.

        Answers with their numbers. `ids`: one for each, as in `post`.
        """
        check_wait("post_many", wait)
        bodies = [self._log.encode(value) for value in values]
        named = list(zip([""] * len(bodies) if ids is None else ids, bodies, strict=True))
        return self._post_many(named, sender, wait)

    def _post_many(
        self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None
    ) -> Operation[list[int]]:
        numbers, _ = yield from self._log.posted(sender, messages, make=True, wait=wait)
        return numbers

    @verb
    def info(self) -> RoundTrip[MailboxInfo]:
        """How much is unread, and when its owner last pulled. One round trip, O(1)."""
        return unless(b"GONE", self._log.look(""), NOBODY).then(
            lambda look: MailboxInfo(self.name, look.top, look.unread, look.bytes, look.seen)
        )

    # --- several workers on one mailbox ---

    @verb
    def claim(self, n: int = 1, *, lease: float | None = None, wait: float | None = 0.0) -> Operation[list[Claimed]]:
        """Up to `n` messages that no other worker has: those whose lease ran out first, then new ones.

        wait   seconds to wait for the first one; 0 answers at once, None waits for ever
        lease  seconds until what was not acknowledged goes to another; None: the app's setting

        Either claim or pull from a mailbox: `pull` shows what is claimed, too, and `ack(upto=…)` ends claims. One round
        trip when there are messages.
        """
        chosen = self._log.settings.lease if lease is None else lease
        check_wait("claim", wait, n)
        if not 0.05 <= chosen <= 7 * 86400:
            raise ValueError(f"lease={chosen}: seconds from 0.05 to a week")
        return self._claimed(n, chosen, wait)

    def _claimed(self, n: int, lease: float, wait: float | None) -> Operation[list[Claimed]]:
        token = mint_id()

        def ask(address: str, stay: float) -> RoundTrip[Claims]:
            step = self._log.claim("", token, lease=lease, limit=n, address=address, stay=stay)
            return unless(b"GONE", step, Claims(None, [], []))

        try:
            answer = yield from self._log.until_found(
                wait, ask, lambda answer: answer.messages, lambda answer: answer.due_in
            )
        except BaseException:
            # What the last one may have been handed all the same goes back at once.
            lost = yield ask("", 0.0)
            if lost.messages:
                yield self._log.hand_in("", "release", [claim for claim, _ in lost.messages])
            raise
        return [Claimed(self, claim, message) for claim, message in answer.messages]

    def hand_in(self, verdict: Verdict, items: Sequence[Claimed], seconds: float = 0.0) -> Operation[None]:
        claims = [item._claim for item in items]
        more, lost = yield unless(b"GONE", self._log.hand_in("", verdict, claims, seconds), (False, [0]))
        yield from self._log.trim_rest(more)
        if lost:
            raise LeaseLost(
                f"the lease on message {items[lost[0]].id} of {self._log.what} ran out: another may have it"
            )

    # --- look after ---

    @verb
    def keep(self, keep: Keep) -> Operation[None]:
        """What to keep from now on, and at the limit drop or refuse. One round trip, and one for each slice to free."""
        more = yield self._log.limit(keep, make=True)
        yield from self._log.trim_rest(more)

    @verb
    def delete(self) -> RoundTrip[bool]:
        """All of it; numbers begin anew. False: there was none. One round trip."""
        return self._log.delete()
