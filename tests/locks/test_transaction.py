"""Transactions: all or nothing, once, and under a guard only while the lock is held; on both faces, in all places."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import LeaseLost, Penstock, Transaction
from penstock.errors import ServerRefused, TransactionRefused
from penstock.locks.bindings import transaction_scripts
from tests.conftest import Do
from tests.driver.proxy import Proxy
from tests.servers import Server

_numbers = itertools.count(1)

one_place = pytest.mark.parametrize("place", ["valkey"])
one_face = pytest.mark.parametrize("face", ["aio"])


@pytest.fixture
def tag(raw: Any):
    tag = f"shop:{next(_numbers)}"
    yield tag
    for name in ("string", "hash", "zset", "set", "list", "new", "lock", "a", "b"):
        raw.delete(f"{{{tag}}}:{name}")


@pytest.fixture
def at(tag: str) -> Callable[[str], str]:
    return lambda name: f"{{{tag}}}:{name}"


At = Callable[[str], str]


@pytest.fixture
def stocked(raw: Any, at: At) -> dict[str, Any]:
    """A key of each type. Returns the contents."""
    raw.set(at("string"), "10")
    raw.hset(at("hash"), mapping={"n": "5", "text": "x"})
    raw.zadd(at("zset"), {"m": 2.5})
    raw.sadd(at("set"), "m")
    raw.rpush(at("list"), "m")
    return snapshot(raw, at)


def snapshot(raw: Any, at: At) -> dict[str, Any]:
    names = ("string", "hash", "zset", "set", "list", "new")
    return {name: (raw.type(at(name)), raw.exists(at(name)) and raw.dump(at(name))) for name in names}


# --- done ---


async def test_each_write_is_done_and_returns_its_reply(app: Penstock, do: Do, raw: Any, at: At, stocked: Any):
    tx = app.transaction()
    tx.set(at("new"), "v", ttl=100).incrby(at("string"), -3).hset(at("hash"), "text", b"\0\xff").hincrby(
        at("hash"), "n"
    )
    tx.hdel(at("hash"), "gone").zadd(at("zset"), "b", 1).zincrby(at("zset"), "m", 0.5).zrem(at("zset"), "b", "c")
    tx.sadd(at("set"), "a", "b").srem(at("set"), "m").lpush(at("list"), "first").rpush(at("list"), 1, 2.5)
    assert await do(tx.commit) == (1, 7, 0, 6, 0, 1, 3.0, 1, 2, 1, 2, 4)
    assert raw.get(at("new")) == b"v"
    assert 99_000 < raw.pttl(at("new")) <= 100_000
    assert raw.hgetall(at("hash")) == {b"n": b"6", b"text": b"\0\xff"}
    assert raw.zrange(at("zset"), 0, -1, withscores=True) == [(b"m", 3.0)]
    assert sorted(raw.smembers(at("set"))) == [b"a", b"b"]
    assert raw.lrange(at("list"), 0, -1) == [b"first", b"m", b"1", b"2.5"]
    assert await do(app.transaction().delete(at("new"), at("a")).expire(at("set"), 50).commit) == (1, 0, 1)
    assert raw.ttl(at("set")) > 48


@one_face
async def test_a_write_sees_the_effect_of_the_writes_before_it(app: Penstock, do: Do, at: At, stocked: Any, raw: Any):
    tx = app.transaction().delete(at("zset")).hset(at("zset"), "a", 1).hincrby(at("zset"), "a", 2)
    tx.set(at("hash"), 5).incrby(at("hash")).hdel(at("zset"), "a").hincrby(at("zset"), "a", 4)
    assert await do(tx.commit) == (1, 1, 3, 1, 6, 1, 4)
    tx = (
        app.transaction().srem(at("a"), 1).hdel(at("a"), 1).zrem(at("a"), 1).rpush(at("a"), 1)
    )  # none of the removals creates the key
    assert await do(tx.commit) == (0, 0, 0, 1)
    raw.hset(at("b"), "text", "x")
    assert await do(app.transaction().delete(at("b")).hincrby(at("b"), "text").commit) == (1, 1)
    for tx, said in (
        (app.transaction().set(at("string"), "x").incrby(at("string")), "incrby"),
        (app.transaction().incrby(at("string"), 2**53 - 11).incrby(at("string"), 1), "incrby"),
        (app.transaction().hset(at("new"), "f", "x").hincrby(at("new"), "f"), "hincrby"),
        (app.transaction().sadd(at("new"), "m").rpush(at("new"), "m"), "rpush"),
        (app.transaction().set(at("new"), "m").hdel(at("new"), "m"), "hdel"),
    ):
        before = snapshot(raw, at)
        with pytest.raises(TransactionRefused, match=rf"^{said}\('.*'\) cannot be done"):
            await do(tx.commit)
        assert snapshot(raw, at) == before


@one_face
async def test_conditions_that_hold_let_a_transaction_pass(app: Penstock, do: Do, at: At, stocked: Any):
    tx = app.transaction()
    tx.require_exists(at("list")).require_missing(at("new")).require_value(at("string"), b"10").require_value(
        at("string")
    )
    tx.require_value(at("string"), 10).require_value(at("string"), at_least=10, at_most=10.5)
    tx.require_field(at("hash"), "n", at_least=4.5).require_field(at("hash"), "text", "x").require_field(
        at("hash"), "n"
    )
    tx.require_no_field(at("hash"), "gone").require_no_field(at("new"), "gone")
    tx.require_score(at("zset"), "m", 2.50).require_score(at("zset"), "m", at_least=-1, at_most=2.5)
    tx.require_score(at("zset"), "m").require_no_score(at("zset"), "x")
    tx.require_member(at("set"), b"m").require_no_member(at("set"), "x").require_no_member(at("new"), "x")
    assert await do(tx.commit) == ()


FAIL: list[tuple[Callable[[Transaction, At], Transaction], str, bytes | None]] = [
    (lambda tx, at: tx.require_exists(at("new")), "require_exists('{}:new')", b"0"),
    (lambda tx, at: tx.require_missing(at("list")), "require_missing('{}:list')", b"1"),
    (lambda tx, at: tx.require_value(at("string"), b"11"), "require_value('{}:string', b'11')", b"10"),
    (lambda tx, at: tx.require_value(at("string"), at_least=11), "require_value('{}:string', at_least=11)", b"10"),
    (lambda tx, at: tx.require_value(at("new"), at_least=-1), "require_value('{}:new', at_least=-1)", None),
    (lambda tx, at: tx.require_value(at("new"), ""), "require_value('{}:new', '')", None),
    (lambda tx, at: tx.require_value(at("hash")), "require_value('{}:hash')", b"hash"),
    (
        lambda tx, at: tx.require_field(at("hash"), "n", at_least=1, at_most=4),
        "require_field('{}:hash', 'n', at_least=1, at_most=4)",
        b"5",
    ),
    (
        lambda tx, at: tx.require_field(at("hash"), "text", at_most=4),
        "require_field('{}:hash', 'text', at_most=4)",
        b"x",
    ),
    (lambda tx, at: tx.require_field(at("hash"), "gone"), "require_field('{}:hash', 'gone')", None),
    (lambda tx, at: tx.require_no_field(at("hash"), "n"), "require_no_field('{}:hash', 'n')", b"1"),
    (lambda tx, at: tx.require_score(at("zset"), "m", 2), "require_score('{}:zset', 'm', 2)", b"2.5"),
    (lambda tx, at: tx.require_score(at("zset"), "x", at_most=2), "require_score('{}:zset', 'x', at_most=2)", None),
    (lambda tx, at: tx.require_score(at("set"), "m"), "require_score('{}:set', 'm')", b"set"),
    (lambda tx, at: tx.require_no_score(at("zset"), "m"), "require_no_score('{}:zset', 'm')", b"2.5"),
    (lambda tx, at: tx.require_member(at("set"), "x"), "require_member('{}:set', 'x')", b"0"),
    (lambda tx, at: tx.require_no_member(at("set"), "m"), "require_no_member('{}:set', 'm')", b"1"),
]


@one_face
async def test_the_first_condition_that_fails_is_named_and_nothing_is_written(
    app: Penstock, do: Do, raw: Any, at: At, stocked: Any
):
    for add, said, found in FAIL:
        tx = add(app.transaction().set(at("new"), 1).require_exists(at("string")), at).require_exists(at("new"))
        with pytest.raises(TransactionRefused, match=r"does not hold: there is .*; nothing was written") as caught:
            await do(tx.commit)
        assert caught.value.condition == said.replace("{}", at("").rstrip(":"))
        assert caught.value.found == found
        assert snapshot(raw, at) == stocked


IMPOSSIBLE: list[Callable[[Transaction, At], Transaction]] = [
    lambda tx, at: tx.incrby(at("hash")),
    lambda tx, at: tx.hset(at("string"), "f", 1),
    lambda tx, at: tx.hdel(at("string"), "f"),
    lambda tx, at: tx.hincrby(at("hash"), "text"),
    lambda tx, at: tx.require_field(at("hash"), "text").hincrby(at("hash"), "text"),
    lambda tx, at: tx.require_field(at("hash"), "n").incrby(at("hash")),
    lambda tx, at: tx.zadd(at("set"), "m", 1),
    lambda tx, at: tx.zincrby(at("list"), "m", 1),
    lambda tx, at: tx.zrem(at("list"), "m"),
    lambda tx, at: tx.sadd(at("zset"), "m"),
    lambda tx, at: tx.srem(at("zset"), "m"),
    lambda tx, at: tx.lpush(at("set"), "m"),
    lambda tx, at: tx.rpush(at("hash"), "m"),
    lambda tx, at: tx.incrby(at("string"), 2**53 - 1),
    lambda tx, at: tx.zadd(at("zset"), "m", 1e308).zincrby(at("zset"), "m", 1e308),
    lambda tx, at: tx.zincrby(at("zset"), "m", 1.7e308).zincrby(at("zset"), "m", 1e308),
    lambda tx, at: tx.zincrby(at("new"), "m", -1e308).zincrby(at("new"), "m", -1e308),
]


async def test_an_impossible_write_stops_all_writes(app: Penstock, do: Do, raw: Any, at: At, stocked: Any):
    for add in IMPOSSIBLE:
        with pytest.raises(TransactionRefused, match="cannot be done: there is"):
            await do(add(app.transaction().set(at("new"), 1).sadd(at("set"), "new"), at).rpush(at("list"), 1).commit)
        assert snapshot(raw, at) == stocked


@one_place
@one_face
@pytest.mark.parametrize(
    "text", ["", " 1", "1.5", "01", "-0", "0x10", "1e3", "9007199254740993", "99999999999999999999"]
)
async def test_a_text_that_the_server_would_not_count_is_refused_as_a_number(
    app: Penstock, do: Do, raw: Any, at: At, text: str
):
    raw.set(at("string"), text)
    raw.hset(at("hash"), "n", text)
    for by in (1, -10):
        for tx in (app.transaction().incrby(at("string"), by), app.transaction().hincrby(at("hash"), "n", by)):
            with pytest.raises(TransactionRefused):
                await do(tx.set(at("new"), 1).commit)
    assert not raw.exists(at("new"))


@one_place
@one_face
@pytest.mark.parametrize(("score", "by"), [("1e308", 1e308), ("inf", -1), ("-inf", 5)])
async def test_a_score_that_would_not_be_finite_is_refused(
    app: Penstock, do: Do, raw: Any, at: At, score: str, by: float
):
    raw.zadd(at("zset"), {"m": score})
    with pytest.raises(TransactionRefused, match=r"zincrby\(.*cannot be done: there is"):
        await do(app.transaction().set(at("new"), 1).zincrby(at("zset"), "m", by).commit)
    assert not raw.exists(at("new"))
    again = app.transaction().zrem(at("zset"), "m").zincrby(at("zset"), "m", by)
    assert await do(again.delete(at("zset")).zincrby(at("zset"), "m", by).commit) == (1, by, 1, by)
    assert await do(app.transaction().zadd(at("zset"), "m", 3).zincrby(at("zset"), "m", 0.1).commit) == (0, 3.1)


@one_place
@one_face
async def test_the_largest_transaction_is_committed(app: Penstock, do: Do, raw: Any, at: At):
    tx = app.transaction()
    for n in range(500):
        tx.require_no_member(at("set"), n)
    await do(tx.sadd(at("set"), *range(500)).commit)
    assert raw.scard(at("set")) == 500
    await do(app.transaction().rpush(at("list"), *range(999)).set(at("new"), "x" * 1_000_000).commit)
    assert raw.llen(at("list")) == 999


# --- once ---


async def test_a_lost_reply_counts_once(do: Do, start: Callable[..., Server]):
    server = start()
    proxy = Proxy(server)
    app = Penstock(proxy.address)
    for n in range(1, 4):
        proxy.lose_replies(1)
        tx = app.transaction().require_missing(f"{{x}}:{n}").set(f"{{x}}:{n}", 1).incrby("{x}:count")
        assert await do(tx.commit) == (1, n)
    held = await do(app.lock("{x}:lock", lease=10).acquire)
    proxy.lose_replies(1)
    assert await do(held.transaction().incrby("{x}:count").commit) == (4,)
    proxy.lose_replies(1)
    with pytest.raises(TransactionRefused):
        await do(held.transaction().require_missing("{x}:1").incrby("{x}:count").commit)
    assert server.client.get("{x}:count") == b"4"
    assert len(server.client.keys("penstock:{x}:transaction:replay:*")) == 1  # the caller makes one call at a time
    await do(held.release)
    await app.aclose()
    proxy.close()


@one_place
async def test_a_late_copy_of_a_commit_changes_nothing(app: Penstock, at: At, raw: Any):
    """A copy from an abandoned connection arrives when its caller has already made other calls."""
    tx = app.transaction().incrby(at("a"))
    commit = Transaction.commit.operation(tx)
    await app._driver.aio.run(commit)
    for _ in range(3):
        await app._driver.aio.run(commit)
    assert raw.get(at("a")) == b"1"
    for _ in range(3):
        await app.transaction().incrby(at("a")).commit.aio()
    await app._driver.aio.run(commit)
    assert raw.get(at("a")) == b"4"


@one_place
@one_face
async def test_a_transaction_is_committed_once_and_a_refused_one_may_be_retried(
    app: Penstock, do: Do, at: At, raw: Any
):
    tx = app.transaction().require_exists(at("a")).incrby(at("b"))
    with pytest.raises(TransactionRefused):
        await do(tx.commit)
    raw.set(at("a"), 1)
    assert await do(tx.commit) == (1,)
    for again in (lambda: Transaction.commit.operation(tx), lambda: tx.set(at("b"), 1)):
        with pytest.raises(ValueError, match="make another"):
            again()


async def test_an_unknown_outcome_is_found_by_committing_again(do: Do, start: Callable[..., Server]):
    """After ServerUnavailable the same object commits again, and the transaction is done once."""
    from penstock import Settings
    from penstock.errors import ServerUnavailable

    server = start("--appendonly", "yes", "--appendfsync", "always")
    proxy = Proxy(server)
    app = Penstock(proxy.address, settings=Settings(give_up_after=0.2, connect_timeout=0.2))
    await do(app.transaction().incrby("x", 0).commit)
    tx = app.transaction().incrby("x")
    proxy.lose_replies(1000)
    with pytest.raises(ServerUnavailable):
        await do(tx.commit)
    with pytest.raises(ValueError, match="was sent"):
        tx.incrby("x")
    proxy.lose_replies(0)
    server.restart()
    proxy.close()
    (server.folder / "proxy").unlink()
    proxy = Proxy(server)
    assert await do(tx.commit) == (1,)
    assert server.client.get("x") == b"1"
    await app.aclose()
    proxy.close()


async def test_a_commit_cancelled_at_every_await_is_whole(app: Penstock, at: At, raw: Any):
    for attempt in range(12):
        tx = app.transaction().incrby(at("a")).incrby(at("b"))
        task = asyncio.create_task(tx.commit.aio())
        for _ in range(attempt):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            await tx.commit.aio()  # finds out whether it was done; it is done once
        assert int(raw.get(at("a"))) == int(raw.get(at("b"))) == attempt + 1


# --- guarded ---


async def test_only_the_owner_of_the_lock_can_write(app: Penstock, do: Do, raw: Any, at: At):
    held = await do(app.lock(at("lock"), lease=10).acquire)
    assert await do(held.transaction().require_missing(at("a")).set(at("a"), 1).commit) == (1,)
    tx = held.transaction().set(at("a"), 2)
    raw.set(at("lock"), "another", px=1000)
    with pytest.raises(LeaseLost, match="when a transaction was committed"):
        await do(tx.commit)
    assert raw.get(at("a")) == b"1"
    assert held.lost.is_set()
    with pytest.raises(LeaseLost):
        held.check()
    with pytest.raises(LeaseLost):
        await do(held.release)


@one_face
async def test_an_owner_that_released_its_lock_cannot_write(app: Penstock, do: Do, raw: Any, at: At):
    held = await do(app.lock(at("lock"), lease=10).acquire)
    tx = held.transaction().set(at("a"), 1)
    await do(held.release)
    with pytest.raises(LeaseLost, match="was released"):
        await do(tx.commit)
    assert not raw.exists(at("a"))


@one_face
async def test_all_of_several_locks_must_be_held(app: Penstock, do: Do, raw: Any, at: At):
    held = await do(app.lock([at("lock"), at("b")], lease=10).acquire)
    await do(held.transaction().set(at("a"), 1).commit)
    raw.delete(at("b"))
    with pytest.raises(LeaseLost):
        await do(held.transaction().set(at("a"), 2).commit)
    assert raw.get(at("a")) == b"1"
    with pytest.raises(LeaseLost):
        await do(held.release)


@one_face
async def test_a_restarted_server_that_lost_the_lock_refuses(do: Do, start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    held = await do(app.lock("x", lease=10).acquire)
    server.restart()
    with pytest.raises(LeaseLost):
        await do(held.transaction().set("{x}:a", 1).commit)
    assert not server.client.exists("{x}:a")
    await app.aclose()


# --- bad input ---


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda app: app.transaction().commit(), "there is nothing in this transaction"),
        (
            lambda app: app.transaction().set("{a}:x", 1).set("{b}:x", 1),
            r"not that of '\{a\}:x'; give all keys one hash tag",
        ),
        (lambda app: app.transaction("a").set("{b}:x", 1), r"not that of '\{a\}'; give all keys one hash tag"),
        (lambda app: app.transaction("{a}"), "write only the text between the braces"),
        (lambda app: app.transaction(""), "has 0 bytes"),
        (lambda app: app.transaction().set("", 1), "has 0 bytes"),
        (lambda app: app.transaction().set("a}", 1).commit(), "no other key can have its slot"),
        (lambda app: app.transaction().set("\ud800", 1), "half a character"),
        (lambda app: app.transaction().set("a", "\ud800"), "half a character"),
        (
            lambda app: app.transaction().set("a", b"x" * 1024 * 1024).commit(),
            r"bytes, at most 1,048,576; make several",
        ),
        (lambda app: app.transaction().sadd("a", *range(1001)), "at most 1,000 conditions and writes"),
        (lambda app: [tx.incrby("a") for tx in [app.transaction()] for _ in range(1001)], "make several"),
        (lambda app: app.transaction().sadd("a"), "at least one field"),
        (lambda app: app.transaction().set("a", float("nan")), "a finite number"),
        (lambda app: app.transaction().zadd("a", "m", float("inf")), "a finite number"),
        (lambda app: app.transaction().zincrby("a", "m", float("nan")), "a finite number"),
        (lambda app: app.transaction().zadd("a", "m", 10**400), r"zadd\(1.*a score is a finite float"),
        (lambda app: app.transaction().zincrby("a", "m", -(10**400)), "a score is a finite float"),
        (lambda app: app.transaction().set("a", 1, ttl="5"), r"set\(ttl='5'\): seconds from 0.001"),
        (lambda app: app.transaction().expire("a", True), r"expire\(seconds=True\): seconds"),
        (lambda app: app.transaction().incrby("a", 2**53), r"incrby\(9007199254740992\): a whole number"),
        (lambda app: app.transaction().hincrby("a", "f", 1.5), "a whole number"),
        (lambda app: app.transaction().require_value("a", at_least=2**53), "cannot be compared exactly"),
        (lambda app: app.transaction().set("a", 1, ttl=0), r"set\(ttl=0\): seconds from 0.001"),
        (lambda app: app.transaction().expire("a", -1), r"expire\(seconds=-1\)"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_sent(build: Callable[[Penstock], object], said: str):
    from anyio import to_thread

    with pytest.raises(ValueError, match=said):
        await to_thread.run_sync(build, Penstock("valkey://127.0.0.1:1/0"))


@pytest.mark.parametrize("value", [None, True, [], object()])
def test_a_value_is_bytes_text_or_a_number(value: Any):
    with pytest.raises(TypeError, match="bytes, a text, or a number"):
        Penstock("valkey://127.0.0.1:1/0").transaction().set("a", value)


@one_face
async def test_a_guarded_transaction_stays_in_the_slot_of_its_lock(app: Penstock, do: Do, at: At):
    held = await do(app.lock(at("lock"), lease=10).acquire)
    with pytest.raises(ValueError, match="give all keys one hash tag"):
        held.transaction().set("{elsewhere}", 1)
    with pytest.raises(ValueError, match="that is the lock itself"):
        held.transaction().delete(at("lock"))
    await do(held.release)


async def test_nothing_is_written_if_the_user_may_not_send_one_of_the_writes(start: Callable[..., Server]):
    server = start()
    server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-sadd")
    app = Penstock(f"unix://few:x@{server.socket}")
    with pytest.raises(ServerRefused, match="may not send SADD: nothing was written"):
        await app.transaction().set("{x}:a", 1).sadd("{x}:b", 1).commit.aio()
    assert server.client.keys("*") == []
    await app.aclose()


def test_a_thousand_writes_block_the_server_for_milliseconds(server: Server):
    with Penstock(server.address, prefix="t") as app:
        took = []
        for n in range(5):
            tx = app.transaction()
            for member in range(1000):
                tx.hincrby("{big}:h", f"{n}:{member}")
            began = time.perf_counter()
            tx.commit()
            took.append(time.perf_counter() - began)
        assert min(took) < 0.05
        server.client.delete("{big}:h")
    assert "commit" in transaction_scripts().scripts
