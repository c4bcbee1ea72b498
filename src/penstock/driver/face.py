"""One face of a process, as the other modules of this folder see it: the blocking one, or that of an event loop.

`Engine` implements the methods that both faces share, `BlockingEngine` and `AioEngine` the others.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.driver.route import Answer
from penstock.settings import Settings

R = TypeVar("R")
T = TypeVar("T")

Outcome: TypeAlias = Answer | Exception
"""The answer of one candidate of a look-up, or why it gave no answer."""


class Connection(Protocol):
    """A connection to one node."""

    async def exchange(self, *commands: Command) -> list[Any]:
        """Send the commands and return their replies in order; an error reply is an exception in the list.

        Raises if the connection has failed, after which it cannot be used again.
        """
        ...

    def push(self, *commands: Command) -> None:
        """Send commands whose replies `receive` returns. After a failure of the connection, `receive` raises it."""

    async def receive(self, timeout: float) -> list[Any]:
        """The replies and messages that have arrived; waits for the first one. [] after `timeout` seconds."""
        ...

    def offer(self, take: Callable[[Any], bool]) -> None:
        """Offer what arrives to `take` before `receive` returns it. What it took, returning True, is not returned."""

    def set_reply_timeout(self, seconds: float) -> None:
        """From now on, a reply has to arrive within `seconds`."""

    def hang_up(self) -> None:
        """Make the calls that use the connection fail, and close it then. Any thread may call this."""

    def close(self) -> None:
        """Close at once. Only the user of the connection may call it."""

    def close_copy(self) -> None:
        """In a forked child: close the child's copy of the socket. The parent's stays open."""


class OutcomeQueue(Protocol):
    """Passes outcomes to the coroutine that waits for them."""

    def put(self, outcome: Outcome, /) -> None: ...

    async def get(self, timeout: float | None) -> Outcome | None:
        """The next outcome; None if none has arrived after `timeout` seconds."""
        ...


class Face:
    """Sends commands to nodes, finds nodes, waits, and runs coroutines. `settings`: those of the app."""

    settings: Settings

    # --- what `Engine` implements ---

    @property
    def address(self) -> str:
        """The server's address, for people."""
        raise NotImplementedError

    async def find_node(self, key: str) -> Node:
        """The node that serves the key."""
        raise NotImplementedError

    def known_node(self, key: str) -> Node | None:
        """The node that serves the key; None if a look-up would be needed."""
        raise NotImplementedError

    async def recover(self, error: Exception, key: str, failures: int, node: Node | None = None) -> Node | None:
        """Prepare the next attempt after `error`. Returns the node that an ASK error names, for that attempt only.

        `node`: the one that was called. None: the node that serves the key.
        """
        raise NotImplementedError

    async def connect(self, node: Node) -> Connection:
        """Open a connection to the node. The first one examines the server: see `check_server` for what it raises."""
        raise NotImplementedError

    def slot_moved(self, key: str) -> None:
        """Look up the node of this key again before the next call."""
        raise NotImplementedError

    def may_ping(self, node: Node) -> bool:
        """Whether a subscriber may send the node a PING now: at most one face of a process per interval."""
        raise NotImplementedError

    def check_primary(self, node: Node) -> None:
        """Behind Sentinel: ask in the background whether the node is still the primary, and hang up if it is not."""
        raise NotImplementedError

    async def is_still_primary(self, node: Node) -> bool:
        """Whether no other node can have taken over from this one; False in doubt. Asks all Sentinels."""
        raise NotImplementedError

    def took_over(self, left: Node) -> None:
        """Another node has taken over from this one: leave it, and have every lease checked at its successor."""
        raise NotImplementedError

    # --- what each face implements ---

    async def exchange(self, node: Node, *commands: Command, own_connection: bool = False) -> list[Any]:
        """Send commands to a node in one go; return their replies in order, with errors as exceptions in the list.

        `own_connection`: use one that no other caller shares meanwhile, for a command that may block it.
        """
        raise NotImplementedError

    async def exchange_each(self, nodes: Sequence[Node], command: Command) -> dict[Node, Any]:
        """Send a command to several nodes, before the first reply is read. Returns each reply, or the error."""
        raise NotImplementedError

    async def open_connection(self, node: Node, *, sentinel: bool = False) -> Connection:
        """Open a connection and log in. `sentinel`: to a Sentinel, with the login for those."""
        raise NotImplementedError

    def close_connections(self, node: Node) -> None:
        """Close the connections to a node that are kept for further calls."""
        raise NotImplementedError

    def close_surplus(self) -> None:
        """Close idle connections beyond the few that are kept for further calls."""

    def hang_up(self, node: Node) -> None:
        """Close every connection to a node, also those in use and those that are being opened.

        The calls on these connections fail at once and look for the node again. Any thread may call this.
        """
        raise NotImplementedError

    def close_copies(self) -> None:
        """In a forked child: close the child's copies of the sockets."""
        raise NotImplementedError

    def outcome_queue(self) -> OutcomeQueue:
        """An empty queue for the outcomes of a look-up."""
        raise NotImplementedError

    def start(self, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        """Run a coroutine in the background. Returns a function that cancels it, where the face can do that."""
        raise NotImplementedError

    async def share(self, what: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work`, or, if another caller runs it for the same `what` now, wait for that run."""
        raise NotImplementedError

    async def gather(self, works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
        """Run coroutines, side by side where the face can do that. The first error is raised, and ends the others."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def run_in_thread(self, work: Callable[[], T], *, to_completion: bool = False) -> T:
        """Run a function that blocks. `to_completion`: raise a cancellation only after it has returned."""
        raise NotImplementedError

    async def run_uncancelled(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end, even if the caller is cancelled meanwhile."""
        raise NotImplementedError

    def start_subscriber(self, subscriber: Any) -> None:
        """Run a `Subscriber` in the background."""
        raise NotImplementedError
