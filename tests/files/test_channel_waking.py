"""Which streams and senders of a channel are woken, and by what."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.operations import RoundTrip
from penstock.errors import ChannelError, NoReceiver
from penstock.files.bindings import ChannelBindings
from penstock.settings import MiB
from tests.faces import Faces
from tests.files.channel_calls import BASE, CLOCK, HELD, LOG, put, run
from tests.messages.test_log_scripts import send

MANY = 300


def woken(faces: Faces) -> set[str]:
    """The faces that are to look at once."""
    return {name for name, texts in faces.heard().items() if b"1 0" in texts}


def wake_all(client: Any, left: int) -> None:
    while left:
        left = run(client, LOG.wake()).left


def receive(turn: int, address: str, token: str = HELD, receiver: str = "ada", **more: Any) -> RoundTrip[Any]:
    return LOG.receive(receiver, token, turn, lease=10, limit=0, address=address, ttl=60, **more)


def share(address: str, token: str = "t", *claims: bytes, limit: int = 1, ttl: float = 60) -> RoundTrip[Any]:
    settled = [(claim, b"") for claim in claims]
    return LOG.share("ada", token + address, lease=5, limit=limit, settled=settled, address=address, ttl=ttl)


@pytest.fixture
def opened(client: Any) -> Any:
    run(client, LOG.open(["ada"], 2 * MiB, None))
    return client


# --- processes that share a receiver ---


def test_a_record_wakes_one_of_the_idle_processes_and_a_deputy(opened: Any, faces: Faces):
    for address in faces.open(*(f"f{n}" for n in range(20))):
        assert run(opened, share(address)).records == []
        CLOCK.now_ms += 1
    run(opened, put("B"))
    assert faces.heard() == {"f19": [b"1 0"], "f18": [b"1 50"]}
    run(opened, put("D", "D"))
    assert faces.heard() == {}
    (claimed,) = run(opened, share("f19/1")).claims
    assert woken(faces) == {"f18"}
    run(opened, share("f19/1", "2", claimed, limit=0, ttl=0))  # settles, and takes nothing
    assert woken(faces) == set()
    assert len(run(opened, share("f18/1")).claims) == 1
    assert woken(faces) == {"f17"}


def test_leases_that_run_out_wake_two_of_the_idle_processes(opened: Any, faces: Faces):
    for address in faces.open(*(f"f{n}" for n in range(20))):
        run(opened, share(address))
        CLOCK.now_ms += 1
    run(opened, put("B"))
    faces.heard()
    run(opened, share("f19/1"))
    assert faces.heard() == {"f0": [b"1 5000"], "f1": [b"1 5300"]}
    assert [run(opened, share(f"f{n}/1")).due_in for n in (0, 1, 2)] == [5.0, 5.3, None]
    CLOCK.now_ms += 5000
    assert len(run(opened, share("f0/1")).claims) == 1


def test_a_process_that_shares_waits_for_a_channel_that_does_not_exist(client: Any, faces: Faces):
    (address,) = faces.open("p")
    assert run(client, share(address)).status == "GONE"
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B"))
    assert woken(faces) == {"p"}
    run(client, LOG.delete_channel())
    send(client, share(address))
    send(client, share(address, ttl=0))
    run(client, LOG.open(["ada"], None, None))
    run(client, put("B"))
    assert faces.heard() == {}


# --- the end of a receiver, and of a channel ---


def wait_for_the_end(client: Any, faces: Faces) -> int:
    """Processes that share, one that receives alone, others that wait for its lease, and for another receiver."""
    run(client, LOG.add_receiver("bo"))
    names = [f"{kind}{n:03}" for kind in ("share", "standby") for n in range(MANY)]
    faces.open(*names, "alone")
    for n in range(MANY):
        run(client, share(f"share{n:03}/1"))
    run(client, receive(1, "alone/1", receiver="bo"))
    run(client, receive(2, "alone/1", receiver="bo"))
    for n in range(MANY):
        held = run(client, receive(1, f"standby{n:03}/1", token=f"penstock/other/{n}/x", receiver="bo"))
        assert held.status == "HELD"
    faces.heard()
    return 2 * MANY + 1


def test_everybody_learns_that_a_channel_was_deleted(opened: Any, faces: Faces):
    waits = wait_for_the_end(opened, faces)
    existed, wake = run(opened, LOG.delete_channel())
    wake_all(opened, wake.left)
    assert existed
    assert len(woken(faces)) == waits
    assert [key for key in opened.scan_iter() if opened.pttl(key) < 0] == []


@pytest.mark.parametrize("receiver", ["ada", "bo"])
def test_everybody_learns_that_a_receiver_was_removed(opened: Any, faces: Faces, receiver: str):
    wait_for_the_end(opened, faces)
    removed, _, wake = run(opened, LOG.remove_receiver(receiver))
    wake_all(opened, wake.left)
    assert removed
    heard = woken(faces)
    if receiver == "ada":
        assert heard >= {f"share{n:03}" for n in range(MANY)}
        with pytest.raises(NoReceiver):
            run(opened, share("share000/1"))
    else:
        assert heard >= {"alone", *(f"standby{n:03}" for n in range(MANY))}
        with pytest.raises(NoReceiver):
            run(opened, receive(3, "alone/1", receiver="bo"))


def test_those_that_wait_for_the_lease_wake_each_other(opened: Any, faces: Faces):
    """The process that gave the receiver back may have ended after that."""
    wait_for_the_end(opened, faces)
    assert run(opened, LOG.give_back("bo", HELD))
    owners, heard = list[str](), set[str]()
    while names := woken(faces):
        for name in sorted(names):
            heard.add(name)
            reply = run(opened, receive(2, f"{name}/1", token=f"penstock/other/{int(name[-3:])}/x", receiver="bo"))
            if reply.status == "OK":
                owners.append(name)
    assert heard == {f"standby{n:03}" for n in range(MANY)}
    assert len(owners) == 1


def test_everybody_learns_of_the_end_from_each_other(opened: Any, faces: Faces):
    wait_for_the_end(opened, faces)
    _, wake = run(opened, LOG.close())
    assert wake.left == 0
    assert woken(faces) == {"alone", f"share{MANY - 1:03}"}
    (close,) = run(opened, share(f"share{MANY - 1:03}/1")).claims
    assert run(opened, share(f"share{MANY - 1:03}/1", "end", close)).status == "ENDED"
    heard = set[str]()
    while names := woken(faces):
        for name in (name for name in names if name.startswith("share")):
            heard.add(name)
            assert run(opened, share(f"{name}/1", "2")).status == "ENDED"
    assert len(heard) == MANY - 1


# --- senders that wait for space ---


def fill_up(client: Any, faces: Faces, senders: int) -> None:
    run(client, put("B", "D", size=MiB - 100))
    for address in faces.open(*(f"s{n:03}" for n in range(senders))):
        assert run(client, LOG.await_space([("D", b"x" * 1000)], address, 60)).full


def settle(client: Any, acked: int) -> None:
    run(client, receive(2 * acked, ""))
    run(client, receive(2 * acked + 1, "", acked=acked))


def test_acknowledged_records_wake_the_senders_that_wait(opened: Any, faces: Faces):
    fill_up(opened, faces, 200)
    settle(opened, 1)
    heard = list[str]()
    while names := woken(faces):
        heard += names
        for name in names:
            assert not run(opened, LOG.await_space([("D", b"x" * 1000)], f"{name}/1", 60)).full
    assert sorted(heard) == faces.names
    assert opened.exists(BASE + "wanting") == 0


def test_senders_for_which_there_is_too_little_space_wait_on(opened: Any, faces: Faces):
    fill_up(opened, faces, 10)
    large, huge = faces.open("large", "huge")
    assert run(opened, LOG.await_space([("D", b"x" * (MiB + 1000))], large, 60)).full
    assert run(opened, LOG.await_space([("D", b"x" * (2 * MiB - 1000))], huge, 60)).full
    settle(opened, 1)
    assert woken(faces) == {f"s{n:03}" for n in range(10)}
    settle(opened, 2)
    assert woken(faces) == {"large", "huge"}


@pytest.mark.parametrize("end", [LOG.close, LOG.delete_channel])
def test_senders_learn_of_the_end_of_the_channel(opened: Any, faces: Faces, end: Any):
    fill_up(opened, faces, 200)
    _, wake = run(opened, end())
    wake_all(opened, wake.left)
    assert woken(faces) == set(faces.names)
    assert isinstance(LOG, ChannelBindings)
    with pytest.raises(ChannelError):
        run(opened, put("D"))


def test_a_higher_limit_wakes_the_senders(opened: Any, faces: Faces):
    fill_up(opened, faces, 10)
    run(opened, LOG.open([], 2 * MiB + 1000, None))
    assert woken(faces) == set()
    run(opened, LOG.open([], 4 * MiB, None))
    assert woken(faces) == set(faces.names)
