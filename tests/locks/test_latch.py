"""A latch: those that wait continue when it was counted down to zero."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import ConfigurationError, Latch, Penstock
from penstock.errors import LatchTimeout
from tests.conftest import Apps, Do, MakeApp, until
from tests.servers import Cluster, Server
from tests.speed import scaled

one_place = pytest.mark.parametrize("place", ["valkey"])


@pytest.fixture
def latch(app: Penstock) -> Latch:
    return app.latch("import", count=3)


def waiting(client: Any, latch: Latch) -> int:
    """How many faces are registered."""
    return sum(1 for face in client.zrange(latch.bindings.declared[0] + "waiting", 0, -1) if face)


async def test_those_that_wait_continue_when_it_was_counted_down(
    app: Penstock, make_app: MakeApp, latch: Latch, do: Do, raw: Any
):
    other = make_app(prefix=app.settings.prefix).latch("import", count=3)
    waits = [asyncio.create_task(do(one.wait)) for one in (latch, latch, other)]
    await until(lambda: waiting(raw, latch) == 2)
    assert [await do(latch.count_down), await do(other.count_down)] == [2, 1]
    assert not any(wait.done() for wait in waits)
    began = time.monotonic()
    assert await do(latch.count_down) == 0
    await asyncio.gather(*waits)
    assert time.monotonic() - began < scaled(1)
    assert await do(latch.wait, 0) is None
    assert await do(latch.count_down) == 0
    assert waiting(raw, latch) == 0


async def test_a_wait_has_a_time_out(latch: Latch, do: Do, raw: Any):
    await do(latch.count_down)
    began = time.monotonic()
    with pytest.raises(LatchTimeout, match=r"latch 'import': 2 of 3 were not counted down within 0\.2 s"):
        await do(latch.wait, 0.2)
    assert 0.2 <= time.monotonic() - began < scaled(1)
    with pytest.raises(TimeoutError, match="within 0 s"):
        await do(latch.wait, timeout=0)
    assert waiting(raw, latch) == 0


async def test_several_at_once(latch: Latch, do: Do):
    assert await do(latch.count_down, 2) == 1
    assert await do(latch.count_down, 3) == 0


async def test_an_id_counts_once(latch: Latch, do: Do, raw: Any):
    assert await do(latch.count_down, id="part 1") == 2
    assert await do(latch.count_down, id="part 1") == 2
    assert await do(latch.count_down, id="名前") == 1
    assert await do(latch.count_down, id="part 3") == 0
    assert raw.exists(latch.bindings.declared[0] + "counted") == 0
    assert await do(latch.count_down, id="part 4") == 0
    assert raw.exists(latch.bindings.declared[0] + "counted") == 0


async def test_it_can_be_inspected(app: Penstock, latch: Latch, do: Do, raw: Any):
    info = await do(latch.info)
    assert (info.name, info.count, info.left, info.waiting, info.ttl) == ("import", 3, 3, 0, 0.0)
    assert raw.exists(latch.bindings.declared[1]) == 0
    await do(latch.count_down)
    wait = asyncio.create_task(do(latch.wait))
    await until(lambda: waiting(raw, latch) == 1)
    info = await do(latch.info)
    assert (info.count, info.left, info.waiting) == (3, 2, 1)
    assert 86000 < info.ttl <= 86400
    await do(latch.count_down, 2)
    await wait
    assert (await do(latch.info)).left == 0


async def test_another_count_is_refused_and_changes_nothing(app: Penstock, latch: Latch, do: Do):
    await do(latch.count_down)
    other = app.latch("import", count=4)
    verbs: tuple[Any, ...] = (other.count_down, other.wait)
    for verb in verbs:
        with pytest.raises(ConfigurationError, match="latch 'import': count=4, but it was created with 3"):
            await do(verb)
    assert (await do(latch.info)).left == 2


@one_place
async def test_lost_replies_count_once(app: Penstock, latch: Latch, raw: Any):
    """The driver sends a call again when its connection is cut."""
    cutting = True

    async def cut() -> None:
        while cutting:
            raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(0.002)

    many = app.latch("many", count=1000)
    task = asyncio.create_task(cut())
    for n in range(200):
        assert await many.count_down.aio() == 999 - n
    cutting = False
    await task


@one_place
async def test_the_keys_live_for_their_ttl_after_the_last_call(app: Penstock, do: Do, raw: Any):
    latch = app.latch("short", count=2, ttl=1)
    keys = [latch.bindings.declared[1], latch.bindings.declared[0] + "counted"]
    await do(latch.count_down, id="a")
    assert all(0 < raw.pttl(key) <= 1000 for key in keys)
    await asyncio.sleep(0.6)
    await do(latch.count_down, id="a")
    await asyncio.sleep(0.6)
    assert (await do(latch.info)).left == 1
    await until(lambda: raw.exists(*keys) == 0)
    assert (await do(latch.info)).left == 2
    # A handle with a shorter time does not shorten the life of the latch.
    await do(app.latch("long", count=2).count_down)
    await do(app.latch("long", count=2, ttl=1).count_down)
    assert raw.pttl(app.latch("long", count=2).bindings.declared[1]) > 80_000_000


@one_place
async def test_a_cancelled_wait_leaves_nothing(latch: Latch, raw: Any):
    first, second = (asyncio.create_task(latch.wait.aio()) for _ in range(2))
    await until(lambda: waiting(raw, latch) == 1)
    first.cancel()
    await asyncio.wait([first])
    assert waiting(raw, latch) == 1  # the other one shares the address
    second.cancel()
    await asyncio.wait([second])
    assert waiting(raw, latch) == 0
    await latch.count_down.aio(3)


@one_place
async def test_a_thousand_waits_of_a_process_share_a_connection_and_a_message(
    app: Penstock, make_app: MakeApp, latch: Latch, deployment: Server, raw: Any
):
    tasks = [asyncio.create_task(latch.wait.aio()) for _ in range(1000)]
    await until(lambda: waiting(raw, latch) == 1)
    await asyncio.sleep(0.2)
    assert len(deployment.subscribers()) == 1
    await make_app(prefix=app.settings.prefix).latch("import", count=3).count_down.aio(3)
    await asyncio.wait_for(asyncio.gather(*tasks), scaled(5))


@one_place
async def test_more_faces_than_one_call_wakes_all_hear_of_it(app: Penstock, apps: Apps, latch: Latch, raw: Any):
    others = [apps.make(prefix=app.settings.prefix) for _ in range(150)]
    tasks = [asyncio.create_task(other.latch("import", count=3).wait.aio()) for other in others]
    await until(lambda: waiting(raw, latch) == 150)
    began = time.monotonic()
    await latch.count_down.aio(3)
    await asyncio.wait_for(asyncio.gather(*tasks), scaled(5))
    assert time.monotonic() - began < scaled(2)
    await asyncio.gather(*(other.aclose() for other in others))


@one_place
async def test_a_cut_connection_is_no_end_of_a_wait(latch: Latch, deployment: Server, raw: Any, do: Do):
    wait = asyncio.create_task(do(latch.wait))
    await until(lambda: waiting(raw, latch) == 1)
    raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await do(latch.count_down, 3)
    began = time.monotonic()
    await asyncio.wait_for(wait, scaled(5))
    assert time.monotonic() - began < scaled(2)


async def test_an_idle_wait_sends_nothing(small_cluster: Cluster):
    """Beside the first look, and the registration of its listener."""
    app = Penstock(small_cluster.address)
    latch = app.latch("idle", count=1)
    task = asyncio.create_task(latch.wait.aio())
    node = small_cluster.owner(latch.bindings.declared[0]).client
    await until(lambda: waiting(node, latch) == 1)
    await asyncio.sleep(0.2)

    def calls() -> int:
        stats = node.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))

    before = calls()
    await asyncio.sleep(3)
    assert calls() == before
    await latch.count_down.aio()
    await task
    await app.aclose()
    for each in small_cluster.nodes:
        each.client.flushall()


async def test_a_full_server_still_lets_a_latch_open(start: Callable[..., Server], do: Do):
    server = start("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    app = Penstock(server.address)
    latch = app.latch("full", count=2)
    wait = asyncio.create_task(do(latch.wait))
    await until(lambda: waiting(server.client, latch) == 1)
    server.client.config_set("maxmemory", 1)
    assert await do(latch.count_down) == 1
    assert await do(latch.count_down) == 0
    await wait
    await app.aclose()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 0}, r"latch\(count=0\): a whole number from 1 to 1,000,000"),
        ({"count": -1}, r"latch\(count=-1\)"),
        ({"count": 1_000_001}, r"latch\(count=1000001\)"),
        ({"count": 10**5000}, r"latch\(count=a whole number of 16,610 bits\)"),
        ({"count": True}, r"latch\(count=True\)"),
        ({"count": 1.0}, r"latch\(count=1.0\)"),
        ({"count": "3"}, r"latch\(count='3'\)"),
        ({"count": None}, r"latch\(count=None\)"),
        ({"count": 1, "ttl": 0}, r"latch\(ttl=0\): seconds from 1 to a year"),
        ({"count": 1, "ttl": -5}, r"latch\(ttl=-5\)"),
        ({"count": 1, "ttl": True}, r"latch\(ttl=True\)"),
        ({"count": 1, "ttl": "5"}, r"latch\(ttl='5'\)"),
        ({"count": 1, "ttl": float("nan")}, r"latch\(ttl=nan\)"),
        ({"count": 1, "ttl": float("inf")}, r"latch\(ttl=inf\)"),
        ({"count": 1, "ttl": None}, r"latch\(ttl=None\)"),
    ],
)
async def test_bad_numbers_are_refused(options: Any, said: str):
    with pytest.raises(ValueError, match=said):
        Penstock("valkey://127.0.0.1:1/0").latch("x", **options)


@pytest.mark.parametrize("name", ["", "a}b", "\ud800", "x" * 1025, b"bytes", 5, None])
async def test_bad_names_are_refused(name: Any):
    with pytest.raises(ConfigurationError, match="latch name"):
        Penstock("valkey://127.0.0.1:1/0").latch(name, count=1)


async def test_bad_calls_are_refused(latch: Latch, do: Do):
    for n in (0, -1, 4, True, 1.5, "1", None):
        with pytest.raises(ValueError, match=r"count_down\(n=.*\): a whole number from 1 to the count, 3"):
            await do(latch.count_down, n)
    for timeout in (-1, float("nan"), float("inf"), True, "5"):
        with pytest.raises(ValueError, match=r"wait\(timeout=.*\): seconds from 0, or None for ever"):
            await do(latch.wait, timeout)
    for id in ("", "x" * 1025, "\udfff", b"a", 5):
        with pytest.raises(ValueError, match="count_down id"):
            await do(latch.count_down, id=id)
    assert (await do(latch.info)).left == 3


async def test_names_of_any_kind(app: Penstock, do: Do):
    for name in ("a:b", "a/b", "{a", "名前 😀", "new\nline", "nul\0", " ", "%*?[x]", "a" * 1024):
        latch = app.latch(name, count=1)
        assert await do(latch.count_down) == 0
        await do(latch.wait, 0)
