"""Space in a channel, and what is left of one, where somebody died before it did its part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.components.files.transitions import ChannelLog
from penstock.components.transitions import Clock
from penstock.driver.steps import Step
from penstock.settings import MiB, Settings
from penstock.store.keys import LogKeys
from tests.servers import Server
from tests.store.stand import START
from tests.store.test_log import send

CLOCK = Clock(START)
LOG = ChannelLog(LogKeys("t", "files", "space"), Settings(prefix="t"), CLOCK)


def put(*kinds: str, file: str, size: int) -> Step[Any]:
    records = [(kind, b"x" * size) for kind in kinds]
    return LOG.put("path" + file, file, "s", records, fresh=b"", mark="m", place="at" + file, ending="whole")


def receive(turn: int, who: str = "ada", **more: Any) -> Step[Any]:
    return LOG.receive(who, "penstock/h/1/x", turn, lease=10, limit=0, **more)


@pytest.fixture
def client(store_server: Server) -> Iterator[Any]:
    store_server.client.flushall()
    CLOCK.now_ms = START
    yield store_server.client
    CLOCK.now_ms = START


def run(client: Any, step: Step[Any]) -> Any:
    return step.read(send(client, step))


@pytest.mark.parametrize("patience", [None, 5])
def test_a_sender_trims_what_whoever_should_have_did_not(client: Any, patience: float | None):
    """Who left, or was passed over, held back more than one slice, and nobody else has a reason to come."""
    run(client, LOG.open(["ada", "bo"], 2 * MiB, patience))
    for n in range(25):
        run(client, put("B", *"D" * 199, "E", file=f"f{n}", size=1))
    run(client, put("B", "D", "E", file="large", size=MiB // 2))
    run(client, receive(1))
    run(client, receive(2, acked=run(client, LOG.info()).last))
    if patience is None:
        run(client, LOG.part("bo"))  # and dies before it trims the rest
    CLOCK.now_ms += 60_000
    for _ in range(4):
        answer = run(client, put("B", "D", "E", file="new", size=MiB * 15 // 100))
        if not answer.full:
            return
        assert answer.due == 0
    raise AssertionError("it was not trimmed")


def test_nothing_of_one_who_was_passed_over_outlives_the_channel(client: Any):
    run(client, LOG.open(["ada", "bo"], 2 * MiB, 5))
    run(client, put("B", "D", "E", file="a", size=MiB // 2))
    run(client, receive(1, "bo"))
    run(client, receive(2, "bo", acked=1, mark="here"))
    CLOCK.now_ms += 60_000
    run(client, receive(1))
    run(client, receive(2, acked=3))
    run(client, put("B", "D", "E", file="b", size=MiB // 2))
    run(client, LOG.close())
    run(client, receive(3, acked=run(client, LOG.info()).last))
    assert [receiver.state for receiver in run(client, LOG.info()).receivers] == ["gone", "done"]
    assert [key for key in client.scan_iter() if client.pttl(key) < 0] == []
    run(client, LOG.open(["ada"], None, None))
    assert not [key for key in client.scan_iter() if client.pttl(key) >= 0 and b"producer" not in key]
