"""Wake-ups reach everything that waits, whatever happens to its connections, its process, or its slot."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Penstock
from penstock.core.slots import slot
from penstock.testing import message_violations
from tests.chaos.waiting_processes import Waiting, WaitingProcesses, everything
from tests.chaos.waits import PREFIX, WAITS
from tests.clusters import names_in_slot
from tests.servers import Cluster, Server, eventually
from tests.slot_moves import move_slot

FACES = ("blocking", "aio")


@pytest.fixture
def app(start: Callable[..., Server]) -> Iterator[Penstock]:
    """An app on a server of this test alone, in the process that causes the events."""
    with Penstock(start().address, prefix=PREFIX) as made:
        yield made


def is_quiet(*servers: Server) -> bool:
    """Whether no script was called for a while: everything waits."""

    def calls() -> int:
        stats = [server.client.info("commandstats") for server in servers]
        return sum(one.get(f"cmdstat_{name}", {"calls": 0})["calls"] for one in stats for name in ("evalsha", "eval"))

    before = calls()
    time.sleep(0.7)
    return before == calls()


def wait_until_quiet(*servers: Server) -> None:
    eventually(lambda: is_quiet(*servers))


# --- processes, threads and loops ---


@pytest.mark.parametrize(("end", "limit"), [(signal.SIGKILL, 1.0), (signal.SIGSTOP, 6.0)], ids=["killed", "frozen"])
def test_the_absent_do_not_delay_the_present(start: Callable[..., Server], end: signal.Signals, limit: float):
    server = start()
    # A receiver of files is owned by one process for a lease, so another one has to wait for its end. The parties of a
    # barrier do wait for the absent; `test_barrier.py` is about them.
    places = [(one, f"{one}-{face}") for one in WAITS if one not in {"files", "worker", "barrier"} for face in FACES]
    crowds = [
        Waiting("aio", [(one, f"{place}#{n}") for one, place in places for n in range(300 if one == "chat" else 50)]),
        Waiting("blocking", [(one, f"{place}#{n}") for one, place in places for n in range(400, 404)]),
    ]
    present = {face: [(one, f"{place}#live") for one, place in places if place.endswith(face)] for face in FACES}
    with WaitingProcesses(server.address, rounds=2) as processes, Penstock(server.address, prefix=PREFIX) as app:
        processes.start(*crowds)
        wait_until_quiet(server)
        processes.start(*(Waiting(*one) for one in present.items()))
        wait_until_quiet(server)
        for pid in processes.pids[:2]:
            os.kill(pid, end)
        if end == signal.SIGKILL:
            eventually(lambda: len(server.subscribers()) <= len(FACES))  # the server has noticed
        names = [name for waits in present.values() for _, name in waits]
        processes.trigger(app, 0, names)
        assert processes.late(0, limit, names=names) == []


@pytest.mark.parametrize("face", FACES)
def test_a_process_and_its_fork_wait_independently(start: Callable[..., Server], face: str):
    server = start()
    with WaitingProcesses(server.address, rounds=4) as processes, Penstock(server.address, prefix=PREFIX) as app:
        parent, child = everything(face, "parent"), everything("blocking", "child")
        processes.start(Waiting(face, parent.waits, fork=child))
        of_parent = [name for _, name in parent.waits]
        processes.trigger(app, 0, of_parent)
        assert processes.late(0, 10, names=of_parent) == []
        eventually(lambda: len(processes.pids) == 2)
        wait_until_quiet(server)
        processes.trigger(app, 0, [name for _, name in child.waits])
        processes.trigger(app, 1, of_parent)
        late = processes.late(0, 1, names=[name for _, name in child.waits]) + processes.late(1, 1, names=of_parent)
        os.kill(processes.pids[1], signal.SIGKILL)
        processes.trigger(app, 2, of_parent)
        assert late + processes.late(2, 1, names=of_parent) == []


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("component", ["mailbox", "chat"])
def test_two_hundred_waits_share_a_connection(start: Callable[..., Server], face: str, component: str):
    """They wait for a message each, or all for the same one."""
    server = start()
    names = [f"room#{n}" if component == "chat" else f"box{n}" for n in range(200)]
    with WaitingProcesses(server.address, rounds=2) as processes, Penstock(server.address, prefix=PREFIX) as app:
        processes.start(Waiting(face, [(component, name) for name in names]))
        wait_until_quiet(server)
        for n in range(2):
            processes.trigger(app, n)
            assert processes.late(n, 1) == []
        assert len(server.subscribers()) == 1
        # Each of two hundred threads that are woken at once uses a connection for its next call. Few of them are kept.
        eventually(lambda: len(server.client.client_list()) < 16)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "abandoned"])
def test_a_hundred_loops_in_turn_leave_no_connection_behind(start: Callable[..., Server], is_closed: bool):
    server = start()
    app = Penstock(server.address, prefix=PREFIX)
    inbox, queue = app.mailbox("inbox"), app.queue("jobs")

    async def wait_once(n: int) -> list[Any]:
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(inbox.pull.aio(wait=20)),
            asyncio.create_task(queue.claim.aio(wait=20)),
        ]
        await asyncio.sleep(0.01)
        await inbox.post.aio(n)
        await queue.put.aio(n)
        (message,), (item,) = [await one for one in waiting]
        await inbox.ack.aio(message)
        await item.complete.aio()
        if is_closed:
            await app.aclose()
        return [message.body, item.body]

    for n in range(100):
        assert asyncio.run(wait_once(n)) == [n, n]
    app.close()
    gc.collect()
    eventually(lambda: len(server.client.client_list()) == 1)


# --- connections ---


def kill_subscribers(server: Server) -> None:
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")


def kill_clients(server: Server) -> None:
    server.ask("CLIENT", "KILL", "TYPE", random.choice(["pubsub", "normal"]), "SKIPME", "yes")


def flood_subscribers(server: Server) -> None:
    """Send each subscriber more at once than the server keeps for it. No listener has the number of these messages."""
    with server.client.pipeline(transaction=True) as pipe:
        for channel in server.client.execute_command("PUBSUB", "SHARDCHANNELS"):
            for _ in range(10):
                pipe.execute_command("SPUBLISH", channel, "x" * 10_000)
        pipe.execute()


@pytest.mark.parametrize("disturb", [kill_subscribers, kill_clients, flood_subscribers])
def test_whoever_loses_its_connection_sleeps_through_nothing(
    start: Callable[..., Server], disturb: Callable[[Server], None]
):
    server = start("--client-output-buffer-limit", "pubsub 32kb 8kb 1")
    rounds = 8
    with WaitingProcesses(server.address, rounds) as processes, Penstock(server.address, prefix=PREFIX) as app:
        processes.start(*(everything(face, str(n)) for face in FACES for n in range(3)))
        wait_until_quiet(server)
        for n in range(rounds):
            # No later event may end a wait that this one should have ended.
            with _repeating(lambda: disturb(server)):
                processes.trigger(app, n)
            assert processes.late(n, 2, since=time.time()) == []
        assert message_violations(processes.message_events()) == []
        stats = server.client.info("stats")
        assert disturb is not flood_subscribers or stats["client_output_buffer_limit_disconnections"] > rounds


@contextlib.contextmanager
def _repeating(work: Callable[[], None]) -> Iterator[None]:
    """Do the work again and again during a block."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(random.uniform(0.001, 0.02)):
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# --- slots ---


def migrate_atomically(source: Server, target: Server, number: int) -> None:
    """Valkey 9 moves the slot as a whole."""
    new = target.ask("CLUSTER", "MYID")
    source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", number, number, "NODE", new)
    eventually(lambda: "success" in source.ask("CLUSTER", "GETSLOTMIGRATIONS"))


@pytest.mark.parametrize("migrate", [move_slot, migrate_atomically])
def test_a_thousand_waiters_follow_their_slot(migrate: Callable[[Server, Server, int], None]):
    number = 4321
    with Cluster(2) as cluster, Penstock(cluster.address, prefix=PREFIX) as app:
        source, target = cluster.nodes
        names = names_in_slot(number, 1000, lambda name: WAITS["mailbox"].key(app, name))
        with WaitingProcesses(cluster.address, rounds=3) as processes:
            processes.start(Waiting("aio", [("mailbox", name) for name in names]))
            wait_until_quiet(source)
            processes.trigger(app, 0)
            assert processes.late(0, 2) == []
            move = threading.Thread(target=migrate, args=(source, target, number))
            move.start()
            # One message for each waiter, so that no later message wakes it.
            processes.trigger(app, 1, random.sample(names, len(names)))
            move.join()
            assert processes.late(1, 2, since=time.time()) == []
            processes.trigger(app, 2)
            assert processes.late(2, 2) == []
            assert message_violations(processes.message_events()) == []


# --- what waiting costs ---

WINDOW = 20.0


def test_idle_waits_send_two_commands_in_ten_seconds_and_slot(start: Callable[..., Server]):
    server = start()
    with WaitingProcesses(server.address, rounds=1) as processes:
        processes.start(*(everything(face, "idle") for face in FACES))
        wait_until_quiet(server)
        seen = _commands_during(server, WINDOW)
        keys = {slot(words[3]): words[3] for words in seen if words[0] == "EVALSHA"}
        calls = Counter(keys[slot(words[3])] for words in seen if words[0] == "EVALSHA")
        others = Counter(words[0] for words in seen if words[0] != "EVALSHA")
        print(calls, others)
        assert {key: n for key, n in calls.items() if n > 2 * WINDOW / 10 + 1} == {}
        assert others.pop("PING", 0) <= len(FACES) * (WINDOW / 5 + 1)
        assert others.total() < 5, others  # a connection introduces itself


def _commands_during(server: Server, seconds: float) -> list[list[str]]:
    """The commands of all clients in this time, without those that scripts call."""
    seen: list[list[str]] = []
    with server.client.monitor() as monitor:
        end = threading.Timer(seconds, server.ask, ("ECHO", "end"))
        end.start()
        for one in monitor.listen():
            words = one["command"].split()
            if words == ["ECHO", "end"]:
                break
            if one["client_type"] != "lua":
                seen.append(words)
        end.join()
    return seen
