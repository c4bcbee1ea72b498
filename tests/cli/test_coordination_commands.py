"""`penstock semaphore|election|latch|barrier|rwlock ls|show`, and their further verbs."""

import json
import os
import threading
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from penstock import LeaseLost, Penstock
from penstock.cli.exits import Exit
from penstock.errors import BarrierBroken
from penstock.testing import clear
from tests.command_line import Command
from tests.servers import eventually

PROCESS = f"{os.uname().nodename}:{os.getpid()}"
ODD = "import:\x1b[31m名"


@pytest.fixture
def app(shop: Penstock) -> Iterator[Penstock]:
    clear(shop)
    yield shop
    clear(shop)


@pytest.mark.parametrize(
    ("noun", "none"),
    [
        ("semaphore", "No semaphore is in use.\n"),
        ("ratelimit", "No rate limit is in use.\n"),
        ("election", "There are no elections.\n"),
        ("latch", "There are no latches.\n"),
        ("barrier", "There are no barriers.\n"),
        ("rwlock", "No read-write lock is held.\n"),
    ],
)
def test_where_there_is_nothing(app: Penstock, penstock: Command, noun: str, none: str):
    assert penstock(noun, "ls") == (Exit.OK, none, "")
    assert penstock(noun, "ls", "--json") == (Exit.OK, "[]\n", "")
    code, out, err = penstock(noun, "show", "mail")
    assert (code, out) == (Exit.FAILED, "")
    kind = "rate limit" if noun == "ratelimit" else noun
    assert f"no {kind} 'mail' with prefix {app.settings.prefix!r} on this server" in err


def test_semaphores(app: Penstock, penstock: Command):
    with app.semaphore(ODD, limit=5, permits=2):
        (_, listed, _) = penstock("semaphore", "ls")
        assert penstock("semaphore", "limit", ODD, "3")[0] == Exit.OK
        (_, one, _) = penstock("semaphore", "show", ODD, "--json")
        shown = penstock("semaphore", "show", ODD)
        assert penstock("semaphore", "limit", ODD, "--own")[0] == Exit.OK
        assert app.semaphore(ODD, limit=5).info().limit is None
    assert ("each program's own" in listed, "\x1b" in listed + shown[1]) == (True, False)
    assert (json.loads(one)["held"], json.loads(one)["limit"]) == (2, 3)
    assert f"{PROCESS}  holds 2" in shown[1]
    for words in (("limit", ODD), ("limit", ODD, "3", "--own"), ("limit", ODD, "0"), ("limit", ODD, str(2**70))):
        assert penstock("semaphore", *words)[0] == Exit.USAGE


@pytest.mark.parametrize("kind", ["bucket", "window"])
def test_rate_limits(app: Penstock, penstock: Command, kind: Literal["bucket", "window"]):
    limit = app.rate_limit(ODD, limit=3, per=3600, kind=kind)
    limit.acquire(3)
    waits = threading.Thread(target=limit.acquire, args=(2,))
    waits.start()
    eventually(lambda: limit.info().waiting)
    (_, listed, _) = penstock("ratelimit", "ls")
    ((one,), shown) = json.loads(penstock("ratelimit", "show", ODD, "--json")[1]), penstock("ratelimit", "show", ODD)
    assert "3 in 60 min" in listed
    assert "\x1b" not in listed + shown[1]
    assert (one["left"], one["waiting"], one["units"]) == (0, 1, 2)
    assert PROCESS in shown[1]
    assert penstock("ratelimit", "reset", ODD)[0] == Exit.OK
    waits.join()
    assert limit.info().left == 1
    code, _, err = penstock("ratelimit", "reset", "import")
    assert code == Exit.FAILED
    assert "no rate limit 'import'" in err


def test_elections(app: Penstock, penstock: Command):
    with app.election("free"):
        pass
    with app.election(ODD, value="http://\x1b[31mone"):
        waits = threading.Thread(target=lambda: app.election(ODD).campaign().resign())
        waits.start()
        eventually(lambda: app.election(ODD).info().waiting)
        code, out, _ = penstock("election", "ls")
        (_, listed, _) = penstock("election", "ls", "--json")
        shown = penstock("election", "show", ODD)
        (_, one, _) = penstock("election", "show", ODD, "--json")
    waits.join()
    assert code == Exit.OK
    assert [line.split()[0] for line in out.splitlines()] == [
        "election",
        out.splitlines()[1],
        "free",
        "import:\\x1b[31m名",
    ]
    assert "nobody" in out
    assert PROCESS in out
    assert "http://\\x1b[31mone" in out
    assert "\x1b" not in out + shown[1]
    assert [(each["name"], each["waiting"]) for each in json.loads(listed)] == [("free", 0), (ODD, 1)]
    assert shown[1].count(PROCESS) == 2
    detail = json.loads(one)
    assert (detail["leader"]["pid"], detail["candidates"][0]["pid"]) == (os.getpid(), os.getpid())
    assert str(detail["term"]) in shown[1]
    code, _, err = penstock("election", "show", "fre")
    assert code == Exit.FAILED
    assert "there is free, …" in err


def test_latches(app: Penstock, penstock: Command):
    app.latch(ODD, count=3).count_down()
    app.latch("open", count=1).count_down()
    waits = threading.Thread(target=app.latch(ODD, count=3).wait)
    waits.start()
    eventually(lambda: app.latch(ODD, count=3).info().waiting)
    code, out, _ = penstock("latch", "ls")
    assert code == Exit.OK
    (first, second) = out.splitlines()[2:]
    assert first.split()[:4] == ["import:\\x1b[31m名", "2", "3", "1"]
    assert second.split()[:4] == ["open", "open", "1", "0"]
    assert "closed: 2 of 3 left" in penstock("latch", "show", ODD)[1]
    assert "open, all 1 counted" in penstock("latch", "show", "open")[1]
    (one,) = (each for each in json.loads(penstock("latch", "ls", "--json")[1]) if each["name"] == ODD)
    assert one == json.loads(penstock("latch", "show", ODD, "--json")[1]) | {"ttl": one["ttl"]}
    assert (one["count"], one["left"], one["waiting"]) == (3, 2, 1)
    app.latch(ODD, count=3).count_down(2)
    waits.join()


def test_barriers(app: Penstock, penstock: Command):
    def wait() -> None:
        with pytest.raises(BarrierBroken):
            app.barrier(ODD, parties=3).wait()

    waits = threading.Thread(target=wait)
    waits.start()
    eventually(lambda: app.barrier(ODD, parties=3).info().waiting)
    code, out, _ = penstock("barrier", "ls")
    assert code == Exit.OK
    assert out.splitlines()[2].split()[:3] == ["import:\\x1b[31m名", "1", "3"]
    code, out, _ = penstock("barrier", "show", ODD)
    assert code == Exit.OK
    assert "1 of 3 parties" in out
    assert PROCESS in out
    one = json.loads(penstock("barrier", "show", ODD, "--json")[1])
    assert (one["parties"], one["waiting"], one["waiters"][0]["pid"]) == (3, 1, os.getpid())
    app.barrier(ODD, parties=3).abort()
    waits.join()


def test_read_write_locks(app: Penstock, penstock: Command):
    catalog, ledger = app.read_write_lock(ODD, lease=60), app.read_write_lock("ledger", lease=60)
    with catalog.read(), catalog.read(), ledger.write():
        waits = [
            threading.Thread(target=lambda: catalog.write().acquire().release()),
            threading.Thread(target=lambda: catalog.read().acquire().release()),
        ]
        waits[0].start()
        eventually(lambda: catalog.info().waiting == 1)
        waits[1].start()
        eventually(lambda: catalog.info().waiting == 2)
        code, out, _ = penstock("rwlock", "ls")
        (_, written, _) = penstock("rwlock", "show", "ledger")
        (_, read, _) = penstock("rwlock", "show", ODD)
        (_, as_json, _) = penstock("rwlock", "show", ODD, "--json")
    for one in waits:
        one.join()
    assert code == Exit.OK
    assert out.splitlines()[2].split() == ["import:\\x1b[31m名", "nobody", "2", "2"]
    assert out.splitlines()[3].split() == ["ledger", PROCESS, "0", "0"]
    assert "writes" in written
    assert [line.split(PROCESS)[1].strip().split("  ")[0] for line in read.splitlines() if PROCESS in line] == [
        "reads",
        "reads",
        "waits to write",
        "waits to read",
    ]
    detail = json.loads(as_json)
    assert (detail["reading"], detail["waits_to_write"]) == (2, [True, False])


@pytest.mark.parametrize("noun", ["semaphore", "rwlock", "election"])
def test_what_a_process_holds_is_taken_from_it(app: Penstock, penstock: Command, noun: str):
    held: Any
    match noun:
        case "semaphore":
            held = app.semaphore(ODD, limit=5, permits=2, lease=60).acquire()
        case "rwlock":
            held = app.read_write_lock(ODD, lease=60).read().acquire()
        case _:
            held = app.election(ODD, lease=60).campaign()
    code, out, err = penstock(noun, "break", ODD)
    assert (code, out, held.remaining > 0) == (Exit.USAGE, "", True)
    assert f"from 1 {'leader' if noun == 'election' else 'holder'}: " in err
    assert ("2 of " in err) == (noun == "semaphore")
    assert f" of {PROCESS}, at " in err
    assert "add --yes" in err
    assert penstock(noun, "break", ODD, "--process", "elsewhere:1", "--yes")[0] == Exit.FAILED
    code, out, _ = penstock(noun, "break", ODD, "--process", PROCESS, "--reason", "it hangs", "--yes")
    assert (code, "\x1b" in out, f" taken from {PROCESS}" in out) == (Exit.OK, False, True)
    with pytest.raises(LeaseLost, match="it hangs"):
        held.release()
    code, out, _ = penstock(noun, "break", "--host", os.uname().nodename, "--yes")
    nothing = {
        "semaphore": "No permit of such a semaphore is held.\n",
        "rwlock": "No such read-write lock is held.\n",
        "election": "No such election has a leader.\n",
    }
    assert (code, out) == (Exit.FAILED, nothing[noun])
    code, out, err = penstock(noun, "break", ODD, "--reason", "x" * 501, "--yes")
    assert (code, out, err) == (Exit.USAGE, "", "penstock: --reason: at most 500 characters\n")
    assert penstock(noun, "break", "--yes")[0] == penstock(noun, "break", "a", "--name-prefix", "a")[0] == Exit.USAGE


def test_more_holders_than_a_question_names_are_counted(app: Penstock, penstock: Command):
    readers = [app.read_write_lock("prices", lease=60).read().acquire() for _ in range(12)]
    assert " and 2 more, at " in penstock("rwlock", "break", "prices")[2]
    assert penstock("rwlock", "break", "prices", "--yes")[1].count(" taken from ") == 12
    for reader in readers:
        with pytest.raises(LeaseLost):
            reader.release()


def test_a_latch_is_opened_by_hand(app: Penstock, penstock: Command):
    latch = app.latch(ODD, count=3)
    latch.count_down()
    waits = threading.Thread(target=latch.wait)
    waits.start()
    eventually(lambda: latch.info().waiting)
    code, _, err = penstock("latch", "open", ODD)
    assert (code, "2 of 3 left and 1 event loop or process waiting" in err, latch.info().left) == (Exit.USAGE, True, 2)
    assert penstock("latch", "open", ODD, "--yes")[0] == Exit.OK
    waits.join()
    code, out, _ = penstock("latch", "open", ODD, "--yes")
    assert (code, out.endswith(" was open already.\n")) == (Exit.FAILED, True)
    assert "no latch 'unknown'" in penstock("latch", "open", "unknown", "--yes")[2]


def test_a_meeting_is_broken_by_hand(app: Penstock, penstock: Command):
    errors: list[BarrierBroken] = []

    def party() -> None:
        try:
            app.barrier(ODD, parties=2).wait()
        except BarrierBroken as error:
            errors.append(error)

    waits = threading.Thread(target=party)
    waits.start()
    eventually(lambda: app.barrier(ODD, parties=2).info().waiting)
    code, _, err = penstock("barrier", "break", ODD)
    assert (code, "the meeting of 1 party at " in err, errors) == (Exit.USAGE, True, [])
    assert penstock("barrier", "break", ODD, "--reason", "the disk is full", "--yes")[0] == Exit.OK
    waits.join()
    assert "the disk is full" in str(errors[0])
    assert penstock("barrier", "break", ODD, "--yes")[0] == Exit.FAILED
    assert "no barrier 'unknown'" in penstock("barrier", "break", "unknown", "--yes")[2]


def test_no_contacts_are_removed_without_a_name(app: Penstock, penstock: Command):
    app.contacts("user:17").touch("Zoë")
    code, out, err = penstock("contacts", "rm", "user:17", "--yes")
    assert (code, out, err) == (
        Exit.USAGE,
        "",
        "penstock: name the contacts to remove, as `penstock contacts show` prints them\n",
    )
    assert app.contacts("user:17").list() == ["Zoë"]


SECRETS = ("valkey://ada:s3cret@nowhere.invalid:1/0", "unix:///nowhere?password=s3cret", "valkey://:s3/cret@x:1")


@pytest.mark.parametrize("address", SECRETS)
@pytest.mark.parametrize(
    "words",
    [
        "--url={}",
        "--url {}",
        "--url={} queue",
        "queue --url={} lss",
        "queue ls {}",
        "queue ls --url {} --json {}",
        "queue ls --ur={}",
        "queue ls --url={}",
        "worker tasks:app --url {} --port {}",
        "worker {}",
        "lock break --url {} {}",
        "files send {}",
        "outbox ls {}",
        "doctor --url={} {}",
        "{} ls",
        "dashboard --url {} --port {}",
        "queue ls --app {}",
        "job why {} --url {}",
    ],
)
def test_no_error_repeats_a_password(penstock: Command, words: str, address: str):
    code, out, err = penstock(*words.format(address, address).split())
    assert code != Exit.OK
    assert "cret" not in out + err


def test_a_bucket_and_a_window_of_one_name_are_both_shown(app: Penstock, penstock: Command):
    app.rate_limit("api", limit=10, per=3600, kind="bucket").acquire()
    app.rate_limit("api", limit=20, per=60, kind="window").acquire(5)
    _, out, _ = penstock("ratelimit", "show", "api")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("kind")] == ["bucket", "window"]
    assert [one["kind"] for one in json.loads(penstock("ratelimit", "show", "api", "--json")[1])] == [
        "bucket",
        "window",
    ]
