"""An operation written once, for blocking and for asyncio callers. No I/O happens here.

An operation is a plain description of work for the server. The blocking face of a driver runs it, the asyncio face
awaits it (see `driver/engine.py`). The simplest is one `RoundTrip`: a script, its keys, its arguments and how to read
the reply. Work that takes several round trips, or that waits, is an `Operation`: a generator that yields *effects*. The
driver performs each effect and sends its result back into the generator:

    effect         what the driver does                            result
    RoundTrip      call one script                                 what `read` makes of the reply
    Send           call one script, and do not wait for the       a token for `Receive`
                   reply
    Receive        wait for the reply to a `Send`                 what `read` makes of the reply
    Parallel       call several scripts, at most one round         the list of their results
                   trip to each node
    Listen         open a `Listener`, whose address a script       the listener
                   can notify
    Wait           sleep until the listener is notified or         the messages, [] after a timeout
                   the timeout is over
    Sleep          sleep for some seconds                          None
    FindNodes      find the nodes that hold keys                   a list of nodes
    SendCommands   send commands, not a script, to one node        their replies
    InBackground   run an operation, and wait only briefly        None
    RunInThread    call a slow function, e.g. to read a file       what it returns

    def pull(self, timeout: float) -> Operation[list[bytes]]:
        listener = yield Listen(self.key)
        if not (found := (yield self.read_or_register(listener.address))):
            yield Wait(listener, timeout)
            found = yield self.read()
        return found

An effect that fails raises its error inside the generator, at the `yield`. So does a cancelled task or Ctrl-C: the
generator may then yield further effects, for instance to give up its position among the waiters.

`@verb` gives a method that returns a RoundTrip or an Operation its two faces: `queue.put(1)` blocks,
`await queue.put.aio(1)` does not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar, overload
from weakref import WeakMethod

import msgspec

from penstock.core.scripts import Script
from penstock.core.slots import Node

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S", bound="HasDriver")

Arg: TypeAlias = str | bytes | int | float


class RoundTrip(msgspec.Struct, Generic[R], frozen=True):
    """One call of a script. A struct, because a frozen dataclass takes several times as long to make.

    script, keys, args  the script, and what it is called with. If the arguments of a numbered script begin with
                        `UNNUMBERED`, the driver replaces that with an idempotency key, by which the server recognises a
                        repeated call.
    read                turns the server's reply into the result, or raises
    durable             return only when the write is on disk or on a replica, or raise DurabilityUnavailable or
                        NotDurable
    read_after_retry    is used instead of `read` if the call was sent more than once. Example: the reply to the first
                        copy of a release is lost, so the second copy finds nothing to release. That is not an error.
    followed_by         one command that only reads, sent right after the script in the same round trip; `read` is
                        given the pair of both replies. It saves time where the data is large: a script hashes each
                        string it touches. Not with `durable`, in `Parallel` or in a pipeline.
    shortcut            a shorter script with the same keys and arguments, which the driver tries first if it can send
                        the call at once. If the shortcut does not apply, it changes nothing and replies 0. The driver
                        then calls `script`, with the same idempotency key.
    group_from      above 0: the asyncio face may send this call in a group with others of the same script, keys, and
                    arguments before this position. The group's arguments are these, with the last of as many
                    consecutive numbers as there are calls, and then the further arguments of each call, which are
                    texts. `read` is given the reply to the group. See `driver/grouping.py`
    """

    script: Script
    keys: tuple[str, ...]
    args: tuple[Arg, ...]
    read: Callable[[Any], R]
    durable: bool = False
    read_after_retry: Callable[[Any], R] | None = None
    followed_by: tuple[Arg, ...] = ()
    shortcut: Script | None = None
    group_from: int = 0

    def then(self, convert: Callable[[R], T]) -> RoundTrip[T]:
        """Return the call with its result passed through `convert`."""
        read, again = self.read, self.read_after_retry
        return RoundTrip(
            self.script,
            self.keys,
            self.args,
            lambda reply: convert(read(reply)),
            self.durable,
            None if again is None else lambda reply: convert(again(reply)),
            self.followed_by,
            self.shortcut,
            self.group_from,
        )


class Unanswered(Protocol):
    """A script call that was sent, and whose reply was not read yet."""

    async def receive(self) -> Any: ...
    def close(self) -> object:
        """Abandon the reply, unless it was received."""
        ...


@dataclass(frozen=True, slots=True)
class Send:
    """Call a script without waiting, to prepare the next call meanwhile. Result: an `Unanswered`, for `Receive`.

    Receive its reply before the next `Send`. If the first of two unanswered calls had to be repeated, the server could
    execute it after the second.
    """

    round_trip: RoundTrip[Any]


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the reply to a `Send`. Result: what the round trip's `read` makes of it."""

    unanswered: Unanswered


@dataclass(frozen=True, slots=True)
class Parallel:
    """Call several scripts, whose keys may have different slots, in one round trip to each node.

    Result: the list of their results, in order. If a call fails, its error is raised; the other calls may have taken
    effect. A call that is sent again keeps its idempotency key. `durable` calls are not allowed here.
    """

    round_trips: tuple[RoundTrip[Any], ...]


class Listener(Protocol):
    """Receives the notifications for one waiting operation. Scripts know it by its address."""

    @property
    def address(self) -> str:
        """Where a script sends a message, which ends a `Wait`; see `core/notify.lua`."""
        ...

    def wake(self) -> None:
        """End its wait, or the next one, as an empty message does. Any thread may call it."""

    def close(self) -> bool:
        """Stop listening; sends nothing to the server. Returns whether no other listener has this address.

        Only then may the operation deregister the address. An address is never reused for a later listener.
        """
        ...


@dataclass(frozen=True, slots=True)
class Listen:
    """Open a listener. Result: the `Listener`, which the driver closes when the operation ends.

    key     a key of what the operation waits for, or any other text with the same hash tag
    shared  all shared listeners of a face with the same key have one address, which the server keeps once. Each of
            them gets every message. Otherwise the address belongs to this listener alone.

    beside  an open listener of the same operation, which gets an empty message whenever this one gets a message. So one
            `Wait` covers several listeners, also of different nodes

    A listener also gets an empty message when messages may have been lost, for instance with a connection.
    """

    key: str
    shared: bool = False
    beside: Listener | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep until the listener is notified or `timeout` seconds have passed (None: no limit).

    Result: the messages, a list of strings, which is empty after a timeout.
    """

    listener: Listener
    timeout: float | None


@dataclass(frozen=True, slots=True)
class FindNodes:
    """Find the nodes that hold keys: one server, the master behind Sentinel, or the primaries of a cluster.

    With a `key`, only the node that holds it. Result: a list of `Node`.
    """

    key: str = ""


@dataclass(frozen=True, slots=True)
class SendCommands:
    """Send plain commands to one node, in one round trip. They may be sent twice, so they must be safe to repeat.

    Result: the replies in RESP2, in order, with a ServerError for each command that the server refused.
    `own_connection`: do not share the connection with others; for a command that blocks, and for WAIT and WAITAOF,
    which are about the writes of their connection.
    """

    node: Node
    commands: tuple[tuple[Arg, ...], ...]
    own_connection: bool = False


@dataclass(frozen=True, slots=True)
class InBackground:
    """Run an operation in the background, and wait at most `wait` seconds for its end. Its errors are ignored.

    For work that need not succeed, and must not delay a caller while a node is silent.
    """

    operation: Operation[Any]
    wait: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Sleep for `seconds`. Nothing can end it early."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RunInThread:
    """Call `work`: on asyncio in another thread, on the blocking face in the caller's own. Result: what it returns.

    A cancellation is raised only after `work` has returned.
    """

    work: Callable[[], Any]


Effect: TypeAlias = (
    RoundTrip[Any]
    | Send
    | Receive
    | Parallel
    | Listen
    | Wait
    | FindNodes
    | SendCommands
    | InBackground
    | Sleep
    | RunInThread
)
Operation: TypeAlias = Generator[Effect, Any, R]


def recheck_delay(message: str) -> float:
    """The seconds after which a notification asks its listener to check the state again.

    A number means that many milliseconds from now; any other text means now.
    """
    return int(message) / 1000 if message.isdecimal() else 0.0


def wait_until_recheck(listener: Listener, interval: float, deadline: float | None) -> Operation[bool]:
    """Sleep until the state should be checked again. Returns whether a notification arrived meanwhile.

    The sleep ends after `interval` seconds, at the `deadline` (a `time.monotonic()`), or when a notification asks for a
    check, whichever is earliest.
    """
    until, is_notified = time.monotonic() + interval, False
    if deadline is not None:
        until = min(until, deadline)
    while (left := until - time.monotonic()) > 0:
        for message in (yield Wait(listener, left)):
            until, is_notified = min(until, time.monotonic() + recheck_delay(message)), True
    return is_notified


class BlockingFace(Protocol):
    """Runs operations for the threads of a process. The calling thread blocks until the result is there."""

    def run(self, work: RoundTrip[R] | Operation[R]) -> R: ...


class AsyncListener(Listener, Protocol):
    """A listener that asyncio code waits on directly, without an operation."""

    async def wait(self, timeout: float | None) -> list[str]:
        """Return the messages that arrived, or [] after `timeout` seconds."""
        ...

    def call(self, receive: Callable[[str | Exception], None]) -> None:
        """From now on, call `receive` on the loop with each message, which may be an error. No task may wait then."""


class AioFace(Protocol):
    """Runs operations for the tasks of one event loop."""

    async def run(self, work: RoundTrip[R] | Operation[R]) -> R: ...
    def listen(self, key: str, *, shared: bool = False) -> AsyncListener: ...
    async def aclose(self) -> None: ...


class Driver(Protocol):
    """Runs operations on one server, with a face for each kind of caller. Every component holds one as `_driver`."""

    @property
    def blocking(self) -> BlockingFace: ...
    @property
    def aio(self) -> AioFace: ...
    def add_to_pipeline(self, pipeline: Any, round_trip: RoundTrip[Any]) -> None: ...
    def on_takeover(self, notify: WeakMethod[Callable[[], None]]) -> None:
        """Call a method, in any thread, when another node has taken over from one that this process used."""
        ...


class HasDriver(Protocol):
    """A class with a driver, whose methods can be verbs."""

    @property
    def _driver(self) -> Driver: ...


def is_in_loop() -> bool:
    """Whether this thread runs an event loop, which a blocking call would block."""
    # A program that has not imported asyncio runs no loop, and need not wait for that import (30 ms). While another
    # thread imports it, the module is there already, without its functions.
    running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running_loop is not None and running_loop() is not None


def refuse_for_in_loop() -> None:
    """Raise RuntimeError where a `for` over what is yet to come would block the running event loop."""
    if is_in_loop():
        raise RuntimeError("`for` would block the running event loop: write `async for` here")


class BoundVerb(Generic[P, R_co]):
    __slots__ = ("_make", "_owner")

    def __init__(self, owner: HasDriver, make: Callable[..., Any]) -> None:
        self._owner = owner
        self._make = make

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the operation and block until its result is there. Raises RuntimeError inside a running event loop."""
        if is_in_loop():
            name = self._make.__name__
            raise RuntimeError(f"{name}() would block the running event loop: write `await ….{name}.aio(…)` here")
        owner = self._owner
        answer: R_co = owner._driver.blocking.run(self._make(owner, *args, **kwargs))
        return answer

    async def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the operation on the running event loop."""
        answer: R_co = await self._owner._driver.aio.run(self._make(self._owner, *args, **kwargs))
        return answer

    def within(self, /, *args: P.args, **kwargs: P.kwargs) -> Operation[R_co]:
        """Run the verb inside another operation: `counts = yield from queue.count.within()`."""
        work = self._make(self._owner, *args, **kwargs)
        answer: R_co = (yield work) if isinstance(work, RoundTrip) else (yield from work)
        return answer

    # What `help()`, `inspect` and editors ask. The class has no docstring, since `help()` would take it for the verb's.

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._make

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._make.__doc__

    def __repr__(self) -> str:
        return f"<verb {self._make.__qualname__} of {self._owner!r}>"

    if not TYPE_CHECKING:

        def __get__(self, owner: object, kind: type | None = None) -> Self:
            """Return itself. `help()` describes what has a `__get__` as a method, and other objects by their repr."""
            return self

        def __getattr__(self, name: str) -> Any:
            if name == "__signature__":
                from penstock.core.shown_signature import bound

                return bound(self._make, self._owner)
            if name in ("__name__", "__qualname__"):
                return getattr(self._make, name)
            raise AttributeError(f"{self._make.__name__}() has no attribute {name!r}", name=name, obj=self)


class verb(Generic[S, P, R]):  # noqa: N801 - a decorator reads as a word
    """Decorate a method that returns `RoundTrip[R]` or `Operation[R]`: it becomes a verb with two faces."""

    _kind: type[BoundVerb[P, R]] | None = None

    def __init__(self, make: Callable[Concatenate[S, P], RoundTrip[R] | Operation[R]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__
        self.__name__ = make.__name__
        self.__qualname__ = make.__qualname__
        self.__module__ = make.__module__

    @overload
    def __get__(self, owner: None, kind: type[S]) -> verb[S, P, R]: ...
    @overload
    def __get__(self, owner: S, kind: type[S]) -> BoundVerb[P, R]: ...
    def __get__(self, owner: S | None, kind: type[S]) -> verb[S, P, R] | BoundVerb[P, R]:
        if owner is None:
            return self
        return (self._kind or self._make_kind())(owner, self._make)

    def __call__(self, owner: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """As a method of a class is called: `Queue.count(queue)`."""
        return self.__get__(owner, type(owner))(*args, **kwargs)

    def _make_kind(self) -> type[BoundVerb[P, R]]:
        """Make a subclass of `BoundVerb` for this verb, when it is first used: its `aio` has this verb's signature."""
        shared = BoundVerb.aio
        aio = FunctionType(shared.__code__, shared.__globals__, "aio")
        aio.__doc__, aio.__module__ = self.__doc__, self.__module__
        aio.__qualname__ = f"{self.__qualname__}.aio"
        aio.__wrapped__ = self  # type: ignore[attr-defined]
        own = {"__slots__": (), "__module__": self.__module__, "__doc__": vars(BoundVerb)["__doc__"], "aio": aio}
        self._kind = type("verb", (BoundVerb,), own)
        return self._kind

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "__signature__":
                from penstock.core.shown_signature import unbound

                return unbound(self._make)
            raise AttributeError(f"{self.__name__}() has no attribute {name!r}", name=name, obj=self)

    def operation(self, owner: S, *args: P.args, **kwargs: P.kwargs) -> RoundTrip[R] | Operation[R]:
        """The bare RoundTrip or Operation, for a test to drive."""
        return self._make(owner, *args, **kwargs)
