"""Operations to drive, and a driver whose face a test chooses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.to_thread

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Listen, Operation, RoundTrip, Wait
from penstock.core.scripts import Script
from penstock.driver.server_driver import ServerDriver
from penstock.settings import Settings
from tests.speed import scaled

QUICK = Settings(ping_interval=0.2)
"""For tests in which an unused or a silent connection ends. Elsewhere a busy machine would make a server miss the 80 ms
within which it has to answer a PING, and so end the waits of a test."""


def script(name: str, body: str, *args: str, flags: str = "") -> Script:
    return Script(name, ("key",), args, (), f"#!lua flags={flags}\n{body}" if flags else f"#!lua\n{body}")


COUNT = script("count", "return redis.call('INCR', KEYS[1])")
APPEND = script("append", "return redis.call('RPUSH', KEYS[1], ARGV[1])", "text")
NUMBERED = script(
    "numbered",
    "return redis.call('RPUSH', KEYS[1], ARGV[1]..' '..ARGV[2]..' '..ARGV[3])",
    "caller",
    "number",
    "text",
)
SHOW = script("show", "return redis.call('LRANGE', KEYS[1], 0, -1)")
FILL = script("fill", "return redis.call('SET', KEYS[1], string.rep('x', tonumber(ARGV[1])))", "size")
FREE = script("free", "return redis.call('DEL', KEYS[1])", flags="allow-oom")
SEND = script("send", "return redis.call('SPUBLISH', ARGV[1], ARGV[2])", "channel", "message")


def count(key: str) -> RoundTrip[int]:
    return RoundTrip(COUNT, (key,), (), int)


def append(key: str, text: str, *, durable: bool = False) -> RoundTrip[int]:
    return RoundTrip(APPEND, (key,), (text,), int, durable)


def numbered(key: str, text: str) -> RoundTrip[int]:
    return RoundTrip(NUMBERED, (key,), (*UNNUMBERED, text), int)


def shown(key: str) -> RoundTrip[list[str]]:
    return RoundTrip(SHOW, (key,), (), lambda reply: [one.decode() for one in reply])


def send(key: str, address: str, text: str) -> RoundTrip[int]:
    """Returns how many connections received the message."""
    channel, _, number = address.rpartition("/")
    return RoundTrip(SEND, (key,), (channel, f"{number} {text}"), int)


def waiting(
    key: str, timeout: float | None, opened: Callable[[str], Any] = str, *, shared: bool = False
) -> Operation[list[str]]:
    """Wait once; `opened` is called with the address of the listener."""
    listener = yield Listen(key, shared)
    opened(listener.address)
    messages: list[str] = yield Wait(listener, timeout)
    listener.close()
    return messages


def hearing(key: str, opened: Callable[[str], Any] = str) -> Operation[str]:
    """Wait for a message with a text, however often a confirmation or a lost connection ends the wait before."""
    listener = yield Listen(key)
    opened(listener.address)
    text = ""
    while not text:
        messages: list[str] = yield Wait(listener, None)
        text = max(messages)
    listener.close()
    return text


class FaceDriver:
    """A driver, used through one of its faces, so that a test reads the same for both."""

    def __init__(self, face: str, server: Any, settings: Settings | None = None) -> None:
        self.face = face
        self.server_driver = ServerDriver(server, settings or Settings())

    async def run(self, work: Any) -> Any:
        if self.face == "aio":
            return await self.server_driver.aio.run(work)
        return await anyio.to_thread.run_sync(self.server_driver.blocking.run, work)

    async def aclose(self) -> None:
        await self.server_driver.aclose()

    @contextlib.asynccontextmanager
    async def running(self, work: Any) -> AsyncIterator[asyncio.Task[Any]]:
        """Run it beside the body, and wait for it at the end."""
        task = asyncio.create_task(self.run(work))
        yield task
        await asyncio.wait_for(task, scaled(10))
