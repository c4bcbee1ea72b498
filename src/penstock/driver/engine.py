"""How a step is sent until it is answered, and how a generator of steps is walked: written once for both faces.

The text is asyncio's, but all it awaits is the handful of methods that a face supplies (`exchange`, `sleep`, …).
The blocking face's never suspend, so `complete` runs such a coroutine to its end in one go, on any thread.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.core.operations import (
    Effect,
    FindNodes,
    Listen,
    Listener,
    Operation,
    Parallel,
    RoundTrip,
    RunInThread,
    SendCommands,
    Sleep,
    Wait,
)
from penstock.core.slots import Node
from penstock.driver.connector import Command, Connector
from penstock.driver.listening import Connection, Inbox, InboxListener
from penstock.driver.retrying import ASK, ASTRAY, LOST, MOVED, NOSCRIPT, Attempts, error_code, translated
from penstock.driver.route import Route
from penstock.errors import DurabilityUnavailable, NotDurable
from penstock.settings import Settings

R = TypeVar("R")
T = TypeVar("T")
L = TypeVar("L", bound=Connection)
W = TypeVar("W", bound=InboxListener)

_NUMBERED = ("producer", "number")

# How long a cancelled operation may take to hand back its place in line; the server forgets it soon anyway.
_FAREWELL = 3.0

_LOOK_AGAIN = 0.05

_UNANSWERED = ConnectionError("no reply")

# How long it is believed that the server keeps what it says it keeps.
_TRUST = 60.0


def complete(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: R = done.value
        return answer
    work.close()
    raise RuntimeError("the blocking face has awaited something")


class Engine(Generic[L, W]):
    """What both drivers do. A face adds the methods at the end, and the kind of its waiters."""

    listener_class: type[W]

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.settings: Settings = connector.settings
        # Each holds an id and the last number used with it. One call at a time takes it along, and puts it back
        # when a reply came: so at most one number of an id is unanswered, and the server need know only the last.
        self._producers: list[list[Any]] = []
        self._trusted: dict[Node, tuple[float, Command]] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._inboxes_lock = threading.Lock()
        self._name = secrets.token_urlsafe(9)
        self._numbers = itertools.count(1)

    @property
    def address(self) -> str:
        return self._connector.address

    # --- one step ---

    async def send(self, step: RoundTrip[R], patience: float) -> R:
        """Send a step until it is answered, for up to `patience` seconds after the first failure."""
        keys, args, producer = step.keys, step.args, None
        if step.script.args[:2] == _NUMBERED:
            producer = self._producer()
            args = (*producer, *args[2:])
        call = (len(keys), *keys, *args)
        key = keys[0] if keys else ""
        attempts, asked = None, None
        while True:
            try:
                node = asked or await self._node(key)
                reply = await self._deliver(node, step, call, asking=asked is not None, again=attempts is not None)
            except Exception as error:
                attempts = attempts or Attempts(patience)
                try:
                    pause = attempts.pause(error, self.address)
                except Exception:
                    if producer is not None and error_code(error) != LOST:
                        self._producers.append(producer)
                    raise
                asked = await self.recover(error, key, attempts.tries)
                await self.sleep(pause)
            else:
                break
        if producer is not None:
            self._producers.append(producer)
        read = step.read_after_retry if attempts is not None and step.read_after_retry is not None else step.read
        return read(reply)

    def _producer(self) -> list[Any]:
        try:
            producer = self._producers.pop()
        except IndexError:
            return [secrets.token_urlsafe(9), 1]
        producer[1] += 1
        return producer

    async def _deliver(self, node: Node, step: RoundTrip[Any], call: Command, *, asking: bool, again: bool) -> Any:
        script = step.script
        before: tuple[Command, ...] = (("ASKING",),) if asking else ()
        after: tuple[Command, ...] = (await self._confirmation(node),) if step.durable else ()
        if step.followed_by:
            after = (*before, step.followed_by)
        replies = await self.exchange(
            node, *before, ("EVALSHA", script.sha, *call), *after, own_connection=step.durable
        )
        reply = replies[len(before)]
        if isinstance(reply, Exception) and error_code(reply) == NOSCRIPT:
            replies = await self.exchange(
                node, *before, ("EVAL", script.source, *call), *after, own_connection=step.durable
            )
            reply = replies[len(before)]
        if isinstance(reply, Exception):
            raise reply
        if step.followed_by:
            if isinstance(replies[-1], Exception):
                raise replies[-1]
            return reply, replies[-1]
        if after and again and after[0][0] == "WAIT":
            await self._wait_for_replica(node)
        elif after:
            self._check_confirmed(node, after[0], replies[-1])
        return reply

    async def send_several(self, steps: Sequence[RoundTrip[Any]], patience: float) -> list[Any]:
        """Behind one another to each node; what is not answered so is sent again on its own."""
        replies: dict[int, Any] = {}
        with contextlib.suppress(Exception):
            there: dict[Node, list[int]] = {}
            for place, step in enumerate(steps):
                there.setdefault(await self._node(step.keys[0]), []).append(place)
            for node, places in there.items():
                replies.update(await self._volley(node, steps, places))
                if unknown := [n for n in places if error_code(replies[n]) == NOSCRIPT]:
                    replies.update(await self._volley(node, steps, unknown, load=True))
        answers = []
        for place, step in enumerate(steps):
            reply = replies.get(place, _UNANSWERED)
            if isinstance(reply, Exception):
                answers.append(await self.send(step, patience))
            else:
                answers.append(step.read(reply))
        return answers

    async def _volley(
        self, node: Node, steps: Sequence[RoundTrip[Any]], places: Sequence[int], *, load: bool = False
    ) -> dict[int, Any]:
        commands, loaded = list[Command](), set[str]()
        for script, keys, args in ((steps[n].script, steps[n].keys, steps[n].args) for n in places):
            fresh = load and script.sha not in loaded
            loaded.add(script.sha)
            name, text = ("EVAL", script.source) if fresh else ("EVALSHA", script.sha)
            commands.append((name, text, len(keys), *keys, *args))
        return dict(zip(places, await self.exchange(node, *commands), strict=True))

    async def recover(self, error: Exception, key: str, tries: int) -> Node | None:
        """Make ready for the next attempt. Answers the node that is to be asked once, if the error named one."""
        word, route = error_code(error), self._connector.route
        if route is None:
            return None
        node = route.node(key) or route.whom()[0]
        if word in {MOVED, ASK}:
            named = route.redirected(str(error), node, for_good=word == MOVED)
            return named if word == ASK else None
        if word in ASTRAY:
            route.forget()
            if word != LOST:
                # The name may lead to another server by now, but these connections do not.
                self.drop(node)
            elif self._connector.is_embedded and tries > 1:
                await self.aside(self._connector.revive)
        return None

    # --- the way ---

    async def _node(self, key: str) -> Node:
        route = self._connector.route
        if route is None:
            await self.aside(self._connector.locate)
            return await self._node(key)
        return route.node(key) or await self._ask_the_way(route, key)

    async def _ask_the_way(self, route: Route, key: str) -> Node:
        failure: Exception = ConnectionError(f"nobody at {self.address} knows a node for this key")
        for asked in route.whom():
            try:
                line = await self.open(asked, sentinel=route.asks_sentinels)
                try:
                    (reply,) = await line.exchange(route.question)
                finally:
                    line.close()
                if isinstance(reply, Exception):
                    raise reply
            except Exception as error:
                failure = error
                continue
            route.learn(reply, asked)
            if (node := route.node(key)) is not None:
                return node
        raise failure

    async def line_to(self, key: str) -> L:
        """A line of one's own to the node of a key."""
        return await self.admitted(await self._node(key))

    async def admitted(self, node: Node) -> L:
        """A line to a server that was found new enough."""
        line = await self.open(node)
        if self._connector.version is None:
            try:
                (info,) = await line.exchange(("INFO", "server"))
                if isinstance(info, Exception) and error_code(info) != "NOPERM":
                    raise info
                self._connector.admit(info)
            except BaseException:
                line.close()
                raise
        return line

    # --- who looks in ---

    async def _insist(self, attempt: Callable[[], Coroutine[Any, Any, R]], patience: float) -> R:
        """Try until it works, for up to `patience` seconds after the first failure."""
        attempts = Attempts(patience)
        while True:
            try:
                return await attempt()
            except Exception as error:
                pause = attempts.pause(error, self.address)
                await self.recover(error, "", attempts.tries)
                await self.sleep(pause)

    async def _nodes(self, key: str) -> list[Node]:
        route = self._connector.route
        if route is None:
            await self.aside(self._connector.locate)
            return await self._nodes(key)
        if key:
            return [await self._node(key)]
        if not route.primaries():
            try:
                await self._ask_the_way(route, "")
            except Exception:  # a cluster that does not serve this very slot still has primaries
                if not route.primaries():
                    raise
        return route.primaries()

    async def _ask(self, ask: SendCommands) -> list[Any]:
        replies = await self.exchange(ask.node, *ask.commands, own_connection=ask.own_connection)
        return [translated(reply, error_code(reply)) if isinstance(reply, Exception) else reply for reply in replies]

    # --- a write that must be safe ---

    async def _confirmation(self, node: Node) -> Command:
        """The command that answers when a write before it is safe. Raises DurabilityUnavailable."""
        until, command = self._trusted.get(node, (0.0, ()))
        if until < time.monotonic():
            command = self._judge(*await self.exchange(node, ("CONFIG", "GET", "append*"), ("INFO", "replication")))
            self._trusted[node] = time.monotonic() + _TRUST, command
        return command

    def _judge(self, config: Any, info: Any) -> Command:
        milliseconds = max(1, int(self.settings.durable_timeout * 1000))
        said = {} if isinstance(config, Exception) else dict(zip(config[::2], config[1::2], strict=True))
        # Under `everysec` WAITAOF was seen to answer without an fsync.
        if said.get(b"appendonly") == b"yes" and said.get(b"appendfsync") == b"always" and self._connector.has_waitaof:
            return ("WAITAOF", 1, 0, milliseconds)
        if not isinstance(info, Exception) and b"state=online" in info:
            return ("WAIT", 1, milliseconds)
        reason = f" ({config})" if isinstance(config, Exception) else ""
        raise DurabilityUnavailable(
            f"{self.address} cannot be trusted to say when a write is safe{reason}; nothing was sent. Give it "
            "`appendonly yes` and `appendfsync always` and let this user read them with CONFIG GET, or a replica"
        )

    def _check_confirmed(self, node: Node, command: Command, reply: Any) -> None:
        safe = reply[0] if isinstance(reply, list) else reply
        if isinstance(safe, Exception):
            del self._trusted[node]
        elif safe >= 1:
            return
        raise self._not_durable("the disk" if command[0] == "WAITAOF" else "a replica", reply)

    async def _wait_for_replica(self, node: Node) -> None:
        """Until a replica has all that the server had written by now.

        For a step that was sent again: it wrote on a connection that is gone, and WAIT on another one answers at
        once (measured), for that one has written nothing. Replicas report once a second.
        """
        until, wanted = time.monotonic() + self.settings.durable_timeout, None
        while True:
            (info,) = await self.exchange(node, ("INFO", "replication"))
            if isinstance(info, Exception):
                raise self._not_durable("a replica", info)
            if wanted is None:
                wanted = int(re.findall(rb"master_repl_offset:(\d+)", info)[0])
            if any(int(offset) >= wanted for offset in re.findall(rb"state=online,offset=(\d+)", info)):
                return
            if time.monotonic() >= until:
                raise self._not_durable("a replica", f"none has reached {wanted}")
            await self.sleep(_LOOK_AGAIN)

    def _not_durable(self, where: str, said: object) -> NotDurable:
        return NotDurable(f"accepted, but not confirmed by {where} within {self.settings.durable_timeout} s: {said}")

    # --- several steps ---

    async def drive(self, steps: Operation[R]) -> R:
        """Run a generator. What it yields is done, and what goes wrong is thrown into it."""
        opened: list[Listener] = []
        try:
            return await self._drive(steps, opened, self.settings.give_up_after)
        finally:
            for waiter in opened:
                waiter.close()

    async def _drive(
        self, steps: Operation[R], opened: list[Listener], patience: float, thrown: BaseException | None = None
    ) -> R:
        try:
            effect = next(steps) if thrown is None else steps.throw(thrown)
            while True:
                try:
                    answer = await self._do(effect, opened, patience)
                except Exception as error:
                    patience = min(patience, _FAREWELL)
                    effect = steps.throw(error)
                except GeneratorExit:
                    raise
                except BaseException as stop:
                    # Cancelled, or ^C: the steps that clean up still run, undisturbed by a second one.
                    try:
                        return await self.to_the_end(self._drive(steps, opened, min(patience, _FAREWELL), stop))
                    except Exception as farewell:  # its place could not be handed back: its lease will do that
                        raise stop from farewell
                else:
                    effect = steps.send(answer)
        except StopIteration as done:
            result: R = done.value
            return result

    async def _do(self, effect: Effect, opened: list[Listener], patience: float) -> Any:
        if isinstance(effect, RoundTrip):
            return await self.send(effect, patience)
        if isinstance(effect, Parallel):
            return await self.send_several(effect.round_trips, patience)
        if isinstance(effect, Listen):
            common = effect.shared_inbox and not self._connector.is_cluster
            opened.append(self.listen(effect.shared_inbox if common else effect.inbox, effect.block_multiplier))
            return opened[-1]
        if isinstance(effect, SendCommands):
            return await self._insist(partial(self._ask, effect), patience)
        if isinstance(effect, FindNodes):
            return await self._insist(partial(self._nodes, effect.key), patience)
        if isinstance(effect, Sleep):
            return await self.sleep(effect.seconds)
        if isinstance(effect, RunInThread):
            return await self.aside(effect.work, to_its_end=True)
        return await self.wait(effect)

    # --- waiting ---

    def listen(self, inbox: str, block_multiplier: int = 1) -> W:
        """Open a waiter at the inbox whose key begins so. Close it when done; nobody else does."""
        with self._inboxes_lock:
            found = self._inboxes.get(inbox)
            if found is None:
                found = self._inboxes[inbox] = Inbox(self, inbox, self._name, block_multiplier)
                self.start(found)
            return self.listener_class(found, self._name, next(self._numbers))

    def retire(self, inbox: Inbox, *, even_if_awaited: bool) -> bool:
        """Whether a reader may end; a waiter that comes later gets another one."""
        with self._inboxes_lock:
            if inbox.waiters and not even_if_awaited:
                return False
            if self._inboxes.get(inbox.prefix) is inbox:
                del self._inboxes[inbox.prefix]
            return True

    # --- what a face supplies ---

    async def exchange(self, node: Node, *commands: Command, own_connection: bool = False) -> list[Any]:
        """Send the commands to a node, one behind the other on one connection; answer the replies, errors too.
        `own_connection`: a command may block its connection."""
        raise NotImplementedError

    async def open(self, node: Node, *, sentinel: bool = False) -> L:
        raise NotImplementedError

    def drop(self, node: Node) -> None:
        """Forget the connections to a node."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def wait(self, effect: Wait) -> list[str]:
        raise NotImplementedError

    async def aside(self, work: Callable[[], T], *, to_its_end: bool = False) -> T:
        """Run what blocks. `to_its_end`: a cancellation waits for it."""
        raise NotImplementedError

    async def to_the_end(self, work: Coroutine[Any, Any, R]) -> R:
        """Run what must not be cancelled."""
        raise NotImplementedError

    def start(self, inbox: Inbox) -> None:
        """Begin to read an inbox."""
        raise NotImplementedError
