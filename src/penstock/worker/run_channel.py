"""The worker's end of the socket to a process that runs one job."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.worker.job_channel import CHUNK, LENGTH, NOTE

_AT_ONCE: Final = 32
"""After this many reports and chunks, the loop does its other work, even if the process sends without a pause."""


class RunChannel:
    """Sends a request and receives messages, and knows when the process ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int | None] = self._loop.create_future()
        """Its exit code, or None if that is not known."""
        self.on_note: Callable[[bytes], None] = lambda _: None
        """Called with each report of the running job, and each chunk that it emits, with its first byte."""

    async def begin(self, *messages: bytes) -> bool:
        """Send the messages that the process needs, the request last, and wait until it begins to run the job.

        False if the process ended, or will end, before that.
        """
        return (
            await self._first_of(self._exchange(b"".join(LENGTH.pack(len(one)) + one for one in messages))) is not None
        )

    async def answer(self) -> bytes | None:
        """The answer of the run that has begun. None if the process ended, or will end, without one."""
        return await self._first_of(self._receive_or_none())

    async def _first_of(self, exchange: Coroutine[Any, Any, bytes | None]) -> bytes | None:
        """The result of `exchange`, or None if the process ends first.

        Waiting for the socket alone is not enough: a process that the task started may hold it open.
        """
        task = self._loop.create_task(exchange)
        try:
            either: list[asyncio.Future[Any]] = [task, self.ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _exchange(self, message: bytes) -> bytes | None:
        try:
            await self._loop.sock_sendall(self._channel, message)
        except OSError:
            return None
        return await self._receive_or_none()

    async def _receive_or_none(self) -> bytes | None:
        """The next message other than a report; None if the process has closed its end."""
        try:
            for number in itertools.count(1):
                (size,) = LENGTH.unpack(await self._receive_exactly(LENGTH.size))
                message = await self._receive_exactly(size)
                if message[:1] not in (NOTE, CHUNK):
                    return message
                self.on_note(message)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # `sock_recv` does not wait as long as there is something
        except (OSError, EOFError):
            pass
        return None

    async def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = await self._loop.sock_recv(self._channel, min(size - len(data), 1 << 18))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    async def wait(self) -> int | None:
        """Wait until the process has ended. Returns its exit code, or None if that is not known."""
        await asyncio.wait([self.ended])
        return self.ended.result()

    def close(self) -> None:
        self._channel.close()
