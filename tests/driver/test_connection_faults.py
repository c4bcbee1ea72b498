"""Each fault of a connection has an error of its own, at once, on both faces, which shows no password."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import ConfigurationError, PenstockError, Settings
from penstock.errors import ServerRefused, ServerUnavailable
from tests.certificates import HAS_OPENSSL, Certificate, make_certificate
from tests.driver.operations import FaceDriver, count
from tests.servers import Server, free_port
from tests.speed import scaled

needs_openssl = pytest.mark.skipif(not HAS_OPENSSL, reason="needs the command openssl")
SECRET = "s3cretP4ss"


async def error_at(face: str, address: str, settings: Settings | None = None) -> tuple[PenstockError, float]:
    driver = FaceDriver(face, address, settings or Settings())
    began = time.monotonic()
    try:
        with pytest.raises(PenstockError) as raised:
            await driver.run(count("{faults}n"))
    finally:
        await driver.aclose()
    error: BaseException | None = raised.value
    while error is not None:
        assert SECRET not in f"{error!s}{error!r}"
        error = error.__cause__ or error.__context__
    return raised.value, time.monotonic() - began


class TlsPort:
    """A port that only shakes hands."""

    def __init__(self, certificate: Certificate) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.file, certificate.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), client:
                client.settimeout(5)
                with self._context.wrap_socket(client, server_side=True) as wrapped:
                    wrapped.recv(1)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path, "DNS:valkey.example")


@pytest.fixture
def tls_port(certificate: Certificate) -> Iterator[int]:
    with contextlib.closing(TlsPort(certificate)) as opened:
        yield opened.port


@pytest.mark.parametrize("library", ["valkey", "redis"])
@pytest.mark.parametrize("login", ["", f":{SECRET}@", f"ada:{SECRET}@"])
async def test_a_wrong_password(face: str, library: str, login: str):
    with Server("--requirepass", "right", port=free_port()) as guarded:
        for address in (f"{library}://{login}127.0.0.1:{guarded.port}", f"unix://{login}{guarded.socket}"):
            error, seconds = await error_at(face, address)
            assert isinstance(error, ServerRefused)
            assert "password" in str(error)
            assert seconds < scaled(2)


@needs_openssl
async def test_a_certificate_that_is_not_trusted(face: str, tls_port: int):
    error, seconds = await error_at(face, f"valkeys://:{SECRET}@127.0.0.1:{tls_port}")
    assert isinstance(error, ServerRefused)
    assert "certificate" in str(error)
    assert "self-signed" in str(error)
    assert "ssl_ca_certs=" in str(error)
    assert seconds < scaled(2)


@needs_openssl
async def test_a_certificate_for_another_host(face: str, tls_port: int, certificate: Certificate):
    address = f"valkeys://:{SECRET}@127.0.0.1:{tls_port}?ssl_ca_certs={certificate.file}"
    error, seconds = await error_at(face, address)
    assert isinstance(error, ServerRefused)
    assert "certificate is not valid for '127.0.0.1'" in str(error)
    assert seconds < scaled(2)


async def test_a_file_of_a_certificate_that_is_not_there(face: str):
    error, seconds = await error_at(face, "valkeys://127.0.0.1:1?ssl_ca_certs=/no/such/file.pem")
    assert isinstance(error, ConfigurationError)
    assert "ssl_ca_certs=/no/such/file.pem" in str(error)
    assert seconds < scaled(2)


@pytest.mark.parametrize("kind", ["valkey", "valkeys", "valkey+cluster"])
async def test_a_name_that_does_not_resolve(face: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    error, seconds = await error_at(face, f"{kind}://:{SECRET}@no.such.host:6379")
    assert isinstance(error, ServerUnavailable)
    assert "does not resolve" in str(error)
    assert "no.such.host" in str(error)
    assert seconds < scaled(2)


async def test_a_name_is_tried_again_once_a_server_was_reached(
    face: str, server: Server, monkeypatch: pytest.MonkeyPatch
):
    driver = FaceDriver(face, f"valkey://localhost:{server.port or free_port()}", Settings(give_up_after=0.5))
    driver.server_driver.connector.version = ("valkey", (9,))

    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    began = time.monotonic()
    with pytest.raises(ServerUnavailable, match="no server answers"):
        await driver.run(count("{faults}n"))
    assert time.monotonic() - began >= 0.5
    await driver.aclose()


async def test_a_closed_port(face: str, tmp_path: Path):
    addresses = (f"valkey://:{SECRET}@127.0.0.1:{free_port()}", f"unix://:{SECRET}@{tmp_path}/none")
    for error, seconds in await asyncio.gather(*(error_at(face, one, Settings(give_up_after=60)) for one in addresses)):
        assert isinstance(error, ServerUnavailable)
        assert "Nothing listens there" in str(error)
        assert seconds < scaled(6)


@needs_openssl
async def test_a_port_that_wants_tls(face: str, tls_port: int):
    error, _ = await error_at(face, f"valkey://:{SECRET}@127.0.0.1:{tls_port}", Settings(give_up_after=0.2))
    assert isinstance(error, ServerUnavailable)
    assert "Nothing listens" not in str(error)


async def test_a_right_that_is_missing_names_component_and_keys(face: str, server: Server):
    server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~other:*", "&*", "+@all")
    driver = FaceDriver(face, f"unix://few:x@{server.socket}")
    with pytest.raises(ServerRefused, match=r"in the call count of semaphore 'market' \(keys \{p:semaphore:market\}:"):
        await driver.run(count("{p:semaphore:market}:holders"))
    await driver.aclose()
    server.client.execute_command("ACL", "DELUSER", "few")


class Proxy:
    """A proxy that knows no scripts. It closes the connection at these commands, or answers them with an error."""

    def __init__(self, error: bytes, *refused: bytes) -> None:
        self._error, self._refused = error, refused
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"valkey://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, client.makefile("rb") as lines:
            while line := lines.readline():
                words = [lines.read(int(lines.readline()[1:]) + 2)[:-2].upper() for _ in range(int(line[1:]))]
                if words[0] not in self._refused:
                    client.sendall(b"-ERR unknown subcommand\r\n")
                elif not self._error:
                    return
                else:
                    client.sendall(self._error)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize("refused", [b"INFO", b"CLIENT"])
async def test_a_proxy_that_closes_the_connection_is_named_with_the_fix(face: str, refused: bytes):
    with contextlib.closing(Proxy(b"", refused)) as proxy:
        error, took = await error_at(face, proxy.address, Settings(give_up_after=0.3))
    assert isinstance(error, ServerUnavailable)
    assert "such as twemproxy, use the address of the server itself" in str(error)
    assert took < scaled(3)


@pytest.mark.parametrize("answer", [b"-invalid request\r\n", b"-ERR this command is not supported by the proxy\r\n"])
async def test_a_proxy_that_refuses_the_first_commands_is_named_with_the_fix(face: str, answer: bytes):
    with contextlib.closing(Proxy(answer, b"INFO", b"SPUBLISH", b"SSUBSCRIBE", b"SUNSUBSCRIBE")) as proxy:
        error, took = await error_at(face, proxy.address)
    assert isinstance(error, ServerRefused)
    assert "Penstock needs scripts" in str(error)
    assert "a proxy in front takes them away" in str(error)
    assert took < scaled(3)


class NeedsPasswordLate:
    """Answers the handshake as Redis 7.0 does without the password: only the command after it is refused."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while data := client.recv(65536):
                for line in data.split(b"\r\n"):
                    if line.upper() in {b"CLIENT", b"HELLO"}:
                        client.sendall(b"-ERR unknown subcommand\r\n")
                    elif line.upper() in {b"INFO", b"EVALSHA", b"SPUBLISH", b"SSUBSCRIBE", b"SUNSUBSCRIBE"}:
                        client.sendall(b"-NOAUTH Authentication required.\r\n")

    def close(self) -> None:
        self._listener.close()


async def test_a_missing_password_that_only_commands_report_is_refused_at_once(face: str):
    port = NeedsPasswordLate()
    error, took = await error_at(face, f"valkey://127.0.0.1:{port.port}")
    port.close()
    assert isinstance(error, ServerRefused)
    assert "password" in str(error)
    assert took < scaled(1)
