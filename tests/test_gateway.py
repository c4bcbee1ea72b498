"""The gateway of `examples/gateway.py` with real clients: they lose connections and gateways, and miss nothing."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from penstock import Chat, History, Penstock, Settings
from tests.conftest import commands
from tests.servers import Server
from tests.speed import scaled

GATEWAY = Path(__file__).parent.parent / "examples/gateway.py"
CLIENTS = 300


class Gateways:
    """Gateway processes of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._processes: list[subprocess.Popen[bytes]] = []

    async def start(self) -> int:
        """Start a process; returns its port."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, str(GATEWAY), "serve", str(port)],
            env={**os.environ, "PENSTOCK_URL": self._server.address, "PYTHONPATH": ":".join(sys.path)},
        )
        self._processes.append(process)
        async with asyncio.timeout(scaled(20)):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return port
                await asyncio.sleep(0.05)

    def kill(self, index: int) -> None:
        self._processes[index].kill()
        self._processes[index].wait()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def gateways(server: Server) -> Iterator[Gateways]:
    gateways = Gateways(server)
    yield gateways
    gateways.close()


@pytest.fixture
async def chat(server: Server) -> AsyncIterator[Chat]:
    async with Penstock(server.address, prefix="example") as app:
        chat = await app.chats.create.aio(["ada", "bo"])
        yield chat
        await chat.delete.aio()


def socket_of(port: int, chat: Chat, user: str, last: str = "") -> Any:
    address = f"ws://127.0.0.1:{port}/chats/{chat.id}/socket?user={user}" + (f"&last={last}" if last else "")
    return connect(address, open_timeout=scaled(20), ping_interval=None)


async def receive(client: Any, kind: str = "message") -> dict[str, Any]:
    """The next event of this kind; skips others."""
    async with asyncio.timeout(scaled(20)):
        while True:
            event: dict[str, Any] = json.loads(await client.recv())
            if event["type"] == kind:
                return event


async def read_stream(port: int, chat: Chat, user: str, n: int, last: str | None = None) -> list[dict[str, Any]]:
    """`n` messages from the stream of Server-Sent Events, each with the id that a browser would keep."""
    found: list[dict[str, Any]] = []
    headers = {"Last-Event-ID": last} if last else {}
    url = f"http://127.0.0.1:{port}/chats/{chat.id}/events?user={user}"
    async with (
        asyncio.timeout(scaled(20)),
        httpx.AsyncClient() as client,
        client.stream("GET", url, headers=headers, timeout=None) as stream,
    ):
        assert stream.status_code == 200, await stream.aread()
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                last = line.removeprefix("id: ")
            if line.startswith("data: ") and '"number"' in line:
                found.append({**json.loads(line.removeprefix("data: ")), "last": last})
                if len(found) == n:
                    break
    return found


async def test_a_client_that_reconnects_with_its_last_id_misses_nothing(gateways: Gateways, chat: Chat):
    port, other = await gateways.start(), await gateways.start()
    await chat.send_many.aio("bo", range(5))
    seen = await read_stream(port, chat, "ada", 3)
    await chat.send_many.aio("bo", range(5, 8))
    gateways.kill(0)
    seen += await read_stream(other, chat, "ada", 5, seen[-1]["last"])
    assert [one["body"] for one in seen] == list(range(8))
    # The id that the client came back with is acknowledged: a client without one reads what follows.
    assert [one["body"] for one in await read_stream(other, chat, "ada", 5)] == list(range(3, 8))


async def test_a_websocket_sends_acknowledges_and_reconnects(gateways: Gateways, chat: Chat):
    port = await gateways.start()
    async with socket_of(port, chat, "ada") as ada, socket_of(port, chat, "bo") as bo:
        for _ in range(2):
            await bo.send(json.dumps({"send": {"text": "hi"}, "id": "1"}))
        first = await receive(ada)
        await ada.send(json.dumps({"ack": first["id"]}))
        await bo.send(json.dumps({"send": "second", "id": "2"}))
        second = await receive(ada)
        assert [(one["number"], one["body"], one["sender"]) for one in (first, second)] == [
            (1, {"text": "hi"}, "bo"),
            (2, "second", "bo"),
        ]
    await chat.send.aio("bo", "third")
    async with socket_of(port, chat, "ada", first["id"]) as ada:
        assert [(await receive(ada))["body"] for _ in range(2)] == ["second", "third"]


async def test_presence_and_typing_reach_the_clients_of_every_gateway(gateways: Gateways, chat: Chat):
    port, other = await gateways.start(), await gateways.start()
    async with socket_of(port, chat, "ada") as ada:
        assert (await receive(ada, "presence"))["user"] == "ada"
        async with socket_of(other, chat, "bo") as bo:
            assert (await receive(ada, "presence")) == {"type": "presence", "user": "bo", "on": True}
            await bo.send(json.dumps({"typing": True}))
            assert (await receive(ada, "typing")) == {"type": "typing", "user": "bo", "on": True}
        assert (await receive(ada, "presence")) == {"type": "presence", "user": "bo", "on": False}
    assert (await chat.info.aio()).last == 0


async def test_a_gateway_serves_only_when_it_hears_the_events_of_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise its first client could miss presence, also its own."""
    monkeypatch.setenv("PENSTOCK_URL", server.address)
    before = server.client.pubsub_numpat()
    async with example().Live().running():
        assert server.client.pubsub_numpat() == before + 1


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_user_with_two_tabs_is_present_until_both_are_closed(gateways: Gateways, chat: Chat, processes: int):
    ports = [await gateways.start() for _ in range(processes)]
    async with socket_of(ports[0], chat, "bo") as bo:
        assert (await receive(bo, "presence"))["user"] == "bo"
        async with socket_of(ports[0], chat, "ada") as first:
            assert (await receive(bo, "presence"))["on"]
            async with socket_of(ports[-1], chat, "ada"):
                assert (await receive(bo, "presence"))["on"]
            if processes == 2:
                assert not (await receive(bo, "presence"))["on"]
                assert (await receive(bo, "presence"))["on"]  # the other process has a connection of hers
            await first.send(json.dumps({"typing": True}))
            assert (await receive(bo, "typing"))["user"] == "ada"
        assert not (await receive(bo, "presence"))["on"]


async def test_a_tab_reads_after_its_own_id_what_another_tab_has_acknowledged(gateways: Gateways, chat: Chat):
    await chat.keep.aio(history=History(messages=100))
    port = await gateways.start()
    await chat.send_many.aio("bo", range(8))
    seen = await read_stream(port, chat, "ada", 8)
    await read_stream(port, chat, "ada", 1, seen[6]["last"])  # one tab has everything up to the seventh
    again = await read_stream(port, chat, "ada", 6, seen[1]["last"])
    assert [one["body"] for one in again] == [2, 3, 4, 5, 6, 7]
    assert await chat.reader("ada").unread.aio() == 1


async def test_an_id_of_a_chat_that_began_again_skips_nothing(gateways: Gateways, chat: Chat, server: Server):
    port = await gateways.start()
    await chat.send_many.aio("bo", "abc")
    seen = await read_stream(port, chat, "ada", 3)
    await chat.delete.aio()
    async with Penstock(server.address, prefix="example") as app:
        await app.chats.create.aio(["ada", "bo"], sender="bo", message="new", id=chat.id)
        (found,) = await read_stream(port, chat, "ada", 1, seen[-1]["last"])
    assert (found["body"], found["restarted"]) == ("new", True)


async def test_users_that_are_no_members_and_bad_input_are_refused(gateways: Gateways, chat: Chat):
    port = await gateways.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/chats/{chat.id}", timeout=scaled(20)) as client:
        assert (await client.get("/events?user=eve")).status_code == 403
        assert (await client.get("/events?user=ada", headers={"Last-Event-ID": "7"})).status_code == 403
        assert (await client.post("/messages?user=eve", json={"body": 1})).status_code == 403
        bad: list[Any] = [{}, [], {"body": 1, "id": "x" * 2000}, {"body": 1, "id": 5}]
        for wrong in bad:
            assert (await client.post("/messages?user=ada", json=wrong)).status_code == 400
        assert (await client.post("/messages?user=ada", content=b"{")).status_code == 400
    with pytest.raises(ConnectionClosed):
        async with socket_of(port, chat, "eve") as eve:
            await eve.recv()
    async with socket_of(port, chat, "ada") as ada:
        await receive(ada, "presence")
        await chat.kick.aio("ada")
        async with asyncio.timeout(scaled(20)):
            assert [one["type"] for one in [json.loads(text) async for text in ada]][-1] == "end"


async def test_hundreds_of_clients_of_one_process_all_get_a_message(gateways: Gateways, server: Server):
    port = await gateways.start()
    users = [f"u{n}" for n in range(CLIENTS)]
    async with Penstock(server.address, prefix="example") as app, contextlib.AsyncExitStack() as stack:
        chat = await app.chats.create.aio(users)
        clients = [await stack.enter_async_context(socket_of(port, chat, user)) for user in users]
        before = len(server.client.client_list())
        await chat.send.aio("u0", "hi")
        got = await asyncio.gather(*(receive(client) for client in clients))
        assert {one["body"] for one in got} == {"hi"}
        assert before < 40  # all clients of a process share a few connections to the server
        await chat.delete.aio()


@pytest.mark.parametrize("wrong", ["5", '"send"', "[1]", "null", '{"send": 1, "id": 5}', '{"ack": 7}', "{"])
async def test_a_wrong_command_ends_its_websocket_only(gateways: Gateways, chat: Chat, wrong: str):
    port = await gateways.start()
    async with socket_of(port, chat, "ada") as ada, socket_of(port, chat, "bo") as bo:
        await receive(ada, "presence")
        await bo.send(wrong)
        with pytest.raises(ConnectionClosed) as closed:
            await receive(bo)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        await chat.send.aio("bo", "hi")
        assert (await receive(ada))["body"] == "hi"


async def test_while_the_server_is_away_clients_are_sent_away_and_come_back(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
):
    """A stream must not stay open without its messages."""
    server = start("--appendonly", "yes")
    monkeypatch.setenv("PENSTOCK_URL", server.address)
    gateway = example().Gateway()
    gateway.app = Penstock(prefix="example", settings=Settings(give_up_after=1))
    async with (
        gateway.lifespan(gateway.web),
        httpx.AsyncClient(transport=httpx.ASGITransport(gateway.web), base_url="http://gateway") as client,
    ):
        chat = await gateway.app.chats.create.aio(["ada", "bo"])
        first = await chat.send.aio("bo", "first")
        stream = gateway._stream(chat.id, "ada", None)
        async with asyncio.timeout(scaled(30)):
            while "first" not in await anext(stream):
                pass
            server.kill()
            assert not [event async for event in stream if event.startswith("event: end")]
        path = f"/chats/{chat.id}"
        assert (await client.get(f"{path}/events?user=ada")).status_code == 503
        assert (await client.post(f"{path}/messages?user=bo", json={"body": "lost"})).status_code == 503
        server.start()
        assert (await client.post(f"{path}/messages?user=bo", json={"body": "second"})).status_code == 200
        again = gateway._stream(chat.id, "ada", first)
        async with asyncio.timeout(scaled(30)):
            while "second" not in await anext(again):
                pass
        await again.aclose()


# --- thousands of users ---

USERS = 2000 if "PENSTOCK_STORM_SECONDS" in os.environ else 1000
ROOMS = USERS // 5


def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_gateway", GATEWAY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class User:
    """A browser: it keeps the last id that it got, also while it is not connected."""

    def __init__(self, chat: str, name: str) -> None:
        self.chat, self.name, self.last = chat, name, ""
        self.got: list[Any] = []

    async def listen(self, gateway: Any, until: int) -> None:
        """Be connected until it has so many messages."""
        await gateway._received(self.chat, self.name, self.last or None)
        async with gateway._connected(self.chat, self.name, self.last or None) as incoming:
            while len(self.got) < until:
                kind, event = await incoming.get()
                if kind == "message":
                    assert (event["missed"], event["restarted"]) == (0, False)
                    self.got.append(event["body"])
                    self.last = event["id"]


async def test_thousands_of_users_reconnect_at_once_and_miss_nothing(server: Server, monkeypatch: pytest.MonkeyPatch):
    """The connections of one gateway process, without their sockets: all end at once, and come back with their ids."""
    monkeypatch.setenv("PENSTOCK_URL", server.address)
    gateway = example().Gateway()
    async with gateway.lifespan(gateway.web):
        chats = [gateway.app.chats.get(f"room{n}") for n in range(ROOMS)]
        users = [User(f"room{n % ROOMS}", f"u{n}") for n in range(USERS)]
        for n, chat in enumerate(chats):
            await gateway.app.chats.create.aio([user.name for user in users[n::ROOMS]], id=chat.id)

        async def send(*bodies: int) -> None:
            for n, chat in enumerate(chats):
                await chat.send_many.aio(f"u{n}", bodies)

        async with asyncio.timeout(scaled(60)):
            first = [asyncio.create_task(user.listen(gateway, 1)) for user in users]
            while True:
                await asyncio.sleep(0.1)
                if sum(len(events) for events in gateway.live._queues.values()) == USERS:
                    break
            await asyncio.sleep(0.2)
            await send(0)
            await asyncio.gather(*first)
            await send(1, 2)  # while no user is connected
            before = commands(server.client)
            again = [asyncio.create_task(user.listen(gateway, 4)) for user in users]
            await asyncio.sleep(0.1)
            await send(3)
            connections = len(server.client.client_list())
            await asyncio.gather(*again)
        assert {tuple(user.got) for user in users} == {(0, 1, 2, 3)}
        assert connections < 40
        # An acknowledgement, and a pull for each time that there was something, or nothing yet.
        assert commands(server.client) - before <= 6 * USERS
        for chat in chats:
            await chat.delete.aio()
