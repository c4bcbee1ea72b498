"""The scripts of mailboxes and chats, one by one: repeated, on a full server, and during a slot migration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from valkey.exceptions import ResponseError

from penstock.core.clock import Clock
from penstock.core.operations import RoundTrip
from penstock.driver.retrying import error_code
from penstock.errors import MessageError
from penstock.messages.bindings import ChatIndexBindings, LogBindings
from penstock.messages.keys import LogKeys
from penstock.messages.message import Keep
from penstock.settings import Settings
from tests.jobs.stand import START
from tests.servers import Cluster, Server
from tests.slot_moves import SlotMove

CLOCK = Clock(START)
LOG = LogBindings(LogKeys("t", "chat", "ops"), Settings(prefix="t"), CLOCK)
INDEX = ChatIndexBindings("t", "ada", CLOCK)
BASE = LOG.keys.base


def at(number: int) -> str:
    """The position of a message that was sent at the start."""
    return f"{number}-{START}"


NUMBERED: dict[str, RoundTrip[Any]] = {
    "create": LOG.create(["ada"], Keep(), "ada", b"1"),
    "post": LOG.post("ada", [("", b"2"), ("x", b"3"), ("x", b"3")], create=False),
    "join": LOG.join("di", 1),
    "leave": LOG.leave("bo"),
    "delete": LOG.delete(),
    "settle_claims": LOG.settle_claims("bo", "ack", [b"1:1:t0"]),
    "redact": LOG.change("ada", at(2), "redact", b"null"),
    "edit": LOG.change("cy", at(2), "edit", b"4"),
    "release": LOG.settle_claims("bo", "release", [b"1:1:t0"], 5),
    "bury": LOG.settle_claims("bo", "bury", [b"1:1:t0"], reason="no"),
    "requeue_dead_letters": LOG.requeue_dead_letters([at(3), at(9)]),
    "remove_dead_letters": LOG.remove_dead_letters([at(3), at(9)]),
}
OTHERS: dict[str, RoundTrip[Any]] = {
    "pull": LOG.pull("ada", limit=5, acked=at(1), address="p/1", ttl=5),
    "stop_waiting": LOG.stop_waiting("p/1", ""),
    "wake": LOG.wake(),
    "trim": LOG.trim(),
    "drop_device": LOG.drop_device("ada", "phone"),
    "limit": LOG.limit(Keep(messages=2), create=False),
    "status": LOG.status("ada", watch=True),
    "readers": LOG.readers(0, 9),
    "list_dead_letters": LOG.list_dead_letters(0, 9),
    "page": LOG.page("ada", before="", after="", limit=5),
    "claim": LOG.claim("bo", "t1", lease=5, limit=2),
}
OF_INDEX: dict[str, RoundTrip[Any]] = {
    "add": INDEX.add("ops", pending=True),
    "remove": INDEX.remove("ops", b"5"),
    "page": INDEX.page(b"-inf", 9),
    "find": INDEX.find("ops"),
    "hint": INDEX.hint(["ops"]),
    "news": INDEX.news(b"0", "p/1", 5),
    "wake of the index": INDEX.wake(),
    "stop_waiting of the index": INDEX.stop_waiting("p/1"),
}


def send(client: Any, step: RoundTrip[Any], number: str = "") -> Any:
    args = ("p", number, *step.args[2:]) if number else step.args
    return client.eval(step.script.source, len(step.keys), *step.keys, *args)


def fill(client: Any) -> None:
    send(client, LOG.create(["ada", "bo", "cy"], Keep(), "cy", b'"hi"'))
    send(client, LOG.post("cy", [("m2", b"2"), ("", b"3")], create=False))
    send(client, LOG.pull("ada", "phone", limit=1))
    send(client, LOG.claim("bo", "t0", lease=5, limit=1))
    send(client, LOG.claim("cy", "t3", lease=5, limit=3))
    send(client, LOG.settle_claims("cy", "bury", [b"3:1:t3"], reason="no"))
    send(client, INDEX.add("ops", pending=False))


_READ: dict[bytes, Callable[[Any, bytes], Any]] = {
    b"set": lambda client, key: client.smembers(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    b"stream": lambda client, key: client.xrange(key),
    b"string": lambda client, key: client.get(key),
    b"list": lambda client, key: client.lrange(key, 0, -1),
}


def dump(client: Any) -> dict[bytes, Any]:
    return {key: _READ[client.type(key)](client, key) for key in client.scan_iter()}


@pytest.fixture
def client(script_server: Server) -> Any:
    script_server.client.flushall()
    return script_server.client


@pytest.mark.parametrize("name", NUMBERED)
def test_a_numbered_call_that_is_repeated_returns_the_same_and_changes_nothing(client: Any, name: str):
    if name != "create":
        fill(client)
    answer = send(client, NUMBERED[name], "7")
    before = dump(client)
    assert send(client, NUMBERED[name], "7") == answer
    assert dump(client) == before
    if name in {"create", "leave", "delete"}:  # a late copy does not undo what others did since
        for other in (LOG.delete(), LOG.create(["bo"], Keep(), "bo", None)):
            send(client, other)
        before = dump(client)
        assert send(client, NUMBERED[name], "7") == answer
        assert dump(client) == before
    assert send(client, NUMBERED[name], "8") != b""


@pytest.mark.parametrize("name", [*OTHERS, *OF_INDEX])
def test_other_calls_may_be_repeated(client: Any, name: str):
    fill(client)
    step = {**OTHERS, **OF_INDEX}[name]
    send(client, step)
    before = dump(client)
    send(client, step)
    after = dump(client)
    if name in {"add", "hint"}:  # only its time changes
        before, after = ({key: [m for m, _ in d[key]] for key in d if b"chats" in key} for d in (before, after))
    assert after == before


def test_a_claim_whose_reply_was_lost_returns_the_same_messages_again(client: Any):
    fill(client)
    step = LOG.claim("bo", "t1", lease=5, limit=2)
    assert send(client, step)[3:] == send(client, step)[3:] != []


def test_a_full_server_refuses_messages_but_lets_readers_read_and_free_them(client: Any):
    fill(client)
    client.config_set("maxmemory", 1)
    try:
        for name in ("create", "post"):
            with pytest.raises(ResponseError, match=r"OOM|maxmemory"):
                send(client, NUMBERED[name])
        for step in (*OTHERS.values(), NUMBERED["join"], NUMBERED["leave"], *OF_INDEX.values(), NUMBERED["delete"]):
            if step.script.name != "limit":
                send(client, step)
    finally:
        client.config_set("maxmemory", 0)


def test_a_newer_format_is_neither_read_nor_changed(client: Any):
    fill(client)
    row = client.hget(BASE + "state", "row")
    client.hset(BASE + "state", "row", b"\5" + row[1:])
    before = dump(client)
    for step in [*NUMBERED.values(), *OTHERS.values()]:
        if step.script.name != "stop_waiting":
            with pytest.raises(ResponseError, match="PENSTOCKFORMAT 5"):
                send(client, step)
    assert dump(client) == before


def test_a_refused_call_writes_nothing(client: Any):
    refused: list[RoundTrip[Any]] = [
        LOG.post("ada", [("i", b"1")], create=False),
        LOG.pull("ada", limit=5),
        LOG.join("ada", 0),
        LOG.trim(),
    ]
    for step in refused:
        with contextlib.suppress(MessageError):
            step.read(send(client, step, "3"))
    assert client.keys() == []
    fill(client)
    before = dump(client)
    strange: list[RoundTrip[Any]] = [
        LOG.post("eve", [("", b"1")], create=False),
        LOG.pull("eve", "tv", limit=5, acked=at(1)),
    ]
    for step in strange:
        with pytest.raises(MessageError):
            step.read(send(client, step))
    assert dump(client) == before


def test_one_trim_frees_at_most_a_slice(client: Any):
    send(client, LOG.create(["ada"], Keep(), "ada", None))
    for _ in range(10):
        send(client, LOG.post("ada", [("", b"x")] * 500, create=False))
    assert send(client, LOG.pull("ada", limit=0, acked=at(5000)))[6] == 1
    assert client.xlen(BASE + "log") == 3000
    assert [send(client, LOG.trim())[1] for _ in range(3)] == [1, 0, 0]
    assert client.exists(BASE + "log") == 0


# --- a slot migration ---


@pytest.fixture
def cluster(small_cluster: Cluster) -> Cluster:
    return small_cluster


@pytest.mark.parametrize("carried", [[], ["state"], ["readers", "log"], ["state", "readers", "seen", "log"]])
def test_no_script_is_half_done_during_a_slot_migration(cluster: Cluster, carried: list[str]):
    move = SlotMove.of(cluster, BASE)
    source, target = move.nodes
    for node in cluster.nodes:
        node.client.flushall()
    for step in (LOG.create(["ada", "bo"], Keep(), "bo", b"1"), LOG.post("bo", [("m", b"2")], create=False)):
        send(source.client, step)
    send(source.client, LOG.pull("ada", limit=1))
    with move:
        move.carry(*(BASE + name for name in carried))
        before = [dump(source.client), sorted(target.client.keys())]
        for name, step in {**NUMBERED, **OTHERS}.items():
            with pytest.raises(ResponseError) as refused:
                send(source.client, step)
            assert error_code(refused.value) in {"ASK", "TRYAGAIN"}, name
        assert [dump(source.client), sorted(target.client.keys())] == before
