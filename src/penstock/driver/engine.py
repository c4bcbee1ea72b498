"""Sends script calls until they are answered, and drives operations: one implementation for both faces.

The code is written as coroutines, which await only the few methods that a face supplies (see `face.py`). The methods of
the blocking face never suspend, so `run_to_completion` runs such a coroutine in one go, on any thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from penstock.core.idempotency import KeyPool
from penstock.core.operations import (
    Effect,
    FindNodes,
    InBackground,
    Listen,
    Listener,
    Operation,
    Parallel,
    Receive,
    RoundTrip,
    RunInThread,
    Send,
    SendCommands,
    Sleep,
    Unanswered,
    Wait,
)
from penstock.core.scripts import Script
from penstock.core.slots import Node
from penstock.driver.connector import Command, Connector
from penstock.driver.durability import Durability, DurableCall
from penstock.driver.face import Connection, Face
from penstock.driver.faults import name_wrong_key, read_reply
from penstock.driver.first_attempt import FirstAttempt, numbered_arguments
from penstock.driver.first_connection import FIRST_COMMANDS, check_server
from penstock.driver.listening import FaceListener
from penstock.driver.lookup import look_up
from penstock.driver.parallel import number_calls, send_pipelines
from penstock.driver.retrying import (
    ASK,
    HAS_SUCCESSOR,
    MOVED,
    NODE_FAILED,
    NOSCRIPT,
    STALE_ROUTE,
    UNANSWERED,
    error_code,
    penstock_error,
)
from penstock.driver.route import Route
from penstock.driver.sentinels import SENTINEL_TIMEOUT, PrimaryChecks, check_primary
from penstock.driver.subscriber import Subscriptions
from penstock.errors import PenstockError
from penstock.settings import Settings

R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C", bound=Connection)
L = TypeVar("L", bound=FaceListener)

# For how many seconds an operation that ended retries its clean-up. The server soon forgets what it leaves anyway.
_CLEANUP_GIVE_UP_AFTER = 3.0

# How many seconds an operation waits for its subscription before it begins.
_CONFIRM_TIMEOUT = 1.0
_NO_REPLY = ConnectionError("no reply")


class Engine(Face, Generic[C, L]):
    """The code that both faces share. A face adds the methods at the end of `Face`, and the class of its listeners."""

    listener_class: type[L]

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.settings: Settings = connector.settings
        self._idempotency_keys = KeyPool()
        self._durability = Durability(self, connector)
        self._primary_checks = PrimaryChecks(self)
        self._subscriptions = Subscriptions(self, secrets.token_urlsafe(9), self.listener_class)
        self.pid = os.getpid()
        connector.add_face(self)

    @property
    def address(self) -> str:
        return self._connector.address

    # --- one script call ---

    def first_attempt(self, round_trip: RoundTrip[Any], *, followed: bool = False) -> FirstAttempt | None:
        return FirstAttempt.of(round_trip, self._connector.route, self._idempotency_keys, followed=followed)

    def succeeded(self, round_trip: RoundTrip[R], first: FirstAttempt, reply: Any) -> R:
        """The result of a first attempt to which the server has replied without an error."""
        if first.key is not None:
            self._idempotency_keys.release(first.key)
        return read_reply(round_trip, round_trip.read, reply)

    async def send(self, round_trip: RoundTrip[R], give_up_after: float, first: FirstAttempt | None = None) -> R:
        """Call a script. Retry transient errors until `give_up_after` seconds after the first one.

        `first`: an attempt that has failed, or that could not be made at once.
        """
        keys = round_trip.keys
        if first is None:
            args, numbered = numbered_arguments(round_trip, self._idempotency_keys)
            words = (len(keys), *keys, *args)
        else:
            words, numbered = first.command[2:], first.key
            if first.to_load is not None:
                reply = await self._load(first.to_load, first.node, words)
                if first.answered(round_trip, reply):
                    return self.succeeded(round_trip, first, reply)
        key = keys[0] if keys else ""
        attempts, ask_node = None, None
        durable = self._durability.call() if round_trip.durable else None
        while True:
            node = ask_node
            try:
                if first is not None and attempts is None and first.error is not None:
                    node = first.node
                    raise first.error
                node = node or await self.find_node(key)
                reply = await self._call_script(node, round_trip, words, durable, asking=ask_node is not None)
            except Exception as error:
                attempts = attempts or self._connector.attempts(give_up_after)
                try:
                    named = await name_wrong_key(self.exchange, node, round_trip, error)
                    pause = attempts.pause_after(named, self.address, round_trip)
                except Exception:
                    if numbered is not None and error_code(error) not in UNANSWERED:
                        self._idempotency_keys.release(numbered)
                    raise
                ask_node = await self.recover(error, key, attempts.failures, node) if node else None
                await self.sleep(pause)
            else:
                break
        if numbered is not None:
            self._idempotency_keys.release(numbered)
        read = round_trip.read
        if attempts is not None and round_trip.read_after_retry is not None:
            read = round_trip.read_after_retry
        return read_reply(round_trip, read, reply)

    async def _load(self, script: Script, node: Node, words: Command) -> Any:
        """Call a script by its text, which loads it. Returns its reply, or the error."""
        try:
            (reply,) = await self.exchange(node, ("EVAL", script.source, *words))
        except Exception as error:
            return error
        return reply

    async def _call_script(
        self, node: Node, round_trip: RoundTrip[Any], words: Command, durable: DurableCall | None, *, asking: bool
    ) -> Any:
        """Send the script call to the node once, with the commands that must be sent with it. Returns its reply.

        words   keys and arguments as EVALSHA takes them
        asking  the node is importing the key's slot, and serves it only after ASKING
        """
        script = round_trip.script
        before: tuple[Command, ...] = (("ASKING",),) if asking else ()
        after: tuple[Command, ...] = await durable.prepare(node) if durable else ()
        if round_trip.followed_by:
            after = (*before, round_trip.followed_by)
        for name, text in (("EVALSHA", script.sha), ("EVAL", script.source)):
            call = (name, text, *words)
            replies = await self.exchange(node, *before, call, *after, own_connection=round_trip.durable)
            reply = replies[len(before)]
            if not isinstance(reply, Exception) or error_code(reply) != NOSCRIPT:
                break
        if isinstance(reply, Exception):
            if durable:
                durable.refused()
            raise reply
        if durable:
            await durable.check(node, replies[-1])
        if round_trip.followed_by and isinstance(replies[-1], Exception):
            raise replies[-1]
        return (reply, replies[-1]) if round_trip.followed_by else reply

    async def send_parallel(self, round_trips: Sequence[RoundTrip[Any]], give_up_after: float) -> list[Any]:
        """Call many scripts, in one pipeline to each node. A call that fails in a pipeline is sent again alone."""
        replies: dict[int, Any] = {}
        round_trips, numbered = number_calls(round_trips, self._idempotency_keys)
        with contextlib.suppress(Exception):
            replies = await send_pipelines(self, await self.find_route(), round_trips)
        failed = [index for index in range(len(round_trips)) if isinstance(replies.get(index, _NO_REPLY), Exception)]
        again = await self.gather([self.send(round_trips[index], give_up_after) for index in failed])
        answers = dict(zip(failed, again, strict=True))
        for key in numbered:
            self._idempotency_keys.release(key)
        return [
            answers[index] if index in answers else read_reply(round_trip, round_trip.read, replies[index])
            for index, round_trip in enumerate(round_trips)
        ]

    async def recover(self, error: Exception, key: str, failures: int, node: Node | None = None) -> Node | None:
        code, route = error_code(error), self._connector.route
        node = node or (route.node(key) if route else None)
        if route is None or node is None:
            return None
        if code in {MOVED, ASK}:
            named = route.redirect(str(error), node, permanent=code == MOVED)
            return named if code == ASK else None
        if code in STALE_ROUTE:
            route.forget(node, patient=code in HAS_SUCCESSOR)
            # A server that was restarted may keep less on disk than before.
            self._durability.forget(node)
        if code in NODE_FAILED:
            # The node's name may lead to another server by now, but its open connections still lead to the old one.
            self._connector.hang_up(node)
        if code in UNANSWERED and self._connector.is_embedded and failures > 1:
            await self.run_in_thread(self._connector.reattach)
        return None

    # --- nodes and connections ---

    async def find_route(self) -> Route:
        """The route to the server's nodes. May start an embedded server."""
        while (route := self._connector.route) is None:
            await self.run_in_thread(self._connector.locate)
        return route

    async def find_node(self, key: str) -> Node:
        route = self._connector.route or await self.find_route()
        return route.node(key) or await self._look_up_node(route, route.position(key))

    async def _look_up_node(self, route: Route, position: int) -> Node:
        """Find the node for a position. Callers that look for the same node share one look-up."""
        suspect = route.suspect(position)
        await self.share((suspect or position) if route.primaries() else None, partial(look_up, self, route, position))
        self._connector.follow_sentinels()
        node = route.node_at(position)
        if node is None:
            raise ConnectionError(f"no server at {self.address} knows which node serves this key")
        return node

    async def connect(self, node: Node) -> C:
        is_sentinel = node in (await self.find_route()).sentinels
        connection = await self.open_connection(node, sentinel=is_sentinel)
        if is_sentinel:
            connection.set_reply_timeout(SENTINEL_TIMEOUT)
        elif self._connector.version is None:
            try:
                self._connector.version = check_server(await connection.exchange(*FIRST_COMMANDS), self.address)
            except BaseException:
                connection.close()
                raise
        self._subscriptions.was_accepted |= not is_sentinel
        return connection

    # --- plain commands ---

    async def _retry(
        self, attempt: Callable[[], Coroutine[Any, Any, R]], give_up_after: float, node: Node | None = None
    ) -> R:
        """Repeat an attempt until it succeeds, or until `give_up_after` seconds after its first failure."""
        attempts = self._connector.attempts(give_up_after)
        while True:
            try:
                return await attempt()
            except Exception as error:
                pause = attempts.pause_after(error, self.address)
                if node is not None:
                    await self.recover(error, "", attempts.failures, node)
                await self.sleep(pause)

    async def _find_nodes(self, key: str) -> list[Node]:
        if key:
            return [await self.find_node(key)]
        route = await self.find_route()
        for position in route.positions_to_look_up():
            try:
                await self._look_up_node(route, position)
            except Exception:  # a cluster in which no node serves the slot of "" still has primaries
                if not route.primaries():
                    raise
        return route.primaries()

    async def _send_commands(self, effect: SendCommands) -> list[Any]:
        replies = await self.exchange(effect.node, *effect.commands, own_connection=effect.own_connection)
        return [
            penstock_error(reply, error_code(reply)) if isinstance(reply, Exception) else reply for reply in replies
        ]

    # --- operations ---

    async def drive(
        self, operation: Operation[R], stop: BaseException | None = None, *, effect: Effect | None = None
    ) -> R:
        """Run an operation: perform what it yields, send it the results, and raise errors inside it.

        stop    raise this at the effect at which the operation is suspended, which may then clean up
        effect  the effect at which the operation is suspended, which is performed first
        """
        opened: list[Listener | Unanswered] = []
        give_up_after = self.settings.give_up_after
        if stop is not None:
            give_up_after = min(give_up_after, _CLEANUP_GIVE_UP_AFTER)
        try:
            return await self._drive(operation, opened, give_up_after, stop, effect)
        finally:
            for one in opened:
                one.close()

    async def _drive(
        self,
        operation: Operation[R],
        opened: list[Listener | Unanswered],
        give_up_after: float,
        thrown: BaseException | None = None,
        effect: Effect | None = None,
    ) -> R:
        try:
            if effect is None:
                effect = next(operation) if thrown is None else operation.throw(thrown)
            while True:
                try:
                    answer = await self._perform(effect, opened, give_up_after)
                except Exception as error:
                    give_up_after = min(give_up_after, _CLEANUP_GIVE_UP_AFTER)
                    effect = operation.throw(error)
                except GeneratorExit:
                    raise
                except BaseException as stop:
                    # A cancellation or Ctrl-C: let the operation clean up, uninterrupted by another one.
                    cleanup = self._drive(operation, opened, min(give_up_after, _CLEANUP_GIVE_UP_AFTER), stop)
                    try:
                        return await self.run_uncancelled(cleanup)
                    except Exception as error:  # the clean-up failed: what is left in the server ends with its lease
                        raise stop from error
                else:
                    effect = operation.send(answer)
        except StopIteration as done:
            result: R = done.value
            return result

    async def _perform(self, effect: Effect, opened: list[Listener | Unanswered], give_up_after: float) -> Any:
        if isinstance(effect, RoundTrip):
            return await self.call(effect, give_up_after)
        if isinstance(effect, Send):
            opened.append(await self.send_ahead(effect.round_trip, give_up_after))
            return opened[-1]
        if isinstance(effect, Receive):
            answer = await effect.unanswered.receive()
            opened.remove(effect.unanswered)  # an operation may send thousands
            return answer
        if isinstance(effect, Parallel):
            return await self.send_parallel(effect.round_trips, give_up_after)
        if isinstance(effect, Listen):
            return await self._open_listener(effect, opened)
        if isinstance(effect, SendCommands):
            return await self._retry(partial(self._send_commands, effect), give_up_after, effect.node)
        if isinstance(effect, FindNodes):
            return await self._retry(partial(self._find_nodes, effect.key), give_up_after)
        if isinstance(effect, InBackground):
            return await self._run_in_background(effect)
        if isinstance(effect, Sleep):
            return await self.sleep(effect.seconds)
        if isinstance(effect, RunInThread):
            return await self.run_in_thread(effect.work, to_completion=True)
        return await self.wait(effect)

    async def _run_in_background(self, effect: InBackground) -> None:
        ended = self.outcome_queue()

        async def run() -> None:
            with contextlib.suppress(PenstockError):
                await self.drive(effect.operation)
            ended.put(_NO_REPLY)

        self.start(run())
        await ended.get(effect.wait)

    # --- listeners ---

    def listen(self, key: str, *, shared: bool = False) -> L:
        """Open a listener, which the caller has to close. The route to the server must be known.

        Its first message may be a confirmation: messages that were sent before that are lost.
        """
        return self._subscriptions.listen(key, shared=shared, is_cluster=self._connector.is_cluster)

    async def _open_listener(self, effect: Listen, opened: list[Listener | Unanswered]) -> L:
        await self.find_route()
        listener = self.listen(effect.key, shared=effect.shared)
        listener.beside = cast("L | None", effect.beside)
        opened.append(listener)
        if listener.needs_confirmation:
            # Without it, the operation begins anyway, and looks at the state again when the confirmation comes.
            await self.wait(Wait(listener, _CONFIRM_TIMEOUT))
        return listener

    def known_node(self, key: str) -> Node | None:
        return None if (route := self._connector.route) is None else route.node(key)

    def slot_moved(self, key: str) -> None:
        if (route := self._connector.route) is not None:
            route.forget_slot(key)

    def may_ping(self, node: Node) -> bool:
        return self._connector.may_ping(node)

    def check_primary(self, node: Node) -> None:
        if (route := self._connector.route) is not None and route.uses_sentinels:
            self._connector.follow_sentinels()
            self.start(check_primary(self, self._connector, node))

    def took_over(self, left: Node) -> None:
        self._connector.took_over(left)

    async def is_still_primary(self, node: Node) -> bool:
        route = await self.find_route()
        return not route.uses_sentinels or await self._primary_checks.confirm(route, node)

    # --- what a face supplies, besides the methods of `Face` ---

    async def call(self, round_trip: RoundTrip[R], give_up_after: float) -> R:
        """Call a script, at once if that is possible, and else by `send`."""
        raise NotImplementedError

    async def open_connection(self, node: Node, *, sentinel: bool = False) -> C:
        raise NotImplementedError

    async def send_ahead(self, round_trip: RoundTrip[Any], give_up_after: float) -> Unanswered:
        """Send a script call, and do not wait for its reply."""
        raise NotImplementedError

    async def wait(self, effect: Wait) -> list[str]:
        raise NotImplementedError
