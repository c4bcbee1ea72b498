"""The socket between a worker and a process that runs one job: messages, as the process sends and receives them."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Final

from penstock.jobs.notes import encode_notes

LENGTH: Final = struct.Struct(">I")
NOTE, CHUNK = b"\0", b"\1"
"""The first byte of a message in which the running job reports or emits something, before its answer."""


def send(channel: socket.socket, data: bytes) -> None:
    channel.sendall(LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> bytes:
    """Receive one message. Raises EOFError if the sender closes the channel before the message is complete."""
    (size,) = LENGTH.unpack(_receive_exactly(channel, LENGTH.size))
    return _receive_exactly(channel, size)


def _receive_exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(min(size - len(data), 1 << 18))
        if not chunk:
            raise EOFError("the other side is gone")
        data += chunk
    return bytes(data)


class ChannelNotes:
    """Sends each report of the job, and each chunk that it emits, to the worker at once. Any thread may call it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_open = True

    def add(self, progress: bytes = b"", line: bytes | None = None) -> None:
        self._send(NOTE + encode_notes(progress, () if line is None else (line,)))

    def emit(self, chunk: bytes) -> None:
        self._send(CHUNK + chunk)

    def _send(self, message: bytes) -> None:
        with self._lock:
            if self._is_open and os.getpid() == self._pid:
                send(self._channel, message)

    def close(self) -> None:
        """Drop later reports, because the answer follows. A thread that the job left behind may still make some."""
        with self._lock:
            self._is_open = False
