"""A barrier: its parties continue when all of them have arrived."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Barrier, ConfigurationError, Penstock
from penstock.core.idempotency import IdempotencyKey
from penstock.errors import BarrierBroken, BarrierTimeout
from penstock.info import BarrierPass
from penstock.locks.constants import LEFT, MISMATCH, PASSED, WAIT
from tests.conftest import Apps, Do, MakeApp, until
from tests.locks.conftest import FrozenFace
from tests.servers import Server
from tests.speed import scaled

one_place = pytest.mark.parametrize("place", ["valkey"])


@pytest.fixture
def barrier(app: Penstock) -> Barrier:
    return app.barrier("step", parties=3)


def present(client: Any, barrier: Barrier) -> int:
    return int(client.zcard(barrier.bindings.declared[0] + "present"))


async def test_all_continue_when_the_last_has_arrived(
    app: Penstock, make_app: MakeApp, barrier: Barrier, do: Do, raw: Any
):
    other = make_app(prefix=app.settings.prefix).barrier("step", parties=3)
    generations = []
    for _ in range(3):
        first, second = asyncio.create_task(do(barrier.wait)), None
        await until(lambda: present(raw, barrier) == 1)
        second = asyncio.create_task(do(other.wait))
        await until(lambda: present(raw, barrier) == 2)
        assert not first.done()
        began = time.monotonic()
        passes = [await do(barrier.wait), await second, await first]
        assert time.monotonic() - began < scaled(1)
        assert [one.index for one in passes] == [2, 1, 0]
        assert len({one.generation for one in passes}) == 1
        generations.append(passes[0].generation)
    assert generations == sorted(set(generations))
    assert present(raw, barrier) == 0


@one_place
async def test_a_crowd_meets_again_and_again(apps: Apps, app: Penstock, do: Do):
    parties, rounds = 24, 20
    others = [apps.make(prefix=app.settings.prefix) for _ in range(4)]
    arrived = [0] * rounds

    async def take_part(n: int) -> list[BarrierPass]:
        barrier, passes = others[n % 4].barrier("crowd", parties=parties), []
        for one in range(rounds):
            arrived[one] += 1
            passes.append(await do(barrier.wait))
            assert arrived[one] == parties
        return passes

    passes = await asyncio.wait_for(asyncio.gather(*map(take_part, range(parties))), scaled(60))
    for meeting in zip(*passes, strict=True):
        assert len({one.generation for one in meeting}) == 1
        assert sorted(one.index for one in meeting) == list(range(parties))
    await asyncio.gather(*(one.aclose() for one in others))


async def test_a_party_that_times_out_breaks_the_meeting(barrier: Barrier, do: Do, raw: Any):
    patient = asyncio.create_task(do(barrier.wait))
    await until(lambda: present(raw, barrier) == 1)
    began = time.monotonic()
    with pytest.raises(BarrierTimeout, match=r"barrier 'step': not all of the 3 parties arrived within 0\.2 s"):
        await do(barrier.wait, 0.2)
    assert 0.2 <= time.monotonic() - began < scaled(1)
    with pytest.raises(BarrierBroken, match=r"barrier 'step' is broken: process \d+ on .+ reached its time-out"):
        await asyncio.wait_for(patient, scaled(2))
    assert issubclass(BarrierTimeout, TimeoutError)
    assert present(raw, barrier) == 0
    await meet(barrier, do)


async def meet(barrier: Barrier, do: Do) -> None:
    """The barrier works."""
    passes = await asyncio.wait_for(asyncio.gather(*(do(barrier.wait) for _ in range(barrier.parties))), scaled(10))
    assert sorted(one.index for one in passes) == list(range(barrier.parties))


@one_place
async def test_a_cancelled_party_breaks_the_meeting(barrier: Barrier, do: Do, raw: Any):
    patient = asyncio.create_task(do(barrier.wait))
    await until(lambda: present(raw, barrier) == 1)
    cancelled = asyncio.create_task(barrier.wait.aio())
    await until(lambda: present(raw, barrier) == 2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(BarrierBroken, match=r"process \d+ on .+ stopped waiting"):
        await asyncio.wait_for(patient, scaled(2))
    await meet(barrier, do)


@one_place
async def test_a_wait_cancelled_at_every_moment_leaves_no_party(app: Penstock, raw: Any):
    barrier = app.barrier("step", parties=2)
    for delay in [0.0] * 5 + [n / 4000 for n in range(40)]:
        task = asyncio.create_task(barrier.wait.aio())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        assert present(raw, barrier) == 0


async def test_an_abort_reaches_all_that_wait(barrier: Barrier, do: Do, raw: Any):
    assert not await do(barrier.abort)
    waits = [asyncio.create_task(do(barrier.wait)) for _ in range(2)]
    await until(lambda: present(raw, barrier) == 2)
    assert await do(barrier.abort, "the disk of c is full")
    for wait in waits:
        with pytest.raises(BarrierBroken, match=r"it was aborted \(the disk of c is full\)") as caught:
            await wait
        assert caught.value.generation > 0
    assert not await do(barrier.abort)
    await meet(barrier, do)


async def test_another_number_of_parties_is_refused_while_somebody_waits(
    app: Penstock, barrier: Barrier, do: Do, raw: Any
):
    wait = asyncio.create_task(do(barrier.wait))
    await until(lambda: present(raw, barrier) == 1)
    with pytest.raises(ConfigurationError, match="barrier 'step': parties=2, but those that wait need 3"):
        await do(app.barrier("step", parties=2).wait)
    assert present(raw, barrier) == 1
    await do(barrier.abort)
    await asyncio.wait([wait])
    assert isinstance(wait.exception(), BarrierBroken)
    await meet(app.barrier("step", parties=2), do)  # a new release may need another number


async def test_it_can_be_inspected(barrier: Barrier, do: Do, raw: Any):
    info = await do(barrier.info)
    assert (info.name, info.parties, info.generation, info.waiting, info.waiters) == ("step", 3, 0, 0, ())
    assert raw.exists(*barrier.bindings.declared) == 0
    wait = asyncio.create_task(do(barrier.wait))
    await until(lambda: present(raw, barrier) == 1)
    info = await do(barrier.info)
    assert (info.parties, info.waiting, len(info.waiters)) == (3, 1, 1)
    assert info.waiters[0].pid > 0
    await do(barrier.abort)
    await asyncio.wait([wait])
    assert isinstance(wait.exception(), BarrierBroken)


@one_place
async def test_the_keys_live_for_their_ttl_after_the_last_call(app: Penstock, do: Do, raw: Any):
    barrier = app.barrier("short", parties=2, lease=1, ttl=1)
    await meet(barrier, do)
    base, state = barrier.bindings.declared
    assert 0 < raw.pttl(state) <= 3000
    assert 0 < raw.pttl(base + "ended") <= 60000
    raw.pexpire(base + "ended", 3000)
    await until(lambda: raw.exists(state, base + "ended") == 0)
    await meet(barrier, do)


# --- parties that are silent ---


@one_place
async def test_a_party_that_is_frozen_breaks_the_meeting_after_its_lease(
    app: Penstock, do: Do, deployment: Server, frozen_face: FrozenFace
):
    barrier = app.barrier("step", parties=3, lease=1)
    frozen = barrier.bindings.party("penstock/far/77/x", frozen_face(deployment, "f", barrier.bindings.declared[0]))
    await app._driver.aio.run(barrier.bindings.arrive(IdempotencyKey("f", 1), frozen))
    began = time.monotonic()
    with pytest.raises(BarrierBroken, match="process 77 on far died while it waited, or did not answer"):
        await do(barrier.wait)
    # Its lease, a look of the other one within half a lease, and two seconds to answer.
    assert 2.9 <= time.monotonic() - began < scaled(4.5)


@one_place
async def test_the_last_to_arrive_finds_that_a_party_has_died(app: Penstock, do: Do):
    barrier = app.barrier("step", parties=2, lease=5)
    dead = barrier.bindings.party("penstock/far/77/x", "penstock:wake:dead/1")
    await app._driver.aio.run(barrier.bindings.arrive(IdempotencyKey("d", 1), dead))
    began = time.monotonic()
    with pytest.raises(BarrierBroken, match="process 77 on far died"):
        await do(barrier.wait)
    assert 4.9 <= time.monotonic() - began < scaled(6)


@one_place
async def test_a_party_that_lost_its_connection_for_a_moment_is_not_dead(app: Penstock, do: Do, raw: Any):
    barrier = app.barrier("step", parties=2, lease=60)
    for _ in range(5):
        wait = asyncio.create_task(do(barrier.wait))
        await until(lambda: present(raw, barrier) == 1)
        raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        began = time.monotonic()
        passes = await asyncio.gather(do(barrier.wait), wait)
        assert {one.index for one in passes} == {0, 1}
        assert time.monotonic() - began < scaled(4)


@one_place
async def test_parties_of_a_run_that_has_ended_break_nothing_new(app: Penstock, do: Do):
    barrier = app.barrier("step", parties=3, lease=1)
    for n in range(2):
        dead = barrier.bindings.party(f"penstock/far/7{n}/x", "penstock:wake:dead/1")
        await app._driver.aio.run(barrier.bindings.arrive(IdempotencyKey(f"d{n}", 1), dead))
    await asyncio.sleep(1.1)
    await meet(barrier, do)


@one_place
async def test_a_party_that_comes_while_another_is_probed_waits_for_the_next_meeting(app: Penstock, do: Do, raw: Any):
    """Its replacement is there before the dead party is known to be dead."""
    barrier = app.barrier("step", parties=2, lease=5)
    dead = barrier.bindings.party("penstock/far/77/x", "penstock:wake:dead/1")
    await app._driver.aio.run(barrier.bindings.arrive(IdempotencyKey("d", 1), dead))
    second = asyncio.create_task(do(barrier.wait))
    await until(lambda: present(raw, barrier) == 2)
    third = asyncio.create_task(do(barrier.wait))
    with pytest.raises(BarrierBroken, match="process 77 on far died"):
        await second
    assert not third.done()
    passes = await asyncio.wait_for(asyncio.gather(do(barrier.wait), third), scaled(5))
    assert {one.index for one in passes} == {0, 1}


@one_place
async def test_a_server_that_lost_its_memory_lets_the_parties_meet(app: Penstock, do: Do, raw: Any):
    barrier = app.barrier("step", parties=3, lease=1)
    waits = [asyncio.create_task(do(barrier.wait)) for _ in range(2)]
    await until(lambda: present(raw, barrier) == 2)
    raw.flushall()
    await until(lambda: present(raw, barrier) == 2)
    passes = await asyncio.wait_for(asyncio.gather(do(barrier.wait), *waits), scaled(5))
    assert sorted(one.index for one in passes) == [0, 1, 2]


# --- scripts ---


@one_place
async def test_calls_that_are_sent_again_change_nothing(app: Penstock):
    barrier = app.barrier("step", parties=2)
    bindings, run = barrier.bindings, app._driver.aio.run
    first, second = (bindings.party(f"penstock/far/{n}/x", f"penstock:wake:f{n}/1") for n in range(2))
    one, two = IdempotencyKey("a", 1), IdempotencyKey("b", 1)
    arrived = await run(bindings.arrive(one, first))
    assert (arrived.outcome, arrived.index) == (WAIT, 0)
    assert await run(bindings.arrive(one, first)) == arrived
    assert (await barrier.info.aio()).waiting == 1
    await run(bindings.leave(one, first, arrived.generation, LEFT))
    assert (await run(bindings.leave(one, first, arrived.generation, LEFT))).generation == arrived.generation
    # An arrival that comes after its party has left has no effect.
    await run(bindings.leave(two, second, 0, LEFT))
    await run(bindings.arrive(two, second))
    assert (await barrier.info.aio()).waiting == 0


@one_place
async def test_a_party_that_looks_late_learns_how_its_meeting_ended(app: Penstock, do: Do):
    barrier = app.barrier("step", parties=2)
    bindings, run = barrier.bindings, app._driver.aio.run
    keys = [IdempotencyKey(str(n), 1) for n in range(3)]
    late = bindings.party("penstock/far/1/x", "penstock:wake:f1/1")
    arrived = await run(bindings.arrive(keys[0], late))
    await run(bindings.leave(keys[1], late, 0, LEFT))
    await meet(barrier, do)
    broken = await run(bindings.look(late, arrived.generation, 0))
    assert broken.why.startswith(LEFT)
    (one, _) = await asyncio.gather(do(barrier.wait), do(barrier.wait))
    await meet(barrier, do)
    assert (await run(bindings.look(late, one.generation, 0))).outcome == PASSED
    forgotten = await run(bindings.look(late, arrived.generation - 5, 0))
    assert forgotten.why == b"f"
    assert (await barrier.info.aio()).waiting == 0


@one_place
async def test_a_mismatch_is_no_arrival(app: Penstock, do: Do):
    run, keys = app._driver.aio.run, [IdempotencyKey(str(n), 1) for n in range(2)]
    three, two = app.barrier("step", parties=3).bindings, app.barrier("step", parties=2).bindings
    party = three.party("penstock/far/1/x", "penstock:wake:f1/1")
    await run(three.arrive(keys[0], party))
    refused = await run(two.arrive(keys[1], two.party("penstock/far/2/x", "penstock:wake:f2/1")))
    assert (refused.outcome, refused.index) == (MISMATCH, 3)
    await run(three.leave(keys[0], party, 0, LEFT))


@one_place
async def test_a_thousand_parties_are_probed_in_slices(app: Penstock, raw: Any, deployment: Server):
    """So no call holds the server for long. Each party has a process of its own; alive, and then all dead."""
    barrier = app.barrier("large", parties=1000)
    run, bindings = app._driver.aio.run, barrier.bindings
    channels = [f"penstock:wake:large{n}" for n in range(1000)]
    processes: Any = raw.pubsub()
    processes.ssubscribe(*channels)
    await until(lambda: len(deployment.subscribers()) >= 1)
    await asyncio.sleep(0.2)
    for is_dead in (False, True):
        if is_dead:
            processes.close()
            await asyncio.sleep(0.2)
        for n, channel in enumerate(channels):
            party = bindings.party(f"penstock/far/{n}/x", f"{channel}/1")
            reply = await run(bindings.arrive(IdempotencyKey(f"{is_dead}{n}", 1), party))
        calls = 1
        while reply.outcome == WAIT and reply.look_in == 0:
            reply = await run(bindings.look(party, reply.generation, reply.index))
            calls += 1
        assert calls == 7
        assert reply.outcome == (WAIT if is_dead else PASSED)
    await barrier.abort.aio()


async def test_a_full_server_still_lets_the_parties_meet(start: Callable[..., Server], do: Do):
    server = start("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    app = Penstock(server.address)
    barrier = app.barrier("full", parties=2)
    await meet(barrier, do)
    server.client.config_set("maxmemory", 1)
    await meet(barrier, do)
    await app.aclose()


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parties": 0}, r"barrier\(parties=0\): a whole number from 2 to 1,000"),
        ({"parties": 1}, r"barrier\(parties=1\)"),
        ({"parties": -3}, r"barrier\(parties=-3\)"),
        ({"parties": 1001}, r"barrier\(parties=1001\)"),
        ({"parties": True}, r"barrier\(parties=True\)"),
        ({"parties": 2.0}, r"barrier\(parties=2.0\)"),
        ({"parties": "4"}, r"barrier\(parties='4'\)"),
        ({"parties": None}, r"barrier\(parties=None\)"),
        ({"parties": 2, "ttl": 0}, r"barrier\(ttl=0\)"),
        ({"parties": 2, "ttl": -1}, r"barrier\(ttl=-1\)"),
        ({"parties": 2, "ttl": float("nan")}, r"barrier\(ttl=nan\)"),
        ({"parties": 2, "ttl": None}, r"barrier\(ttl=None\)"),
        ({"parties": 2, "lease": 0.5}, r"barrier\(lease=0.5\): seconds from 1 to an hour"),
        ({"parties": 2, "lease": "5"}, r"barrier\(lease='5'\)"),
        ({"parties": 2, "lease": True}, r"barrier\(lease=True\)"),
        ({"parties": 2, "lease": float("inf")}, r"barrier\(lease=inf\)"),
    ],
)
async def test_bad_numbers_are_refused(options: Any, said: str):
    with pytest.raises(ValueError, match=said):
        Penstock("valkey://127.0.0.1:1/0").barrier("x", **options)


@pytest.mark.parametrize("name", ["", "a}b", "\ud800", "x" * 1025, b"bytes", 5, None])
async def test_bad_names_are_refused(name: Any):
    with pytest.raises(ConfigurationError, match="barrier name"):
        Penstock("valkey://127.0.0.1:1/0").barrier(name, parties=2)


async def test_bad_calls_are_refused(barrier: Barrier, do: Do, raw: Any):
    for timeout in (-1, float("nan"), float("inf"), True, "5"):
        with pytest.raises(ValueError, match=r"wait\(timeout=.*\): seconds from 0, or None for ever"):
            await do(barrier.wait, timeout)
    for reason in ("x" * 1025, "\udfff", b"a", 5):
        with pytest.raises(ValueError, match="abort reason"):
            await do(barrier.abort, reason)
    assert raw.exists(*barrier.bindings.declared) == 0


async def test_names_of_any_kind(app: Penstock, do: Do):
    for name in ("a:b", "a/b", "{a", "名前 😀", "new\nline", "nul\0", " ", "%*?[x]", "a" * 1024):
        await meet(app.barrier(name, parties=2), do)
