"""One connection of the asyncio face: many commands under way, and the task that reads their replies in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.driver.connector import Command, packer
from penstock.driver.interruption import Interruption, interruption, raise_if_interrupted, report
from penstock.driver.library import copied_socket, end_writer, socket_number, stream_writer
from penstock.driver.retrying import SILENT, UNANSWERED, error_code, is_error_reply, is_of_asyncio

# While the event loop is blocked, replies may arrive, but no task reads them. So an overdue reply counts as lost only
# after this many more seconds, in which the reader may find it.
_LAST_CHANCE = 0.1

# A command of at most this many bytes is written to an empty buffer without waiting until the socket took it.
_SENT_AT_ONCE = 65_536


class AioConnection:
    """One connection of the client library, and the task that reads it."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._pack = packer()
        self._loop = asyncio.get_running_loop()
        # For each reply that has not arrived, in the order of the commands: its future, and when it is overdue.
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._sending = False
        # Replies that no command waits for: those to `push`, and messages. `_received` is set when some arrive.
        self._pushed: list[Any] = []
        self._received = asyncio.Event()
        self._take: Callable[[Any], bool] | None = None
        self._send_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._opening: asyncio.Timeout | None = None
        self._heard_at = 0.0
        self.closed = False

    async def open(self, timeout: float) -> asyncio.Task[None]:
        """Connect within `timeout` seconds. Returns the task that reads the replies."""
        if self.closed:
            raise ConnectionError("the connection was closed")
        timer = self._loop.call_later(timeout, self._opening_overdue, self._loop.time() + timeout)
        try:
            async with asyncio.timeout(None) as self._opening:
                await self._connection.connect()
                self._writer = stream_writer(self._connection)
                self._reader = asyncio.create_task(self._read())
                # Let the reader start. A task that is cancelled before it has started would never disconnect.
                await asyncio.sleep(0)
        except BaseException as error:
            self.close()
            await self._disconnect()
            if is_of_asyncio(error):
                raise ConnectionError(_reason(error)) from error
            raise
        finally:
            timer.cancel()
            self._opening = None
        return self._reader

    def _opening_overdue(self, due: float) -> None:
        # If the loop was blocked until now, the socket may hold replies of the server that were not read yet.
        now = self._loop.time()
        self._end_opening(now + max(_LAST_CHANCE, now - due))

    def _end_opening(self, at: float) -> None:
        if self._opening is not None:
            with contextlib.suppress(RuntimeError):  # it is ending already
                self._opening.reschedule(at)

    async def exchange(self, *commands: Command) -> list[Any]:
        if self.closed:
            raise ConnectionError("the connection was closed")
        # Pack first, because it may raise: each future in `_pending` must belong to a command that is sent.
        packed = [piece for command in commands for piece in self._pack(command)]
        until = self._loop.time() + self._timeout
        replies = [self._loop.create_future() for _ in commands]
        self._pending.extend((reply, until) for reply in replies)
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._check_overdue)
        self._unsent += packed
        if not self._sending:
            await self._send()
        return [_raise_if_lost(await reply) for reply in replies]

    def send_now(self, command: Command, *, may_wait: bool = False) -> asyncio.Future[Any] | None:
        """Send a command, and return the future of its reply; an error is its result. None if the connection is lost.

        If the command has to wait for the socket, because others are unsent or it is large, it follows them with
        `may_wait`, and otherwise None is returned and nothing is sent.
        """
        waits = self._sending or bool(self._unsent)
        if self.closed or (waits and not may_wait):
            return None
        pieces = self._pack(command)
        writer = self._open_writer()
        if writer is None:
            return None
        waits = waits or sum(map(len, pieces)) > _SENT_AT_ONCE or writer.transport.get_write_buffer_size() > 0
        if waits and not may_wait:
            return None
        until = self._loop.time() + self._timeout
        reply = self._loop.create_future()
        self._pending.append((reply, until))
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._check_overdue)
        if waits:
            self._unsent += pieces
            self._send_in_task()
            return reply
        try:
            writer.write(b"".join(pieces))
        except Exception as error:
            self._fail(_reason(error))
            raise_if_interrupted(error)
        return reply

    def _open_writer(self) -> asyncio.StreamWriter | None:
        """The writer to the server; None if the connection is lost. The reader may not have seen that yet."""
        writer = stream_writer(self._connection)
        if writer is None or writer.is_closing():
            self._fail("the connection was lost")
            return None
        return writer

    def push(self, *commands: Command) -> None:
        """Send commands whose replies are returned by `receive`."""
        self._unsent += [piece for command in commands for piece in self._pack(command)]
        self._send_in_task()

    def _send_in_task(self) -> None:
        if not self._sending and (self._send_task is None or self._send_task.done()):
            self._send_task = asyncio.create_task(self._send_quietly())

    async def _send_quietly(self) -> None:
        with contextlib.suppress(Exception):  # if the connection has failed, the replies and `receive` report it
            if not self._sending:
                await self._send()

    def offer(self, take: Callable[[Any], bool]) -> None:
        """Offer each message that overtakes no other to `take`, in the task that reads it: that spares a switch."""
        self._take = take

    async def receive(self, timeout: float) -> list[Any]:
        """The replies to `push` and the messages that have arrived, without those that were taken (`offer`).

        Waits for the first one. Returns [] if nothing at all has arrived for `timeout` seconds.
        """
        until = self._loop.time() + timeout
        while not self._pushed:
            until = max(until, self._heard_at + timeout)
            if self.closed:
                raise ConnectionError("the connection was closed")
            self._received.clear()
            left = until - self._loop.time()
            timer = self._loop.call_later(max(left, _LAST_CHANCE), self._received.set)
            try:
                await self._received.wait()
            finally:
                timer.cancel()
            if left <= 0:
                break
        pushed, self._pushed = self._pushed, []
        return pushed

    async def _send(self) -> None:
        """Send what is unsent, including what other tasks add while this one waits for the socket.

        Only one task sends at a time. Whatever the transport raises means that the connection is lost.
        """
        self._sending = True
        try:
            while self._unsent and not self.closed:
                packed, self._unsent = self._unsent, []
                if (writer := self._open_writer()) is None:
                    raise ConnectionError("the connection was lost")
                writer.write(b"".join(packed))
                await writer.drain()
        except BaseException as error:
            self._fail(_reason(error))
            raise_if_interrupted(error)
            if isinstance(error, Exception):
                raise ConnectionError(_reason(error)) from error
            raise
        finally:
            self._sending = False

    def set_reply_timeout(self, seconds: float) -> None:
        self._timeout = seconds

    def hang_up(self) -> None:
        """Close; the task that uses the connection gets an error."""
        self.close()

    def close(self) -> None:
        self._end_opening(0.0)
        self._fail("the connection was closed")

    def close_copy(self) -> None:
        if (copy := copied_socket(self._connection)) is not None:
            copy.close()
        elif (number := socket_number(self._connection)) >= 0:
            # Of uvloop. The number stays in use, because uvloop may close it once more.
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), number)

    async def _read(self) -> None:
        end: Exception = ConnectionError("the connection was closed")
        try:
            read = self._connection.read_response
            while True:
                try:
                    reply = await read()
                except Exception as error:
                    if not is_error_reply(error):
                        raise
                    reply = error
                self._heard_at = self._loop.time()
                if not self._pending:
                    if self._take is not None and not self._pushed and self._take(reply):
                        continue
                    self._pushed.append(reply)
                    self._received.set()
                    continue
                future, _ = self._pending[0]
                if not future.done():
                    future.set_result(reply)
                self._pending.popleft()
        except Exception as error:
            if (found := interruption(error)) is not None:
                self._interrupt_next(found)
            # After some error replies, such as NOAUTH, the libraries close the connection. The reply explains more than
            # the lost connection.
            code = error_code(error)
            end = error if code not in {"", *UNANSWERED} else _lost(_reason(error), silent=code == SILENT)
        finally:
            self._fail(end)
            await self._disconnect()

    def _interrupt_next(self, found: Interruption) -> None:
        """End the call that waits for the next reply with the exception of a signal handler."""
        future = next((future for future, _ in self._pending if not future.done()), None)
        if future is None:
            report(found)
        else:
            future.set_exception(found)

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):  # of a transport that is lost
            await self._connection.disconnect(nowait=True)
        if self._writer is not None:
            await end_writer(self._writer)

    def _check_overdue(self, found_at: float | None = None) -> None:
        """Fail if the oldest command's reply is overdue; otherwise set the timer for the command that is oldest now.

        One timer serves all commands. `found_at`: when the last check found an overdue reply. The reader may have been
        kept from reading it until then, so the connection fails only if nothing was read since.
        """
        self._timer = None
        if not self._pending:
            return
        now, until = self._loop.time(), self._pending[0][1]
        if until > now:
            self._timer = self._loop.call_at(until, self._check_overdue)
        elif found_at is None or self._heard_at > found_at:
            self._timer = self._loop.call_at(now + _LAST_CHANCE, self._check_overdue, now)
        else:
            self._fail(_lost(f"no reply within {self._timeout} s", silent=now - self._heard_at >= self._timeout))

    def _fail(self, end: Exception | str) -> None:
        """Close the connection, and give each pending reply this error, so that its command is sent again."""
        self.closed = True
        self._received.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        while self._pending:
            future, _ = self._pending.popleft()
            if not future.done():
                future.set_result(ConnectionError(end) if isinstance(end, str) else end)


def _lost(reason: str, *, silent: bool) -> Exception:
    return TimeoutError(reason) if silent else ConnectionError(reason)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _raise_if_lost(reply: Any) -> Any:
    # The error is the future's result, not its exception: asyncio logs an exception that no task retrieves.
    if isinstance(reply, ConnectionError | TimeoutError):
        raise reply
    return reply
