"""A proxy that loses replies."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.servers import Server


class Proxy:
    """Forwards between a client and a server on a unix socket.

    `lose_replies(n)`: drop the next n replies to script calls and close their connections, after the server has run the
    scripts.
    """

    def __init__(self, server: Server) -> None:
        self._target = str(server.socket)
        self.socket = server.folder / "proxy"
        self._left = 0
        self.lost = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def lose_replies(self, n: int) -> None:
        self._left = n

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
                    if self._left and b"NOSCRIPT" not in data:
                        self._left -= 1
                        self.lost += 1
                        break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
