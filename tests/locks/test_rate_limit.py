"""Rate limits: never exceeded by the server's clock, in order of arrival, and a wait that ends early uses nothing."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
import msgspec
import pytest

from penstock import BadCall, ConfigurationError, Penstock, Rate, RateLimit, RateLimited, ServerFull
from penstock.core import idempotency
from penstock.core.idempotency import IdempotencyKey
from tests.conftest import Apps, Do, commands, until
from tests.driver.proxy import Proxy
from tests.locks.conftest import FrozenFace
from tests.servers import Server, eventually, interrupt_when
from tests.speed import scaled

one_place = pytest.mark.parametrize("place", ["valkey"])
one_face = pytest.mark.parametrize("face", ["aio"])

Make = Callable[..., RateLimit]


@pytest.fixture(params=["bucket", "window"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rate(app: Penstock, kind: Any) -> Make:
    def make(limit: int = 3, per: float = 60.0, **options: Any) -> RateLimit:
        return app.rate_limit("api:17", limit=limit, per=per, kind=kind, **options)

    return make


async def test_units_are_allowed_up_to_the_limit_and_then_the_wait_is_reported(rate: Make, do: Do, kind: str):
    for left in (2, 1, 0):
        answer = await do(rate().try_acquire)
        assert answer
        assert (answer.allowed, answer.wait, answer.remaining) == (True, 0.0, left)
    answer = await do(rate().try_acquire)
    assert not answer
    assert answer.remaining == 0
    assert (18 if kind == "bucket" else 58) < answer.wait <= (20 if kind == "bucket" else 60)
    again = await do(rate().try_acquire)
    assert answer.wait - 2 < again.wait <= answer.wait  # the refused call reserved nothing


async def test_several_units_are_taken_together(rate: Make, do: Do):
    assert (await do(rate().try_acquire, 2)).remaining == 1
    assert not await do(rate().try_acquire, 2)
    assert await do(rate().try_acquire)
    for n in (0, 4):
        with pytest.raises(ValueError, match=f"n={n} is never allowed at once; from 1 to 3"):
            RateLimit.try_acquire.operation(rate(), n)


@one_face
async def test_a_bucket_holds_a_burst_and_fills_at_the_limit(app: Penstock, do: Do):
    limit = app.rate_limit("x", limit=10, per=15, burst=2)
    assert [bool(await do(limit.try_acquire)) for _ in range(3)] == [True, True, False]
    await asyncio.sleep(1.55)
    assert await do(limit.try_acquire)
    big = app.rate_limit("y", limit=1, per=60, burst=5)
    assert (await do(big.try_acquire, 5)).remaining == 0


@one_place
@one_face
async def test_a_window_never_has_more_than_its_limit(app: Penstock, do: Do, server: Server):
    """Judged by the moments in the server, over any span of time, with many waiters."""
    limit, moments = app.rate_limit("x", limit=5, per=0.2, kind="window"), []

    async def use() -> None:
        for _ in range(6):
            await limit.acquire.aio()
            moments.append(time.monotonic())

    began = time.monotonic()
    await asyncio.gather(*(use() for _ in range(5)))
    stored = [at for _, at in server.client.zrange(limit.bindings.declared[0] + "window", 0, -1, withscores=True)]
    assert all(later - earlier >= 200_000 for earlier, later in zip(stored, stored[5:], strict=False))
    assert 0.99 < moments[-1] - began < scaled(15)  # thirty units: five immediately, and five more every 0.2 s


async def waiting(raw: Any, limit: RateLimit, waits: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start to wait, until the server has added it to the waiters."""
    key = limit.bindings.declared[0] + "waiters"
    before = raw.zcard(key)
    task = asyncio.create_task(waits)
    await until(lambda: raw.zcard(key) > before or task.done())
    return task


async def test_waiters_are_let_through_in_order_of_arrival(rate: Make, do: Do, kind: str, raw: Any):
    pause = scaled(0.1)  # longer than the loop may be held up
    limit = rate(limit=1, per=pause) if kind == "window" else rate(limit=10, per=10 * pause, burst=1)
    order: list[tuple[int, float]] = []
    assert await do(limit.acquire)
    began = time.monotonic()

    async def use(n: int) -> None:
        assert (await do(limit.acquire)).allowed
        order.append((n, time.monotonic() - began))

    tasks = [await waiting(raw, limit, use(n)) for n in range(4)]
    await asyncio.gather(*tasks)
    assert [n for n, _ in order] == [0, 1, 2, 3]
    for n, at in order:
        assert at >= pause * (n + 1) - 0.03


async def test_a_wait_that_would_be_too_long_is_refused_at_once_and_reserves_nothing(rate: Make, do: Do):
    limit = rate(limit=1, wait=2)
    await do(limit.acquire)
    began = time.monotonic()
    with pytest.raises(RateLimited, match=r"rate limit 'api:17', 1 in 60 s: allowed in .* s, wait=2 is less") as caught:
        await do(limit.acquire)
    with pytest.raises(TimeoutError, match="wait=0 is less"):
        await do(limit.acquire, wait=0)
    assert time.monotonic() - began < scaled(5)
    assert 55 < caught.value.retry_after <= 60
    assert (await do(limit.try_acquire)).wait <= 60


@one_place
async def test_a_waiter_of_a_rate_limit_sends_nothing(
    rate: Make, nodes: list[Any], raw: Any, monkeypatch: pytest.MonkeyPatch
):
    """Not before the offer to the first waiter has ended, two seconds after its unit is allowed."""
    monkeypatch.setattr("penstock.locks.last_tries.INTERVAL", 1.0)
    limit = rate(limit=1)
    await limit.acquire.aio()
    await limit.try_acquire.aio()
    tasks = [asyncio.create_task(limit.acquire.aio()) for _ in range(100)]
    await until(lambda: raw.zcard(limit.bindings.declared[0] + "waiters") == 100)
    sent = sum(map(commands, nodes))
    await asyncio.sleep(4)
    assert sum(map(commands, nodes)) - sent == 0
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# --- a wait that ends early ---


async def test_a_cancelled_wait_uses_nothing_and_the_others_are_served_earlier(rate: Make, do: Do, raw: Any):
    limit = rate(limit=1)
    await limit.acquire.aio()
    for _ in range(3):
        tasks = [await waiting(raw, limit, limit.acquire.aio()) for _ in range(3)]
        assert 235 < (await do(limit.try_acquire)).wait <= 240  # after the three
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert 175 < (await do(limit.try_acquire)).wait <= 180
        for task in tasks:
            task.cancel()
            await asyncio.wait([task])
        assert 50 < (await do(limit.try_acquire)).wait <= 60
    assert not raw.exists(limit.bindings.declared[0] + "units")


async def test_a_wait_cancelled_at_every_await_takes_nothing(rate: Make, do: Do):
    limit = rate(limit=2)
    await do(limit.acquire)
    for attempt in range(16):
        task = asyncio.create_task(limit.acquire.aio())
        for _ in range(attempt):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            break  # it was allowed before the cancellation
        answer = await do(limit.try_acquire)
        assert answer
        await give_last_back(limit)
    assert attempt > 3


async def give_last_back(limit: RateLimit) -> None:
    """Give back the unit of the last call."""
    packed = limit.bindings.pack("", 1)
    await limit._driver.aio.run(limit.bindings.withdraw(packed, idempotency._shared._free[-1]))


async def test_the_next_waiter_gets_the_moment_of_one_that_gave_up(rate: Make, do: Do, raw: Any):
    pause = scaled(0.4)
    limit = rate(limit=1, per=pause)
    await do(limit.acquire)
    began = time.monotonic()
    first = await waiting(raw, limit, do(limit.acquire, wait=60))
    second = await waiting(raw, limit, limit.acquire.aio())
    third = await waiting(raw, limit, do(limit.acquire, wait=60))
    second.cancel()
    await first
    await third
    assert 2 * pause - 0.03 <= time.monotonic() - began < 2.9 * pause


@one_face
async def test_lost_replies_count_once(do: Do, start: Callable[..., Server], kind: Any):
    server = start()
    proxy = Proxy(server)
    app = Penstock(proxy.address)
    limit = app.rate_limit("x", limit=4, per=60, kind=kind)
    await do(limit.try_acquire)
    for left in (2, 1):
        proxy.lose_replies(1)
        assert (await do(limit.try_acquire)).remaining == left
    proxy.lose_replies(1)
    assert (await do(limit.acquire)).remaining == 0
    waiting = asyncio.create_task(limit.acquire.aio())
    await asyncio.sleep(0.1)
    proxy.lose_replies(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await do(limit.try_acquire)).wait <= (15 if kind == "bucket" else 60)
    await app.aclose()
    proxy.close()


@one_place
async def test_a_late_copy_of_a_call_that_was_withdrawn_takes_nothing(rate: Make, app: Penstock):
    limit, caller = rate(), IdempotencyKey("late", 5)
    packed = limit.bindings.pack("penstock/h/1/late", 1, "penstock:wake:x/1")
    await app._driver.aio.run(limit.bindings.withdraw(packed, caller))
    late = await app._driver.aio.run(limit.bindings.acquire(packed, caller, join=True))
    assert late.outcome == "refused"
    assert (await limit.try_acquire.aio()).remaining == 2


# --- faces ---


async def test_with_and_decorator(rate: Make, face: str):
    limit, calls = rate(), []

    @limit
    def plain(a: int) -> int:
        calls.append(a)
        return a + 1

    @limit
    async def awaited(a: int) -> int:
        calls.append(a)
        return a + 1

    def block() -> int:
        with limit as allowed:
            assert allowed
        return plain(1)

    if face == "blocking":
        assert await anyio.to_thread.run_sync(block) == 2
    else:
        async with limit as allowed:
            assert allowed
        assert await awaited(1) == 2
    assert (calls, plain.__name__, awaited.__name__) == ([1], "plain", "awaited")
    assert (await limit.try_acquire.aio()).remaining == 0
    with pytest.raises(RuntimeError, match="would block the running event loop"):
        plain(1)
    with pytest.raises(RuntimeError, match="write `async with` here"), limit:
        pass
    with pytest.raises(
        TypeError, match=r"the generator .*rows, which does its work after the call has returned: write a `with` block"
    ):

        @limit
        def rows():
            yield 1


def test_an_interrupted_wait_leaves_nothing(apps: Apps, kind: Any):
    with apps.make() as app:
        limit = app.rate_limit("x", limit=1, per=60, kind=kind)
        limit.acquire()
        with interrupt_when(lambda: limit.try_acquire().wait > 60), pytest.raises(KeyboardInterrupt):
            limit.acquire()
        assert limit.try_acquire().wait <= 60


async def test_a_restarted_server_has_forgotten_the_units(do: Do, start: Callable[..., Server], kind: Any):
    server = start()
    app = Penstock(server.address)
    limit = app.rate_limit("x", limit=1, per=60, kind=kind)
    assert await do(limit.try_acquire)
    server.restart()
    assert await do(limit.try_acquire)
    server.client.config_set("maxmemory", 1)
    with pytest.raises(ServerFull):
        await do(limit.try_acquire)
    await app.aclose()


@one_place
async def test_no_key_remains_when_the_time_is_over(rate: Make, raw: Any, app: Penstock):
    limit = rate(limit=10, per=0.1)
    for _ in range(12):
        await limit.acquire.aio()
    tasks = [asyncio.create_task(rate(limit=1, per=0.5).acquire.aio()) for _ in range(4)]
    await asyncio.sleep(0.1)
    for task in tasks[:-1]:
        task.cancel()
        await asyncio.wait([task])
    await tasks[-1]
    await asyncio.sleep(1.2)
    assert [key for key in raw.keys(f"*{app.settings.prefix}:rate*") if b":replay:" not in key] == []


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, r"limit=0\): from 1 to 60,000,000"),
        ({"limit": 10_001, "kind": "window"}, "from 1 to 10,000"),
        ({"limit": 1_001, "per": 0.001}, "from 1 to 1,000"),
        ({"per": 0}, r"per=0\): seconds from 0.001 to a year"),
        ({"per": float("nan")}, "seconds from 0.001"),
        ({"burst": 0}, r"burst=0\): from 1"),
        ({"burst": 2**62}, "from 1 to the units that a year allows"),
        ({"burst": 2, "kind": "window"}, "a window has no burst"),
        ({"kind": "leaky"}, "'bucket' or 'window'"),
        ({"wait": -1}, r"rate_limit\(wait=-1\): seconds from 0, or None for ever"),
        ({"name": ""}, "has 0 bytes"),
        ({"name": "x" * 1_000_000}, "has 1,000,000 bytes"),
        ({"name": "a}b"}, "leave out the '}'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(options: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        Penstock("valkey://127.0.0.1:1/0").rate_limit(**{"name": "x", "limit": 3, "per": 60, **options})


@pytest.mark.parametrize("value", ["5", True, [1], b"5", 1.5, None])
def test_a_value_of_the_wrong_type_gets_one_clear_error(value: Any):
    app = Penstock("valkey://127.0.0.1:1/0")
    for option in ("limit", "per", "burst", "wait", "kind"):
        if (option in {"per", "wait"} and value == 1.5) or (option in {"burst", "wait"} and value is None):
            continue
        with pytest.raises(ValueError, match=rf"^rate_limit\({option}="):
            app.rate_limit("x", **{"limit": 3, "per": 60, option: value})
    if value is not None:
        with pytest.raises(ValueError, match=r"rate limit 'x': n=.* is never allowed at once; from 1 to 3"):
            RateLimit.try_acquire.operation(app.rate_limit("x", limit=3, per=60), value)


# --- against the definition ---


@one_place
async def test_any_mix_of_requests_keeps_the_limit(
    app: Penstock, raw: Any, kind: str, deployment: Server, frozen_face: FrozenFace
):
    """Compare the moments at which units were granted and not given back with the definition of each kind."""
    seed = random.randrange(1 << 20)
    print(f"seed {seed}")  # pytest shows it if the test fails
    chance = random.Random(seed)
    options: dict[str, Any] = {"burst": 3} if kind == "bucket" else {"kind": "window"}
    bindings = app.rate_limit("x", limit=5, per=0.05, **options).bindings
    address = frozen_face(deployment, "mix", bindings.declared[0])
    granted: list[tuple[IdempotencyKey, int, bytes]] = []
    line: list[tuple[IdempotencyKey, int, bytes, int]] = []
    for number in range(600):
        if line and chance.random() < 0.6:
            caller, n, packed, ticket = line.pop(chance.choice([0, 0, 0, chance.randrange(len(line))]))
        else:
            caller, n, ticket = IdempotencyKey(f"c{number}", 1), chance.choice([1, 1, 1, 2, 3]), 0
            packed = bindings.pack(f"penstock/h/1/{number}", n, address)
        if ticket and chance.random() < 0.1:
            await app._driver.aio.run(bindings.withdraw(packed, caller))
            continue
        reply = await app._driver.aio.run(
            bindings.acquire(packed, caller, ticket, join=chance.random() < 0.7, max_wait=chance.choice([0.02, None]))
        )
        if reply.outcome == "granted":
            granted.append((caller, n, packed))
            if chance.random() < 0.1:
                caller, _, packed = granted.pop()
                await app._driver.aio.run(bindings.withdraw(packed, caller))
        elif reply.outcome == "waits":
            line.append((caller, n, packed, reply.ticket))
        await asyncio.sleep(chance.choice([0, 0, 0, 0.01]))
    for caller, _, packed, _ in line:
        await app._driver.aio.run(bindings.withdraw(packed, caller))
    moments: list[int] = []
    for caller, n, _ in granted:
        kept = raw.get(f"{bindings.declared[0]}replay:{caller.caller}")
        outcome, _, _, at, _ = msgspec.msgpack.decode(kept[1:])  # behind the number, 1
        assert outcome == 1
        moments += [at] * n
    moments.sort()
    assert len(moments) > 50
    for i, began in enumerate(moments):
        for j, ended in enumerate(moments[i:], 1):
            if kind == "window":
                assert j <= 5 or ended - began >= 50_000
            else:  # a waiter may be late by less than one interval
                assert j < 3 + (ended - began) / 10_000 + 1


# --- costs ---


@one_place
async def test_a_cost_is_given_at_acquire_or_for_the_block(rate: Make, do: Do):
    assert (await do(rate(10).acquire, cost=2.5)).remaining == 7
    assert (await do(rate(10).try_acquire, cost=0)).remaining == 6
    async with rate(10, cost=4) as allowed:
        assert allowed.remaining == 2
    for cost in (-1, float("nan"), "3", True, 11):
        with pytest.raises(ValueError, match="rate limit 'api:17': "):
            RateLimit.try_acquire.operation(rate(10), cost=cost)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave out n"):
        RateLimit.try_acquire.operation(rate(10), 2, cost=3)
    with pytest.raises(ValueError, match="cost=11 is never allowed at once; from 1 to 10"):
        RateLimit.acquire.operation(rate(10), cost=11)
    with pytest.raises(ValueError, match="cost=11 is never allowed at once; from 1 to 10"):
        rate(10, cost=11)


async def test_a_request_without_a_number_has_the_cost_of_the_limit(rate: Make, do: Do):
    assert (await do(rate(10, cost=2.5).acquire)).remaining == 7
    assert (await do(rate(10, cost=2.5).try_acquire)).remaining == 4
    assert (await do(rate(10, cost=2.5).acquire, 1)).remaining == 3
    assert (await do(rate(10, cost=2.5).try_acquire, cost=2)).remaining == 1
    with pytest.raises(ValueError, match=r"its cost follows from the arguments of a call, .* call acquire\(cost=…\)"):
        await do(rate(10, cost="{tokens}").acquire)


async def _cost(prompt: str) -> float:
    return 1


async def test_a_cost_that_would_have_to_be_awaited_is_refused_where_it_is_declared(rate: Make):
    with pytest.raises(ValueError, match=r"rate_limit\(cost=.*: a `def` function"):
        rate(10, cost=_cost)
    with pytest.raises(ValueError, match=r"Rate\(cost=.*: a `def` function"):
        Rate(10, per=1, cost=_cost)  # type: ignore[arg-type]


@one_place
async def test_a_decorated_function_costs_what_its_arguments_say(rate: Make, face: str):
    if face == "aio":

        @rate(1000, cost="{tokens}")
        async def ask(prompt: str, tokens: int = 100) -> str:
            return prompt

        @rate(1000, cost=lambda prompt: len(prompt) / 4)
        async def embed(prompt: str) -> str:
            return prompt

        assert (await ask("x"), await ask("y", tokens=300), await embed("12345")) == ("x", "y", "12345")
    else:

        @rate(1000, cost="{tokens}")
        def ask_here(prompt: str, tokens: int = 100) -> str:
            return prompt

        @rate(1000, cost=lambda prompt: len(prompt) / 4)
        def embed_here(prompt: str) -> str:
            return prompt

        def all_three() -> tuple[str, str, str]:
            return ask_here("x"), ask_here("y", tokens=300), embed_here("12345")

        assert await anyio.to_thread.run_sync(all_three) == ("x", "y", "12345")
    assert 590 <= (await rate(1000).try_acquire.aio()).remaining <= 610


async def test_a_cost_that_follows_from_arguments_needs_a_function(rate: Make):
    with pytest.raises(ConfigurationError, match=r"its cost needs tokens, .* its parameters are: prompt"):

        @rate(10, cost="{tokens}")
        def ask(prompt: str) -> None: ...

    with pytest.raises(ValueError, match="so it works only as a decorator"):
        async with rate(10, cost="{tokens}"):
            pass

    @rate(10, cost=lambda prompt: -1)
    async def wrong(prompt: str) -> None: ...

    with pytest.raises(BadCall, match="gave -1: a cost is a number of units from 0"):
        await wrong("x")


async def test_what_is_left_is_shown_and_forgotten_on_request(rate: Make, do: Do, kind: str):
    limit = rate(3, per=60.0)
    assert (await do(limit.info)).limit is None
    assert not await do(limit.reset)
    assert (await do(limit.try_acquire, 2)).remaining == 1
    shown = await do(limit.info)
    assert (shown.name, shown.kind, shown.limit, shown.per, shown.left) == ("api:17", kind, 3, 60.0, 1)
    assert (shown.burst, shown.next_in, shown.waiting) == (3 if kind == "bucket" else None, 0.0, 0)
    await do(limit.acquire)
    shown = await do(limit.info)
    assert (shown.left, shown.next_in) == (0, pytest.approx(20 if kind == "bucket" else 60, abs=2))
    assert await do(limit.reset)
    assert (await do(limit.try_acquire, 3)).remaining == 0


@one_place
async def test_a_reset_serves_the_requests_that_wait(app: Penstock, kind: Any):
    limit = app.rate_limit("api:17", limit=3, per=3600, kind=kind)
    await limit.acquire.aio(3)
    waits = asyncio.create_task(limit.acquire.aio(2))
    await asyncio.to_thread(eventually, lambda: limit.info().waiting)
    shown = await limit.info.aio()
    assert (shown.left, shown.units, shown.waiters[0].permits, shown.waiters[0].pid) == (0, 2, 2, os.getpid())
    assert shown.next_in > 3000
    assert await limit.reset.aio()
    await asyncio.wait_for(waits, scaled(5))
    shown = await limit.info.aio()
    assert (shown.waiting, shown.left) == (0, 1)


@one_face
@one_place
async def test_units_given_back_keep_the_numbers_of_the_limit(rate: Make, do: Do):
    limit = rate(3, per=60.0)
    await do(limit.try_acquire)
    key, packed = IdempotencyKey("someone", 1), limit.bindings.pack("token", 1)
    await limit._driver.aio.run(limit.bindings.acquire(packed, key, join=False))
    await limit._driver.aio.run(limit.bindings.withdraw(packed, key))
    shown = await do(limit.info)
    assert (shown.limit, shown.left) == (3, 2)


@pytest.mark.parametrize(("limit", "per"), [(999_000, 1000.0), (70_000, 60.0), (7, 300.0)])
async def test_the_numbers_of_a_bucket_are_shown_as_they_were_given(app: Penstock, limit: int, per: float):
    one = app.rate_limit("api:17", limit=limit, per=per)
    await one.acquire.aio(limit // 2)
    shown = await one.info.aio()
    assert (shown.limit, shown.per) == (limit, per)
    await one.reset.aio()


async def test_a_bucket_without_numbers_is_shown_and_reset(app: Penstock, raw: Any):
    one = app.rate_limit("api:17", limit=3, per=60)
    await one.acquire.aio()
    key = one.bindings.declared[1]
    full, _, _ = raw.get(key).partition(b" ")
    raw.set(key, full, ex=60)
    assert (await one.info.aio()).limit is None
    assert await one.reset.aio()
