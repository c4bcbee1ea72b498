"""Limits and unique keys while workers are killed and frozen, and an operator changes limits and pauses tasks."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from penstock import Concurrency, Penstock, Settings
from tests.chaos import groups, limit_app, storm
from tests.chaos.groups import Group
from tests.chaos.limit_app import BURST, DONE, PER_SECOND, QUEUE, SEEN
from tests.leaks import leaks_of_test
from tests.servers import Server, eventually

SECONDS = storm.seconds(short=4)
PROCESSES = "1" if SECONDS > 60 else "0"
"""In a long storm some job is killed in each of its trials. Only with a supervisor that is not a crash."""
ACCOUNTS, POOLS, DOCS = 12, 3, 4
PAUSE = 0.4
"""Seconds between two shocks."""
FROZEN = 1.5
"""Seconds of a freeze, more than a lease."""
WIDER = limit_app.POOL + 2
"""The larger of the two numbers that the operator gives to the limit of a pool."""


class Storm:
    """A server, its workers, and what the test enqueues and judges."""

    def __init__(self, server: Server, app: Penstock, running: list[Group]) -> None:
        self.server, self.app, self.running = server, app, running
        self.tasks = limit_app.register(app)
        self.queue = app.queue(QUEUE)
        self.numbers: Counter[str] = Counter()
        self.began = 0
        """When the first jobs were enqueued, ms."""
        self.thawing: list[tuple[float, Group]] = []
        """The frozen workers, and until when."""

    def now(self) -> int:
        """Milliseconds of the server's clock."""
        seconds, micros = self.server.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def start_worker(self) -> None:
        self.running.append(
            groups.start(
                "tests.chaos.limit_app:app",
                "-c",
                "6",
                "--processes",
                PROCESSES,
                LIMIT_URL=self.server.address,
                PENSTOCK_HOST_DEATHS="0",
            )
        )

    def next(self, key: str) -> int:
        self.numbers[key] += 1
        return self.numbers[key] - 1

    def enqueue_some(self, chance: random.Random) -> None:
        """Enqueue jobs of all kinds. The charges of an account are enqueued in the order of their numbers."""
        tasks = self.tasks
        calls = []
        for _ in range(15):
            account, pool, doc = (
                f"{kind}{chance.randrange(n)}" for kind, n in zip("apd", (ACCOUNTS, POOLS, DOCS), strict=True)
            )
            calls += [tasks.charge.call(account, self.next(account)), tasks.index.call(doc)]
            calls.append(tasks.refresh.call(doc, self.next(doc)))
            calls += [tasks.send.call(pool, self.next(pool)) for _ in range(2)]  # more than their rate
        self.app.enqueue_many(calls)

    def shock(self, chance: random.Random) -> None:
        """Kill a worker, or freeze it for longer than its lease; another takes its place."""
        victim = self.running.pop(0)
        self.server.client.xadd(SEEN, {"what": "fault", "worker": str(victim.pid)})
        if chance.random() < 0.6:
            groups.kill(victim)
        else:
            groups.freeze(victim)
            self.thawing.append((time.monotonic() + FROZEN, victim))
        self.start_worker()

    def thaw_some(self) -> None:
        """Let workers continue whose lease is over: nothing that they still do may count. Then kill them."""
        while self.thawing and self.thawing[0][0] < time.monotonic():
            self.thaw(self.thawing.pop(0)[1])

    def thaw_all(self) -> None:
        while self.thawing:
            self.thaw(self.thawing.pop()[1])

    def thaw(self, one: Group) -> None:
        groups.thaw(one)
        time.sleep(0.05)
        groups.kill(one)

    def operate(self, chance: random.Random) -> None:
        """Change a limit, or pause and resume a task, as an operator does."""
        if chance.random() < 0.5:
            if any(one.name == "pool" for one in self.queue.limits()):
                self.queue.set_limit("pool", Concurrency(chance.choice((limit_app.POOL, WIDER))))
        else:
            self.queue.pause(task=self.tasks.charge)
            self.thaw_some()
            time.sleep(0.1)
            self.queue.resume(task=self.tasks.charge)

    def runs(self) -> Iterator[tuple[int, str, str, set[str]]]:
        """Each start: its time in ms, its key, its run, and the runs of that key at that moment.

        A worker that was killed or frozen counts until then. What it does afterwards does not count: its claims may be
        lost.
        """
        faulty: set[str] = set()
        going: dict[str, dict[str, str]] = defaultdict(dict)
        for at, fields in self.server.client.xrange(SEEN):
            event = {name.decode(): text.decode() for name, text in fields.items()}
            worker = event["worker"]
            if event["what"] == "fault":
                faulty.add(worker)
                for one in going.values():
                    for run in [run for run, its in one.items() if its == worker]:
                        del one[run]
            elif worker not in faulty:
                runs = going[event["key"]]
                if event["what"] == "start":
                    runs[event["run"]] = worker
                    yield int(at.partition(b"-")[0]), event["key"], event["run"], set(runs)
                else:
                    runs.pop(event["run"], None)


@pytest.fixture
def storming() -> Iterator[Storm]:
    with (
        Server() as server,
        Penstock(server.address, prefix="limits", settings=Settings(lease=1, result_ttl=0)) as app,
        groups.workers() as running,
    ):
        one = Storm(server, app, running)
        try:
            yield one
        finally:
            one.thaw_all()


def test_limits_and_unique_keys_hold_while_workers_are_killed_and_frozen(storming: Storm):
    chance = random.Random(storm.seed())
    for _ in range(3):
        storming.start_worker()
    eventually(lambda: len(storming.queue.workers()) == 3)
    storming.began, end = storming.now(), time.monotonic() + SECONDS
    while time.monotonic() < end:
        storming.enqueue_some(chance)
        storming.shock(chance)
        storming.thaw_some()
        storming.operate(chance)
        time.sleep(PAUSE)
    eventually(lambda: not (now := storming.queue.count()).waiting and not now.running, 30 + SECONDS / 2)
    storming.thaw_all()
    eventually(lambda: len(storming.queue.workers()) == len(storming.running))
    groups.stop(storming.running)
    client = storming.server.client

    # Each job once, and the charges of an account in their order.
    assert storming.queue.count().dead == 0
    for account in (f"a{n}" for n in range(ACCOUNTS)):
        charged = client.lrange(storming.queue.key(f"charged:{account}"), 0, -1)
        assert [int(one) for one in charged] == list(range(storming.numbers[account])), account
    sent = {f"send p{n} {number}": 1 for n in range(POOLS) for number in range(storming.numbers[f"p{n}"])}
    done = {one.decode(): int(count) for one, count in client.hgetall(DONE).items()}
    indexed = {name: done.pop(name) for name in list(done) if name.startswith("index ")}
    assert done == sent
    assert set(indexed) == set(map("index d{}".format, range(DOCS)))
    for doc in (f"d{n}" for n in range(DOCS)):
        (latest,) = client.zrange(storming.queue.key(f"refreshed:{doc}"), -1, -1)
        assert int(latest) == storming.numbers[doc] - 1, f"the last arguments of {doc} were not used"

    # No limit was exceeded.
    most = {"charge": 1, "send": WIDER, "index": 2}
    started: Counter[str] = Counter()
    for at, key, run, going in storming.runs():
        assert len(going) <= most[key.partition("=")[0]], f"{key}: {run} began beside {going}"
        started[key] += 1
        if key.startswith("send="):
            assert started[key] <= BURST + (at - storming.began) * PER_SECOND / 1000, f"{key}: too many starts"
    assert len(started) == ACCOUNTS + POOLS + 1, "every key had runs"

    base = storming.queue.key("")
    client.delete(*(key for key in client.keys("*") if key.startswith(base.encode())))
    assert leaks_of_test([client], ["limits"], damaged=False) == []
