"""Stored data is damaged in every way, and then every verb is called: each works, or raises a named error. None spins.

Each key of every component is replaced by keys of other types, each of its fields and members is deleted and
scrambled. What a verb does then is not specified, but it ends, and its error is a PenstockError.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock, PenstockError, Settings
from penstock.errors import StateDamaged
from penstock.ops.inspect import Inspector
from penstock.ops.key_tables import TABLES, kind_of, split_key
from tests.servers import Server
from tests.speed import scaled

MOST_COMMANDS = 2000
"""That all verbs of a component may send together, the commands within scripts included."""

Verbs = list[tuple[str, Callable[[], Any]]]


def drained(loop: Iterable[Any]) -> list[Any]:
    return list(itertools.islice(loop, 20))


def acknowledge(reader: Any) -> None:
    if mail := reader.pull():
        reader.ack(mail[-1])


def queue(app: Penstock) -> Verbs:
    q = app.queue("mail")
    q.put_many([1, 2, 3], tenant="ada")
    q.put_many([4, 5], tenant="bo", priority=2)
    q.put(6, delay=1000)
    first, second, third = q.claim(3)
    first.complete("done")
    second.fail("no")
    job = q.put("x")
    q.tenant("ada").weigh(2)
    q.put("y")
    inspector = Inspector(app)
    return [
        ("put", lambda: q.put(7)),
        ("put_many", lambda: q.put_many([1, 2], tenant="cy")),
        ("put delayed", lambda: q.put(7, delay=0.01)),
        ("claim", lambda: [one.complete() for one in q.claim(5)]),
        ("complete", third.complete),
        ("retry", lambda: [one.retry(0) for one in q.claim(2)]),
        ("fail", lambda: [one.fail("x") for one in q.claim(2)]),
        ("count", q.count),
        ("tenant", q.tenant("ada").count),
        ("weigh", lambda: q.tenant("ada").weigh(3)),
        ("workers", q.workers),
        ("status", job.status),
        ("info", job.info),
        ("result", lambda: q.job(first.id).result(0)),
        ("cancel", job.cancel),
        ("dead", q.dead.list),
        ("letter", lambda: inspector.jobs.show_dead(second.id)),
        ("requeue", lambda: q.dead.requeue(second.id)),
        ("remove", lambda: q.dead.remove(second.id)),
        ("pause", q.pause),
        ("resume", q.resume),
        ("inspect", lambda: inspector.queues.show("mail")),
        ("job", lambda: inspector.jobs.show(job.id)),
        ("tenant purge", q.tenant("bo").purge),
        ("purge", q.purge),
    ]


def lock(app: Penstock) -> Verbs:
    held = app.lock("invoice:7", lease=60).acquire()
    free = app.lock("invoice:7", lease=1, wait=0)
    return [
        ("acquire", free.acquire),
        ("info", free.info),
        ("check", held.check),
        ("extend", lambda: held.extend(60)),
        ("release", held.release),
        ("again", lambda: free.acquire().release()),
        ("break", lambda: free.break_("test")),
        ("all", Inspector(app).coordination.locks),
    ]


def semaphore(app: Penstock) -> Verbs:
    permits = app.semaphore("market", limit=3, wait=0)
    held = permits.acquire()
    permits.set_limit(4)
    return [
        ("acquire", lambda: permits.acquire().release()),
        ("info", permits.info),
        ("limit", lambda: permits.set_limit(5)),
        ("check", held.check),
        ("release", held.release),
        ("again", lambda: permits.acquire().release()),
    ]


def rwlock(app: Penstock) -> Verbs:
    both = app.read_write_lock("catalog", lease=60, wait=0)
    reader = both.read().acquire()
    return [
        ("read", lambda: both.read().acquire().release()),
        ("info", both.info),
        ("release", reader.release),
        ("write", lambda: both.write().acquire().release()),
    ]


def rate(app: Penstock) -> Verbs:
    limits = [app.rate_limit(f"api-{kind}", limit=10, per=60, wait=0, kind=kind) for kind in ("bucket", "window")]
    for limit in limits:
        limit.acquire()
    return [(f"{do} {limit.kind}", getattr(limit, do)) for limit in limits for do in ("acquire", "try_acquire")]


def election(app: Penstock) -> Verbs:
    leader = app.election("importer", lease=60).campaign()
    other = app.election("importer", lease=1, wait=0)
    return [
        ("campaign", other.campaign),
        ("leader", other.leader),
        ("info", other.info),
        ("moment", leader.moment),
        ("observe", lambda: other.observe().fetch(0)),
        ("resign", leader.resign),
        ("again", lambda: other.campaign().resign()),
    ]


def latch(app: Penstock) -> Verbs:
    one = app.latch("import", count=3)
    one.count_down(id="a")
    return [("count", lambda: one.count_down(id="b")), ("info", one.info), ("wait", lambda: one.wait(0))]


def barrier(app: Penstock) -> Verbs:
    one = app.barrier("step", parties=2)
    with pytest.raises(PenstockError):
        one.wait(0.01)
    parties = [threading.Thread(target=one.wait, args=(5,)) for _ in range(2)]
    for party in parties:
        party.start()
    for party in parties:
        party.join()
    return [("wait", lambda: one.wait(0.01)), ("info", one.info), ("abort", lambda: one.abort("x"))]


def contacts(app: Penstock) -> Verbs:
    one = app.contacts("ada")
    for name in ("Bo", "Cy", "Zoë"):
        one.touch(name)
    return [
        ("complete", lambda: one.complete("z")),
        ("list", one.list),
        ("touch", lambda: one.touch("Di")),
        ("remove", lambda: one.remove("Bo")),
    ]


def directory(app: Penstock) -> Verbs:
    one = app.directory("staff", words=True)
    one.add_many([("Ada Lovelace", "1"), ("Bo Diddley", "2")])
    one.add("Zoë", "3", weight=5, payload="z")
    return [
        ("complete", lambda: one.complete("a")),
        ("weighed", lambda: one.complete("z", by="weight")),
        ("top", one.top),
        ("get", lambda: one.get("1")),
        ("count", one.count),
        ("add", lambda: one.add("Cy", "4", weight=1)),
        ("bump", lambda: one.bump("3")),
        ("rename", lambda: one.rename("1", "Ida")),
        ("payload", lambda: one.set_payload("3", "y")),
        ("remove", lambda: one.remove("2")),
        ("clear", one.clear),
    ]


def mailbox(app: Penstock) -> Verbs:
    box = app.mailbox("ada")
    box.post_many([1, 2, 3], ids=["a", "b", "c"])
    (claimed,) = box.claim(lease=60)
    claimed.fail("no")
    (claimed,) = box.claim(lease=60)
    return [
        ("post", lambda: box.post(4, id="d")),
        ("claim", lambda: [one.ack() for one in box.claim(2)]),
        ("release", claimed.release),
        ("ack claimed", claimed.ack),
        ("pull", box.pull),
        ("unread", box.unread),
        ("info", box.info),
        ("history", box.history),
        ("dead", box.dead.list),
        ("dead count", box.dead.count),
        ("ack", lambda: acknowledge(box)),
        ("delete", box.delete),
    ]


def chat(app: Penstock) -> Verbs:
    one = app.chats.create(["ada", "bo"], sender="cy", message="hi", id="ops")
    sent = one.send("cy", "again", id="x")
    one.redact("ada", one.send("ada", "secret"))
    reader = one.reader("ada", "phone")
    reader.pull()
    mine = app.chats.of("bo")
    mine.pull()
    return [
        ("send", lambda: one.send("ada", "yes", id="y")),
        ("pull", reader.pull),
        ("ack", lambda: acknowledge(reader)),
        ("unread", reader.unread),
        ("history", reader.history),
        ("members", one.members),
        ("info", one.info),
        ("edit", lambda: one.edit("ada", sent, "new")),
        ("redact", lambda: one.redact("ada", sent)),
        ("join", lambda: one.join("di")),
        ("mine", mine.pull),
        ("mine unread", mine.unread),
        ("ack mine", lambda: mine.ack(mine.pull())),
        ("forget", reader.forget),
        ("leave", lambda: one.leave("bo")),
        ("inspect", Inspector(app).messages.chats),
        ("delete", one.delete),
    ]


def files(app: Penstock) -> Verbs:
    folder = Path.cwd()
    for name in "ab":
        (folder / name).write_text("one\ntwo\n" * 50)
    channel = app.files("access")
    channel.open(["alone", "counter"])
    channel.send_lines(folder / "a")
    counted = app.aggregate("access", receiver="counter")(lambda lines: {"lines": {"n": len(lines)}})

    def count(wait: float = 0.0) -> Any:
        return counted.run(wait=wait)

    count()
    return [
        ("send", lambda: channel.send_lines(folder / "b")),
        ("lines", lambda: drained(channel.receiver("alone").lines(wait=0))),
        ("shared", lambda: drained(channel.receiver("alone").lines(wait=0, share=True))),
        ("count", count),
        ("totals", counted.totals),
        ("top", lambda: counted.top("lines")),
        ("table", lambda: counted.table("lines")),
        ("rejected", counted.rejected),
        ("info", channel.info),
        ("join", channel.receiver("third").join),
        ("leave", channel.receiver("third").leave),
        ("close", channel.close),
        ("delete", channel.delete),
    ]


FILLERS = [queue, lock, semaphore, rwlock, rate, election, latch, barrier, contacts, directory, mailbox, chat, files]

OTHERS: dict[str, tuple[Any, ...]] = {
    "string": ("SET", "damaged"),
    "list": ("RPUSH", "damaged", b"\xff"),
    "hash": ("HSET", "damaged", b"\xff"),
    "set": ("SADD", "damaged"),
    "zset": ("ZADD", 7, "damaged"),
    "stream": ("XADD", "*", "damaged", b"\xff"),
}
JUNK = b"\xff\xfe not ours"


def damages(client: Any, key: bytes) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """What may happen to a key: a description, and the commands that do it."""
    kind = client.type(key).decode()
    yield "deleted", [("DEL", key)]
    several = kind in {"hash", "zset", "stream"}
    for other, (command, *rest) in OTHERS.items():
        if other != kind and other in {
            "string",
            "zset" if several else "hash",
            "hash" if several else "stream",
            "list",
        }:
            yield f"a {other}", [("DEL", key), (command, key, *rest)]
    if kind == "string":
        yield "scrambled", [("SET", key, JUNK, "KEEPTTL")]
        yield "empty", [("SET", key, "", "KEEPTTL")]
        yield "too high", [("SET", key, 10**15, "KEEPTTL")]
    elif kind == "hash":
        for field, value in client.hgetall(key).items():
            yield f"without {field!r}", [("HDEL", key, field)]
            yield f"{field!r} scrambled", [("HSET", key, field, JUNK)]
            yield f"{field!r} cut", [("HSET", key, field, value[: len(value) // 2])]
            if value.isdigit() and field != b"ended":  # the bytes of a channel: a sender would wait for space
                yield f"{field!r} too high", [("HSET", key, field, 10**15)]
                yield f"{field!r} negative", [("HSET", key, field, -5)]
    elif kind == "list":
        yield "scrambled", [("LSET", key, 0, JUNK)]
        yield "with one more", [("RPUSH", key, JUNK)]
    elif kind == "set":
        yield "with one more", [("SADD", key, JUNK)]
    elif kind == "zset":
        for member, _ in client.zrange(key, 0, 2, withscores=True):
            yield f"without {member!r}", [("ZREM", key, member)]
            yield f"{member!r} moved", [("ZADD", key, 1e15, member)]
        yield "with one more", [("ZADD", key, 1, JUNK)]
    elif kind == "stream":
        ((first, _), *_) = client.xrange(key, count=1)
        yield "without the first", [("XDEL", key, first)]
        yield "trimmed", [("XTRIM", key, "MAXLEN", 0)]
        yield "of other entries", [("DEL", key), ("XADD", key, first, "odd", JUNK), ("XADD", key, "99999-1", "x", "y")]


@pytest.fixture
def own(start: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.chdir(tmp_path)  # for the files that are sent
    return start()


def commands_of(client: Any) -> int:
    return int(client.info("stats")["total_commands_processed"])


@pytest.mark.parametrize("fill", FILLERS, ids=lambda one: one.__name__)
def test_damaged_data_gives_a_named_error(own: Server, fill: Callable[[Penstock], Verbs]):
    """None sends many commands or takes long: nothing spins, neither here nor in the server."""
    client = own.client
    faults: list[str] = []
    with Penstock(own.address, prefix="d", settings=Settings(give_up_after=2)) as app:
        verbs = fill(app)
        stored = {key: (client.dump(key), max(0, client.pttl(key))) for key in client.scan_iter()}
        assert stored
        cases = [(key, *one) for key in stored for one in damages(client, key)]
        for key, how, commands in cases:
            with client.pipeline(transaction=False) as pipe:
                pipe.flushall()
                for other, (value, ttl) in stored.items():
                    pipe.restore(other, ttl, value)
                for command in commands:
                    pipe.execute_command(*command)
                pipe.execute()
            before = commands_of(client)
            for name, act in verbs:
                began = time.monotonic()
                try:
                    act()
                except PenstockError as error:
                    if "user_script" in str(error) or len(str(error)) > 600:
                        faults.append(f"{key!r} {how}: {name}: {error}")
                except Exception as error:
                    faults.append(f"{key!r} {how}: {name}: {type(error).__name__}: {error}")
                if (took := time.monotonic() - began) > scaled(4):
                    faults.append(f"{key!r} {how}: {name}: {took:.1f} s")
                    pytest.fail("\n".join(faults))
            if (sent := commands_of(client) - before) > MOST_COMMANDS:
                faults.append(f"{key!r} {how}: {sent} commands")
    print(len(cases), "damages,", len(verbs), "verbs")
    assert not faults, "\n".join(faults)


OF_FIXED_NAMES = {"meta", "state", "holders", "leader", "bucket", "window"}


@pytest.mark.parametrize("fill", FILLERS, ids=lambda one: one.__name__)
def test_a_key_of_a_wrong_type_is_named(own: Server, fill: Callable[[Penstock], Verbs]):
    """At least one verb names it, for each main key of a component."""
    client = own.client

    def damage(key: str) -> None:
        client.delete(key)
        client.geoadd(key, (1, 1, "damaged")) if kind == "string" else client.set(key, "damaged")

    with Penstock(own.address, prefix="d") as app:
        verbs = fill(app)
        for key in [key.decode() for key in client.scan_iter()]:
            parts = split_key(key)
            if parts is None or parts.rest not in OF_FIXED_NAMES:
                continue
            assert parts.rest in TABLES[kind_of(parts.instance)]
            kind = client.type(key).decode()
            named: dict[str, str] = {}
            for _, act in verbs:
                damage(key)
                try:
                    act()
                except StateDamaged as error:
                    named[error.key] = str(error)
                except PenstockError:
                    pass
            assert f"{key} holds what Penstock did not write" in named[key]
