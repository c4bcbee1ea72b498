"""The calls of a channel's scripts, as the tests of the scripts make them."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.clock import Clock
from penstock.core.operations import RoundTrip
from penstock.files.bindings import ChannelBindings, SourceEntry, UploadPiece
from penstock.files.dead_files import FileFailure
from penstock.messages.keys import LogKeys
from penstock.settings import MiB, Settings
from tests.jobs.stand import START
from tests.messages.test_log_scripts import send

CLOCK = Clock(START)
LOG = ChannelBindings(LogKeys("t", "files", "access"), Settings(prefix="t"), CLOCK)
BASE = LOG.keys.base
TABLES = {
    "days": ("count 0", 0, {"mon": 2}),
    "sums": ("sum 2", 0, {"all": "125"}),
    "lasts": ("last 0", 0, {"all": (7, "text")}),
    "visitors": ("uniques 0", 0, {"all": ["x", "y"]}),
    "hours@3600": ("count 0", 60_000, {"all": 3}),
}
COUNTED: bytes = msgspec.msgpack.encode((3, 1, TABLES, ['["a",1,"bad"]'], [(2, "{}", "lines")]))
SENT_ENTRY: bytes = msgspec.msgpack.encode(("", "", "m", "whole", ["i:inodef0", "p:pathf0", "h:alike"]))
"""As `fill` leaves it for the file f0."""
HELD = "penstock/h/1/x"
TTL = 1.0


def put(
    *kinds: str, file: str = "f1", token: str = "s", expected: bytes | None = None, size: int = 10, **more: Any
) -> Any:
    """`kinds`: the letters of the records. A file that ends is kept as sent. The entry has the file's name."""
    if expected is None and "B" in kinds:
        expected = b""
    outcome = "-" if "A" in kinds else "whole" if "E" in kinds else ""
    names = ["i:inode" + file, "p:path" + file, "h:alike"] if "B" in kinds else []
    piece = UploadPiece(
        file,
        file,
        [(kind, b"x" * size) for kind in kinds],
        "m",
        expected=expected,
        outcome=outcome,
        names=names,
        **more,
    )
    return LOG.put(token, [piece])


def entry(client: Any, name: str) -> SourceEntry:
    ((found,),) = run(client, LOG.find_entries([name]))
    entry: SourceEntry = found
    return entry


def receive(turn: int, receiver: str = "ada", token: str = HELD, **more: Any) -> RoundTrip[Any]:
    return LOG.receive(receiver, token, turn, lease=10, limit=0, **more)


def await_space(size: int = 1000) -> RoundTrip[Any]:
    return LOG.await_space([("D", b"x" * size)], "p/1", TTL)


def share(token: str, *claims: bytes, limit: int = 2, counts: bytes = b"") -> RoundTrip[Any]:
    """`counts`: those of the first claim."""
    settled = [(claim, b"" if place else counts) for place, claim in enumerate(claims)]
    return LOG.share("bo", token, lease=5, limit=limit, settled=settled)


NUMBERED: dict[str, RoundTrip[Any]] = {
    "open": LOG.open(["ada", "di"], 3 * MiB, 5),
    "put": put("B", "D", "E", file="f3"),
    "close": LOG.close(),
    "add_receiver": LOG.add_receiver("di"),
    "remove_receiver": LOG.remove_receiver("cy"),
    "delete_channel": LOG.delete_channel(),
    "rename_entry": LOG.rename_entry(SourceEntry("f0", "", "", "m", "whole", SENT_ENTRY), "m2", "whole", ["i:moved"]),
}
OTHERS: dict[str, RoundTrip[Any]] = {
    "find_entries": LOG.find_entries(["p:pathf1", "i:inodef0", "h:alike", "none"]),
    "take_over": LOG.take_over(SourceEntry("f1", "s", "f1", "m", "", b""), "other"),
    "receive": receive(2, acked=1, receiver_state="here", counts=COUNTED, address="p/1", ttl=TTL),
    "await_space": await_space(3 * MiB),
    "renew": LOG.renew("ada", HELD, 10),
    "share": share("t1"),
    "info": LOG.info(),
    "totals": LOG.totals("ada"),
    "top_counts": LOG.top_counts("ada", "days", 0, 9),
    "counts_of": LOG.counts_of("ada", "days", ["mon", "tue"]),
    "rejected": LOG.rejected("ada", 0, 9),
    "deposit": LOG.deposit("ada", "d1", 0, COUNTED),
    "add_piece": LOG.add_piece("ada", "d1"),
    "dead_batches": LOG.dead_batches("ada"),
    "dead_lines": LOG.dead_lines("ada", "1"),
    "settle_dead_batch": LOG.settle_dead_batch("ada", "1", COUNTED, ""),
    "retry_dead_batches": LOG.retry_dead_batches("ada", ["1"]),
    "remove_dead_batches": LOG.remove_dead_batches("ada", ["9"]),
    "note_dead_file": LOG.note_dead_file("ada", "f9", FileFailure("f9", "host", "no name", "host:/kept")),
    "list_dead_files": LOG.list_dead_files("ada"),
    "retry_dead_files": LOG.retry_dead_files("ada", ["f1"]),
    "remove_dead_files": LOG.remove_dead_files("ada", ["f9"]),
    "forget_counts": LOG.forget_counts("ada"),
}
EVERY = {**NUMBERED, **OTHERS}
ADDS = {"open", "put", "rename_entry"}


def fill(client: Any) -> None:
    """A file that was sent, an upload in progress, a receiver that reads, a shared receiver, and an idle one."""
    for step in (
        LOG.open(["ada", "bo", "cy"], None, 60),
        put("B", "D", "E", file="f0"),
        put("B", "D", "D"),
        receive(0),
        receive(1, acked=1, counts=COUNTED),
        share("t0", limit=1),
    ):
        assert step.read(send(client, step)) is not False


def run(client: Any, step: RoundTrip[Any]) -> Any:
    return step.read(send(client, step))


def settle_the_claim(client: Any) -> None:
    """Settle the claim that `fill` left, so that one process may receive alone."""
    (claimed,) = run(client, share("t0", limit=1)).claims
    run(client, share("done", claimed, limit=0))


def eternal(client: Any) -> list[str]:
    return sorted(key.decode().removeprefix(BASE) for key in client.scan_iter() if client.pttl(key) < 0)
