"""A mailbox: many senders post to it, and one reader pulls from it; several workers may share that reader."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.arguments import check_many, check_number, check_wait, check_whole, names_options
from penstock.core.clock import Clock
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall, LeaseLost
from penstock.messages.bindings import ClaimAction, LogBindings, default_on
from penstock.messages.dead_messages import DeadMessages
from penstock.messages.keys import LogKeys
from penstock.messages.log import (
    ask_until,
    check_limit,
    check_post,
    check_sender,
    check_ttl,
    post_all,
    trim_rest,
    wake_rest,
)
from penstock.messages.message import History, Keep, Message
from penstock.messages.reader import LogReader
from penstock.messages.replies import ClaimReply, LogStatus
from penstock.sealing import seal_text
from penstock.settings import Settings

MAX_DELIVERIES = 20
"""Deliveries after which a claimed message becomes a dead letter, unless a claim says otherwise."""

MIN_LEASE, MAX_LEASE = 0.05, 7 * 86400.0
MAX_REASON = 10_000
"""The most bytes of the reason of a dead letter."""


def _seconds(what: str, name: str, seconds: float, least: float) -> float:
    check_number(what, name, seconds, least, MAX_LEASE, f"seconds from {least:g} to a week")
    return seconds


NO_LOG = LogStatus(0.0, 0, 1, 0, 0, 0, None, -1, None, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class MailboxInfo:
    """The state of a mailbox, as its senders see it.

    last       number of the last message; 0 if none was ever posted
    unread     messages that the owner has not acknowledged
    bytes      of the messages that are kept: senders and bodies, plus 32 bytes for each
    pulled     when the owner last pulled, in seconds since 1970 by the server's clock, or None
    ids        message ids that are kept, so that a message that is posted again is recognised
    ids_since  when the oldest of them was given, in seconds since 1970, or None
    claimed    messages that workers have claimed, or released until later
    dead       dead letters
    """

    name: str
    last: int
    unread: int
    bytes: int
    pulled: float | None
    ids: int = 0
    ids_since: float | None = None
    claimed: int = 0
    dead: int = 0


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
        """The position of the message, as `Message.id`."""
        return self.message.id

    @property
    def number(self) -> int:
        """The number of the message in its mailbox."""
        return self.message.number

    @property
    def body(self) -> Any:
        """The value that was posted. Raises SealError if this program cannot open it."""
        return self.message.body

    @property
    def sender(self) -> str:
        """The `sender` of the post; "" if it named none."""
        return self.message.sender

    @property
    def at(self) -> float:
        """When the server accepted the message, in seconds since 1970 by its clock."""
        return self.message.at

    @property
    def deliveries(self) -> int:
        """How often the message was handed to a worker, this time included."""
        return int(self._claim.split(b":", 2)[1])

    def __repr__(self) -> str:
        return f"<Claimed {self._mailbox.name} {self.number}>"

    @verb
    def ack(self) -> Operation[None]:
        """Acknowledge the message as done. Raises LeaseLost if another worker has taken it over. One round trip."""
        return self._mailbox._settle("ack", [self])

    @verb
    def release(self, delay: float = 0.0) -> Operation[None]:
        """Hand the message back, so that another worker may have it `delay` seconds from now. Raises LeaseLost. One
        round trip."""
        return self._mailbox._settle("release", [self], _seconds("release", "delay", delay, 0.0))

    @verb
    def reject(self, reason: str = "") -> Operation[None]:
        """End the message without success: it becomes a dead letter of the mailbox, with this reason. Raises LeaseLost.
        One round trip."""
        return self._bury("reject", reason)

    @verb
    def fail(self, reason: str = "") -> Operation[None]:
        """Do the same as `reject`, under the name that jobs use."""
        return self._bury("fail", reason)

    def _bury(self, verb: str, reason: str) -> Operation[None]:
        if not isinstance(reason, str):
            raise BadCall(f"{verb}(reason={reason!r:.100}): give a text")
        shown = reason.encode(errors="replace")[:MAX_REASON].decode(errors="ignore")
        sealed = seal_text(shown, self._mailbox._log.settings.seal)
        return self._mailbox._settle("bury", [self], reason=sealed)

    @verb
    def extend(self, lease: float) -> Operation[None]:
        """Let the lease run out `lease` seconds from now. Raises LeaseLost. One round trip."""
        return self._mailbox._settle("extend", [self], _seconds("extend", "lease", lease, MIN_LEASE))


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
    def post(
        self, value: Any, *, sender: str = "", id: str | None = None, ttl: float | None = None, wait: float | None = 0.0
    ) -> Operation[str]:
        """Post a value (anything that JSON can hold). Returns the id of the message, as its reader gets it.

        sender  who it is from; any text you like
        id      your own id for the message. If this sender used it within the last ten minutes, the message is not
                posted again, and the call returns the id of the first one. A mailbox keeps 10,000 ids of a sender and
                100,000 in all; above that, TooManyIds is raised
        ttl     seconds after which the message is not delivered any more; None: no limit. Until a reader or a worker
                has reached it, it still counts as unread
        wait    seconds to wait for space in a mailbox that refuses messages at its limit; 0 raises NoSpace at once,
                None waits for ever

        One round trip.
        """
        messages = check_post("post", [self._log.encode(value)], [id], wait)
        return self._post(messages, check_sender(sender), wait, check_ttl("post", ttl))

    def _post(
        self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None, ttl: float
    ) -> Operation[str]:
        (position,) = yield from self._post_many(messages, sender, wait, ttl)
        return position

    @verb
    def post_many(
        self,
        values: Iterable[Any],
        *,
        sender: str = "",
        ids: Iterable[str | None] | None = None,
        ttl: float | None = None,
        wait: float | None = 0.0,
    ) -> Operation[list[str]]:
        """Post many values. Returns the ids of the messages.

        All values are encoded before the first is sent. A round trip posts 500 of them, either all or none. `ids`: one
        for each value, as in `post`.
        """
        check_many("post_many", "values", values, letters=True)
        bodies = [self._log.encode(value) for value in values]
        messages = check_post("post_many", bodies, ids, wait)
        return self._post_many(messages, check_sender(sender), wait, check_ttl("post_many", ttl))

    def _post_many(
        self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None, ttl: float
    ) -> Operation[list[str]]:
        positions, _ = yield from post_all(self._log, sender, messages, create=True, wait=wait, lifetime=ttl)
        return positions

    @verb
    def info(self) -> RoundTrip[MailboxInfo]:
        """How much is unread, and when the owner last pulled. One round trip, O(1)."""
        return self.read_info()

    def read_info(self) -> RoundTrip[MailboxInfo]:
        return default_on(b"GONE", self._log.status(""), NO_LOG).then(
            lambda status: MailboxInfo(
                self.name,
                status.last,
                status.unread,
                status.bytes,
                status.seen,
                status.ids,
                status.ids_since,
                status.claimed,
                status.dead,
            )
        )

    # --- several workers that share one mailbox ---

    @verb
    @names_options
    def claim(
        self,
        n: int = 1,
        *,
        lease: float | None = None,
        max_deliveries: int | None = MAX_DELIVERIES,
        wait: float | None = 0.0,
    ) -> Operation[list[Claimed]]:
        """Claim up to `n` messages that no other worker has: first those whose lease ran out, then new ones.

        lease           seconds until a message that was not acknowledged goes to another worker; None: the app's
                        setting
        max_deliveries  a message that was delivered this many times, and never acknowledged, becomes a dead letter
                        instead of being delivered once more. A release counts as a delivery, too. None: no limit
        wait            seconds to wait for the first message; 0 answers at once, None waits for ever

        Use either `claim` or `pull` on a mailbox, not both: `pull` also returns claimed messages, and `ack(upto=…)`
        ends their claims. One round trip when there are messages.
        """
        chosen = self._log.settings.lease if lease is None else lease
        check_wait("claim", wait)
        check_limit("claim", n)
        if max_deliveries is not None:
            check_whole("claim", "max_deliveries", max_deliveries, 1, 10**9, "1 or more, or None for no limit")
        return self._claim(n, _seconds("claim", "lease", chosen, MIN_LEASE), max_deliveries or 0, wait)

    def _claim(self, n: int, lease: float, max_deliveries: int, wait: float | None) -> Operation[list[Claimed]]:
        token = mint_id()
        deadline = None if wait is None else time.monotonic() + wait
        restarted = False

        def found(reply: ClaimReply) -> object:
            nonlocal restarted
            restarted |= reply.new_beginning  # also that of a reply without messages
            return reply.messages or reply.due_in == 0.0

        def ask(address: str, ttl: float) -> RoundTrip[ClaimReply]:
            call = self._log.claim(
                "", token, lease=lease, limit=n, max_deliveries=max_deliveries, address=address, ttl=ttl
            )
            return default_on(b"GONE", call, ClaimReply(None, []))

        try:
            reply = ClaimReply(0.0, [])
            while not reply.messages and reply.due_in == 0.0:  # it has only found messages that it passed over
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                reply = yield from ask_until(
                    found,
                    ask,
                    self._log,
                    left,
                    own_address=True,
                    shared_reader="",
                    due=lambda reply: reply.due_in,
                    interval=self._log.settings.sleep,
                )
            restarted |= reply.new_beginning
        except BaseException:
            # The server may have returned messages in a reply that never arrived: give them back at once.
            lost = yield ask("", 0.0)
            if lost.messages:
                yield self._log.settle_claims("", "release", [claim for claim, _ in lost.messages])
            raise
        messages = [Claimed(self, claim, message) for claim, message in reply.messages]
        for first in messages[:1] if restarted else ():
            first.message = replace(first.message, new_beginning=True)
        return messages

    def _settle(
        self, action: ClaimAction, messages: Sequence[Claimed], seconds: float = 0.0, reason: str = ""
    ) -> Operation[None]:
        claims = [message._claim for message in messages]
        call = self._log.settle_claims("", action, claims, seconds, reason)
        more_to_trim, lost = yield default_on(b"GONE", call, (False, [0]))
        yield from trim_rest(self._log, more_to_trim)
        if lost:
            raise LeaseLost(
                f"message {messages[lost[0]].number} of {self._log.label} is not claimed here any longer: its lease "
                "ran out, and another may have it, or a reader that pulls has acknowledged it"
            )

    @property
    def dead(self) -> DeadMessages:
        """The dead letters of this mailbox. No round trip."""
        return DeadMessages(self._log, self._driver)

    # --- the mailbox as a whole ---

    @verb
    def keep(self, keep: Keep | None = None, *, history: History | None = None) -> Operation[None]:
        """Change how many unread messages the mailbox keeps, and how much history of acknowledged ones; None leaves a
        setting unchanged. Messages above the new limits are freed at once, in slices. One round trip, and one more for
        each further slice."""
        more_to_trim = yield self._log.limit(keep, create=True, history=history)
        yield from trim_rest(self._log, more_to_trim)

    @verb
    def delete(self) -> Operation[bool]:
        """Delete the mailbox and its messages. Returns False if there was no mailbox. One round trip, and one more for
        each 64 processes that wait for its messages.

        If somebody posts to this mailbox again within a day, its numbers continue where they ended, so that an old
        position is recognised as one of the deleted mailbox."""
        existed, wake = yield self._log.delete()
        yield from wake_rest(self._log, wake)
        return bool(existed)
