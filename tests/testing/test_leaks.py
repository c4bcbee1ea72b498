"""An app in normal use leaves nothing behind, and every leak is reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Concurrency, ConfigurationError, Penstock
from penstock.jobs.constants import FORMAT
from penstock.jobs.row import read_row
from penstock.testing import AppUnderTest, assert_no_leaks, clear, enqueued, leaks
from tests.command_line import Run
from tests.conftest import MakeApp


@pytest.mark.parametrize("place", ["valkey", "redis", "cluster"])
async def test_a_used_app_leaks_nothing(app: Penstock):
    clear(app)
    queue = app.queue("q")
    await queue.put_many.aio(range(5), tenant="acme")
    await queue.put.aio(5, delay=60)
    items = await queue.claim.aio(3)
    await items[0].complete.aio("result")
    await items[1].fail.aio("why not")
    assert [call.arguments["value"] for call in enqueued(queue)] == [3, 4, 5]
    assert leaks(app) == []
    assert_no_leaks(app)
    assert clear(app) > 3
    assert enqueued(queue) == []


async def test_a_parked_job_is_no_leak(app: Penstock):
    @app.task(queue="q", limit=Concurrency(1, key="{to}"))
    async def call(to: str) -> None: ...

    await call.enqueue.aio("ada")
    await call.enqueue.aio("ada")
    assert leaks(app) == []


def change_row(raw: Any, base: str, **fields: Any) -> None:
    row = msgspec.structs.replace(read_row(raw.hget(base + "meta", "row")), **fields)
    next_history, entered, has_ttl = 0, 0, 0
    values = FORMAT, raw.exists(base + "intake"), row, next_history, entered, has_ttl
    raw.hset(base + "meta", "row", b"".join(map(msgspec.msgpack.encode, values)))


DAMAGES: list[tuple[str, Callable[[Any, str], Any]]] = [
    ("attic: in no key table", lambda raw, base: raw.set(base + "attic", 1)),
    ("replay:x: has no TTL", lambda raw, base: raw.set(base + "replay:x", "cnull")),
    ("dead: a list, not a ZSET", lambda raw, base: raw.rpush(base + "dead", 1)),
    ("meta: belongs to the queue, but it expires", lambda raw, base: raw.expire(base + "meta", 60)),
    ("queue q: jobs: the records of {b'ghost'} are", lambda raw, base: raw.hset(base + "jobs", "ghost", "short")),
    ("queue q: row ready: 3, counted 2", lambda raw, base: change_row(raw, base, ready=3)),
    ("queue q: tenants: ", lambda raw, base: raw.delete(base + "tenants")),
    ("queue q: age: ", lambda raw, base: change_row(raw, base, second_ready=1)),
    ("queue q: row: entries {5: 3}, counted", lambda raw, base: change_row(raw, base, levels=[5, 3, 0])),
    ("queue q: ages: ", lambda raw, base: raw.zadd(base + "ages", {"7": 7})),
    ("queue q: ready are ", lambda raw, base: raw.lpop(base + "lane:5:acme")),
    ("queue q: level 5, b'acme': entries, but no turn", lambda raw, base: raw.zrem(base + "rotation:5", "acme")),
    ("queue q: lane:5:acme: entries, but the first", lambda raw, base: raw.hdel(base + "heads:5", "acme")),
    ("queue q: rotation:5: b'bolt' has a turn", lambda raw, base: raw.zadd(base + "rotation:5", {"bolt": 1})),
    ("queue q: row: 1 entries in front", lambda raw, base: change_row(raw, base, front=1)),
    ("queue q: delayed: ", lambda raw, base: raw.zadd(base + "delayed", {bytes(7) + b"ghost": 1})),
    ("queue q: leases: ", lambda raw, base: raw.zadd(base + "leases", {"somebody": 1})),
    ("queue q: owners: ", lambda raw, base: raw.hset(base + "held:somebody", "ghost", "0" * 12)),
    ("queue q: owners: {b'ghost'} are held, but", lambda raw, base: raw.hset(base + "owners", "ghost", "somebody")),
    ("queue q: failures: ", lambda raw, base: raw.hset(base + "failures", "ghost", "{}")),
    ("queue q: listeners: ", lambda raw, base: raw.hset(base + "listeners", "ghost", "me/1")),
    ("queue q: sleepers: ", lambda raw, base: raw.zadd(base + "sleepers", {"me/1": 1})),
    ("queue q: sleepers: me/1", lambda raw, base: change_row(raw, base, wake=[*[False] * 9, "me/1", 1, False])),
]


@pytest.mark.damages
@pytest.mark.parametrize(("message", "damage"), DAMAGES, ids=lambda value: value if isinstance(value, str) else "")
async def test_every_leak_of_a_queue_is_reported(
    make_app: MakeApp, raw: Any, message: str, damage: Callable[[Any, str], Any]
):
    app, neighbour = make_app(), make_app()
    await app.queue("q").put_many.aio(range(2), tenant="acme")
    await neighbour.queue("q").put.aio(1)
    base = app.queue("q").first.bindings.keys.base
    damage(raw, base)
    found = leaks(app)
    assert any(message in problem for problem in found), found
    with pytest.raises(AssertionError, match="left in the server:"):
        assert_no_leaks(app)
    assert leaks(neighbour) == []
    raw.delete(*raw.keys())


def change_state(raw: Any, base: str, place: int, value: int) -> None:
    """Change a number in the row of a log, which is an array of MessagePack without its head."""
    values = msgspec.msgpack.decode(b"\x9d" + raw.hget(base + "state", "row"))
    values[place] = value
    raw.hset(base + "state", "row", b"".join(map(msgspec.msgpack.encode, values)))


CHANNEL_DAMAGES: list[tuple[str, Callable[[Any, str], Any]]] = [
    ("state ended: ", lambda raw, base: change_state(raw, base, 7, 99)),
    ("state peak: ", lambda raw, base: raw.hset(base + "state", "peak", 1)),
    ("state end: ", lambda raw, base: raw.hset(base + "state", "end", 99)),
    ("log: ", lambda raw, base: raw.xtrim(base + "log", maxlen=1, approximate=False)),
    ("cursor of b'b': ", lambda raw, base: raw.zadd(base + "readers", {"b": 99})),
    ("first: ", lambda raw, base: raw.zadd(base + "readers", {"a": 2, "b": 2})),
    ("but there is no receiver for them", lambda raw, base: raw.delete(base + "readers")),
    ("readers: [b'b'] have received everything", lambda raw, base: raw.zadd(base + "readers", {"b": 8})),
    ("receivers: {b'b'} are receiving, and", lambda raw, base: raw.zadd(base + "vanished", {"b": 1})),
    ("seen: {b'ghost'}", lambda raw, base: raw.hset(base + "seen", "ghost", 1)),
    ("owners: {b'ghost'}", lambda raw, base: raw.hset(base + "owners", "ghost", "1 1 1 t")),
    ("marks: {b'ghost'}", lambda raw, base: raw.hset(base + "marks", "ghost", "{}")),
    ("sent_at: {b'ghost'}", lambda raw, base: raw.zadd(base + "sent_at", {"ghost": 1})),
    ("totals:a: b'4' of b'3' lines", lambda raw, base: raw.hset(base + "totals:a", "rejected", 4)),
    ("state counted: ", lambda raw, base: raw.hdel(base + "state", "counted")),
    ("rejected:ghost: ", lambda raw, base: raw.rpush(base + "rejected:ghost", "x")),
    ("counts: {'counts:a:odd'}", lambda raw, base: raw.zadd(base + "counts:a:odd", {"x": 1})),
]


@pytest.mark.damages
@pytest.mark.parametrize(
    ("message", "damage"), CHANNEL_DAMAGES, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_every_leak_of_a_channel_of_files_is_reported(
    make_app: MakeApp, raw: Any, tmp_path: Path, message: str, damage: Callable[[Any, str], Any]
):
    app = make_app()
    channel = app.files("access")
    (tmp_path / "one").write_text("1\n2\n")
    (tmp_path / "two").write_text("3\n")
    await channel.send_lines.aio([tmp_path / "one", tmp_path / "two"], receivers=["a", "b"], close=True)
    counting = app.aggregate("access", receiver="a")(lambda lines: {"lines": {str(len(lines)): len(lines)}})
    assert (await counting.run.aio()).lines == 3
    async for _ in channel.receiver("b").blocks():
        break
    assert leaks(app) == []
    damage(raw, channel.bindings.keys.base)
    found = leaks(app)
    assert any(message in problem for problem in found), found
    raw.delete(*raw.keys())


async def test_clear_deletes_only_the_keys_of_this_app(make_app: MakeApp, raw: Any):
    app, neighbour = make_app("t[1]"), make_app("t1")
    assert clear(app) == 0
    for one in (app, neighbour):
        await one.queue("q").put_many.aio(range(3))
    left = set(raw.keys("{t1:*"))
    assert clear(app) > 3
    assert clear(app) == 0
    assert set(raw.keys("*")) == left
    await app.queue("q").put.aio(1)
    assert (await app.queue("q").count.aio()).ready == 1


async def test_clear_refuses_the_default_prefix_on_a_server_that_is_not_temporary(make_app: MakeApp):
    app = make_app("penstock")
    with pytest.raises(ConfigurationError, match=r"a new prefix, by \$PENSTOCK_PREFIX"):
        clear(app)
    await app.queue("q").put.aio(1)
    with pytest.raises(ConfigurationError, match="not a temporary server"):
        clear(app)
    assert (await app.queue("q").count.aio()).ready == 1


async def test_clear_refuses_data_that_was_there_before_the_tests(make_app: MakeApp):
    app = make_app("shop")
    await app.queue("q").put.aio(1)
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match="was there before these tests: run the tests on a TemporaryServer"
        ):
            clear(app)
    assert (await app.queue("q").count.aio()).ready == 1


@pytest.mark.parametrize("started_by", ["the app", "penstock server start"])
def test_a_test_deletes_nothing_on_the_server_of_the_folder(tmp_path, monkeypatch, run: Run, started_by: str):
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_URL", "PENSTOCK_PREFIX", "PENSTOCK_EMBEDDED"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".penstock").mkdir()
    if started_by == "penstock server start":
        run("server", "start")
    try:
        with Penstock() as app:
            app.queue("q").put_many(range(5))
            app.queue("q").claim(1)[0].fail("why not")
            with pytest.raises(ConfigurationError, match="TemporaryServer"), AppUnderTest(app):
                pass
            counts = app.queue("q").count()
            assert (counts.ready, counts.dead) == (4, 1)
    finally:
        run("server", "stop")
