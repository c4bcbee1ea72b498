"""A proxy that loses replies, and does worse to its connections."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import Literal, TypeAlias

from tests.servers import Server

Fault: TypeAlias = Literal["delay", "cut", "drop", "half-open", "throttle"]


class Proxy:
    """Forwards between a client and a server on a unix socket.

    `lose_replies(n)`: drop the next n replies to script calls and close their connections, after the server has run the
    scripts. `after`: so many replies pass before.

    `fault`: what happens to some of the data from now on, until it is set to None:

    delay      it arrives up to 0.2 s later
    cut        the connection ends inside a reply
    drop       the connection ends instead of a reply to a script that was executed
    half-open  the connection stays open, but nothing arrives any more, in either direction
    throttle   it arrives at about 20 kB/s
    """

    def __init__(self, server: Server, seed: int = 0) -> None:
        self._target = str(server.socket)
        self.fault: Fault | None = None
        self.faults = 0
        self._chance = random.Random(seed)
        self.socket = server.folder / "proxy"
        self._spared = 0
        self._left = 0
        self.lost = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def lose_replies(self, n: int, after: int = 0) -> None:
        self._spared, self._left = after, n

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:  # the server is down, so the client must not find one either
                client.close()
                server.close()
                continue
            asked = threading.Event()
            threading.Thread(target=self._pump, args=(client, server, asked, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, asked, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, asked: threading.Event, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if up and b"EVAL" in data:
                    asked.set()
                if not up and asked.is_set():
                    asked.clear()
                    if self._spared:
                        self._spared -= 1
                    elif self._left and b"NOSCRIPT" not in data:
                        self._left -= 1
                        self.lost += 1
                        break
                if not self._forward(data, target, up):
                    break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _forward(self, data: bytes, target: socket.socket, up: bool) -> bool:
        """Forward the data, or do to it what `fault` says. Returns whether the connection continues."""
        fault, is_hit = self.fault, self._chance.random() < 0.05
        if fault == "delay" and is_hit:
            self.faults += 1
            time.sleep(self._chance.uniform(0, 0.2))
        elif fault == "half-open" and is_hit:
            self.faults += 1
            while self.fault == "half-open":
                time.sleep(0.05)
            return False
        elif fault == "cut" and is_hit and not up:
            self.faults += 1
            target.sendall(data[: len(data) // 2])
            return False
        elif fault == "drop" and is_hit and not up and b"NOSCRIPT" not in data:
            self.faults += 1
            return False
        elif fault == "throttle":
            self.faults += 1
            for at in range(0, len(data), 200):
                target.sendall(data[at : at + 200])
                time.sleep(0.01)
            return True
        target.sendall(data)
        return True
