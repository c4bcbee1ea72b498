"""The scripts of a channel, one by one: repeated, out of order, on a full server, and during a slot migration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from valkey.exceptions import ResponseError

from penstock.core.operations import RoundTrip
from penstock.driver.retrying import error_code
from penstock.errors import ChannelError, CountsRefused
from penstock.files.bindings import DEFAULT_RECORDS
from penstock.files.keys import FILES
from penstock.messages.bindings import log_scripts
from penstock.settings import MiB
from tests.faces import Faces
from tests.files.channel_calls import (
    ADDS,
    BASE,
    CLOCK,
    COUNTED,
    EVERY,
    HELD,
    LOG,
    NUMBERED,
    OTHERS,
    TTL,
    await_space,
    eternal,
    fill,
    put,
    receive,
    run,
    settle_the_claim,
    share,
)
from tests.jobs.stand import START
from tests.messages.test_log_scripts import dump, send
from tests.servers import Cluster
from tests.slot_moves import SlotMove

# --- repeated calls ---


def test_every_script_is_tested_here():
    assert set(LOG._scripts.scripts) - set(log_scripts().scripts) == set(EVERY)


@pytest.mark.parametrize("name", NUMBERED)
def test_a_numbered_call_that_is_repeated_returns_the_same_and_changes_nothing(client: Any, name: str):
    if name != "open":
        fill(client)
    answer = send(client, NUMBERED[name], "7")
    before = dump(client)
    assert send(client, NUMBERED[name], "7") == answer
    assert dump(client) == before
    for other in (
        LOG.delete_channel(),
        LOG.open(["bo"], None, None),
    ):  # a late copy does not undo what others did since
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
    assert send(client, LOG.top_counts("ada", "days", 0, 9)) == [b"count 0", b"mon", b"4"]
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
    found = step.read(([b"OK", 9, 1, 3, 0, 0, b"", 40, b""], [entry]))
    assert (found.records, found.next_limit, found.last) == ([], DEFAULT_RECORDS, 9)
    found = step.read(([b"OK", 9, 5, 3, 0, 0, b"", 40, b""], [entry]))
    assert ([record.number for record in found.records], found.next_limit) == ([5], 40)


def test_processes_that_share_settle_once(client: Any):
    fill(client)
    (claim,) = run(client, share("t0", limit=1)).claims
    step = share("t1", claim, counts=COUNTED)
    first, again = run(client, step), run(client, step)
    assert (first.claims, len(first.claims)) == (again.claims, 2)
    assert run(client, LOG.totals("bo")).lines == 3
    assert run(client, share("t2", claim, counts=COUNTED, limit=0)).status == "OK"
    assert run(client, LOG.totals("bo")).lines == 3
    CLOCK.now_ms += 6000
    later = run(client, share("t3", limit=9))
    assert [record.number for record in later.records] == [2, 3, 4, 5, 6]
    assert run(client, share("t4", first.claims[0], counts=COUNTED, limit=0)).status == "OK"
    assert run(client, LOG.totals("bo")).lines == 3
    last = share("t5", *later.claims, counts=COUNTED)
    send(client, LOG.close())
    (end,) = run(client, last).claims
    assert run(client, share("t6", end)).status == run(client, share("t6", end)).status == "ENDED"
    assert run(client, LOG.totals("bo")).lines == 6


def test_of_shared_claims_only_the_lost_ones_are_skipped(client: Any):
    fill(client)
    settled = LOG.share("bo", "t1", lease=5, limit=3, settled=[])
    claims = run(client, settled).claims
    assert run(client, LOG.settle_claims("bo", "release", claims[:1])) == (False, [])
    run(client, share("thief", limit=1))
    run(client, LOG.share("bo", "t2", lease=5, limit=0, settled=[(claim, COUNTED) for claim in claims]))
    assert run(client, LOG.totals("bo")).lines == 2 * 3


def test_parts_of_a_settlement_are_read_together_or_not_at_all(client: Any):
    fill(client)
    parts = [LOG.deposit("ada", "d1", n, COUNTED) for n in range(3)]
    assert [run(client, part) for part in parts] == ["OK"] * 3
    before = dump(client)
    assert run(client, parts[1]) == "OK"  # a late copy
    assert dump(client) == before
    assert run(client, LOG.totals("ada")).lines == 3
    assert run(client, receive(2, counts=b"@d1 2")).status == "LOST"
    assert run(client, receive(3, acked=2, counts=COUNTED)).status == "BUSY"
    commit = receive(4, acked=2, counts=b"@d1 3")
    assert send(client, commit) == send(client, commit)
    assert run(client, receive(5, acked=2, counts=COUNTED)).status == "PENDING"
    assert run(client, LOG.deposit("ada", "d2", 0, COUNTED)) == "PENDING"
    asked: list[RoundTrip[Any]] = [
        LOG.totals("ada"),
        LOG.top_counts("ada", "days", 0, 9),
        LOG.counts_of("ada", "days", ["mon"]),
    ]
    asked += [LOG.rejected("ada", 0, 9)]
    left = 3
    while left:
        assert [run(client, ask) for ask in asked] == [None] * 4
        left = run(client, LOG.add_piece("ada"))
    assert run(client, LOG.totals("ada")).lines == 4 * 3
    assert run(client, LOG.counts_of("ada", "days", ["mon"])) == {"mon": 8}
    assert run(client, LOG.add_piece("ada")) == 0
    assert run(client, LOG.totals("ada")).lines == 4 * 3
    run(client, LOG.forget_counts("ada"))
    assert [*client.scan_iter(match=f"{BASE}part*")] == []


def test_a_deposit_of_a_dead_process_gives_way(client: Any):
    fill(client)
    run(client, LOG.deposit("ada", "d1", 0, COUNTED))
    assert run(client, LOG.deposit("ada", "d2", 0, COUNTED)) == "BUSY"
    CLOCK.now_ms += 2001
    assert run(client, LOG.deposit("ada", "d2", 1, COUNTED)) == "LOST"
    assert run(client, LOG.deposit("ada", "d2", 0, COUNTED)) == "OK"
    assert run(client, LOG.deposit("ada", "d1", 1, COUNTED)) == "BUSY"
    assert run(client, receive(2, counts=b"@d1 1")).status == "LOST"
    assert run(client, LOG.add_piece("ada", "d2")) == 0  # its settlement was refused
    assert run(client, LOG.totals("ada")).lines == 3
    assert run(client, receive(3, acked=2, counts=COUNTED)).status == "OK"
    assert run(client, LOG.totals("ada")).lines == 6
    assert [*client.scan_iter(match=f"{BASE}part*")] == []


def test_a_refused_settlement_is_refused_again_if_its_reply_was_lost(client: Any):
    fill(client)
    other: bytes = msgspec.msgpack.encode((3, 0, {"days": ("min 0", 0, {"mon": 2})}, [], []))
    for _ in range(2):
        with pytest.raises(CountsRefused, match="has the kind 'count 0' already"):
            run(client, receive(2, acked=2, counts=other))


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
    assert run(client, LOG.delete_channel())[0]
    assert eternal(client) == []
    assert not run(client, LOG.delete_channel())[0]


def test_a_deleted_channel_leaves_no_key_and_wakes_all_waiters(client: Any, faces: Faces):
    fill(client)
    faces.open("p")
    run(client, receive(2, acked=6, address="p/1", ttl=TTL))
    run(client, LOG.remove_receiver("cy"))
    assert run(client, LOG.delete_channel())[0]
    assert eternal(client) == []
    assert faces.heard() == {"p": [b"1 0"]}
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
        assert run(client, LOG.remove_receiver("bo"))[:2] == (True, False)
        assert run(client, LOG.delete_channel())[0]
    finally:
        client.config_set("maxmemory", 0)
    assert eternal(client) == []


def test_a_newer_format_is_neither_read_nor_changed(client: Any):
    fill(client)
    row = client.hget(BASE + "state", "row")
    client.hset(BASE + "state", "row", b"\5" + row[1:])
    before = dump(client)
    for step in EVERY.values():
        with pytest.raises(ResponseError, match="PENSTOCKFORMAT 5"):
            send(client, step)
    assert dump(client) == before


@pytest.fixture
def cluster(small_cluster: Cluster) -> Cluster:
    return small_cluster


@pytest.mark.parametrize("carried", [[], ["state"], ["readers", "log"], ["state", "readers", "sources", "owners"]])
def test_no_script_is_half_done_during_a_slot_migration(cluster: Cluster, carried: list[str]):
    move = SlotMove.of(cluster, BASE)
    source, target = move.nodes
    for node in cluster.nodes:
        node.client.flushall()
    CLOCK.now_ms = START
    fill(source.client)
    with move:
        move.carry(*(BASE + name for name in carried))
        before = [dump(source.client), sorted(target.client.keys())]
        for name, step in EVERY.items():
            with pytest.raises(ResponseError) as refused:
                send(source.client, step)
            assert error_code(refused.value) in {"ASK", "TRYAGAIN"}, name
        assert [dump(source.client), sorted(target.client.keys())] == before
