"""The refusals of a channel's scripts, and the receivers that they pass over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import ChannelClosed, ChannelError, NoReceiver, SentElsewhere
from penstock.files.bindings import UploadPiece
from penstock.settings import MiB
from tests.faces import Faces
from tests.files.channel_calls import (
    BASE,
    CLOCK,
    COUNTED,
    LOG,
    await_space,
    entry,
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

# --- order, and refusals ---


def test_an_upload_continues_only_in_the_process_that_took_it_over(client: Any):
    fill(client)
    taken = run(client, LOG.take_over(entry(client, "p:pathf1"), "other"))
    assert (taken.token, taken.upload_id, taken.state) == ("other", "f1", "m")
    ended = entry(client, "p:pathf0")._replace(upload_id="f0")
    before = dump(client)
    for refused in (put("D"), put("D", file="f1'"), put("B", file="f1"), LOG.take_over(ended, "other")):
        with pytest.raises(SentElsewhere):
            run(client, refused)
    assert dump(client) == before
    run(client, put("D", "E", token="other"))
    with pytest.raises(SentElsewhere):
        run(client, put("D", token="other"))
    sent = entry(client, "i:inodef1")
    assert (sent.upload_id, sent.outcome) == ("", "whole")


def test_of_two_processes_that_begin_a_file_one_sends_it(client: Any):
    """Both have found that it was not sent; the other has sent it whole since."""
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", "D", "E"))
    with pytest.raises(SentElsewhere):
        run(client, put("B", "D", "E", token="other"))
    sent = entry(client, "i:inodef1")
    run(client, put("B", "D", "E", token="other", expected=sent.raw))
    assert run(client, LOG.info()).last == 6


def test_of_two_processes_that_begin_a_new_file_under_different_ids_one_sends_it(client: Any):
    run(client, LOG.open(["ada"], None, None))
    first, second = (
        UploadPiece(id, id, [("B", b"x"), ("E", b"x")], "m", expected=b"", outcome="whole", names=["i:1"])
        for id in "xy"
    )
    run(client, LOG.put("one", [first]))
    with pytest.raises(SentElsewhere):
        run(client, LOG.put("two", [second]))
    run(client, LOG.put("two", [replace(second, known="x")]))  # it has seen the entry, and sends the file again
    assert entry(client, "i:1").id == "y"


def test_several_uploads_are_stored_all_or_none(client: Any):
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", "E", file="f1"))
    parts = [
        UploadPiece(id, id, [("B", b"x"), ("E", b"x")], "m", expected=b"", outcome="whole", names=["i:" + id])
        for id in ("f0", "f1", "f2")
    ]
    before = dump(client)
    with pytest.raises(SentElsewhere):
        run(client, LOG.put("s", parts))
    assert dump(client) == before
    run(client, LOG.put("s", [parts[0], parts[2]]))
    assert run(client, LOG.info()).last == 6


def test_the_oldest_files_are_forgotten_with_all_their_names(client: Any):
    """Of 100,000 files; the test notes most of them in one step."""
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", "E", file="old"))
    client.zadd(f"{BASE}sent_at", {f"other{n}": START + 1 for n in range(100_000)})
    before = client.hlen(f"{BASE}entries")
    CLOCK.now_ms += 5
    assert run(client, put("B", "E", file="new")).forgotten == 2
    assert client.hlen(f"{BASE}entries") == before
    found = run(client, LOG.find_entries(["i:inodeold", "p:pathold", "h:alike", "i:inodenew"]))
    assert [[one.id for one in some] for some in found] == [[], [], ["new"], ["new"]]


def test_a_renamed_file_is_found_by_its_new_names_only(client: Any):
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", "E"))
    known = entry(client, "i:inodef1")
    run(client, LOG.rename_entry(known, "m2", "same", ["i:moved", "p:there", "h:alike"]))
    found = run(client, LOG.find_entries(["i:inodef1", "p:pathf1", "i:moved", "p:there", "h:alike"]))
    assert [[(one.id, one.state) for one in some] for some in found] == [[], [], *([[("f1", "m2")]] * 3)]
    with pytest.raises(SentElsewhere):
        run(client, LOG.rename_entry(known, "m3", "same", ["i:moved"]))


def test_an_aborted_upload_is_forgotten(client: Any):
    fill(client)
    run(client, put("A"))
    names = ["p:pathf1", "i:inodef1", "h:alike"]
    assert [[one.id for one in found] for found in run(client, LOG.find_entries(names))] == [[], [], ["f0"]]
    assert run(client, LOG.info()).sending == 0


def test_a_full_channel_takes_no_records_until_all_have_acknowledged(client: Any, faces: Faces):
    faces.open("p")
    run(client, LOG.open(["ada", "bo"], 2 * MiB, None))
    run(client, put("B", "D", size=MiB - 100))
    before = dump(client)
    full = run(client, put("D", size=1000))
    assert (full.full, full.due_in, full.bytes > 2 * MiB - 300) == (True, None, True)
    assert dump(client) == before
    assert run(client, await_space()).full
    for receiver in ("ada", "bo"):
        assert faces.heard() == {}
        run(client, receive(1, receiver))
        run(client, receive(2, receiver, acked=1))
    assert faces.heard() == {"p": [b"1 0"]}
    assert not run(client, put("D", size=1000)).full


def test_records_larger_than_the_limit_are_refused(client: Any):
    run(client, LOG.open(["ada"], 2 * MiB, None))
    with pytest.raises(ChannelError, match="limit"):
        run(client, put("B", size=2 * MiB))


def test_raising_the_limit_wakes_waiting_senders(client: Any, faces: Faces):
    faces.open("p")
    run(client, LOG.open(["ada"], 2 * MiB, None))
    run(client, put("B", "D", size=MiB - 100))
    assert run(client, await_space()).full
    run(client, LOG.open([], 3 * MiB, None))
    assert faces.heard() == {"p": [b"1 0"]}
    assert not run(client, put("D", size=1000)).full


def test_closing_wakes_waiting_senders(client: Any, faces: Faces):
    faces.open("p")
    run(client, LOG.open(["ada"], 2 * MiB, None))
    run(client, put("B", "D", size=MiB - 100))
    assert run(client, await_space()).full
    run(client, LOG.close())
    assert faces.heard() == {"p": [b"1 0"]}
    with pytest.raises(ChannelClosed):
        run(client, put("D", size=1000))


def test_a_closed_channel_opens_again_when_everything_is_received(client: Any):
    fill(client)
    assert run(client, LOG.close())[0]
    assert not run(client, LOG.close())[0]
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
        assert answer[0] in {b"NOT_A_MEMBER", b"GONE"} or answer == [b"OK", 0, 0, 0]
    assert client.keys(BASE + "state") == []
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B", "D"))
    assert run(client, LOG.remove_receiver("ada"))[:2] == (True, False)
    assert run(client, LOG.info()).bytes == 0
    for refused in (put("D"), LOG.open([], None, None)):
        with pytest.raises(NoReceiver):
            run(client, refused)
    with pytest.raises(NoReceiver):
        run(client, receive(1))
    assert run(client, LOG.close())[0]
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
