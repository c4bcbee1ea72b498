"""A reader of a log: it pulls messages, acknowledges them, or follows the log in a loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.core.arguments import check_wait, names_options
from penstock.core.operations import Driver, Operation, RoundTrip, refuse_for_in_loop, verb
from penstock.errors import BadCall
from penstock.messages.bindings import LogBindings, default_on, new_beginning
from penstock.messages.log import ask_until, check_limit, trim_rest
from penstock.messages.message import Mail, Message, check_position
from penstock.messages.replies import LogStatus, PullReply


class LogReader:
    """One reader of a log: the owner of a mailbox, or a member of a chat or one of its devices."""

    _reads_as_empty = b""
    """Refusals of the server that mean that there are no messages."""

    def __init__(self, log: LogBindings, driver: Driver, member: str, device: str) -> None:
        self._log = log
        self._driver = driver
        self._member = member
        self._device = device

    @verb
    @names_options
    def pull(
        self, limit: int = 100, *, after: Message | str | None = None, wait: float | None = 0.0
    ) -> Operation[Mail]:
        """Return up to `limit` messages, from the first one that was not acknowledged. Until they are acknowledged,
        each pull returns the same messages again.

        limit  1 to 1000; fewer are returned when they make up a megabyte
        after  a message, or its id: return the messages after it, also acknowledged ones that are still stored;
               messages that are not stored any more are a gap. If the log began again since, this is ignored, and
               `mail.new_beginning` is set
        wait   seconds to wait for the first message; 0 answers at once, None waits for ever

        One round trip when there are messages. A waiting pull sends one command when it begins, one for each wake-up,
        and one in five minutes. All waits of a process share one connection.
        """
        check_wait("pull", wait)
        check_limit("pull", limit)
        start = "" if after is None else check_position("pull(after=…)", after, self._log.keys.name)
        return self._pull_mail(start, limit, wait)

    def _pull_mail(self, after: str, limit: int, wait: float | None) -> Operation[Mail]:
        reply = yield from self._pull_after(after, limit, wait)
        return reply.mail

    def _pull_after(self, after: str, limit: int, wait: float | None, *, acked: str = "") -> Operation[PullReply]:
        """Acknowledge up to the position `acked`, then read the messages after the position `after`."""

        def ask(address: str, ttl: float) -> RoundTrip[PullReply]:
            return self._pull(limit, acked=acked, after=after, address=address, ttl=ttl)

        restarted = False

        def found(reply: PullReply) -> object:
            nonlocal restarted
            restarted |= reply.new_beginning  # also that of a reply without messages
            return reply.mail or reply.skipped_to

        deadline = None if wait is None else time.monotonic() + wait
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            reply = yield from ask_until(found, ask, self._log, left)
            yield from trim_rest(self._log, reply.more_to_trim)
            yield from self._notify(reply.to_notify)
            restarted |= reply.new_beginning
            if not reply.skipped_to:
                break
            acked, after = "", reply.skipped_to
        if restarted and not reply.new_beginning:
            reply = replace(reply, new_beginning=True, mail=reply.mail.marked())
        return reply

    def _pull(self, limit: int, **options: Any) -> RoundTrip[PullReply]:
        call = self._log.pull(self._member, self._device, limit=limit, **options)
        return default_on(self._reads_as_empty, call, PullReply(0, 0, False, [], Mail()))

    def _notify(self, readers: Sequence[str]) -> Operation[None]:
        """Notify the members of these readers that a chat has news. A mailbox has no members."""
        yield from ()

    @verb
    def ack(self, upto: Message | str) -> Operation[None]:
        """Acknowledge this message and all before it: they are not pulled again, and are freed once every reader has
        acknowledged them. `upto`: the message, or its id.

        A message that was acknowledged before changes nothing. Raises NewBeginning if the log began again since the
        message was read: then nothing is acknowledged. One round trip.
        """
        return self._ack_or_raise(check_position("ack(upto=…)", upto, self._log.keys.name))

    def _ack_or_raise(self, position: str) -> Operation[None]:
        if (yield from self._ack_upto(position)):
            raise new_beginning(self._log, position, "acknowledged")

    def _ack_upto(self, position: str) -> Operation[bool]:
        """Returns whether the log began again since this position, so that nothing was acknowledged."""
        reply = yield self._pull(0, acked=position)
        yield from trim_rest(self._log, reply.more_to_trim)
        return bool(reply.new_beginning)

    @verb
    def mark_unread(self, first: Message | str) -> RoundTrip[None]:
        """Mark this message, and all after it, as not acknowledged: they are unread, and pulled again. `first`: the
        message, or its id.

        A message that was not acknowledged changes nothing. Raises MessageError for one that is not stored any more,
        and for a mailbox whose messages workers claim; NewBeginning if the log began again since. One round trip.
        """
        position = check_position("mark_unread(first=…)", first, self._log.keys.name)
        return self._log.mark_unread(self._member, self._device, position)

    @verb
    def unread(self) -> RoundTrip[int]:
        """How many messages this reader has not acknowledged, without those that its own member sent, and without edits
        and redactions. One round trip, O(log n)."""
        call = self._log.status(self._member, self._device)
        return default_on(self._reads_as_empty, call.then(self._unread_of), 0)

    def _unread_of(self, status: LogStatus) -> int:
        if status.cursor < 0:
            raise self._log.not_a_member(self._member)
        return status.unread

    @verb
    def history(
        self, limit: int = 100, *, before: Message | str | None = None, after: Message | str | None = None
    ) -> RoundTrip[Mail]:
        """A page of messages, oldest first, whether or not they were acknowledged; it moves no cursor.

        before  a message, or its id: the page that ends before it. Page backwards with the first message of each page
        after   a message, or its id: the page that begins after it
        limit   1 to 1000; fewer are returned when they make up a megabyte

        With neither, the last messages. An empty page is the end. If the log began again since, the position is
        ignored, and `new_beginning` is set. One round trip.
        """
        check_limit("history", limit)
        if before is not None and after is not None:
            raise BadCall("history(before=…, after=…): give one of them")
        place = self._log.keys.name
        call = self._log.page(
            self._member,
            limit=limit,
            before="" if before is None else check_position("history(before=…)", before, place),
            after="" if after is None else check_position("history(after=…)", after, place),
        )
        return default_on(self._reads_as_empty, call, Mail())

    def follow(self, *, after: Message | str | None = None, limit: int = 100, ack: bool = True) -> Follow:
        """Iterate over every message, stored or still to come: `for m in follow()` or `async for`.

        A message is done when the loop asks for the next one. The messages that are done are acknowledged once for each
        batch of up to `limit`, so after a crash that many are delivered again. `with follow() as messages:`
        acknowledges them also when the `with` block ends. With `ack=False` only your own `ack` acknowledges.

        after  a message, or its id: begin after it, for instance where a client's last connection ended, even if
               another connection of this reader has acknowledged later messages since; as in `pull`

        If the log begins again, the loop continues with the first message that was not acknowledged, and that message
        has `new_beginning` set.
        """
        check_limit("follow", limit)
        start = "" if after is None else check_position("follow(after=…)", after, self._log.keys.name)
        return Follow(self, self._driver, start, limit, ack)


class Follow:
    """An endless iterator over the messages of one reader, for one loop at a time."""

    def __init__(self, reader: LogReader, driver: Driver, after: str, limit: int, ack: bool) -> None:
        self._reader = reader
        self._driver = driver
        self._limit = limit
        self._ack = ack
        self._batch: deque[Message] = deque()
        self._after = after
        """Position after which it reads on."""
        self._given = ""
        """Position of the message that the loop has now."""
        self._done = ""
        """Position of the last message that the loop is done with."""

    @verb
    def fetch(self) -> Operation[Mail]:
        """Acknowledge the messages that are done, and wait for more, in one round trip. For a loop that you write."""
        acked = self._given if self._ack else ""
        reply = yield from self._reader._pull_after(self._after, self._limit, None, acked=acked)
        return reply.mail

    @verb
    def settle(self) -> Operation[None]:
        """Acknowledge the messages that are done. One round trip."""
        if self._ack and self._done:
            yield from self._reader._ack_upto(self._done)

    def _next(self) -> Message:
        message = self._batch.popleft()
        self._done, self._given = self._given, message.id
        self._after = message.id
        return message

    def __iter__(self) -> Follow:
        refuse_for_in_loop()
        return self

    def __next__(self) -> Message:
        if not self._batch:
            self._batch.extend(self.fetch())
        return self._next()

    def __aiter__(self) -> Follow:
        return self

    async def __anext__(self) -> Message:
        if not self._batch:
            self._batch.extend(await self.fetch.aio())
        return self._next()

    def _finish(self, error: object) -> None:
        """At the end of a `with` block: unless it raised, the current message is done, too."""
        if error is None:
            self._done = self._given

    def __enter__(self) -> Follow:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._finish(error)
        self.settle()

    async def __aenter__(self) -> Follow:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._finish(error)
        await self.settle.aio()
