"""The scripts of a channel, one by one: repeated, out of order, on a full server, and during a slot migration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from valkey.exceptions import ResponseError

from penstock.core.clock import Clock
from penstock.core.operations import RoundTrip
from penstock.driver.retrying import error_code
from penstock.errors import ChannelClosed, ChannelError, NoReceiver, SentElsewhere
from penstock.files.bindings import DEFAULT_RECORDS, ChannelBindings
from penstock.files.keys import FILES
from penstock.messages.bindings import log_scripts
from penstock.messages.keys import LogKeys
from penstock.settings import MiB, Settings
from tests.jobs.stand import START
from tests.messages.test_log_scripts import dump, send
from tests.servers import Cluster, Server

CLOCK = Clock(START)
LOG = ChannelBindings(LogKeys("t", "files", "access"), Settings(prefix="t"), CLOCK)
BASE = LOG.keys.base
COUNTED: bytes = msgspec.msgpack.encode((3, 1, {"days": {"mon": 2}}, ['["a",1,"bad"]']))
HELD = "penstock/h/1/x"
TTL = 1.0


def put(
    *kinds: str, file: str = "f1", token: str = "s", expected: bytes | None = None, size: int = 10, **more: Any
) -> Any:
    """`kinds`: the letters of the records. A file that ends is kept as sent."""
    if expected is None and "B" in kinds:
        expected = b""
    outcome = "-" if "A" in kinds else "whole" if "E" in kinds else ""
    records = [(kind, b"x" * size) for kind in kinds]
    inode_key = "place" + file.rstrip("'")
    return LOG.put(
        "path" + file, file, token, records, expected=expected, state="m", inode_key=inode_key, outcome=outcome, **more
    )


def receive(turn: int, receiver: str = "ada", token: str = HELD, **more: Any) -> RoundTrip[Any]:
    return LOG.receive(receiver, token, turn, lease=10, limit=0, **more)


def await_space(size: int = 1000) -> RoundTrip[Any]:
    return LOG.await_space([("D", b"x" * size)], "p/1", TTL)


def share(token: str, *claims: bytes, limit: int = 2, counts: bytes = b"") -> RoundTrip[Any]:
    return LOG.share("bo", token, lease=5, limit=limit, counts=counts, claims=claims)


NUMBERED: dict[str, RoundTrip[Any]] = {
    "open": LOG.open(["ada", "di"], 3 * MiB, 5),
    "put": put("B", "D", "E", file="f3"),
    "close": LOG.close(),
    "join_channel": LOG.add_receiver("di"),
    "part": LOG.remove_receiver("cy"),
    "delete_channel": LOG.delete(),
}
OTHERS: dict[str, RoundTrip[Any]] = {
    "known": LOG.source_entries(["pathf1", "placef0", "none"]),
    "take_source": LOG.take_over("pathf1", "f1", "other"),
    "receive": receive(2, acked=1, receiver_state="here", counts=COUNTED, address="p/1", ttl=TTL),
    "await_space": await_space(3 * MiB),
    "hold": LOG.renew("ada", HELD, 10),
    "share": share("t1"),
    "channel": LOG.info(),
    "totals": LOG.totals("ada"),
    "top": LOG.top_counts("ada", "days", 0, 9),
    "of_keys": LOG.counts_of("ada", "days", ["mon", "tue"]),
    "rejected": LOG.rejected("ada", 0, 9),
    "forget_counts": LOG.forget_counts("ada"),
}
EVERY = {**NUMBERED, **OTHERS}
ADDS = {"open", "put"}


def fill(client: Any) -> None:
    """A file that was sent, an upload in progress, a receiver that reads, a shared receiver, and an idle one."""
    for step in (
        LOG.open(["ada", "bo", "cy"], None, 60), put("B", "D", "E", file="f0"), put("B", "D", "D"),
        receive(0), receive(1, acked=1, counts=COUNTED), share("t0", limit=1),
    ):  # fmt: skip
        assert step.read(send(client, step)) is not False


def run(client: Any, step: RoundTrip[Any]) -> Any:
    return step.read(send(client, step))


def settle_the_claim(client: Any) -> None:
    """Settle the claim that `fill` left, so that one process may receive alone."""
    (claimed,) = run(client, share("t0", limit=1)).claims
    run(client, share("done", claimed, limit=0))


@pytest.fixture
def client(store_server: Server) -> Iterator[Any]:
    store_server.client.flushall()
    CLOCK.now_ms = START
    yield store_server.client
    CLOCK.now_ms = START


def eternal(client: Any) -> list[str]:
    return sorted(key.decode().removeprefix(BASE) for key in client.scan_iter() if client.pttl(key) < 0)


# --- repeated calls ---


def test_every_script_is_tested_here():
    assert set(LOG._scripts) - set(log_scripts().scripts) == set(EVERY)


@pytest.mark.parametrize("name", NUMBERED)
def test_a_numbered_call_that_is_repeated_returns_the_same_and_changes_nothing(client: Any, name: str):
    if name != "open":
        fill(client)
    answer = send(client, NUMBERED[name], "7")
    before = dump(client)
    assert send(client, NUMBERED[name], "7") == answer
    assert dump(client) == before
    for other in (LOG.delete(), LOG.open(["bo"], None, None)):  # a late copy does not undo what others did since
        send(client, other)
    if name != "put":
        before = dump(client)
        assert send(client, NUMBERED[name], "7") == answer
        assert dump(client) == before


def test_a_late_copy_of_an_earlier_call_changes_nothing(client: Any):
    fill(client)
    late = put("D")
    send(client, late, "7")
    send(client, LOG.open(["di"], None, None), "8")
    before = dump(client)
    send(client, late, "7")
    assert dump(client) == before


def test_receiving_alone_and_sharing_exclude_each_other(client: Any):
    for step in (LOG.open(["bo"], None, None), put("B", "D", "D", "E", file="f0")):
        run(client, step)
    assert run(client, receive(1, "bo", acked=0)).status == "OK"
    assert (run(client, share("t1")).status, run(client, share("t1")).due_in) == ("HELD", 10.0)
    run(client, LOG.give_back("bo", HELD))
    claimed = run(client, share("t2", limit=2)).claims
    with pytest.raises(ChannelError, match="share=True"):
        run(client, receive(2, "bo"))
    run(client, share("t3", claimed[1], limit=0))  # settled above the cursor
    with pytest.raises(ChannelError, match="share=True"):
        run(client, receive(3, "bo"))
    run(client, share("t4", claimed[0], limit=0))
    alone = run(client, receive(4, "bo"))
    assert (alone.status, alone.cursor) == ("OK", 2)


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_may_be_repeated(client: Any, name: str):
    fill(client)
    answer = send(client, OTHERS[name])
    before = dump(client)
    assert send(client, OTHERS[name]) == answer
    assert dump(client) == before


def test_a_repeated_turn_settles_once_and_returns_the_same(client: Any):
    fill(client)
    turn = receive(2, acked=2, receiver_state="here", counts=COUNTED)
    answer = send(client, turn)
    assert send(client, turn) == answer
    assert answer[:7] == [b"OK", 6, 1, 2, 0, 0, b""]
    assert run(client, LOG.totals("ada")).lines == 6
    assert send(client, LOG.top_counts("ada", "days", 0, 9)) == [b"mon", b"4"]
    assert len(send(client, LOG.rejected("ada", 0, 9))) == 2
    run(client, receive(3, acked=2, counts=COUNTED))
    assert run(client, LOG.totals("ada")).lines == 9


def test_the_first_turn_of_a_new_owner_settles_nothing_even_when_it_is_repeated(client: Any):
    fill(client)
    run(client, receive(2, acked=2, receiver_state="here"))
    taking = receive(1, token="penstock/h/2/y", dead_token=HELD, acked=4, receiver_state="there", counts=COUNTED)
    first, again = run(client, taking), run(client, taking)
    assert first == again
    assert (first.is_new_owner, first.cursor, first.receiver_state, first.next_limit) == (True, 2, b"here", 4)
    assert run(client, LOG.totals("ada")).lines == 3
    late = receive(3, acked=6, receiver_state="late", counts=COUNTED)  # a call of the process that was thought dead
    assert run(client, late).status == "HELD"
    assert run(client, LOG.totals("ada")).lines == 3
    assert not run(client, LOG.renew("ada", HELD, 10))


def test_records_that_were_trimmed_after_the_script_are_asked_for_again():
    """The XRANGE is not part of the script: another process may have trimmed in between."""
    step = LOG.receive("ada", HELD, 2, lease=10, limit=4, after=3)
    entry = [b"5-1", [b"by", b"Df1", b"end", b"9", b"body", b"x"]]
    found = step.read(([b"OK", 9, 1, 3, 0, 0, b"", 40], [entry]))
    assert (found.records, found.next_limit, found.last) == ([], DEFAULT_RECORDS, 9)
    found = step.read(([b"OK", 9, 5, 3, 0, 0, b"", 40], [entry]))
    assert ([record.number for record in found.records], found.next_limit) == ([5], 40)


def test_processes_that_share_settle_once(client: Any):
    fill(client)
    (claim,) = run(client, share("t0", limit=1)).claims
    step = share("t1", claim, counts=COUNTED)
    first, again = run(client, step), run(client, step)
    assert (first.claims, len(first.claims)) == (again.claims, 2)
    assert run(client, LOG.totals("bo")).lines == 3
    assert run(client, share("t2", claim, counts=COUNTED)).status == "LOST"
    assert run(client, LOG.totals("bo")).lines == 3
    CLOCK.now_ms += 6000
    later = run(client, share("t3", limit=9))
    assert [record.number for record in later.records] == [2, 3, 4, 5, 6]
    assert run(client, share("t4", first.claims[0], counts=COUNTED)).status == "LOST"
    assert run(client, LOG.totals("bo")).lines == 3
    last = share("t5", *later.claims, counts=COUNTED)
    send(client, LOG.close())
    (end,) = run(client, last).claims
    assert run(client, share("t6", end)).status == run(client, share("t6", end)).status == "ENDED"
    assert run(client, LOG.totals("bo")).lines == 6


# --- order, and refusals ---


def test_an_upload_continues_only_in_the_process_that_took_it_over(client: Any):
    fill(client)
    entry = run(client, LOG.take_over("pathf1", "f1", "other"))
    assert (entry.token, entry.upload_id, entry.state) == ("other", "f1", "m")
    before = dump(client)
    for refused in (put("D"), put("D", file="f1'"), put("B", file="f1"), LOG.take_over("pathf0", "f0", "other")):
        with pytest.raises(SentElsewhere):
            run(client, refused)
    assert dump(client) == before
    run(client, put("D", "E", token="other"))
    with pytest.raises(SentElsewhere):
        run(client, put("D", token="other"))
    (sent,) = run(client, LOG.source_entries(["placef1"]))
    assert (sent.upload_id, sent.outcome) == ("", "whole")


def test_of_two_processes_that_begin_a_file_one_sends_it(client: Any):
    """Both have found that it was not sent; the other has sent it whole since."""
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", "D", "E"))
    with pytest.raises(SentElsewhere):
        run(client, put("B", "D", "E", token="other"))
    (sent,) = run(client, LOG.source_entries(["placef1"]))
    run(client, put("B", "D", "E", token="other", expected=sent.raw))
    assert run(client, LOG.info()).last == 6


def test_an_aborted_upload_is_forgotten(client: Any):
    fill(client)
    run(client, put("A"))
    assert run(client, LOG.source_entries(["pathf1", "placef1"])) == [None, None]
    assert run(client, LOG.info()).sending == 0


def test_a_full_channel_takes_no_records_until_all_have_acknowledged(client: Any):
    run(client, LOG.open(["ada", "bo"], 2 * MiB, None))
    run(client, put("B", "D", size=MiB - 100))
    before = dump(client)
    full = run(client, put("D", size=1000))
    assert (full.full, full.due_in, full.bytes > 2 * MiB - 300) == (True, None, True)
    assert dump(client) == before
    assert run(client, await_space()).full
    for receiver in ("ada", "bo"):
        assert client.llen(BASE + "inbox:p") == 0
        run(client, receive(1, receiver))
        run(client, receive(2, receiver, acked=1))
    assert client.lpop(BASE + "inbox:p") == b"1 0"
    assert not run(client, put("D", size=1000)).full


def test_records_larger_than_the_limit_are_refused(client: Any):
    run(client, LOG.open(["ada"], 2 * MiB, None))
    with pytest.raises(ChannelError, match="limit"):
        run(client, put("B", size=2 * MiB))


def test_raising_the_limit_wakes_waiting_senders(client: Any):
    run(client, LOG.open(["ada"], 2 * MiB, None))
    run(client, put("B", "D", size=MiB - 100))
    assert run(client, await_space()).full
    run(client, LOG.open([], 3 * MiB, None))
    assert client.lpop(BASE + "inbox:p") == b"1 0"
    assert not run(client, put("D", size=1000)).full


def test_closing_wakes_waiting_senders(client: Any):
    run(client, LOG.open(["ada"], 2 * MiB, None))
    run(client, put("B", "D", size=MiB - 100))
    assert run(client, await_space()).full
    run(client, LOG.close())
    assert client.lpop(BASE + "inbox:p") == b"1 0"
    with pytest.raises(ChannelClosed):
        run(client, put("D", size=1000))


def test_a_closed_channel_opens_again_when_everything_is_received(client: Any):
    fill(client)
    assert run(client, LOG.close())
    assert not run(client, LOG.close())
    before = dump(client)
    for refused in (put("D"), LOG.open(["new"], None, None), LOG.add_receiver("new")):
        with pytest.raises(ChannelClosed, match="3 of its receivers"):
            run(client, refused)
    assert dump(client) == before
    settle_the_claim(client)
    for receiver in ("ada", "bo", "cy"):
        run(client, receive(5, receiver))
        assert run(client, receive(6, receiver, acked=7)).status == "ENDED"
        assert run(client, receive(6, receiver, acked=7)).status == "ENDED"
    before = dump(client)
    with pytest.raises(NoReceiver):
        run(client, LOG.open([], None, None))
    assert dump(client) == before
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", file="f9"))
    there = run(client, receive(9))
    assert (there.cursor, there.last, there.next_limit) == (7, 8, 1)
    with pytest.raises(NoReceiver):
        run(client, receive(9, "bo"))


def test_without_receivers_puts_are_refused(client: Any):
    for step in (LOG.open([], None, None), receive(1), LOG.add_receiver("ada"), LOG.remove_receiver("ada")):
        answer = send(client, step)
        assert answer[0] in {b"STRANGER", b"GONE"} or answer == [b"OK", 0, 0]
    assert client.keys(BASE + "state") == []
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", "D"))
    assert run(client, LOG.remove_receiver("ada")) == (True, False)
    assert run(client, LOG.info()).bytes == 0
    for refused in (put("D"), LOG.open([], None, None)):
        with pytest.raises(NoReceiver):
            run(client, refused)
    with pytest.raises(NoReceiver):
        run(client, receive(1))
    assert run(client, LOG.close())
    assert eternal(client) == []


# --- receivers that are away for too long ---


def test_the_slowest_receiver_is_passed_over_only_where_space_is_needed(client: Any):
    run(client, LOG.open(["ada", "bo", "cy"], 2 * MiB, 5))
    run(client, put("B", "D", size=MiB - 100))
    CLOCK.now_ms += 60_000
    for receiver in ("ada", "bo"):
        run(client, receive(1, receiver))
    run(client, receive(2, "ada", acked=2))
    run(client, receive(2, "bo", acked=1))
    assert {one.state for one in run(client, LOG.info()).receivers} == {"reading"}
    CLOCK.now_ms += 60_000
    assert not run(client, put("D", size=1000)).full
    states = {one.name: (one.state, one.behind) for one in run(client, LOG.info()).receivers}
    assert states == {"ada": ("reading", 1), "bo": ("reading", 2), "cy": ("gone", 2)}
    for _ in range(2):  # the gap is reported until the receiver acknowledges
        back = run(client, receive(1, "cy"))
        assert (back.is_new_owner, back.cursor, back.first, back.last) == (True, 0, 2, 3)
    assert run(client, receive(2, "cy", acked=1, receiver_state="x")).cursor == 1


def test_patience_begins_when_there_is_something_to_receive(client: Any):
    """A receiver that waited for an hour was not heard of for an hour, and is well."""
    run(client, LOG.open(["ada"], 2 * MiB, 5))
    run(client, receive(1))
    CLOCK.now_ms += 3_600_000
    run(client, put("B", "D", size=MiB - 100))
    assert run(client, put("D", size=1000)).due_in == 5
    CLOCK.now_ms += 4_000
    assert run(client, put("D", size=1000)).due_in == 1


def test_when_all_receivers_were_passed_over_the_sender_continues(client: Any):
    run(client, LOG.open(["ada"], 2 * MiB, 5))
    run(client, put("B", "D", size=MiB - 100))
    CLOCK.now_ms += 60_000
    for _ in range(5):
        assert not run(client, put("D", size=MiB)).full
    run(client, LOG.open([], None, None))
    back = run(client, receive(1))
    assert back.last >= back.first > 1


@pytest.mark.parametrize("counted", [b"", COUNTED])
def test_a_receiver_that_returns_after_the_end_learns_of_the_gap_and_of_the_end(client: Any, counted: bytes):
    run(client, LOG.open(["ada", "bo"], 2 * MiB, 5))
    run(client, put("B", "D", size=MiB - 100))
    CLOCK.now_ms += 60_000
    run(client, receive(1, "bo"))
    run(client, receive(2, "bo", acked=2, counts=counted))
    run(client, put("D", size=1000))
    run(client, LOG.close())
    assert run(client, receive(3, "bo", acked=4)).status == "ENDED"
    assert counted or eternal(client) == []
    for _ in range(2):
        back = run(client, receive(1))
        assert (back.is_new_owner, back.cursor, back.first) == (True, 0, 5)
    assert run(client, receive(2, acked=4)).status == run(client, receive(2, acked=4)).status == "ENDED"
    if not counted:
        assert eternal(client) == []


def test_one_of_the_processes_that_share_learns_of_the_gap(client: Any):
    run(client, LOG.open(["ada", "bo"], 2 * MiB, 5))
    run(client, put("B", "D", size=MiB - 100))
    (old,) = run(client, share("t0", limit=1)).claims
    CLOCK.now_ms += 60_000
    run(client, receive(1))
    run(client, receive(2, acked=2))
    run(client, put("D", size=1000))
    for _ in range(2):
        reply = run(client, share("t1", old))
        assert (reply.status, reply.missed, reply.first) == ("MISSED", 2, 3)
    assert [record.number for record in run(client, share("t2")).records] == [3]
    CLOCK.now_ms += 60_000
    run(client, receive(3, acked=3))
    run(client, put("D", size=2 * MiB - 1050))
    run(client, receive(4, acked=4))
    run(client, LOG.close())
    assert run(client, receive(5, acked=5)).status == "ENDED"
    for _ in range(2):
        assert run(client, share("t3")).status == "MISSED"
    assert run(client, share("t4")).status == "ENDED"
    assert eternal(client) == []


# --- no keys are left ---


def finish(client: Any, counted: bytes = b"") -> None:
    settle_the_claim(client)
    send(client, put("D", "E"))
    send(client, LOG.close())
    for receiver in ("ada", "bo", "cy"):
        run(client, receive(8, receiver, address="p/1", ttl=TTL))
        assert run(client, receive(9, receiver, acked=9, counts=counted)).status == "ENDED"


def test_when_everything_is_received_the_channel_is_freed(client: Any):
    fill(client)
    send(client, LOG.forget_counts("ada"))
    client.hdel(BASE + "state", "counted")
    finish(client)
    assert eternal(client) == []
    assert [*client.scan_iter(match="*counts*")] == []


def test_counts_stay_until_the_channel_is_deleted(client: Any):
    fill(client)
    run(client, receive(2, "cy", counts=COUNTED))
    run(client, receive(3, "cy", acked=1, counts=COUNTED))
    finish(client, COUNTED)
    assert run(client, LOG.totals("ada")).lines == 6
    assert run(client, LOG.totals("cy")).lines == 6
    assert "state" in eternal(client)
    run(client, LOG.open(["new"], None, None))  # the receiver that counted has been removed
    run(client, LOG.remove_receiver("new"))
    assert run(client, LOG.delete())
    assert eternal(client) == []
    assert not run(client, LOG.delete())


def test_a_deleted_channel_leaves_no_key_and_wakes_all_waiters(client: Any):
    fill(client)
    run(client, receive(2, acked=6, address="p/1", ttl=TTL))
    run(client, LOG.remove_receiver("cy"))
    assert run(client, LOG.delete())
    assert eternal(client) == []
    assert client.lpop(BASE + "inbox:p") == b"1 0"
    with pytest.raises(ChannelError, match="deleted"):
        run(client, put("D"))
    assert run(client, receive(3)).status == "GONE"


def test_each_key_has_the_type_and_lifetime_of_the_key_table(client: Any):
    fill(client)
    run(client, receive(2, acked=6, receiver_state="m", counts=COUNTED, address="p/1", ttl=TTL))
    run(client, put("D", size=64 * MiB - 3000))
    run(client, await_space())
    CLOCK.now_ms += 100_000
    send(client, put("D", size=64 * MiB - 3000))
    for key in client.scan_iter():
        suffix = key.decode().removeprefix(BASE)
        kind, _, owner = FILES[suffix.partition(":")[0] + ":" * (":" in suffix)]
        assert client.type(key).decode().upper() == kind, suffix
        assert owner != "TTL" or client.pttl(key) > 0, suffix


def test_the_last_ten_thousand_files_are_remembered(client: Any):
    run(client, LOG.open(["ada"], None, None))
    client.zadd(BASE + "sent_at", {f"old{n}": n for n in range(10_000)})
    client.hset(BASE + "sources", mapping={f"old{n}": b"" for n in range(10_000)})
    run(client, put("B", "E"))
    assert client.hlen(BASE + "sources") == client.zcard(BASE + "sent_at") == 10_000
    assert client.hexists(BASE + "sources", "placef1")
    assert not client.hexists(BASE + "sources", "old0")


# --- a server that is full, newer, or migrates the slot ---


def test_a_full_server_refuses_files_but_lets_receivers_receive_and_free_them(client: Any):
    fill(client)
    client.config_set("maxmemory", 1)
    try:
        before = dump(client)
        for name in ADDS:
            with pytest.raises(ResponseError, match=r"OOM|maxmemory"):
                send(client, EVERY[name], "7")
        assert dump(client) == before
        for name, step in EVERY.items():
            if name not in ADDS | {"delete_channel"}:
                send(client, step, "7" if name in NUMBERED else "")
        run(client, receive(8))
        assert run(client, receive(9, acked=7)).status == "ENDED"
        assert run(client, LOG.remove_receiver("bo")) == (True, False)
        assert run(client, LOG.delete())
    finally:
        client.config_set("maxmemory", 0)
    assert eternal(client) == []


def test_a_newer_format_is_neither_read_nor_changed(client: Any):
    fill(client)
    client.hset(BASE + "state", "format", 2)
    before = dump(client)
    for step in EVERY.values():
        with pytest.raises(ResponseError, match="PENSTOCKFORMAT 2"):
            send(client, step)
    assert dump(client) == before


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as started:
        yield started


@pytest.mark.parametrize("carried", [[], ["state"], ["readers", "log"], ["state", "readers", "sources", "owners"]])
def test_no_script_is_half_done_during_a_slot_migration(cluster: Cluster, carried: list[str]):
    source = cluster.owner(BASE)
    target = next(node for node in cluster.nodes if node is not source)
    for node in cluster.nodes:
        node.client.flushall()
    CLOCK.now_ms = START
    fill(source.client)
    slot = int(source.ask("CLUSTER", "KEYSLOT", BASE))
    here, there = (node.ask("CLUSTER", "MYID") for node in (source, target))
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
    try:
        if keys := [BASE + name for name in carried]:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        before = [dump(source.client), sorted(target.client.keys())]
        for name, step in EVERY.items():
            with pytest.raises(ResponseError) as refused:
                send(source.client, step)
            assert error_code(refused.value) in {"ASK", "TRYAGAIN"}, name
        assert [dump(source.client), sorted(target.client.keys())] == before
    finally:
        for node in cluster.nodes:
            node.client.flushall()
        for node in (source, target):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", here)
