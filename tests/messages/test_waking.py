"""A message wakes those that wait for it, and nobody else: many of them, in one process or in several that die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Mailbox, Penstock
from penstock.errors import ChatGone, NotAMember
from penstock.messages.bindings import LogBindings
from tests.conftest import until
from tests.faces import Faces
from tests.speed import scaled

MANY = 1500
"""Readers that wait; far more than one script wakes."""


@pytest.fixture
def face() -> str:
    return "aio"


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def process(app: Penstock, deployment: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes in which readers wait; they are killed at the end of the test."""
    script = Path(__file__).with_name("waiting_process.py")
    with contextlib.ExitStack() as started:

        def begin(kind: str, name: str, count: int) -> subprocess.Popen[str]:
            args = (deployment.address, app.settings.prefix, kind, name, str(count))
            one = started.enter_context(
                subprocess.Popen([sys.executable, str(script), *args], stdout=subprocess.PIPE, text=True)
            )
            started.callback(one.kill)
            return one

        yield begin


def log_of(one: Any) -> LogBindings:
    found: LogBindings = one._log
    return found


def listed(raw: Any, key: str) -> int:
    count: int = raw.zcard(key)
    return count


async def woken_after(begun: float, waits: asyncio.Task[Any]) -> float:
    assert await asyncio.wait_for(waits, scaled(20))
    return time.monotonic() - begun


# --- readers that died ---


@pytest.mark.parametrize("kind", ["chat", "chats"])
async def test_members_that_died_do_not_delay_a_living_one(app: Penstock, raw: Any, process: Any, kind: str):
    members = [f"m{n}" for n in range(300)]
    chat = await app.chats.create.aio([*members, "zoe", "ada"], id="ops")
    theirs = process(kind, "ops", 300)
    if kind == "chat":
        await until(lambda: raw.hlen(log_of(chat).keys.base + "seen") == 300)
    else:
        await until(lambda: listed(raw, log_of(chat).keys.base + "watching") == 300)
        await until(lambda: raw.exists(*(app.chats.index_of(one).keys.base + "waiting" for one in members)) == 300)
    theirs.kill()
    theirs.wait()
    reads = chat.reader("zoe").pull if kind == "chat" else app.chats.of("zoe").pull
    took = []
    for n in range(3):
        waits = asyncio.create_task(reads.aio(wait=60))
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        id = await chat.send.aio("ada", n)
        took.append(await woken_after(begun, waits))
        await chat.reader("zoe").ack.aio(id)
    assert took[0] < scaled(0.05 if kind == "chat" else 0.25)
    assert min(took) < scaled(0.05)


async def test_living_faces_hear_at_once_where_nine_of_ten_died(app: Penstock, raw: Any, deployment: Any):
    chat = await app.chats.create.aio(["zoe", "ada"], id="ops")
    log, faces = log_of(chat), Faces(deployment)
    names = [f"face{n}" for n in range(3000)]
    with contextlib.closing(faces):
        addresses = faces.open(*names)
        for address in addresses:
            await app._driver.aio.run(log.pull("zoe", limit=1, address=address, ttl=60))
        faces.end(*(name for n, name in enumerate(names) if n % 10))
        assert listed(raw, log.keys.base + "waiting") > 2500
        waits = asyncio.create_task(chat.reader("zoe").pull.aio(wait=60))
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        await chat.send.aio("ada", "now")
        sent = time.monotonic() - begun
        assert await woken_after(begun, waits) < scaled(0.05)
        assert set(faces.heard()) == set(names[::10])
        assert sent < scaled(0.05)
    assert listed(raw, log.keys.base + "waiting") == 0


# --- many that wait ---


@pytest.mark.parametrize(("place", "users"), [("valkey", 5000), ("cluster", 2000)])
async def test_thousands_of_waiting_users_share_a_few_connections(app: Penstock, nodes: list[Any], users: int):
    boxes = [app.mailbox(f"u{n}") for n in range(users)]
    waits = [asyncio.create_task(box.pull.aio(wait=120)) for box in boxes]
    await until(lambda: sum(node.dbsize() for node in nodes) >= users, within=60)
    assert [node.client_list() for node in nodes if len(node.client_list()) > 16] == []
    for start in range(0, len(boxes), 500):
        await asyncio.gather(*(box.post.aio(box.name) for box in boxes[start : start + 500]))
    mail = await asyncio.wait_for(asyncio.gather(*waits), scaled(30))
    assert [[message.body for message in found] for found in mail] == [[box.name] for box in boxes]
    await asyncio.gather(*(box.delete.aio() for box in boxes))


@pytest.mark.parametrize("end", ["kick", "leave"])
async def test_a_removed_member_stops_waiting_everywhere(app: Penstock, raw: Any, deployment: Any, end: str):
    chat = await app.chats.create.aio(["zoe", "ada"], id="ops")
    with contextlib.closing(Faces(deployment)) as faces:
        await _register(app, log_of(chat), "zoe", faces)
        waits = [asyncio.create_task(chat.reader("zoe").pull.aio(wait=60)) for _ in range(MANY)]
        stays = asyncio.create_task(chat.reader("ada").pull.aio(wait=60))
        await asyncio.sleep(1)
        assert await getattr(chat, end).aio("zoe")
        ends = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), scaled(10))
        assert {type(one) for one in ends} == {NotAMember}
        assert len(faces.heard()) == MANY
    await chat.send.aio("ada", "after")
    assert await stays


async def test_the_end_of_a_chat_reaches_all_that_wait_for_it(app: Penstock, deployment: Any):
    members = [f"m{n}" for n in range(MANY)]
    chat = await app.chats.create.aio(members, id="ops")
    with contextlib.closing(Faces(deployment)) as faces:
        await _register(app, log_of(chat), "m0", faces)
        waits = [asyncio.create_task(chat.reader(name).pull.aio(wait=60)) for name in members]
        await asyncio.sleep(1)
        assert await chat.delete.aio()
        ends = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), scaled(10))
        assert {type(one) for one in ends} == {ChatGone}
        assert len(faces.heard()) == MANY


async def _register(app: Penstock, log: LogBindings, member: str, faces: Faces) -> None:
    for address in faces.open(*(f"face{n}" for n in range(MANY))):
        await app._driver.aio.run(log.pull(member, limit=1, address=address, ttl=60))


async def test_workers_of_a_deleted_mailbox_wait_for_the_next_one(app: Penstock, deployment: Any, raw: Any):
    """They are all woken, and each of the new messages wakes one of them."""
    box = app.mailbox("jobs")
    await box.post_many.aio(range(30))
    for claimed in await box.claim.aio(30):
        await claimed.ack.aio()
    log = log_of(box)
    with contextlib.closing(Faces(deployment)) as faces:
        for address in faces.open(*(f"face{n}" for n in range(MANY))):
            await app._driver.aio.run(log.claim("", "t" + address, lease=5, limit=1, address=address, ttl=60))
        waits = [asyncio.create_task(box.claim.aio(wait=60)) for _ in range(20)]
        await until(lambda: listed(raw, log.keys.base + "idle:") == MANY + 20)
        assert await box.delete.aio()
        assert {name: messages[-1] for name, messages in faces.heard().items()} == {
            f"face{n}": b"1 0" for n in range(MANY)
        }
    await until(lambda: listed(raw, log.keys.base + "idle:") == 20)
    await box.post_many.aio(range(20))
    found = await asyncio.wait_for(asyncio.gather(*waits), scaled(10))
    assert sorted(claimed.body for (claimed,) in found) == list(range(20))
    await box.delete.aio()


# --- workers that share a mailbox ---


def scripts(raw: Any) -> int:
    calls: int = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    return calls


@pytest.fixture
def box(app: Penstock) -> Mailbox:
    return app.mailbox("jobs")


async def test_a_message_wakes_one_of_many_idle_workers(box: Mailbox, raw: Any):
    waits = [asyncio.create_task(box.claim.aio(wait=60)) for _ in range(200)]
    await until(lambda: listed(raw, log_of(box).keys.base + "idle:") == 200)
    await asyncio.sleep(0.2)
    before = scripts(raw)
    await box.post.aio("one")
    await asyncio.sleep(0.4)
    assert scripts(raw) - before <= 4
    assert sum(task.done() for task in waits) == 1
    begun = time.monotonic()
    await box.post_many.aio(range(150))
    await until(lambda: sum(task.done() for task in waits) == 151)
    assert time.monotonic() - begun < scaled(1)
    assert scripts(raw) - before <= 4 + 2 * 150
    for n in range(49):
        await box.post.aio(n)
    claimed = [one for found in await asyncio.gather(*waits) for one in found]
    assert len({one.id for one in claimed}) == 200
    await asyncio.gather(*(one.ack.aio() for one in claimed))
    await box.delete.aio()


async def test_a_worker_finds_a_message_though_all_that_were_woken_are_frozen(
    app: Penstock, make_app: Callable[..., Penstock], deployment: Any
):
    box = make_app(prefix=app.settings.prefix, sleep=1.0).mailbox("jobs")
    await box.ack.aio(await box.post.aio("first"))
    with contextlib.closing(Faces(deployment)) as faces:
        wait = asyncio.create_task(box.claim.aio(wait=60))
        await asyncio.sleep(0.3)
        # Subscribed, but it never claims: the woken worker and its deputy, of two processes.
        for n, address in enumerate(faces.open("penstock:wake:frozen1", "penstock:wake:frozen2")):
            await app._driver.aio.run(log_of(box).claim("", f"t{n}", lease=10, limit=1, address=address, ttl=90))
        await box.post.aio("hi")
        (claimed,) = await asyncio.wait_for(wait, scaled(10))
        await claimed.ack.aio()
        assert len(faces.heard()) == 2
        for name in faces.names:
            await app._driver.aio.run(log_of(box).stop_waiting(f"{name}/1", shared_reader=""))
    await box.delete.aio()


async def test_a_dead_deputy_does_not_keep_a_worker_from_a_lease_that_runs_out(app: Penstock, deployment: Any):
    """The first worker is frozen and its deputy has died: the third looks."""
    box = app.mailbox("jobs")
    await box.post.aio("hi")
    await box.claim.aio(lease=1.5)
    with contextlib.closing(Faces(deployment)) as faces:
        for n, address in enumerate(faces.open("penstock:wake:frozen", "penstock:wake:dead")):
            await app._driver.aio.run(log_of(box).claim("", f"t{n}", lease=10, limit=1, address=address, ttl=90))
        faces.end("penstock:wake:dead")
        (claimed,) = await asyncio.wait_for(box.claim.aio(wait=60), scaled(10))
        await claimed.ack.aio()
        for name in ("frozen", "dead"):
            await app._driver.aio.run(log_of(box).stop_waiting(f"penstock:wake:{name}/1", shared_reader=""))
    await box.delete.aio()


async def test_a_frozen_worker_that_was_woken_delays_a_message_little(box: Mailbox, raw: Any, process: Any):
    ours = [asyncio.create_task(box.claim.aio(wait=60)) for _ in range(10)]
    await until(lambda: listed(raw, log_of(box).keys.base + "idle:") == 10)
    theirs = process("claim", "jobs", 10)
    await until(lambda: listed(raw, log_of(box).keys.base + "idle:") == 20)
    await asyncio.sleep(0.2)
    os.kill(theirs.pid, signal.SIGSTOP)  # those that became idle last are woken first
    for n in range(3):
        begun = time.monotonic()
        await box.post.aio(n)
        await until(lambda: sum(task.done() for task in ours) == n + 1)  # noqa: B023 - called here
        assert 0.04 < time.monotonic() - begun < scaled(0.12)
    for task in ours:
        task.cancel()
    await asyncio.gather(*ours, return_exceptions=True)
    theirs.kill()
    theirs.wait()
    await box.delete.aio()


async def test_the_message_of_a_worker_that_died_goes_to_one_that_was_idle_before(box: Mailbox, raw: Any):
    """When the idle workers registered there was no lease that could run out."""
    waits = [asyncio.create_task(box.claim.aio(wait=60, lease=0.3)) for _ in range(50)]
    await until(lambda: listed(raw, log_of(box).keys.base + "idle:") == 50)
    await asyncio.sleep(0.2)
    before = scripts(raw)
    await box.post.aio("job")
    for done in range(1, 4):  # none of them acknowledges it
        begun = time.monotonic()
        await until(lambda: sum(task.done() for task in waits) == done)  # noqa: B023 - called here
        assert time.monotonic() - begun < scaled(1)
    assert scripts(raw) - before <= 10
    (last,) = [one for task in waits if task.done() for one in task.result() if one.deliveries == 3]
    await last.ack.aio()
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await box.delete.aio()
