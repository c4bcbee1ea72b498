"""Token budgets while workers are killed: no account ever takes more than its rate allows, and no job is lost."""

from __future__ import annotations

import random
import time
from collections import Counter

from penstock import Penstock, Settings
from tests.chaos import groups, storm, token_app
from tests.chaos.token_app import BURST, DONE, PER_SECOND, QUEUE, SEEN
from tests.leaks import leaks_of_test
from tests.servers import Server, eventually

SECONDS = storm.seconds(short=4)
ACCOUNTS = 3
PAUSE = 0.4
"""Seconds between two kills."""
BACKLOG = 60
"""Jobs that wait, above which no more are enqueued."""


def start(server: Server) -> groups.Group:
    return groups.start("tests.chaos.token_app:app", "-c", "8", "--processes", "0", TOKEN_URL=server.address)


def test_no_account_passes_its_budget_while_workers_are_killed() -> None:
    chance = random.Random(storm.seed())
    with (
        Server() as server,
        Penstock(server.address, prefix="tokens", settings=Settings(lease=1, result_ttl=0)) as app,
        groups.workers() as running,
    ):
        ask, queue, client = token_app.register(app), app.queue(QUEUE), server.client
        running += [start(server), start(server), start(server)]
        eventually(lambda: len(queue.workers()) == 3)
        seconds, micros = client.time()
        began = int(seconds) * 1000 + int(micros) // 1000
        numbers: Counter[str] = Counter()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            calls = []
            for _ in range(20 if queue.count().waiting < BACKLOG else 0):
                account = f"a{chance.randrange(ACCOUNTS)}"
                tokens = chance.choice([1, 5, 20, 60])
                calls.append(ask.call(account, numbers[account], tokens, chance.randint(0, tokens)))
                numbers[account] += 1
            app.enqueue_many(calls)
            groups.kill(running.pop(0))
            running.append(start(server))
            if any(limit.name == "tokens" for limit in queue.limits()):
                queue.hold_limit("tokens", f"a{chance.randrange(ACCOUNTS)}", chance.choice([0.2, None]))
            time.sleep(PAUSE)
        eventually(lambda: not (now := queue.count()).waiting and not now.running, 60 + SECONDS)
        groups.stop(running)

        assert queue.count().dead == 0
        done = {one.decode(): int(count) for one, count in client.hgetall(DONE).items()}
        assert done == {f"{account} {n}": 1 for account, count in numbers.items() for n in range(count)}
        taken: Counter[str] = Counter()
        for at, fields in client.xrange(SEEN):
            account, now = fields[b"account"].decode(), int(at.partition(b"-")[0])
            taken[account] += int(fields[b"tokens"])
            most = BURST + (now - began) * PER_SECOND / 1000
            assert taken[account] <= most, f"{account} has taken {taken[account]} tokens of {most:.0f}"
        assert len(taken) == ACCOUNTS
        base = queue.key("")
        client.delete(*(key for key in client.keys("*") if key.startswith(base.encode())))
        assert leaks_of_test([client], ["tokens"], damaged=False) == []
