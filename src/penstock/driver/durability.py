"""Durable writes: how a node confirms that a write is on disk or on a replica, and whether it can be trusted to."""

from __future__ import annotations

import re
import time
from typing import Any, Protocol

from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.errors import DurabilityUnavailable, NotDurable
from penstock.settings import Settings

# Seconds between checks whether a replica has the write.
_REPLICA_CHECK_INTERVAL = 0.05

# Seconds for which a node's answer about its durability is used before the node is asked again.
_DURABILITY_TTL = 60.0


class DurabilityFace(Protocol):
    """What `Durability` needs from the engine of its face."""

    @property
    def settings(self) -> Settings: ...
    @property
    def address(self) -> str: ...
    @property
    def has_waitaof(self) -> bool: ...
    async def exchange(self, node: Node, *commands: Command) -> list[Any]: ...
    async def sleep(self, seconds: float) -> None: ...


class Durability:
    """What each node of one server can confirm."""

    def __init__(self, face: DurabilityFace) -> None:
        self._face = face
        # Node -> (when to ask again, the command that confirms a durable write).
        self._commands: dict[Node, tuple[float, Command]] = {}

    def forget(self, node: Node) -> None:
        """Ask the node again before the next durable write."""
        self._commands.pop(node, None)

    async def confirm_command(self, node: Node) -> Command:
        """The command that returns when the writes before it are safe. Raises DurabilityUnavailable."""
        until, command = self._commands.get(node, (0.0, ()))
        if until < time.monotonic():
            replies = await self._face.exchange(node, ("CONFIG", "GET", "append*"), ("INFO", "replication"))
            command = self._choose_command(*replies)
            self._commands[node] = time.monotonic() + _DURABILITY_TTL, command
        return command

    def _choose_command(self, config: Any, info: Any) -> Command:
        milliseconds = max(1, int(self._face.settings.durable_timeout * 1000))
        values = {} if isinstance(config, Exception) else dict(zip(config[::2], config[1::2], strict=True))
        # Under `everysec` WAITAOF was seen to return without an fsync.
        syncs_always = values.get(b"appendonly") == b"yes" and values.get(b"appendfsync") == b"always"
        if syncs_always and self._face.has_waitaof:
            return ("WAITAOF", 1, 0, milliseconds)
        if not isinstance(info, Exception) and b"state=online" in info:
            return ("WAIT", 1, milliseconds)
        reason = f" ({config})" if isinstance(config, Exception) else ""
        raise DurabilityUnavailable(
            f"{self._face.address} cannot be trusted to say when a write is safe{reason}; nothing was sent. Give it "
            "`appendonly yes` and `appendfsync always` and let this user read them with CONFIG GET, or a replica"
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

    def _not_durable(self, where: str, reply: object) -> NotDurable:
        return NotDurable(
            f"accepted, but not confirmed by {where} within {self._face.settings.durable_timeout} s: {reply}"
        )
