"""Processes that carry bytes at the same time: one sends, some receive or count; beside them the bare SET and GET.

Each is told its order, begins with the others, and answers with what it did and what that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any, Literal

from penstock.app import Penstock
from penstock.bench.contenders import PATIENCE, at_once
from penstock.counting.access_log import requests_per
from penstock.messages.keys import LogKeys

Role = Literal["send", "send_lines", "receive", "count", "set", "get"]

BLOCK = 255 * 1024
"""Bytes of a block, and of a value of the bare server."""

LOT = 4
"""Of these in a round trip."""

SLOTS = 256
"""Keys that the bare server's values are written to, over and over: the window of a channel."""


@dataclass(frozen=True, slots=True)
class Order:
    """`name`: of the channel, or of the keys; `who`: the receiver; `amount`: bytes that a bare reader is to have."""

    role: Role
    address: str
    prefix: str
    name: str
    who: str = ""
    path: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Carried:
    """`amount`: bytes, or lines where it counted; `cpu`: seconds of this process between the first and the last."""

    amount: int
    began: float
    ended: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.amount / (self.ended - self.began)


def carry(orders: Sequence[Order]) -> list[Carried]:
    """All at once, each in a process of its own."""
    found: list[Carried] = at_once(carried, [(order,) for order in orders])
    return found


def carried(start: Any, out: Connection, order: Order) -> None:
    with Penstock(order.address, prefix=order.prefix) as app:
        work = ROLES[order.role](app, order)
        app.files(order.name).receiver("nobody").leave()  # connects
        start.wait(PATIENCE)
        began, cpu = time.monotonic(), time.process_time()
        amount = work()
        out.send(Carried(amount, began, time.monotonic(), time.process_time() - cpu))


def _send(app: Penstock, order: Order) -> Callable[[], int]:
    files = app.files(order.name)
    verb = files.send if order.role == "send" else files.send_lines
    return lambda: verb(order.path, close=True).bytes


def _receive(app: Penstock, order: Order) -> Callable[[], int]:
    return lambda: sum(map(len, app.files(order.name).receiver(order.who).blocks()))


def _count(app: Penstock, order: Order) -> Callable[[], int]:
    aggregate = app.aggregate(order.name, receiver=order.who)(requests_per("day", "country"))
    return lambda: aggregate.run().lines


def _set(app: Penstock, order: Order) -> Callable[[], int]:
    client, keys = app._driver.connector.blocking_client(), _keys(order)

    def write() -> int:
        sent, slots = 0, cycle(keys)
        with open(order.path, "rb", buffering=0) as file:
            while blocks := [data for _ in range(LOT) if (data := file.read(BLOCK))]:
                pipe = client.pipeline(transaction=False)
                for data in blocks:
                    pipe.set(next(slots), data)
                pipe.execute()
                sent += sum(map(len, blocks))
        return sent

    return write


def _get(app: Penstock, order: Order) -> Callable[[], int]:
    client, keys = app._driver.connector.blocking_client(), _keys(order)

    def read() -> int:
        got = 0
        for at in range(0, order.amount // BLOCK, LOT):
            pipe = client.pipeline(transaction=False)
            for n in range(at, at + LOT):
                pipe.get(keys[n % SLOTS])
            got += sum(map(len, pipe.execute()))
        return got

    return read


def _keys(order: Order) -> list[str]:
    base = LogKeys(order.prefix, "files", order.name).base
    return [f"{base}user:{n}" for n in range(SLOTS)]


ROLES: dict[str, Callable[[Penstock, Order], Callable[[], int]]] = {
    "send": _send, "send_lines": _send, "receive": _receive, "count": _count, "set": _set, "get": _get,
}  # fmt: skip
