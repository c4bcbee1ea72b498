"""Who is woken by which script: the tests call the scripts of a mailbox and of a chat, and listen as other faces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.operations import RoundTrip
from penstock.messages.bindings import LogBindings
from penstock.messages.keys import LogKeys
from penstock.messages.message import Keep
from penstock.messages.replies import ClaimReply
from penstock.settings import Settings
from tests.faces import Faces
from tests.jobs.stand import START
from tests.messages.test_log_scripts import CLOCK, INDEX, LOG, at, send
from tests.servers import Server
from tests.speed import scaled

BOX = LogBindings(LogKeys("t", "mailbox", "jobs"), Settings(prefix="t"), CLOCK)
BASE, JOBS = LOG.keys.base, BOX.keys.base
MANY = 10_000
POST = LOG.post("ada", [("", b"1")], create=False)
GONE = [f"gone{n}/1" for n in range(MANY)]


@pytest.fixture
def client(script_server: Server) -> Any:
    script_server.client.flushall()
    CLOCK.now_ms = START
    return script_server.client


def run(client: Any, step: RoundTrip[Any]) -> Any:
    return step.read(send(client, step))


def wake_all(client: Any, log: LogBindings = LOG) -> int:
    """Do what a sender does after its post. Returns the number of calls."""
    for calls in range(1, 1000):
        if run(client, log.wake()).left == 0:
            return calls
    raise AssertionError("it does not end")


# --- faces that wait ---


def chat(client: Any, members: int = 2) -> None:
    run(client, LOG.create(["ada", *(f"m{n}" for n in range(1, members))], Keep(), "", None))


def pull(address: str) -> RoundTrip[Any]:
    return LOG.pull("ada", limit=1, address=address, ttl=60)


def test_when_the_sender_dies_those_that_it_has_woken_wake_the_others(client: Any, faces: Faces):
    chat(client)
    for address in faces.open(*(f"f{n:03}" for n in range(500))):
        run(client, pull(address))
    wake = run(client, POST).wake
    assert wake.left == 500 - 64
    heard = set[str]()
    while messages := faces.heard():
        for name, texts in messages.items():
            if b"1 0" in texts:
                heard.add(name)
                run(client, pull(f"{name}/1"))
    assert heard == set(faces.names)


def test_when_all_that_were_woken_die_as_well_one_looks_again_a_second_later(client: Any, faces: Faces):
    chat(client)
    for address in faces.open(*(f"f{n:03}" for n in range(100))):
        run(client, pull(address))
    run(client, POST)
    messages = faces.heard()
    (deputy,) = [name for name, texts in messages.items() if texts == [b"1 1000"]]
    faces.end(*(name for name in messages if name != deputy))
    run(client, pull(f"{deputy}/1"))
    assert set(faces.heard()) >= set(faces.names)


def test_of_many_that_died_nobody_delays_the_living(client: Any, faces: Faces):
    chat(client)
    client.zadd(BASE + "waiting", dict.fromkeys(GONE[:2700], 0.0))
    living = faces.open(*(f"here{n}" for n in range(300)))
    client.zadd(BASE + "waiting", dict.fromkeys(living, 0.0))
    wake = run(client, POST).wake
    assert 0 < wake.left < 3000
    assert wake_all(client) <= 12
    assert {name for name, texts in faces.heard().items() if b"1 0" in texts} == set(faces.names)
    assert client.exists(BASE + "waiting") == 0


def test_a_mailbox_that_is_made_again_wakes_those_that_waited_for_the_old_one(client: Any, faces: Faces):
    reads, idle = faces.open("reads", "idle")
    for _ in range(3):
        for n in range(5):
            (id,) = run(client, BOX.post("", [("", b"%d" % n)], create=True)).positions
            run(client, BOX.pull("", limit=0, acked=id))
        faces.heard()
        run(client, BOX.pull("", limit=1, address=reads, ttl=60))
        run(client, BOX.claim("", "t", lease=5, limit=1, address=idle, ttl=60))
        run(client, BOX.delete())
        assert {name: texts[0] for name, texts in faces.heard().items()} == {"reads": b"1 0", "idle": b"1 0"}
        send(client, BOX.pull("", limit=1, address=reads, ttl=60))
        send(client, BOX.claim("", "t", lease=5, limit=1, address=idle, ttl=60))
        CLOCK.now_ms += 1000
        run(client, BOX.post("", [("", b"1")], create=True))
        assert faces.heard() == {"reads": [b"1 0"], "idle": [b"1 0"]}
        run(client, BOX.delete())


def test_the_hint_of_a_chat_reaches_every_device_of_its_user(client: Any, faces: Faces):
    for address in faces.open(*(f"f{n:03}" for n in range(200))):
        run(client, INDEX.news(b"-inf", address, 60))
    left = run(client, INDEX.hint(["ops"])).left
    assert left == 200 - 64
    while left:
        left = run(client, INDEX.wake()).left
    assert {name for name, texts in faces.heard().items() if b"1 0" in texts} == set(faces.names)


# --- senders that wait for space ---


def wait_to_post(client: Any, address: str, size: int = 1) -> None:
    assert send(client, BOX.post("", [("", b"x" * size)], create=True, address=address, ttl=60))[0] == b"FULL"
    CLOCK.now_ms += 1


def test_senders_that_wait_for_a_place_are_woken_in_order(client: Any, faces: Faces):
    run(client, BOX.limit(Keep(messages=2, full="refuse"), create=True))
    post(client, 2)
    addresses = list(reversed(faces.open(*(f"f{n:03}" for n in range(100)))))
    for address in addresses:
        wait_to_post(client, address)
    run(client, BOX.pull("", limit=0, acked=at(1)))
    heard = {name for name, texts in faces.heard().items() if b"1 0" in texts}
    assert heard == {address.partition("/")[0] for address in addresses[:64]}
    run(client, BOX.post("", [("", b"x")], create=True, address=addresses[0], ttl=60))
    assert faces.heard() == {}  # it is full again
    for address in addresses[1:64]:
        wait_to_post(client, address)
    run(client, BOX.pull("", limit=0, acked=at(2)))
    assert {f"{name}/1" for name, texts in faces.heard().items() if b"1 0" in texts} > set(addresses[64:])


def test_senders_are_woken_when_their_message_fits(client: Any, faces: Faces):
    run(client, BOX.limit(Keep(bytes=1000, full="refuse"), create=True))
    for size in (100, 100, 500):
        run(client, BOX.post("", [("", b"x" * size)], create=True))
    small, large = faces.open("small", "large")
    wait_to_post(client, small, 300)
    wait_to_post(client, large, 436)
    run(client, BOX.pull("", limit=0, acked=at(1)))
    assert faces.heard() == {"small": [b"1 0"]}
    run(client, BOX.pull("", limit=0, acked=at(2)))
    assert faces.heard() == {"large": [b"1 0"]}
    run(client, BOX.post("", [("", b"x" * 436)], create=True, address=large, ttl=60))


@pytest.mark.parametrize("keep", [Keep(), Keep(bytes=2000, full="refuse"), Keep(bytes=500)])
def test_a_changed_limit_wakes_the_senders(client: Any, faces: Faces, keep: Keep):
    run(client, BOX.limit(Keep(bytes=1000, full="refuse"), create=True))
    run(client, BOX.post("", [("", b"x" * 900)], create=True))
    (address,) = faces.open("p")
    wait_to_post(client, address, 300)
    run(client, BOX.limit(keep, create=True))
    assert faces.heard() == {"p": [b"1 0"]}


# --- workers that share a mailbox ---


def claim(address: str, token: str = "t", **more: Any) -> RoundTrip[ClaimReply]:
    return BOX.claim("", token + address, lease=5, limit=1, address=address, **{"ttl": 60, **more})


def post(client: Any, count: int = 1) -> None:
    run(client, BOX.post("", [("", b"1")] * count, create=True))


def make_idle(client: Any, *addresses: str) -> None:
    """Workers that become idle one after another."""
    for address in addresses:
        assert run(client, claim(address)).messages == []
        CLOCK.now_ms += 1


@pytest.fixture
def box(client: Any) -> Any:
    """A mailbox whose only message is acknowledged."""
    post(client)
    run(client, BOX.pull("", limit=0, acked=at(1)))
    return client


def test_a_message_wakes_the_worker_that_became_idle_last_and_a_deputy(box: Any, faces: Faces):
    make_idle(box, *faces.open("a", "b", "c"), "c/2", "c/3")
    post(box)
    assert faces.heard() == {"c": [b"3 0"], "b": [b"1 50"]}
    post(box)
    assert faces.heard() == {}
    assert len(run(box, claim("c/3")).messages) == 1
    assert faces.heard()["c"] == [b"2 0"]  # and b looks within 50 ms anyway
    assert len(run(box, claim("b/1")).messages) == 1


def test_when_the_woken_worker_is_frozen_the_deputy_claims_and_wakes_the_next(box: Any, faces: Faces):
    make_idle(box, *faces.open("a", "b", "c"))
    post(box, 2)
    assert faces.heard() == {"c": [b"1 0"], "b": [b"1 50"]}
    CLOCK.now_ms += 50
    assert len(run(box, claim("b/1")).messages) == 1
    assert faces.heard()["a"][0] == b"1 0"


def test_a_worker_behind_thousands_that_died_is_woken(box: Any, faces: Faces):
    make_idle(box, *faces.open("here"))
    box.zadd(JOBS + "idle:", dict.fromkeys(GONE, float(CLOCK.now_ms + 90_000)))
    wake = run(box, BOX.post("", [("", b"1")], create=True)).wake
    assert wake.left == 1
    assert wake_all(box, BOX) <= 12
    assert faces.heard() == {"here": [b"1 0"]}


def test_a_worker_that_gave_up_is_not_woken(client: Any, faces: Faces):
    """Neither one that waited for a mailbox that does not exist."""
    stays, leaves = faces.open("stays", "leaves")
    for address in (stays, leaves):
        send(client, claim(address))
        CLOCK.now_ms += 1
    send(client, claim(leaves, ttl=0))
    post(client)
    assert faces.heard() == {"stays": [b"1 0"]}


def test_a_worker_that_was_woken_and_gives_up_hands_its_wake_up_on(box: Any, faces: Faces):
    make_idle(box, *faces.open("a", "b"), "b/2")
    post(box)
    assert faces.heard() == {"b": [b"2 0"], "a": [b"1 50"]}
    run(box, BOX.stop_waiting("b/2", ""))
    assert faces.heard()["b"] == [b"1 0"]
    run(box, BOX.stop_waiting("a/1", ""))
    run(box, BOX.stop_waiting("a/9"))
    assert faces.heard() == {}
    assert box.exists(JOBS + "idle:") == 0


def test_when_a_lease_may_run_out_two_workers_of_different_processes_look(box: Any, faces: Faces):
    make_idle(box, *faces.open("a", "b", "c", "d", "e"), "a/2")
    post(box)
    assert set(faces.heard()) == {"a", "e"}
    assert len(run(box, claim("a/2")).messages) == 1
    assert faces.heard() == {"a": [b"1 5000"], "b": [b"1 5300"]}
    post(box)
    run(box, claim("e/1"))
    assert set(faces.heard()) == {"e", "d"}  # the second lease ends later
    run(box, BOX.settle_claims("", "extend", [b"2:1:ta/2"], 1))
    assert faces.heard() == {"a": [b"1 1000"], "b": [b"1 1300"]}


def test_a_worker_that_becomes_idle_looks_when_the_first_lease_runs_out_unless_two_others_do(box: Any, faces: Faces):
    faces.open("a", "b", "c")
    post(box, 2)
    run(box, claim("w/1"))
    run(box, claim("w/2"))
    for address, due in {"a/1": 5.0, "a/2": None, "b/1": 5.3, "c/1": None, "a/1 ": None}.items():
        assert run(box, claim(address)).due_in == due, address
    assert run(box, claim("a/1")).due_in == 5.0  # asked again before its time
    assert run(box, claim("b/1")).due_in == 5.3
    CLOCK.now_ms += 5000
    assert len(run(box, claim("a/1")).messages) == 1


def test_the_watch_over_a_lease_passes_to_another_worker(box: Any, faces: Faces):
    """The one that watches is woken for a message, or its process dies."""
    post(box)
    run(box, claim("w/1"))
    make_idle(box, *faces.open("a", "b", "c", "d"))
    faces.heard()
    assert len(run(box, claim("a/1", "again")).messages) == 0
    faces.end("b")
    post(box)
    assert len(run(box, claim("a/1", "late")).messages) == 1
    messages = faces.heard()
    assert int(messages["c"][-1].split()[1]) < 5000
    assert int(messages["d"][-1].split()[1]) < 5300
    assert box.zscore(JOBS + "idle:", "b/1") is None


def test_released_messages_wake_a_worker(box: Any, faces: Faces):
    post(box, 2)
    held = [run(box, claim(address)).messages[0][0] for address in ("w/1", "w/2")]
    make_idle(box, *faces.open("a", "b"))
    run(box, BOX.settle_claims("", "release", held))
    assert faces.heard()["b"] == [b"1 0"]
    run(box, claim("b/1"))
    assert faces.heard()["a"][-1] == b"1 0"


def test_an_end_reaches_workers_that_are_idle_and_each_of_them_once(box: Any, faces: Faces):
    addresses = faces.open(*(f"f{n:03}" for n in range(300)))
    make_idle(box, *addresses)
    _, wake = run(box, BOX.delete())
    assert wake.left == 300 - 64
    heard, calls = list[str](), 0
    while messages := faces.heard():
        for name in (name for name, texts in messages.items() if b"1 0" in texts):
            heard.append(name)
            send(box, claim(f"{name}/1"))  # it wakes others, and waits for the next mailbox
            calls += 1
    assert sorted(heard) == sorted(faces.names)
    assert calls == 300
    assert run(box, BOX.wake()).left == 0
    post(box)
    assert sorted(texts[-1] for texts in faces.heard().values()) == [b"1 0", b"1 50"]


# --- the server's time ---


def fill_waiting(client: Any, addresses: list[str]) -> None:
    chat(client, members=3)
    _fill(client, BASE + "waiting", dict.fromkeys(addresses, 0.0))


def fill_reported(client: Any, addresses: list[str]) -> None:
    fill_waiting(client, addresses)
    client.zadd(BASE + "waiting", {"": 1})


def fill_watching(client: Any, addresses: list[str]) -> None:
    chat(client)
    _fill(client, BASE + "watching", {f"m{n}": 0.0 for n in range(len(addresses))})


def fill_idle(client: Any, addresses: list[str]) -> None:
    post(client, 3)
    run(client, claim("w/1"))
    _fill(client, JOBS + "idle:", dict.fromkeys(addresses, CLOCK.now_ms + 60_000.0))
    client.zadd(JOBS + "idle", {"": 1})


def fill_ended(client: Any, addresses: list[str]) -> None:
    fill_idle(client, addresses)
    run(client, BOX.delete())


def _fill(client: Any, key: str, rows: dict[str, float]) -> None:
    names = list(rows)
    for start in range(0, len(names), 1000):
        client.zadd(key, {name: rows[name] for name in names[start : start + 1000]})
    client.pexpire(key, 60_000)


@pytest.mark.parametrize("living", [0, MANY])
@pytest.mark.parametrize(
    ("fill", "step"),
    [
        (fill_waiting, POST),
        (fill_waiting, LOG.leave("m1")),
        (fill_waiting, LOG.delete()),
        (fill_waiting, LOG.pull("ada", limit=1, address="one/1", ttl=60)),
        (fill_reported, LOG.wake()),
        (fill_reported, LOG.pull("ada", limit=1)),
        (fill_watching, POST),
        (fill_idle, BOX.post("", [("", b"1")], create=True)),
        (fill_idle, claim("one/1")),
        (fill_idle, BOX.delete()),
        (fill_ended, BOX.wake()),
    ],
)
def test_no_script_holds_the_server_for_long(
    client: Any, faces: Faces, living: int, fill: Callable[..., None], step: RoundTrip[Any]
):
    addresses = faces.open(*(f"f{n}" for n in range(living))) if living else GONE
    took = []
    for _ in range(3):
        client.flushall()
        fill(client, addresses)
        client.config_resetstat()
        send(client, step)
        took.append(client.info("commandstats")["cmdstat_eval"]["usec"] / 1e6)
    assert min(took) < scaled(0.005)
