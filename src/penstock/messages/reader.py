"""A reader of a log: it pulls messages, acknowledges them, or follows the log in a loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall
from penstock.messages.bindings import LogBindings, LogStatus, PullReply, default_on
from penstock.messages.log import ask_until, check_limit, check_wait, trim_rest
from penstock.messages.message import Mail, Message


class LogReader:
    """One reader of a log: the owner of a mailbox, or a member of a chat or one of its devices."""

    _reads_as_empty = b""
    """Refusals of the server that mean: there are no messages."""

    def __init__(self, log: LogBindings, driver: Driver, member: str, device: str) -> None:
        self._log = log
        self._driver = driver
        self._member = member
        self._device = device

    @verb
    def pull(self, limit: int = 100, *, wait: float | None = 0.0) -> Operation[Mail]:
        """Return up to `limit` messages, from the first one that was not acknowledged. Until they are acknowledged,
        each pull returns the same messages again.

        limit  1 to 1000; fewer are returned when they make up a megabyte
        wait   seconds to wait for the first message; 0 answers at once, None waits for ever

        One round trip when there are messages. A waiting pull sends one command when it begins, one for each wake-up,
        and one in five minutes. All waits of a process share one connection.
        """
        check_wait("pull", wait)
        check_limit("pull", limit)
        reply = yield from self._pull_after(0, limit, wait)
        return reply.mail

    def _pull_after(self, after: int, limit: int, wait: float | None, *, acked: int = 0) -> Operation[PullReply]:
        """Acknowledge up to `acked`, then read messages with numbers above `after`."""

        def ask(address: str, ttl: float) -> RoundTrip[PullReply]:
            return self._pull(limit, acked=acked, after=after, address=address, ttl=ttl)

        reply = yield from ask_until(lambda reply: reply.mail, ask, self._log, wait)
        yield from trim_rest(self._log, reply.more_to_trim)
        yield from self._notify(reply.to_notify)
        return reply

    def _pull(self, limit: int, **options: Any) -> RoundTrip[PullReply]:
        call = self._log.pull(self._member, self._device, limit=limit, **options)
        return default_on(self._reads_as_empty, call, PullReply(0, 0, False, [], Mail()))

    def _notify(self, readers: Sequence[str]) -> Operation[None]:
        """Notify the members of these readers that a chat has news. A mailbox has no members."""
        yield from ()

    @verb
    def ack(self, upto: Message | int) -> Operation[None]:
        """Acknowledge this message and all before it: they are not pulled again, and are freed once every reader has
        acknowledged them.

        A number that was acknowledged before changes nothing. Raises BadCall for a number that no message has. One
        round trip.
        """
        number = upto.id if isinstance(upto, Message) else upto
        if number < 0:
            raise BadCall(f"ack(upto={number}) in {self._log.label}: numbers begin at 1; nothing was acknowledged")
        return self._ack_upto(number)

    def _ack_upto(self, number: int) -> Operation[None]:
        reply = yield self._pull(0, acked=number)
        yield from trim_rest(self._log, reply.more_to_trim)

    @verb
    def unread(self) -> RoundTrip[int]:
        """How many messages this reader has not acknowledged. One round trip, O(1)."""
        call = self._log.status(self._member, self._device)
        return default_on(self._reads_as_empty, call.then(self._unread_of), 0)

    def _unread_of(self, status: LogStatus) -> int:
        if status.cursor < 0:
            raise self._log.not_a_member(self._member)
        return status.unread

    def follow(self, *, limit: int = 100, ack: bool = True) -> Follow:
        """Iterate over every message, those that are there and those to come: `for m in follow()` or `async for`.

        A message is done when the loop asks for the next one. The messages that are done are acknowledged once for each
        batch of up to `limit`, so after a crash that many are delivered again. `with follow() as messages:`
        acknowledges them also when the `with` block ends. With `ack=False` only your own `ack` acknowledges.
        """
        check_limit("follow", limit)
        return Follow(self, self._driver, limit, ack)


class Follow:
    """An endless iterator over the messages of one reader, for one loop at a time."""

    def __init__(self, reader: LogReader, driver: Driver, limit: int, ack: bool) -> None:
        self._reader = reader
        self._driver = driver
        self._limit = limit
        self._ack = ack
        self._batch: deque[Message] = deque()
        self._given = 0
        """Number of the message that the loop has now."""
        self._done = 0
        """Number of the last message that the loop is done with."""

    @verb
    def fetch(self) -> Operation[Mail]:
        """Acknowledge the messages that are done, and wait for more, in one round trip; for a loop of your own."""
        acked = self._given if self._ack else 0
        reply = yield from self._reader._pull_after(self._given, self._limit, None, acked=acked)
        return reply.mail

    @verb
    def settle(self) -> Operation[None]:
        """Acknowledge the messages that are done. One round trip."""
        if self._ack and self._done:
            yield from self._reader._ack_upto(self._done)

    def _next(self) -> Message:
        message = self._batch.popleft()
        self._done, self._given = self._given, message.id
        return message

    def __iter__(self) -> Follow:
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
