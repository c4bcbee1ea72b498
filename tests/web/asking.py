"""Asks a dashboard and acts on it, as a browser on the same machine does."""

import asyncio
import json
from typing import Any

import httpx

from penstock import Penstock
from penstock.ops.inspect import Inspector
from penstock.web.dashboard import pages

LOCAL = "http://localhost:8321"
JSON = {"content-type": "application/json", "origin": LOCAL}


def ask(asgi: Any, path: str, *, client: str = "127.0.0.1", base: str = LOCAL, **how: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(asgi, client=(client, 5))
        async with httpx.AsyncClient(transport=transport, base_url=base) as http:
            return await http.request(how.pop("method", "GET"), path, **how)

    return asyncio.run(send())


def act(asgi: Any, headers: dict[str, str] = JSON, **order: Any) -> httpx.Response:
    return ask(asgi, "/api/act", method="POST", content=json.dumps(order), headers=headers)


def acting(app: Penstock) -> Any:
    return pages(Inspector(app), local_may_act=True)
