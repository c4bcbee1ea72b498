"""Faces that only listen: what scripts send to the processes that wait, without these processes."""

from __future__ import annotations

from typing import Any

from tests.servers import Server, eventually


class Faces:
    """Subscribed channels, each of which stands for one face. A listener of face `p` has the address `p/1` or so."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: Any = None
        self._messages: dict[str, list[bytes]] = {}
        self.names: list[str] = []

    def open(self, *names: str) -> list[str]:
        """Returns the address of one listener of each face."""
        if self._connection is None:
            self._connection = self._server.client.connection_pool.make_connection()
            self._connection.connect()
        self._confirmed("SSUBSCRIBE", names)
        self.names += names
        return [f"{name}/1" for name in names]

    def end(self, *names: str) -> None:
        """The processes of these faces die."""
        self._confirmed("SUNSUBSCRIBE", names)
        self.names = [name for name in self.names if name not in names]

    def heard(self) -> dict[str, list[bytes]]:
        """The messages for listeners of each face that were not returned before."""
        if self._connection is not None:
            self._connection.send_command("PING")  # its reply follows every message that was sent before
            self._receive_until(b"pong", 1)
        found, self._messages = self._messages, {}
        return found

    def _confirmed(self, command: str, names: tuple[str, ...]) -> None:
        for start in range(0, len(names), 500):
            some = names[start : start + 500]
            self._connection.send_command(command, *some)
            self._receive_until(command.lower().encode(), len(some))

    def _receive_until(self, kind: bytes, count: int) -> None:
        while count:
            reply = self._connection.read_response()
            count -= reply[0] == kind
            if reply[0] == b"smessage" and reply[2]:
                self._messages.setdefault(reply[1].decode(), []).append(reply[2])

    def close(self) -> None:
        if self._connection is not None:
            before = len(self._server.subscribers())
            self._connection.disconnect()
            eventually(lambda: len(self._server.subscribers()) == before - 1)
            self._connection = None
