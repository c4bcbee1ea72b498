"""A gateway between chats and browsers: Server-Sent Events and websockets, with starlette and uvicorn.

python gateway.py                 a short demonstration: a client loses its connection and misses nothing
python gateway.py serve [PORT]    serve; start as many processes as you like behind a load balancer

    GET  /chats/{chat}/events         Server-Sent Events; a browser's EventSource reconnects with its last id
    GET  /chats/{chat}/socket?last=   a websocket: {"send": body, "id": …}, {"ack": id}, {"typing": true}
    POST /chats/{chat}/messages       {"body": …, "id": …}; a repeated POST with the same id is stored once

`?user=` names the user, in place of your authentication. A position is the id of a message: the browser keeps it, and
the chat reports if it began again since. All connections of a process share one connection to the server. Messages are
stored; presence and typing are not: they are published to the clients that are connected. A user is present while any
of its connections is open, in whatever process. Each tab reads after its own last id, also below what another tab has
acknowledged: create a chat with a history, so that this is still stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from valkey.asyncio import Valkey
from valkey.exceptions import ValkeyError

from penstock import BadCall, History, Message, Penstock, PenstockError, ServerError
from penstock.errors import ChatGone, MessageError, NewBeginning, NotAMember

PREFIX = "example"
TRY_AGAIN_LATER = 1013
"""The status with which a websocket is closed while the server is away."""

KEEPALIVE = 15.0
"""Seconds after which a quiet stream sends a comment, so that proxies keep the connection and a dead one is noticed."""


class Live:
    """Unstored events, such as presence and typing: published to every connection of a chat, in all processes.

    One subscription per process. Without PENSTOCK_URL the events stay in this process.
    """

    def __init__(self) -> None:
        self._queues: dict[str, set[asyncio.Queue[dict[str, Any]]]] = defaultdict(set)
        url = os.environ.get("PENSTOCK_URL", "")
        self._client = Valkey.from_url(url) if "://" in url else None
        self._reading: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self._here: Counter[tuple[str, str]] = Counter()
        """Chat and user -> connections of this process."""
        self._few = asyncio.Semaphore(4)
        """The client opens a connection for each command that runs: thousands, when thousands of users reconnect."""

    async def publish(self, chat: str, event: dict[str, Any]) -> None:
        if self._client is None:
            self._deliver(chat, event)
            return
        with contextlib.suppress(ValkeyError, OSError):  # an event is worth no error
            async with self._few:
                await self._client.publish(f"{PREFIX}:live:{chat}", json.dumps(event))

    @contextlib.asynccontextmanager
    async def present(self, chat: str, user: str) -> AsyncIterator[None]:
        """Publish that the user is there, and at the end of its last connection that it is not."""
        self._here[chat, user] += 1
        try:
            await self.publish(chat, {"type": "presence", "user": user, "on": True})
            yield
        finally:
            self._here[chat, user] -= 1
            if not self._here[chat, user]:
                del self._here[chat, user]
                await self.publish(chat, {"type": "presence", "user": user, "on": False})

    def _deliver(self, chat: str, event: dict[str, Any]) -> None:
        for queue in self._queues.get(chat, ()):
            with contextlib.suppress(asyncio.QueueFull):  # a slow client misses events, never messages
                queue.put_nowait(event)

    @contextlib.contextmanager
    def events(self, chat: str) -> Any:
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(100)
        self._queues[chat].add(queue)
        try:
            yield queue
        finally:
            self._queues[chat].discard(queue)
            if not self._queues[chat]:
                del self._queues[chat]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if self._client is not None:
            self._reading = asyncio.create_task(self._read(self._client))
            with contextlib.suppress(TimeoutError):  # it serves without events while the server is away
                await asyncio.wait_for(self._subscribed.wait(), 10)
        try:
            yield
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait([self._reading])
            if self._client is not None:
                await self._client.aclose()

    async def _read(self, client: Any) -> None:
        while True:
            with contextlib.suppress(ValkeyError, OSError):
                async with client.pubsub() as channel:
                    await channel.psubscribe(f"{PREFIX}:live:*")
                    async for message in channel.listen():
                        self._subscribed.set()  # the first message confirms the subscription
                        if message["type"] == "pmessage":
                            chat = message["channel"].decode().removeprefix(f"{PREFIX}:live:")
                            event = json.loads(message["data"])
                            self._deliver(chat, event)
                            if event["type"] == "presence" and not event["on"] and self._here[chat, event["user"]]:
                                # Its connection to another process has ended, and one to this process is open.
                                await self.publish(chat, {**event, "on": True})
            await asyncio.sleep(1)


def as_json(message: Message) -> dict[str, Any]:
    about = {"event": message.event, "about": message.about} if message.event else {}
    return {
        "id": message.id,
        "number": message.number,
        "sender": message.sender,
        "body": message.body,
        "at": message.at,
        "redacted": message.redacted,
        "edited": message.edited,
        "missed": message.missed,
        "restarted": message.new_beginning,
        **about,
    }


class Gateway:
    """The routes. A connection follows its chat from the client's last id, and acknowledges only ids of the client."""

    def __init__(self) -> None:
        self.app = Penstock(prefix=PREFIX)
        self.live = Live()
        self.web = Starlette(
            routes=[
                Route("/chats/{chat}/events", self.events),
                Route("/chats/{chat}/messages", self.post, methods=["POST"]),
                WebSocketRoute("/chats/{chat}/socket", self.socket),
            ],
            lifespan=self.lifespan,
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self.app, self.live.running():
            yield

    async def post(self, request: Request) -> JSONResponse:
        try:
            wanted = await request.json()
            chat = self.app.chats.get(request.path_params["chat"])
            sent = await chat.send.aio(request.query_params["user"], wanted["body"], id=wanted.get("id"))
        except (ChatGone, NotAMember) as error:
            return JSONResponse({"error": str(error)}, 403)
        except ServerError as error:
            return JSONResponse({"error": str(error)}, 503)
        except (KeyError, TypeError, ValueError, BadCall, MessageError) as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"id": sent})

    # --- Server-Sent Events ---

    async def events(self, request: Request) -> StreamingResponse | JSONResponse:
        chat, user = request.path_params["chat"], request.query_params.get("user", "")
        last = request.headers.get("Last-Event-ID") or request.query_params.get("last")
        try:
            await self._received(chat, user, last)
        except ServerError as error:
            return JSONResponse({"error": str(error)}, 503)
        except (MessageError, BadCall, ValueError) as error:
            return JSONResponse({"error": str(error)}, 403)
        stream = self._stream(chat, user, last)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _received(self, chat: str, user: str, last: str | None) -> None:
        """The client has everything up to this id: acknowledge it. Raises NotAMember, ChatGone."""
        reader = self.app.chats.get(chat).reader(user)
        if last is None:
            await reader.unread.aio()
        else:
            with contextlib.suppress(NewBeginning):  # the stream reports it
                await reader.ack.aio(last)

    async def _stream(self, chat: str, user: str, last: str | None) -> AsyncIterator[str]:
        async with self._connected(chat, user, last) as incoming:
            while True:
                try:
                    kind, event = await asyncio.wait_for(incoming.get(), KEEPALIVE)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if kind == "lost":
                    return
                if kind == "end":
                    yield "event: end\ndata: {}\n\n"
                    return
                id_line = f"id: {event['id']}\n" if kind == "message" else ""
                yield f"{id_line}event: {kind}\ndata: {json.dumps(event)}\n\n"

    # --- websockets ---

    async def socket(self, client: WebSocket) -> None:
        chat, user = client.path_params["chat"], client.query_params.get("user", "")
        last = client.query_params.get("last")
        await client.accept()
        try:
            await self._received(chat, user, last)
        except ServerError:
            await client.close(TRY_AGAIN_LATER)
            return
        except (MessageError, BadCall, ValueError) as error:
            await client.close(4403, str(error)[:40])
            return
        async with self._connected(chat, user, last) as incoming:
            sending = asyncio.create_task(self._send(client, incoming))
            try:
                while True:
                    await self._accept(chat, user, await client.receive_json())
            except (WebSocketDisconnect, PenstockError, ValueError, KeyError, TypeError):
                pass
            finally:
                sending.cancel()
                await asyncio.wait([sending])
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await client.close()

    async def _send(self, client: WebSocket, incoming: asyncio.Queue[Any]) -> None:
        while True:
            kind, event = await incoming.get()
            if kind == "lost":
                await client.close(TRY_AGAIN_LATER)
                return
            await client.send_json({"type": kind, **event})
            if kind == "end":
                await client.close()

    async def _accept(self, chat: str, user: str, command: Any) -> None:
        if not isinstance(command, dict):
            raise TypeError("a command is an object")
        if "send" in command:
            await self.app.chats.get(chat).send.aio(user, command["send"], id=command.get("id"))
        elif "ack" in command:
            await self._received(chat, user, command["ack"])
        elif "typing" in command:
            await self.live.publish(chat, {"type": "typing", "user": user, "on": bool(command["typing"])})

    # --- what a connection gets ---

    @contextlib.asynccontextmanager
    async def _connected(self, chat: str, user: str, last: str | None) -> AsyncIterator[asyncio.Queue[Any]]:
        """A queue of pairs of kind and event. It holds few, so a slow client slows its own reading only."""
        incoming: asyncio.Queue[Any] = asyncio.Queue(100)
        with self.live.events(chat) as events:
            tasks = [
                asyncio.create_task(self._follow(chat, user, last, incoming)),
                asyncio.create_task(self._forward(events, incoming)),
            ]
            try:
                async with self.live.present(chat, user):
                    yield incoming
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _follow(self, chat: str, user: str, last: str | None, incoming: asyncio.Queue[Any]) -> None:
        try:
            async for message in self.app.chats.get(chat).follow(user, after=last, ack=False):
                await incoming.put(("message", as_json(message)))
        except MessageError:  # the chat is gone, or the user was removed from it
            await incoming.put(("end", {}))
        except PenstockError:  # the server is away: the client comes back with its last id
            await incoming.put(("lost", {}))

    async def _forward(self, events: asyncio.Queue[dict[str, Any]], incoming: asyncio.Queue[Any]) -> None:
        while True:
            event = await events.get()
            await incoming.put((event["type"], event))


def server(port: int) -> uvicorn.Server:
    config = uvicorn.Config(Gateway().web, port=port, log_level="warning", timeout_graceful_shutdown=1)
    return uvicorn.Server(config)


async def demonstrate() -> None:
    """A client reads two messages, loses its connection, and gets the others after it reconnected."""
    import httpx

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    running = server(port)
    serving = asyncio.create_task(running.serve([listening]))
    async with Penstock(prefix=PREFIX) as app, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        chat = await app.chats.create.aio(["ada", "bo"], history=History(messages=1000))
        path = f"/chats/{chat.id}"
        for n in (1, 2, 2):  # the second POST is repeated, as after a lost answer
            await client.post(f"{path}/messages?user=bo", json={"body": f"message {n}", "id": str(n)})

        async def read(n: int, last: str | None) -> str | None:
            headers = {"Last-Event-ID": last} if last else {}
            async with client.stream("GET", f"{path}/events?user=ada", headers=headers, timeout=30) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        last = line.removeprefix("id: ")
                    if line.startswith("data: ") and '"number"' in line:
                        print("ada has", json.loads(line.removeprefix("data: "))["body"])
                        n -= 1
                        if n == 0:
                            break
            return last

        last = await read(2, None)
        print("ada loses her connection")
        await client.post(f"{path}/messages?user=bo", json={"body": "message 3"})
        await client.post(f"{path}/messages?user=bo", json={"body": "message 4"})
        await read(2, last)
        await chat.delete.aio()
    running.should_exit = True
    await serving


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        server(int(sys.argv[2]) if len(sys.argv) > 2 else 8000).run()
    else:
        asyncio.run(demonstrate())
