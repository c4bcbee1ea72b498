"""Processes that transfer bytes at the same time: one sends, others receive or count. For comparison: bare SET and GET.

Each process gets a `Transfer`, starts together with the others, and returns a `TransferResult`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any, Literal

from penstock.app import Penstock
from penstock.bench.competitors import TIMEOUT, run_together
from penstock.counting.access_log import requests_per
from penstock.counting.tally import Tally
from penstock.files.batches import LineBatch
from penstock.messages.keys import LogKeys

Role = Literal["send", "send_lines", "receive", "count", "count_shared", "set", "get"]

BLOCK = 255 * 1024
"""Bytes of a block, and of a value in the comparison."""

BATCH = 4
"""Blocks per round trip."""

SLOTS = 256
"""Keys that the comparison writes to in rotation, as many as fit into the channel."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The work of one process. `name`: the channel, or for `set` and `get` part of the keys' names; `receiver`: the
    receiver's name; `path`: the file to send or to set; `amount`: the bytes that a `get` reads."""

    role: Role
    address: str
    prefix: str
    name: str
    receiver: str = ""
    path: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class TransferResult:
    """`amount`: bytes, or lines for `count`; `began`, `ended`: seconds of `time.monotonic`; `cpu`: CPU seconds of the
    process in between."""

    amount: int
    began: float
    ended: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.amount / (self.ended - self.began)


def run_transfers(transfers: Sequence[Transfer]) -> list[TransferResult]:
    """Run all of them at the same time, each in a process of its own."""
    results: list[TransferResult] = run_together(run_transfer, [(one,) for one in transfers])
    return results


def run_transfer(start: Any, out: Connection, transfer: Transfer) -> None:
    with Penstock(transfer.address, prefix=transfer.prefix) as app:
        work = ROLES[transfer.role](app, transfer)
        app.files(transfer.name).receiver("nobody").leave()  # opens the connection
        start.wait(TIMEOUT)
        began, cpu = time.monotonic(), time.process_time()
        amount = work()
        out.send(TransferResult(amount, began, time.monotonic(), time.process_time() - cpu))


def _send(app: Penstock, transfer: Transfer) -> Callable[[], int]:
    files = app.files(transfer.name)
    verb = files.send if transfer.role == "send" else files.send_lines
    return lambda: verb(transfer.path, close=True).bytes


def _receive(app: Penstock, transfer: Transfer) -> Callable[[], int]:
    return lambda: sum(map(len, app.files(transfer.name).receiver(transfer.receiver).blocks()))


def _count(app: Penstock, transfer: Transfer) -> Callable[[], int]:
    requests, lines = requests_per("day", "country"), [0]

    def counting(batch: LineBatch) -> Tally:
        lines[0] += len(batch)
        return requests(batch)

    aggregate = app.aggregate(transfer.name, receiver=transfer.receiver)(counting)

    def count() -> int:
        aggregate.run(share=transfer.role == "count_shared")
        return lines[0]

    return count


def _set(app: Penstock, transfer: Transfer) -> Callable[[], int]:
    client, keys = app._driver.connector.blocking_client(), _keys(transfer)

    def write() -> int:
        sent, slots = 0, cycle(keys)
        with open(transfer.path, "rb", buffering=0) as file:
            while blocks := [data for _ in range(BATCH) if (data := file.read(BLOCK))]:
                pipe = client.pipeline(transaction=False)
                for data in blocks:
                    pipe.set(next(slots), data)
                pipe.execute()
                sent += sum(map(len, blocks))
        return sent

    return write


def _get(app: Penstock, transfer: Transfer) -> Callable[[], int]:
    client, keys = app._driver.connector.blocking_client(), _keys(transfer)

    def read() -> int:
        got = 0
        for at in range(0, transfer.amount // BLOCK, BATCH):
            pipe = client.pipeline(transaction=False)
            for n in range(at, at + BATCH):
                pipe.get(keys[n % SLOTS])
            got += sum(map(len, pipe.execute()))
        return got

    return read


def _keys(transfer: Transfer) -> list[str]:
    base = LogKeys(transfer.prefix, "files", transfer.name).base
    return [f"{base}user:{n}" for n in range(SLOTS)]


ROLES: dict[str, Callable[[Penstock, Transfer], Callable[[], int]]] = {
    "send": _send,
    "send_lines": _send,
    "receive": _receive,
    "count": _count,
    "count_shared": _count,
    "set": _set,
    "get": _get,
}
