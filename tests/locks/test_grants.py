"""A message that hands a lock over grants it: late, lost, doubled and forged messages, and clocks that are set."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import LeaseLost, Lock, LockTimeout, Penstock
from penstock.locks import lease
from penstock.locks.lease import Grant
from tests.conftest import Do, MakeApp, commands, until
from tests.locks import test_lock
from tests.locks.test_lock import waiting
from tests.servers import Server
from tests.speed import scaled

one_place = pytest.mark.parametrize("place", ["valkey"])
name, no_lock_is_left = test_lock.name, test_lock.no_lock_is_left  # fixtures
one_face = pytest.mark.parametrize("face", ["aio"])


# --- the formula ---

ANSWERED = 1_000_000_000  # the server's time in the last answer, in microseconds


def granted_after(seconds: float, reserve: float = 2.0) -> str:
    return f"grant 77 {ANSWERED + seconds * 1e6:.0f} {reserve * 1000:.0f}"


@pytest.mark.parametrize(
    ("message", "now", "valid"),
    [
        (granted_after(3), 103.002, 100 + 3 + 2 - 0.003002),  # less a thousandth of the time waited
        (granted_after(3), 103.9, 100 + 3 + 2 - 0.0039),
        (granted_after(3), 104.1, None),  # less than a second is left: the message came late, or the process was frozen
        (granted_after(3), 400.0, None),
        (granted_after(3, reserve=1.5), 103.1, 100 + 3 + 1.5 - 0.0031),
        (granted_after(3, reserve=0.9), 103.0, None),  # a short lease
        (granted_after(600), 600.3 + 100, 100 + 600 + 2 - 0.6003),
        (granted_after(-1), 100.5, None),  # of an earlier hand-over, or the server's clock was set back
        (granted_after(63), 103.0, None),  # the server's clock was set forward by a minute
        (granted_after(3.1), 103.0, None),
        ("0", 101.0, None),
        ("grant 1 2", 101.0, None),
    ],
)
def test_a_grant_is_valid_for_its_reserve_since_the_last_request(
    monkeypatch: pytest.MonkeyPatch, message: str, now: float, valid: float | None
):
    monkeypatch.setattr(lease, "now", lambda: now)
    grant = Grant.from_messages(["2000", message], ANSWERED, 100.0)
    assert (grant is None) is (valid is None)
    if grant is not None and valid is not None:
        assert grant.reserve is not None
        assert abs(grant.since + grant.reserve - valid) < 1e-6
        assert (grant.fence, grant.granted_at) == (77, int(message.split()[2]))
    assert Grant.from_messages(["", message], ANSWERED, 100.0) is None  # the connection was opened again
    assert Grant.from_messages([message, ""], ANSWERED, 100.0) is None
    assert Grant.from_messages([], ANSWERED, 100.0) is None


# --- the waiter ---


@one_place
async def test_the_waiter_starts_without_asking_and_confirms_in_the_background(
    app: Penstock,
    make_app: MakeApp,
    do: Do,
    name: str,
    raw: Any,
    nodes: list[Any],
):
    other = make_app()
    await (await other.lock(name, lease=30).acquire.aio()).release.aio()  # so that the server knows the scripts
    first = await other.lock(name, lease=30).acquire.aio()
    waits = asyncio.create_task(do(app.lock(name, lease=30).acquire))
    await waiting(app.lock(name))
    await asyncio.sleep(0.1)
    sent = sum(map(commands, nodes))
    await first.release.aio()
    held = await waits
    assert sum(map(commands, nodes)) - sent == 1  # the release
    assert first.fence < held.fence
    assert held.fence == (await app.lock(name).info.aio()).fence
    assert 1 < held.remaining <= 2
    held.check()
    await until(lambda: held.remaining > 20, 2)
    assert raw.pttl(name) > 20_000
    assert raw.zcard(app.lock(name).bindings.declared[0] + "offers") == 0
    await do(held.release)


@one_place
async def test_a_lock_that_was_granted_may_be_released_before_it_is_confirmed(app: Penstock, do: Do, name: str):
    order: list[int] = []

    async def work(n: int) -> None:
        held = await do(app.lock(name, lease=10).acquire)
        order.append(held.fence)
        await do(held.release)

    await asyncio.gather(*(work(n) for n in range(20)))
    assert order == sorted(set(order))
    await asyncio.sleep(0.8)
    await (await app.lock(name, lease=1, wait=0).acquire.aio()).release.aio()


@one_place
@one_face
async def test_a_grant_that_is_not_confirmed_ends_with_its_reserve(
    app: Penstock,
    make_app: MakeApp,
    do: Do,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(app._renewer, "keep", lambda held: None)
    first = await make_app().lock(name, lease=30).acquire.aio()
    waits = asyncio.create_task(do(app.lock(name, lease=30).acquire))
    await waiting(app.lock(name))
    last = asyncio.create_task(make_app().lock(name, lease=30).acquire.aio())
    await waiting(app.lock(name), 2)
    await first.release.aio()
    held = await waits
    began = time.monotonic()
    await asyncio.sleep(max(0.0, held.remaining))
    with pytest.raises(LeaseLost):
        held.check()
    got = await last
    assert 1.5 < time.monotonic() - began < scaled(11)
    with pytest.raises(LeaseLost):
        await held.release.aio()
    got.check()
    await got.release.aio()


@one_place
@one_face
async def test_extend_confirms_a_grant(app: Penstock, make_app: MakeApp, do: Do, name: str, raw: Any):
    first = await make_app().lock(name, lease=30).acquire.aio()
    waits = asyncio.create_task(do(app.lock(name, lease=30).acquire))
    await waiting(app.lock(name))
    await first.release.aio()
    held = await waits
    assert await held.extend.aio(5) > 25
    assert raw.pttl(name) > 25_000
    await held.release.aio()


def address_of_waiter(raw: Any, lock: Lock) -> tuple[str, str]:
    """The channel and the number of the first waiter."""
    packed = raw.zrange(lock.bindings.declared[0] + "waiters", 0, 0)[0]
    channel, _, number = msgspec.msgpack.decode(packed)[2].rpartition("/")
    return channel, number


@one_place
@pytest.mark.parametrize("kind", ["earlier", "set forward", "without a number", "not mine"])
async def test_a_false_grant_grants_nothing(app: Penstock, do: Do, name: str, raw: Any, kind: str):
    """The waiter asks, and continues to wait."""
    lock = app.lock(name, lease=10)
    raw.set(name, "penstock/elsewhere/1/x", px=60000)
    waits = asyncio.create_task(do(app.lock(name, lease=10).acquire))
    await waiting(lock)
    await asyncio.sleep(0.2)
    seconds, micros = raw.time()
    now = seconds * 1_000_000 + micros
    text = {
        "earlier": f"grant 5 {now - 5_000_000} 2000",
        "set forward": f"grant 5 {now + 60_000_000} 2000",
        "without a number": "grant x y",
        "not mine": "grants 5 5 5",
    }[kind]
    channel, number = address_of_waiter(raw, lock)
    raw.execute_command("SPUBLISH", channel, f"{number} {text}")
    await asyncio.sleep(0.3)
    assert not waits.done()
    await waiting(lock)
    raw.delete(name)
    with pytest.raises(LockTimeout):  # this attempt hands the free lock over
        await app.lock(name, lease=10, wait=0).acquire.aio()
    held = await waits
    held.check()
    await do(held.release)


@one_place
async def test_a_doubled_message_changes_nothing(app: Penstock, make_app: MakeApp, do: Do, name: str, raw: Any):
    first = await make_app().lock(name, lease=30).acquire.aio()
    waits = asyncio.create_task(do(app.lock(name, lease=30).acquire))
    await waiting(app.lock(name))
    channel, number = address_of_waiter(raw, app.lock(name))
    await first.release.aio()
    held = await waits
    raw.execute_command("SPUBLISH", channel, f"{number} grant {held.fence} {held.fence} 2000")
    other = asyncio.create_task(do(app.lock(name, lease=30, wait=0.5).acquire))
    with pytest.raises(LockTimeout):
        await other
    held.check()
    await do(held.release)


@one_place
@one_face
async def test_a_lost_message_costs_time_only(app: Penstock, make_app: MakeApp, do: Do, name: str, raw: Any):
    """The waiter's next try finds that the lock was handed over to it."""
    lock = app.lock(name, lease=10)
    raw.set(name, "penstock/elsewhere/1/x", px=60000)
    waits = asyncio.create_task(do(lock.acquire))
    await waiting(lock)
    packed = raw.zrange(lock.bindings.declared[0] + "waiters", 0, 0)[0]
    token = msgspec.msgpack.decode(packed)[0]
    raw.set(name, token, px=5000)  # as a release does, without the message
    held = await asyncio.wait_for(waits, scaled(8))
    assert held.remaining > 9
    await do(held.release)


FROZEN_WAITER = """
import sys, time
from penstock import Penstock
app = Penstock(sys.argv[1])
print("waits", flush=True)
held = app.lock(sys.argv[2], lease=30).acquire()
try:
    held.check()
    print("held", held.moment(), flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
held.release()
print("released", flush=True)
"""


@one_place
@one_face
async def test_a_waiter_that_was_frozen_asks_when_it_is_thawed(
    app: Penstock,
    do: Do,
    name: str,
    raw: Any,
    deployment: Server,
    tmp_path: Path,
):
    """The grant lies in its socket meanwhile, and the lock goes to another."""
    held = await app.lock(name, lease=30).acquire.aio()
    program = tmp_path / "waiter.py"
    program.write_text(FROZEN_WAITER)
    waiter = subprocess.Popen(
        [sys.executable, str(program), deployment.address, name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert waiter.stdout is not None
    try:
        await waiting(app.lock(name))
        await asyncio.sleep(0.5)
        os.kill(waiter.pid, signal.SIGSTOP)
        await held.release.aio()
        other = await asyncio.create_task(app.lock(name, lease=30).acquire.aio())
        os.kill(waiter.pid, signal.SIGCONT)
        await asyncio.sleep(0.5)
        other.check()
        assert waiter.poll() is None
        await other.release.aio()
        said, _ = await asyncio.to_thread(waiter.communicate, timeout=scaled(20))
        assert [line.split()[0] for line in said.splitlines()] == ["waits", "held", "released"]
    finally:
        waiter.kill()
        waiter.wait()
