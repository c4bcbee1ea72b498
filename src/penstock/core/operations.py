"""What the components hand to the drivers: plain descriptions of work, no I/O here.

`RoundTrip`     one script call, one round trip: the blocking driver runs it, the asyncio driver awaits it.
`Parallel`  several of these, to any slots, in as many round trips as there are servers.
`Listen`   asks for a `Listener` in a slot; its address is what a script is told, so that it can be woken.
`Wait`     sleeps until the waiter is woken or the time is over; answers with the messages that came.
`Nodes`    asks which servers hold keys; `Ask` sends one of them commands that are no script, for who looks in.
`Sleep`    sleeps when nobody will come earlier.
`RunInThread`    work that is not for the server and may take a while: a file is read, a digest made.
`Operation`    a generator of these: an operation of several steps or with a wait, written once for both faces.

`@verb` turns a method that returns a RoundTrip or Operation into a verb with two faces: `queue.put(1)` blocks,
`await queue.put.aio(1)` does not. A cancelled or interrupted wait is thrown into the generator, which may
yield further round trips to hand back its place in line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from penstock.core.scripts import Script
from penstock.core.slots import Node

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S", bound="HasDriver")

Arg: TypeAlias = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class RoundTrip(Generic[R]):
    """One call of a script. `read` turns the server's raw reply into the answer, or raises.

    A script whose first two arguments are `producer` and `number` is numbered by the driver: what stands
    there in `args` is replaced, so that a call whose reply was lost is recognised when it is sent again.
    `durable`: answer only when the write is on disk or on a replica.
    `behind`: a command that only reads, sent behind the script in the same round trip; `read` is given both replies.
    For what is large: a script hashes each text it touches. Not with `durable`, nor in Parallel or in a pipeline.
    `again`: how to read the reply when an earlier copy of the step may have been done, if that makes a difference.
    """

    script: Script
    keys: tuple[str, ...]
    args: tuple[Arg, ...]
    read: Callable[[Any], R]
    durable: bool = False
    again: Callable[[Any], R] | None = None
    behind: tuple[Arg, ...] = ()

    def then(self, follow: Callable[[R], T]) -> RoundTrip[T]:
        """The same call, its answer handed on."""
        read, again = self.read, self.again or self.read
        return RoundTrip(
            self.script, self.keys, self.args, lambda reply: follow(read(reply)), self.durable,
            lambda reply: follow(again(reply)), self.behind,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parallel:
    """Round trips sent behind one another, to all servers one round trip each. Answers the list of their answers.

    Not for numbered steps, nor durable ones. The first that cannot be done raises; others may have been done.
    """

    round_trips: tuple[RoundTrip[Any], ...]


class Listener(Protocol):
    """A place where messages for one waiting operation arrive."""

    @property
    def address(self) -> str:
        """What to tell a script: `process/number`. A message sent there ends the wait."""
        ...

    @property
    def post(self) -> str:
        """The same for a script that does not know the inbox: `inbox key/number`."""
        ...

    def close(self) -> None:
        """Give the place up; no I/O."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Open a waiter on the inbox whose key begins with `inbox` (see `store/keys.py`).

    `common`: the inbox to use instead where one server has all keys, so that waiting for many things takes one
    connection. `block_multiplier`: so many times as long as others its reader may block; for a waiter that
    looks now and then anyway.
    """

    inbox: str
    common: str = ""
    block_multiplier: int = 1


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep until a message arrives or `timeout` seconds passed (None: for ever); answers list[str]."""

    waiter: Listener
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Nodes:
    """Which servers hold keys: the one, the master behind Sentinel, a cluster's primaries. Answers list[Node].

    With a `key`: the one that holds this key.
    """

    key: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Commands to one node as they are, in one round trip; only what may be sent twice.

    Answers the replies in RESP2, in order; where the server refused a command its reply is a ServerError, not raised.
    `alone`: a command may block its connection, or speaks of what was written on it.
    """

    node: Node
    commands: tuple[tuple[Arg, ...], ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Until `seconds` have passed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RunInThread:
    """Call `work`, on asyncio in a thread; answers what it returns. A cancellation waits for its end."""

    work: Callable[[], Any]


Effect: TypeAlias = RoundTrip[Any] | Parallel | Listen | Wait | Nodes | Ask | Sleep | RunInThread
Operation: TypeAlias = Generator[Effect, Any, R]


def called_in(message: str) -> float:
    """In how many seconds a message asks its waiter to look: "<n>" in n ms; any other: now."""
    return int(message) / 1000 if message.isdecimal() else 0.0


def doze(waiter: Listener, pause: float, deadline: float | None) -> Operation[None]:
    """Sleep for `pause` seconds, or less: to the deadline, a time of the steady clock, or to when a message asks."""
    until = time.monotonic() + pause
    if deadline is not None:
        until = min(until, deadline)
    while (left := until - time.monotonic()) > 0:
        for message in (yield Wait(waiter, left)):
            until = min(until, time.monotonic() + called_in(message))


class BlockingFace(Protocol):
    def run(self, work: RoundTrip[R] | Operation[R]) -> R: ...


class AwaitedListener(Listener, Protocol):
    """A waiter for asyncio code that waits by itself."""

    async def wait(self, timeout: float | None) -> list[str]:
        """The messages that came, [] when the time is over."""
        ...


class AioFace(Protocol):
    async def run(self, work: RoundTrip[R] | Operation[R]) -> R: ...
    def listen(self, inbox: str) -> AwaitedListener: ...
    async def aclose(self) -> None: ...


class Driver(Protocol):
    """Both ways to the server; every component holds one as `_driver`."""

    @property
    def blocking(self) -> BlockingFace: ...
    @property
    def aio(self) -> AioFace: ...
    def in_pipeline(self, pipeline: Any, step: RoundTrip[Any]) -> None: ...


class HasDriver(Protocol):
    @property
    def _driver(self) -> Driver: ...


class BoundVerb(Generic[P, R_co]):
    """A verb of one object: call it to block, `.aio(...)` to await."""

    __slots__ = ("_make", "_owner", "__wrapped__")

    def __init__(self, owner: HasDriver, make: Callable[..., Any]) -> None:
        self._owner = owner
        self._make = make
        self.__wrapped__ = make

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        if asyncio._get_running_loop() is not None:
            name = self._make.__name__
            raise RuntimeError(f"{name}() would block the running event loop: write `await ….{name}.aio(…)` here")
        answer: R_co = self._owner._driver.blocking.run(self._make(self._owner, *args, **kwargs))
        return answer

    async def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        answer: R_co = await self._owner._driver.aio.run(self._make(self._owner, *args, **kwargs))
        return answer


class verb(Generic[S, P, R]):  # noqa: N801 - a decorator reads as a word
    """Give a method that returns `RoundTrip[R]` or `Operation[R]` its two faces."""

    def __init__(self, make: Callable[Concatenate[S, P], RoundTrip[R] | Operation[R]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__
        self.__name__ = make.__name__

    @overload
    def __get__(self, owner: None, kind: type[S]) -> verb[S, P, R]: ...
    @overload
    def __get__(self, owner: S, kind: type[S]) -> BoundVerb[P, R]: ...
    def __get__(self, owner: S | None, kind: type[S]) -> verb[S, P, R] | BoundVerb[P, R]:
        if owner is None:
            return self
        return BoundVerb(owner, self._make)

    def operation(self, owner: S, *args: P.args, **kwargs: P.kwargs) -> RoundTrip[R] | Operation[R]:
        """The bare description, for another generator to build on."""
        return self._make(owner, *args, **kwargs)
