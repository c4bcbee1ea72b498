"""A password or a certificate that is replaced late: a running worker outlives the seconds in which it is refused."""

import contextlib
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import HAS_OPENSSL, Certificate, make_certificate
from tests.cli.worker_shop import Shop, opened_shop
from tests.servers import Server, eventually
from tests.speed import scaled

REFUSED_FOR = 3.0


class Refusal:
    """A server whose worker can be refused, and the address that the worker uses."""

    def __init__(self, server: Server, address: str) -> None:
        self.server = server
        self.address = address

    def refuse(self) -> None: ...

    def accept(self) -> None: ...

    def close(self) -> None: ...


class RefusedPassword(Refusal):
    def __init__(self, folder: Path) -> None:
        server = Server()
        server.client.execute_command("ACL", "SETUSER", "w", "on", ">old", "~*", "&*", "+@all")
        super().__init__(server, f"unix://w:old@{server.socket}")

    def refuse(self) -> None:
        self.server.client.execute_command("ACL", "SETUSER", "w", "resetpass", ">new")
        self.server.client.execute_command("CLIENT", "KILL", "USER", "w")

    def accept(self) -> None:
        self.server.client.execute_command("ACL", "SETUSER", "w", ">old")


class RefusedCertificate(Refusal):
    """The bundled server speaks no TLS, so a relay does that in front of it."""

    def __init__(self, folder: Path) -> None:
        certificates = []
        for name in ("right", "wrong"):
            (folder / name).mkdir()
            certificates.append(make_certificate(folder / name, "IP:127.0.0.1"))
        self._right, self._wrong = certificates
        self._context = self._showing(self._right)
        self._connections: set[socket.socket] = set()
        server = Server()
        self._to = str(server.socket)
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        port = self._listener.getsockname()[1]
        super().__init__(server, f"valkeys://127.0.0.1:{port}?ssl_ca_certs={self._right.file}")

    def refuse(self) -> None:
        self._context = self._showing(self._wrong)
        for one in list(self._connections):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)

    def accept(self) -> None:
        self._context = self._showing(self._right)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _showing(self, certificate: Certificate) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.file, certificate.key)
        return context

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            client.settimeout(5)
            with self._context.wrap_socket(client, server_side=True) as secured:
                self._connections.add(secured)
                server.connect(self._to)
                secured.setblocking(False)
                while (secured.pending() or select.select((secured, server), (), ())[0]) is not None:
                    with contextlib.suppress(ssl.SSLWantReadError):
                        if not (data := secured.recv(1 << 16)):
                            return
                        server.sendall(data)
                    with contextlib.suppress(BlockingIOError):
                        if not (data := server.recv(1 << 16, socket.MSG_DONTWAIT)):
                            return
                        secured.setblocking(True)
                        secured.sendall(data)
                        secured.setblocking(False)


KINDS = [
    RefusedPassword,
    pytest.param(RefusedCertificate, marks=pytest.mark.skipif(not HAS_OPENSSL, reason="needs openssl")),
]


@pytest.fixture
def refusal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Refusal]:
    kind: Callable[[Path], Refusal] = request.param
    made = kind(tmp_path)
    with made.server:
        yield made
    made.close()


@pytest.fixture
def shop(refusal: Refusal, tmp_path: Path) -> Iterator[Shop]:
    with opened_shop(refusal.server, tmp_path, 10.0) as shop:
        shop.where["PENSTOCK_URL"] = refusal.address
        yield shop


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("refusal", KINDS, indirect=True)
def test_a_worker_outlives_seconds_in_which_it_is_refused(
    start: Any, shop: Shop, refusal: Refusal, begun: Any, processes: int
):
    command = start("worker", "tasks:app", "--processes", str(processes), "-c", "2", **shop.where)
    eventually(lambda: len(shop.pids()) == 1)
    (pid,) = shop.pids()

    # It waits for a job.
    refusal.refuse()
    time.sleep(REFUSED_FOR)
    refusal.accept()
    job = shop.nap.enqueue(REFUSED_FOR + 1)
    eventually(begun)

    # It runs a job.
    refusal.refuse()
    time.sleep(REFUSED_FOR)
    refusal.accept()
    assert job.result(timeout=scaled(15)) == pid
    assert shop.nap.enqueue(0).result(timeout=scaled(10)) == pid

    # It has a job to settle.
    job = shop.nap.enqueue(1.5)
    time.sleep(0.5)
    refusal.refuse()
    time.sleep(REFUSED_FOR)
    refusal.accept()
    assert job.result(timeout=scaled(15)) == pid
    assert command.poll() is None
    counts = shop.queue.count()
    assert (counts.completed, counts.lost, counts.failed, counts.retried) == (3, 0, 0, 0)
    command.terminate()
    _, errors = command.communicate(timeout=scaled(20))
    assert command.returncode == 0
    lines = [line for line in errors.splitlines() if re.search("password|certificate", line)]
    assert lines, "it says why"
    assert len(lines) < 30
