"""Durable writes: how a node confirms that a write is on disk or on a replica, and whether to trust that."""

from __future__ import annotations

import re
import time
from typing import Any

from penstock.core.slots import Node
from penstock.driver.connector import Command, Connector
from penstock.driver.face import Face
from penstock.errors import DurabilityUnavailable, NotDurable

# Seconds between checks whether a replica has the write.
_REPLICA_CHECK_INTERVAL = 0.05

# Seconds for which a node's answer about its durability is used before the node is asked again.
_DURABILITY_TTL = 60.0


class Durability:
    """The confirmations that each node of one server can give."""

    def __init__(self, face: Face, connector: Connector) -> None:
        self._face = face
        self._connector = connector
        # Node -> (when to ask again, the command that confirms a durable write).
        self._commands: dict[Node, tuple[float, Command]] = {}

    def forget(self, node: Node) -> None:
        """Ask the node again before the next durable write."""
        self._commands.pop(node, None)

    def call(self) -> DurableCall:
        """The confirmation of one script call, with all its attempts."""
        return DurableCall(self)

    async def confirm_command(self, node: Node, *, must_send: bool = False) -> Command:
        """The command that returns when the writes before it are safe. Raises DurabilityUnavailable.

        If the node has lost its replica, waits up to `durable_timeout` for its return: after a promotion, and while a
        replica restarts, a node has no replica for a moment.
        `must_send`: the call is sent in any case. Then this neither waits nor raises, and returns () if the node cannot
        confirm a write.
        """
        until, command = self._commands.get(node, (0.0, ()))
        if until >= time.monotonic():
            return command
        give_up_at = time.monotonic() + self._face.settings.durable_timeout
        while True:
            config, info = await self._face.exchange(node, ("CONFIG", "GET", "append*"), ("INFO", "replication"))
            command = self._choose_command(config, info)
            if command:
                self._commands[node] = time.monotonic() + _DURABILITY_TTL, command
            if command or must_send:
                return command
            if not _had_replica(info):
                raise self._unavailable(config, "cannot be trusted to say when a write is safe")
            if time.monotonic() >= give_up_at:
                waited = f"{self._face.settings.durable_timeout} s"
                raise self._unavailable(config, f"has lost its replica, which has not returned within {waited}")
            await self._face.sleep(_REPLICA_CHECK_INTERVAL)

    def _choose_command(self, config: Any, info: Any) -> Command:
        milliseconds = max(1, int(self._face.settings.durable_timeout * 1000))
        if _syncs_always(config) and self._connector.has_waitaof:
            return ("WAITAOF", 1, 0, milliseconds)
        if not isinstance(info, Exception) and b"state=online" in info:
            return ("WAIT", 1, milliseconds)
        return ()

    def _unavailable(self, config: Any, why: str) -> DurabilityUnavailable:
        reason = f" ({config})" if isinstance(config, Exception) else ""
        if _syncs_always(config) and not self._connector.has_waitaof:
            return DurabilityUnavailable(
                f"{self._face.address} writes to its disk at once, but cannot say so: WAITAOF came with Redis 7.2; "
                "this call was not sent. Give it a replica, or a newer server"
            )
        return DurabilityUnavailable(
            f"{self._face.address} {why}{reason}; this call was not sent. Give it `appendonly yes` and `appendfsync "
            "always` and let this user read them with CONFIG GET, or a replica"
        )

    def check_confirmed(self, node: Node, command: Command, reply: Any) -> None:
        """Raise NotDurable unless the reply to WAIT or WAITAOF says that the write is safe."""
        copies = reply[0] if isinstance(reply, list) else reply
        if isinstance(copies, Exception):
            self._commands.pop(node, None)
        elif copies >= 1:
            return
        raise self._not_durable("the disk" if command[0] == "WAITAOF" else "a replica", reply)

    async def wait_for_replica(self, node: Node) -> None:
        """Wait until a replica has everything that the server has written so far. Raises NotDurable.

        Used for a script call that was sent again, where the reply to WAIT proves nothing. An earlier copy may have
        done the write, on a connection that is gone. WAIT on another connection returns at once (measured), because it
        covers only the writes of its own connection.
        Replicas report their offset once a second.
        """
        until, wanted = time.monotonic() + self._face.settings.durable_timeout, None
        while True:
            (info,) = await self._face.exchange(node, ("INFO", "replication"))
            if isinstance(info, Exception):
                raise self._not_durable("a replica", info)
            if wanted is None:
                wanted = int(re.findall(rb"master_repl_offset:(\d+)", info)[0])
            if any(int(offset) >= wanted for offset in re.findall(rb"state=online,offset=(\d+)", info)):
                return
            if time.monotonic() >= until:
                raise self._not_durable("a replica", f"none has reached {wanted}")
            await self._face.sleep(_REPLICA_CHECK_INTERVAL)

    async def check_primary(self, node: Node) -> None:
        """Raise NotDurable if another node may have taken over.

        Then perhaps only the old node and its own replicas have the write.
        """
        if not await self._face.is_still_primary(node):
            raise NotDurable(
                f"accepted by {node[0]}:{node[1]}, but a fail-over is under way, or no Sentinel says that there is "
                "none: the new primary may not have it"
            )

    def _not_durable(self, where: str, reply: object) -> NotDurable:
        return NotDurable(
            f"accepted, but not confirmed by {where} within {self._face.settings.durable_timeout} s: {reply}"
        )


class DurableCall:
    """One durable script call. It may be attempted several times, at different nodes."""

    __slots__ = ("_command", "_durability", "_may_have_run", "_repeated")

    def __init__(self, durability: Durability) -> None:
        self._durability = durability
        self._command: Command = ()
        # Whether a copy may have been executed: one that was sent and not answered.
        self._may_have_run = self._repeated = False

    async def prepare(self, node: Node) -> tuple[Command, ...]:
        """The commands to send with the next attempt. Raises DurabilityUnavailable if no copy can have been executed.

        Later attempts are sent even to a node that cannot confirm. The job may have been accepted already, and is
        certainly accepted then.
        """
        self._repeated = self._may_have_run
        self._command = await self._durability.confirm_command(node, must_send=self._may_have_run)
        self._may_have_run = True
        return (self._command,) if self._command else ()

    def refused(self) -> None:
        """The server has refused this attempt, so it was not executed."""
        self._may_have_run = self._repeated

    async def check(self, node: Node, reply: Any) -> None:
        """Wait until the write is safe. `reply`: the reply to the command of `prepare`. Raises NotDurable."""
        if not self._command or (self._repeated and self._command[0] == "WAIT"):
            await self._durability.wait_for_replica(node)
        else:
            self._durability.check_confirmed(node, self._command, reply)
        await self._durability.check_primary(node)


def _syncs_always(config: Any) -> bool:
    """Whether WAITAOF returns only after an fsync. Under `everysec` it was seen to return without one."""
    values = {} if isinstance(config, Exception) else dict(zip(config[::2], config[1::2], strict=True))
    return values.get(b"appendonly") == b"yes" and values.get(b"appendfsync") == b"always"


def _had_replica(info: Any) -> bool:
    """Whether the server had a replica within the last hour, or was one: then it keeps a backlog for its return."""
    return not isinstance(info, Exception) and b"repl_backlog_active:1" in info
