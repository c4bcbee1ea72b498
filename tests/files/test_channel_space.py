"""Space in a channel, and the keys that are left, where a process died before it did its part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from penstock.core.clock import Clock
from penstock.core.operations import RoundTrip
from penstock.files.bindings import ChannelBindings, UploadPiece
from penstock.messages.keys import LogKeys
from penstock.settings import MiB, Settings
from tests.faces import Faces
from tests.jobs.stand import START
from tests.messages.test_log_scripts import send
from tests.servers import Server

CLOCK = Clock(START)
LOG = ChannelBindings(LogKeys("t", "files", "space"), Settings(prefix="t"), CLOCK)


def put(*kinds: str, file: str, size: int) -> RoundTrip[Any]:
    records = [(kind, b"x" * size) for kind in kinds]
    piece = UploadPiece(file, file, records, "m", expected=b"", outcome="whole", names=["i:at" + file])
    return LOG.put("s", [piece])


def receive(turn: int, receiver: str = "ada", **more: Any) -> RoundTrip[Any]:
    return LOG.receive(receiver, "penstock/h/1/x", turn, lease=10, limit=0, **more)


@pytest.fixture
def client(script_server: Server) -> Iterator[Any]:
    script_server.client.flushall()
    CLOCK.now_ms = START
    yield script_server.client
    CLOCK.now_ms = START


def run(client: Any, step: RoundTrip[Any]) -> Any:
    return step.read(send(client, step))


@pytest.mark.parametrize("patience", [None, 5])
def test_a_sender_trims_records_that_another_process_left_untrimmed(client: Any, patience: float | None):
    """A receiver that left or was passed over held more than one slice, and no other process has a reason to trim."""
    run(client, LOG.open(["ada", "bo"], 2 * MiB, patience))
    for n in range(25):
        run(client, put("B", *"D" * 199, "E", file=f"f{n}", size=1))
    run(client, put("B", "D", "E", file="large", size=MiB // 2))
    run(client, receive(1))
    run(client, receive(2, acked=run(client, LOG.info()).last))
    if patience is None:
        run(client, LOG.remove_receiver("bo"))  # and dies before it trims the rest
    CLOCK.now_ms += 60_000
    for _ in range(4):
        answer = run(client, put("B", "D", "E", file="new", size=MiB * 15 // 100))
        if not answer.full:
            return
        assert answer.due_in == 0
    raise AssertionError("it was not trimmed")


def test_one_block_wakes_hundreds_of_waiting_receivers(client: Any, faces: Faces):
    """They are listeners of one face, as each stream of a process would be if it had an address of its own."""
    faces.open("p")
    run(client, LOG.open([f"r{n}" for n in range(350)], None, None))
    for n in range(350):
        run(client, receive(1, f"r{n}", address=f"p/{n}", ttl=9))
        run(client, receive(2, f"r{n}", address=f"p/{n}", ttl=9))
    run(client, put("B", "D", "E", file="f", size=1))
    woken = set[int]()
    while found := faces.heard():
        for n in (int(message.split()[0]) for message in found["p"]):
            woken.add(n)
            run(client, receive(3, f"r{n}", address=f"p/{n}", ttl=9))
    assert len(woken) == 350


@pytest.mark.parametrize("counted", [b"", msgspec.msgpack.encode((1, 0, {}, []))])
def test_hundreds_of_processes_that_share_all_learn_of_the_end(client: Any, faces: Faces, counted: bytes):
    faces.open("p")

    def share(token: str, *claims: bytes, n: int, counts: bytes = b"") -> Any:
        more: dict[str, Any] = {"limit": 9, "settled": [(claim, counts) for claim in claims]}
        return run(client, LOG.share("ada", token, lease=5, address=f"p/{n}", ttl=9, **more))

    run(client, LOG.open(["ada"], None, None))
    for n in range(350):
        share(f"1-{n}", n=n)
    run(client, LOG.close())
    claims = share("last", n=1000).claims
    assert share("end", *claims, n=1000, counts=counted).status == "ENDED"
    ended = set[int]()
    while found := faces.heard():
        for n in (int(message.split()[0]) for message in found["p"]):
            assert share(f"2-{n}", n=n).status == "ENDED"
            ended.add(n)
    assert len(ended) == 350


def test_no_key_of_a_receiver_that_was_passed_over_outlives_the_channel(client: Any):
    run(client, LOG.open(["ada", "bo"], 2 * MiB, 5))
    run(client, put("B", "D", "E", file="a", size=MiB // 2))
    run(client, receive(1, "bo"))
    run(client, receive(2, "bo", acked=1, receiver_state="here"))
    CLOCK.now_ms += 60_000
    run(client, receive(1))
    run(client, receive(2, acked=3))
    run(client, put("B", "D", "E", file="b", size=MiB // 2))
    run(client, LOG.close())
    run(client, receive(3, acked=run(client, LOG.info()).last))
    assert [receiver.state for receiver in run(client, LOG.info()).receivers] == ["gone", "done"]
    assert [key for key in client.scan_iter() if client.pttl(key) < 0] == []
    run(client, LOG.open(["ada"], None, None))
    assert not [key for key in client.scan_iter() if client.pttl(key) >= 0 and b"replay" not in key]
