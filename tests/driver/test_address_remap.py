"""Behind NAT: the addresses that Sentinels and cluster nodes report are translated before use."""

import socketserver
import threading
import time
from collections.abc import Iterator

import anyio.to_thread
import pytest

from penstock import Penstock, Settings
from penstock.core.slots import Node, slot
from tests.clusters import SentinelServers
from tests.conftest import Do, until
from tests.servers import Cluster, Server, free_port
from tests.slot_moves import move_slot, serves
from tests.speed import scaled

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


# --- real servers, which know each other by addresses that a client is not to use ---

INSIDE = "127.0.0.77"


class Translation:
    """Turns addresses inside into those outside, and counts what it was asked for."""

    def __init__(self) -> None:
        self.asked = set[int]()

    def __call__(self, node: Node) -> Node:
        if node[0] != INSIDE:
            return node
        self.asked.add(node[1])
        return "127.0.0.1", node[1]


def callers_inside(server: Server) -> list[str]:
    """The clients of a library that are connected to the address inside. Other servers and Sentinels name none."""
    lines = [line for line in server.ask("CLIENT", "LIST").splitlines() if f"laddr={INSIDE}:" in line]
    return [line for line in lines if " lib-name=valkey-py" in line]


async def test_a_fail_over_behind_sentinels_is_followed_to_the_translated_address(do: Do):
    translation = Translation()
    with SentinelServers(INSIDE) as servers:
        app = Penstock(servers.address, settings=Settings(address_remap=translation))
        queue = app.queue("mail")
        await do(queue.put, 1)
        old = servers.victim
        await anyio.to_thread.run_sync(servers.plan_fail_over)
        await until(servers.has_failed_over)
        began = time.monotonic()
        await do(queue.put, 2)
        assert time.monotonic() - began < scaled(2)
        new = next(one for one in servers.replicas if one.role() == "master")
        assert {old.port, new.port} <= translation.asked
        assert (await do(queue.count)).ready == 2
        if "lib-name" in new.ask("CLIENT", "LIST"):  # since Redis 7.2
            await until(lambda: "lib-name=valkey-py" in new.ask("CLIENT", "LIST"))
        assert callers_inside(new) == callers_inside(old) == []
        await app.aclose()


async def test_an_unplanned_fail_over_is_followed_to_the_translated_address(do: Do):
    translation = Translation()
    with SentinelServers(INSIDE) as servers:
        app = Penstock(servers.address, settings=Settings(address_remap=translation, give_up_after=60))
        queue = app.queue("mail")
        await do(queue.put, 1)
        await anyio.to_thread.run_sync(servers.replicate)
        servers.victim.kill()
        await do(queue.put, 2)
        assert (await do(queue.count)).ready == 2
        assert all(callers_inside(one) == [] for one in servers.replicas)
        await app.aclose()


async def test_the_address_in_a_redirect_is_translated(do: Do):
    translation = Translation()
    with Cluster(2, INSIDE) as cluster:
        app = Penstock(cluster.address, settings=Settings(address_remap=translation))
        queue = app.queue("mail")
        await do(queue.put, 1)
        number = slot(queue.key("x"))
        owner = next(one for one in cluster.nodes if serves(one, number))
        other = next(one for one in cluster.nodes if one is not owner)
        assert translation.asked == {owner.port, other.port}
        translation.asked.clear()
        await anyio.to_thread.run_sync(move_slot, owner, other, number)
        await do(queue.put, 2)
        assert translation.asked == {other.port}  # by MOVED
        assert (await do(queue.count)).ready == 2
        assert callers_inside(owner) == callers_inside(other) == []
        await app.aclose()
