"""One connection of the blocking face, which one thread uses at a time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.driver.connector import Command, packer
from penstock.driver.interruption import raise_if_interrupted
from penstock.driver.library import open_socket, reply_parser
from penstock.driver.retrying import is_error_reply, is_timeout

# The bytes that are read from a socket in one go, at first; and once a reply has filled that, as blocks of files do.
_READ_AT_ONCE = 65_536
_READ_OF_LARGE = 262_144

# The pieces that a system writes in one go; POSIX promises 16, and Linux and macOS have 1024.
_MOST_PIECES = 16


class BlockingConnection:
    """One connection of the client library, which opens it and logs in.

    Later the socket is written and read here, if the library has a parser in C: its own layers took longer than the
    system's calls.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_closed",
        "_connection",
        "_direct_socket",
        "_incomplete",
        "_pack",
        "_parser",
        "_sending",
        "_timeout",
    )

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pack = packer()
        self._closed = False
        self._timeout = -1.0
        self._sending = threading.Lock()
        self._direct_socket: socket.socket | None = None
        """The socket, if the connection is open and `_parser` is the parser in C."""

    def open(self, timeout: float) -> None:
        """Connect. `timeout`: seconds for each later reply."""
        try:
            self._connection.connect()
            if self._closed:
                raise ConnectionError("the connection was closed")
        except BaseException as error:
            self.close()
            raise_if_interrupted(error)
            raise
        self.set_reply_timeout(timeout)
        if (found := reply_parser(self._connection)) is not None:
            self._parser, self._incomplete = found
            self._buffer = bytearray(_READ_AT_ONCE)
            self._direct_socket = open_socket(self._connection)

    async def exchange(self, *commands: Command) -> list[Any]:
        return self.send(commands)

    def send(self, commands: tuple[Command, ...]) -> list[Any]:
        self.start(commands)
        return [self._reply() for _ in commands]

    def call(self, command: Command) -> Any:
        """Send one command, and return its reply."""
        self._write(self._pack(command))
        return self._reply()

    def start(self, commands: tuple[Command, ...]) -> None:
        """Send commands, and do not wait for the replies."""
        self._write([piece for command in commands for piece in self._pack(command)])

    def _write(self, packed: list[bytes]) -> None:
        if self._closed:
            raise ConnectionError("the connection was closed")
        opened = self._direct_socket
        try:
            if type(opened) is not socket.socket:  # of TLS, or the library parses in Python
                self._connection.send_packed_command(packed, check_health=False)
                return
            if len(packed) > _MOST_PIECES:
                packed = [b"".join(packed)]
            # The methods of a socket with a timeout first ask whether it takes something. It nearly always does.
            try:
                sent = os.write(opened.fileno(), packed[0]) if len(packed) == 1 else os.writev(opened.fileno(), packed)
            except BlockingIOError:
                sent = 0
            for piece in packed:
                if sent < len(piece):
                    opened.sendall(memoryview(piece)[sent:])
                sent = max(0, sent - len(piece))
        except Exception as error:
            raise_if_interrupted(error)
            raise

    def replies(self, number: int) -> list[Any]:
        return [self._reply() for _ in range(number)]

    def push(self, *commands: Command) -> None:
        """Send commands whose replies are returned by `receive`. Any thread may call it."""
        if self._closed:  # the library would connect again
            return
        with self._sending, suppress(Exception):  # if the connection has failed, `receive` raises
            self._connection.send_packed_command(
                [piece for command in commands for piece in self._pack(command)], check_health=False
            )

    async def receive(self, timeout: float) -> list[Any]:
        """The next reply or message, with those that came with it; [] after `timeout` seconds."""
        try:
            self.set_reply_timeout(timeout)
            replies = [self._reply(disconnect=False)]
            while self._direct_socket is not None and (reply := self._parser.gets()) is not self._incomplete:
                replies.append(reply)
            return replies
        except Exception as error:
            if self._closed:  # by another thread; then the library may raise any error
                raise ConnectionError("the connection was closed") from None
            if is_timeout(error):
                return []
            raise

    def offer(self, take: Callable[[Any], bool]) -> None:
        """Does nothing: the thread that calls `receive` is the one that handles messages."""

    def _reply(self, *, disconnect: bool = True) -> Any:
        try:
            if (opened := self._direct_socket) is None:
                return self._connection.read_response(disconnect_on_error=disconnect)
            while (reply := self._parser.gets()) is self._incomplete:
                if not (size := opened.recv_into(self._buffer)):
                    raise ConnectionError("Connection closed by server.")
                self._parser.feed(self._buffer, 0, size)
                if size == _READ_AT_ONCE == len(self._buffer):
                    self._buffer = bytearray(_READ_OF_LARGE)
        except Exception as error:
            if is_error_reply(error):
                return error
            raise_if_interrupted(error)
            raise
        if isinstance(reply, Exception) and not is_error_reply(reply):
            raise reply  # with it the server ends the connection, or serves no command for a while
        return reply

    def set_reply_timeout(self, seconds: float) -> None:
        if seconds != self._timeout and (opened := open_socket(self._connection)) is not None:
            opened.settimeout(seconds)  # a call of the operating system
            self._timeout = seconds

    def hang_up(self) -> None:
        """Make the thread that uses the connection fail. That thread closes it."""
        self._closed = True
        if (opened := open_socket(self._connection)) is not None:
            with suppress(OSError):
                # Not the method of a TLS socket, which would change its state while the other thread reads.
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._connection.disconnect()

    def close_copy(self) -> None:
        if (copy := open_socket(self._connection)) is not None:
            copy.close()
