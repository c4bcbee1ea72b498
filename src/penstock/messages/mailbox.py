"""A mailbox: many senders post to it, and one reader pulls from it; several workers may share that reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.clock import Clock
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import LeaseLost
from penstock.messages.bindings import ClaimAction, ClaimReply, LogBindings, LogStatus, default_on
from penstock.messages.keys import LogKeys
from penstock.messages.log import (
    ask_until,
    check_limit,
    check_post,
    check_sender,
    check_wait,
    post_all,
    trim_rest,
    wake_rest,
)
from penstock.messages.message import Keep, Message
from penstock.messages.reader import LogReader
from penstock.settings import Settings

NO_LOG = LogStatus(0.0, 0, 1, 0, 0, 0, None, -1, None, 0, 0)


@dataclass(frozen=True, slots=True)
class MailboxInfo:
    """The state of a mailbox, as its senders see it.

    last       number of the last message; 0 if none was ever posted
    unread     messages that the owner has not acknowledged
    bytes      of the messages that are kept: senders and bodies, plus 32 bytes for each
    pulled     when the owner last pulled, in seconds since 1970 by the server's clock, or None
    ids        message ids that are kept, so that a message that is posted again is recognised
    ids_since  when the oldest of them was given, in seconds since 1970, or None
    """

    name: str
    last: int
    unread: int
    bytes: int
    pulled: float | None
    ids: int = 0
    ids_since: float | None = None


class Claimed:
    """A message that one worker has claimed. Acknowledge it before its lease runs out, or another worker gets it."""

    def __init__(self, mailbox: Mailbox, claim: bytes, message: Message) -> None:
        self._mailbox = mailbox
        self._claim = claim
        self.message = message

    @property
    def _driver(self) -> Driver:
        return self._mailbox._driver

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def number(self) -> int:
        return self.message.number

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
        """How often the message was handed to a worker, this time included."""
        return int(self._claim.split(b":", 2)[1])

    def __repr__(self) -> str:
        return f"<Claimed {self._mailbox.name} {self.number}>"

    @verb
    def ack(self) -> Operation[None]:
        """Acknowledge the message as done. Raises LeaseLost if another worker has it by now. One round trip."""
        return self._mailbox._settle("ack", [self])

    @verb
    def release(self) -> Operation[None]:
        """Hand the message back, so that another worker may have it at once. Raises LeaseLost. One round trip."""
        return self._mailbox._settle("release", [self])

    @verb
    def extend(self, lease: float) -> Operation[None]:
        """Let the lease run out `lease` seconds from now. Raises LeaseLost. One round trip."""
        return self._mailbox._settle("extend", [self], lease)


class Mailbox(LogReader):
    """A named mailbox of the app. It exists from the first post on, until `delete()`."""

    _reads_as_empty = b"GONE"

    def __init__(self, name: str, driver: Driver, settings: Settings, clock: Clock) -> None:
        super().__init__(LogBindings(LogKeys(settings.prefix, "mailbox", name), settings, clock), driver, "", "")
        self.name = name

    def __repr__(self) -> str:
        return f"<Mailbox {self.name}>"

    # --- send ---

    @verb
    def post(self, value: Any, *, sender: str = "", id: str | None = None, wait: float | None = 0.0) -> Operation[str]:
        """Post a value (anything that JSON can hold). Returns the id of the message, as its reader gets it.

        sender  who it is from; any text you like
        id      your own id for the message. If this sender used it within the last ten minutes, the message is not
                posted again, and the call returns the id of the first one. A mailbox keeps 10,000 ids of a sender and
                100,000 in all; above that, TooManyIds is raised
        wait    seconds to wait for space in a mailbox that refuses messages at its limit; 0 raises NoSpace at once,
                None waits for ever

        One round trip.
        """
        return self._post(check_post("post", [self._log.encode(value)], [id], wait), check_sender(sender), wait)

    def _post(self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None) -> Operation[str]:
        (position,) = yield from self._post_many(messages, sender, wait)
        return position

    @verb
    def post_many(
        self, values: Iterable[Any], *, sender: str = "", ids: Iterable[str] | None = None, wait: float | None = 0.0
    ) -> Operation[list[str]]:
        """Post many values. Returns the ids of the messages.

        All values are encoded before the first is sent. A round trip posts 500 of them, either all or none. `ids`: one
        for each value, as in `post`.
        """
        bodies = [self._log.encode(value) for value in values]
        return self._post_many(check_post("post_many", bodies, ids, wait), check_sender(sender), wait)

    def _post_many(
        self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None
    ) -> Operation[list[str]]:
        positions, _ = yield from post_all(self._log, sender, messages, create=True, wait=wait)
        return positions

    @verb
    def info(self) -> RoundTrip[MailboxInfo]:
        """How much is unread, and when the owner last pulled. One round trip, O(1)."""
        return default_on(b"GONE", self._log.status(""), NO_LOG).then(
            lambda status: MailboxInfo(
                self.name, status.last, status.unread, status.bytes, status.seen, status.ids, status.ids_since
            )
        )

    # --- several workers that share one mailbox ---

    @verb
    def claim(self, n: int = 1, *, lease: float | None = None, wait: float | None = 0.0) -> Operation[list[Claimed]]:
        """Claim up to `n` messages that no other worker has: first those whose lease ran out, then new ones.

        lease  seconds until a message that was not acknowledged goes to another worker; None: the app's setting
        wait   seconds to wait for the first message; 0 answers at once, None waits for ever

        Use either `claim` or `pull` on a mailbox, not both: `pull` also returns claimed messages, and `ack(upto=…)`
        ends their claims. One round trip when there are messages.
        """
        chosen = self._log.settings.lease if lease is None else lease
        check_wait("claim", wait)
        check_limit("claim", n)
        if not 0.05 <= chosen <= 7 * 86400:
            raise ValueError(f"lease={chosen}: seconds from 0.05 to a week")
        return self._claim(n, chosen, wait)

    def _claim(self, n: int, lease: float, wait: float | None) -> Operation[list[Claimed]]:
        token = mint_id()

        def ask(address: str, ttl: float) -> RoundTrip[ClaimReply]:
            call = self._log.claim("", token, lease=lease, limit=n, address=address, ttl=ttl)
            return default_on(b"GONE", call, ClaimReply(None, []))

        try:
            reply = yield from ask_until(
                lambda reply: reply.messages, ask, self._log, wait,
                own_address=True, shared_reader="", due=lambda reply: reply.due_in, interval=self._log.settings.sleep,
            )  # fmt: skip
        except BaseException:
            # The server may have handed out messages in a reply that never arrived: give them back at once.
            lost = yield ask("", 0.0)
            if lost.messages:
                yield self._log.settle_claims("", "release", [claim for claim, _ in lost.messages])
            raise
        return [Claimed(self, claim, message) for claim, message in reply.messages]

    def _settle(self, action: ClaimAction, messages: Sequence[Claimed], seconds: float = 0.0) -> Operation[None]:
        claims = [message._claim for message in messages]
        call = self._log.settle_claims("", action, claims, seconds)
        more_to_trim, lost = yield default_on(b"GONE", call, (False, [0]))
        yield from trim_rest(self._log, more_to_trim)
        if lost:
            raise LeaseLost(
                f"the lease on message {messages[lost[0]].number} of {self._log.label} ran out: another may have it"
            )

    # --- the mailbox as a whole ---

    @verb
    def keep(self, keep: Keep) -> Operation[None]:
        """Replace the limits on what is kept. One round trip, and one more for each slice that is freed."""
        more_to_trim = yield self._log.limit(keep, create=True)
        yield from trim_rest(self._log, more_to_trim)

    @verb
    def delete(self) -> Operation[bool]:
        """Delete the mailbox and its messages. Returns False if there was no mailbox. One round trip, and one more for
        each 64 processes that wait for its messages.

        The numbers of a mailbox that is posted to within a day continue, so that an old position is recognised."""
        existed, wake = yield self._log.delete()
        yield from wake_rest(self._log, wake)
        return bool(existed)
