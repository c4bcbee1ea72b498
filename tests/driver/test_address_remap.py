"""Behind NAT: the addresses that Sentinels and cluster nodes report are translated before use."""

import socketserver
import threading
from collections.abc import Iterator

import pytest

from penstock import Penstock, Settings
from penstock.core.slots import Node
from tests.conftest import Do
from tests.servers import Cluster, Server, free_port

UNREACHABLE = "192.0.2.1"
"""An address that is reserved for documentation."""


class SentinelBehindNat(socketserver.StreamRequestHandler):
    """A Sentinel that reports a primary at an unreachable address."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = list[bytes]()
            for _ in range(int(line[1:])):
                words.append(self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2].upper())
            state = ["name", "main", "ip", UNREACHABLE, "port", "6379", "flags", "master", "config-epoch", "0"]
            match words:
                case [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", *_]:
                    self._reply([UNREACHABLE, "6379"])
                case [b"SENTINEL", b"MASTER", *_]:
                    self._reply(state)
                case [b"SUBSCRIBE", *channels]:
                    for i, channel in enumerate(channels, 1):
                        self.wfile.write(b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:%d\r\n" % (len(channel), channel, i))
                case _:
                    self.wfile.write(b"+OK\r\n")

    def _reply(self, texts: list[str]) -> None:
        self.wfile.write(f"*{len(texts)}\r\n".encode() + b"".join(f"${len(t)}\r\n{t}\r\n".encode() for t in texts))


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sentinel() -> Iterator[str]:
    class Sentinels(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Sentinels(("127.0.0.1", 0), SentinelBehindNat) as listener:
        threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
        yield f"valkey+sentinel://127.0.0.1:{listener.server_address[1]}/main"
        listener.shutdown()


async def test_the_address_from_a_sentinel_is_translated(sentinel: str, do: Do):
    with Server(port=free_port()) as primary:

        def remap(node: Node) -> Node:
            assert node == (UNREACHABLE, 6379)
            return "127.0.0.1", primary.port

        app = Penstock(sentinel, settings=Settings(address_remap=remap))
        await do(app.queue("mail").put, 1)
        assert (await do(app.queue("mail").count)).ready == 1
        assert primary.client.dbsize() > 0
        await app.aclose()


async def test_the_addresses_from_a_cluster_are_translated(do: Do):
    with Cluster(1) as cluster:
        cluster.nodes[0].ask("CONFIG", "SET", "cluster-announce-ip", UNREACHABLE)
        app = Penstock(
            cluster.address,
            settings=Settings(address_remap=lambda node: ("127.0.0.1" if node[0] == UNREACHABLE else node[0], node[1])),
        )
        await do(app.queue("mail").put, 1)
        assert (await do(app.queue("mail").count)).ready == 1
        await app.aclose()
