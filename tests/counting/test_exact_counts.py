"""Counts are exact: whichever process dies, and whichever reply is lost, each line is counted once."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import LeaseLost, LineBatch, Penstock, PenstockError
from penstock.core.operations import Listen, Operation, Receive, RoundTrip, Send, Wait
from penstock.counting.aggregate import Aggregate
from penstock.counting.tally import Tally
from tests.conftest import Apps, Time
from tests.counting.counted_lines import (
    SEEDS,
    SHARED,
    alone,
    by_day,
    counted,
    send,
    some_lines,
    truth,
    written,
)
from tests.driver.proxy import Proxy
from tests.files.manual_run import EagerListener
from tests.servers import Server
from tests.speed import scaled

CASES = [(mode, share, False) for mode, share in SHARED] + [("send_lines", share, True) for share in (False, True)]
"""How the lines are sent, whether several processes count, and whether their counts are settled in parts."""


class ProcessDied(BaseException):
    """Ends an operation. Round trips that it makes on its way out are not sent."""


class Process:
    """A process that counts, run effect by effect. `ended`: it reached the end of the channel, or lost its lease."""

    def __init__(self, app: Penstock, aggregate: Aggregate, *, share: bool) -> None:
        self._run = app._driver.blocking.run
        self._operation: Any = Aggregate.run.operation(aggregate, share=share)
        self._answer: Any = None
        self._sent: list[RoundTrip[Any]] = []
        self.ended = False

    def advance(self, *, copies: int = 1) -> None:
        """Perform one effect. `copies`: how often a round trip is sent, because earlier replies were lost."""
        try:
            effect = self._operation.send(self._answer)
        except StopIteration:
            self.ended = True
        except LeaseLost:
            self.ended = True
        else:
            self._answer = self._done(effect, copies)

    def _done(self, effect: Any, copies: int) -> Any:
        if isinstance(effect, Listen):
            return EagerListener()
        if isinstance(effect, Wait):
            return ["0"]
        if isinstance(effect, Send):
            return effect.round_trip  # the server executes it when the reply is wanted: the process may die before
        if isinstance(effect, Receive):
            effect = effect.unanswered
        if isinstance(effect, RoundTrip):
            self._sent.append(effect)
        for _ in range(copies if isinstance(effect, RoundTrip) else 1):
            answer = self._run(_alone(effect))
        return answer

    def arrive_late(self, chance: random.Random) -> None:
        """A copy of an earlier round trip arrives."""
        with contextlib.suppress(PenstockError):
            if self._sent:
                self._run(chance.choice(self._sent[-4:]))

    def die(self) -> None:
        with contextlib.suppress(ProcessDied, StopIteration, RuntimeError):
            while True:
                self._operation.throw(ProcessDied())
        self.__dict__.clear()
        gc.collect()  # its claims no longer belong to a living process


def _alone(effect: Any) -> Operation[Any]:
    return (yield effect)


@alone
@pytest.mark.parametrize(("mode", "share", "in_parts"), CASES, indirect=["in_parts"])
def test_dying_after_any_round_trip_changes_no_total(
    apps: Apps, tmp_path: Path, small: None, in_parts: bool, mode: str, share: bool
):
    lines = some_lines(100 if in_parts else 300)
    path = written(tmp_path, lines, packed=mode.endswith("gz"))
    with apps.make() as app:
        clock = Time(app)
        for last in range(1, 200):
            aggregate = app.aggregate(f"c{last}", receiver="agg")(by_day)
            send(app, f"c{last}", mode, path)
            process = Process(app, aggregate, share=share)
            for _ in range(last):
                process.advance()
            ended = process.ended
            process.die()
            clock.advance(60)
            aggregate.run(share=share)
            assert counted(aggregate) == truth(lines), f"died after {last} effects"
            app.files(f"c{last}").delete()
            if ended:
                break
        assert 8 < last < 199


@alone
@pytest.mark.parametrize(("mode", "share", "in_parts"), CASES, indirect=["in_parts"])
def test_each_line_is_counted_once_whatever_happens_to_three_processes(
    apps: Apps, raw: Any, tmp_path: Path, small: None, in_parts: bool, mode: str, share: bool
):
    """They advance in random turns, die, and freeze for longer than their lease. Replies to them are lost, and copies
    of their round trips arrive later."""
    lines = [some_lines(300), some_lines(200, seed=2)]
    paths = [written(tmp_path, some, f"{n}.log", packed=mode.endswith("gz")) for n, some in enumerate(lines)]
    with apps.make() as app:
        clock = Time(app)
        for seed in range(SEEDS):
            chance = random.Random(seed)
            aggregate = app.aggregate(f"c{seed}", receiver="agg")(by_day)
            send(app, f"c{seed}", mode, *paths)
            processes = [Process(app, aggregate, share=share) for _ in range(3)]
            for turn in range(20_000):
                process = chance.choice(processes[: chance.randint(1, 3)])
                for _ in range(chance.randint(1, 12)):
                    process.advance(copies=chance.choice((1, 1, 1, 2, 3)))
                    if process.ended:
                        break
                if chance.random() < 0.2:
                    process.arrive_late(chance)
                if process.ended or chance.random() < 0.1:
                    process.die()
                    processes[processes.index(process)] = Process(app, aggregate, share=share)
                if chance.random() < 0.1:
                    clock.advance(chance.choice((1, 20)))
                if turn % 20 == 0:
                    found = counted(aggregate)
                    assert sum(found[2].values()) == found[0] - found[1], f"seed {seed}"
                    base = app.files(f"c{seed}").bindings.keys.base
                    assert raw.llen(f"{base}ends") == raw.xlen(f"{base}log"), f"seed {seed}"
                    if found[0] >= 500:
                        break
            for process in processes:
                process.die()
            clock.advance(60)
            aggregate.run(share=share)
            assert counted(aggregate) == truth(lines[0] + lines[1]), f"seed {seed}"
            app.files(f"c{seed}").delete()


@pytest.mark.parametrize(("mode", "share", "in_parts"), CASES, indirect=["in_parts"])
def test_a_reply_that_is_lost_changes_nothing(
    start: Callable[[], Server], tmp_path: Path, small: None, in_parts: bool, mode: str, share: bool
):
    lines = some_lines(900)
    proxy = Proxy(start())
    with Penstock(proxy.address) as app:

        def unlucky(batch: Sequence[bytes]) -> Tally:
            proxy.lose_replies(1)
            return by_day(batch)

        send(app, "access", mode, written(tmp_path, lines, packed=mode.endswith("gz")))
        aggregate = app.aggregate("access", receiver="agg")(unlucky)
        aggregate.run(share=share)
        assert proxy.lost > 2
        assert counted(aggregate) == truth(lines)
    proxy.close()


@alone
def test_a_process_that_lost_its_lease_counts_nothing_under_it(apps: Apps, tmp_path: Path, small: None):
    lines = some_lines(300)
    with apps.make() as app:
        clock, held, go_on = Time(app), threading.Event(), threading.Event()

        def away(batch: Sequence[bytes]) -> Tally:
            held.set()
            assert go_on.wait(scaled(30))
            return by_day(batch)

        app.files("access").send_lines(written(tmp_path, lines), receivers=["agg"])
        theirs = app.aggregate("access", receiver="agg")(away)
        slow = threading.Thread(target=theirs.run, kwargs={"share": True, "wait": 0})
        slow.start()
        assert held.wait(scaled(30))
        clock.advance(60)
        aggregate = app.aggregate("access", receiver="agg")(by_day)
        aggregate.run(share=True, wait=0)
        go_on.set()
        slow.join(30)
        assert counted(aggregate) == truth(lines)
        app.files("access").delete()


@alone
def test_two_processes_that_need_longer_than_the_lease_for_a_block_share_the_work(
    apps: Apps, tmp_path: Path, small: None
):
    lines = some_lines(60)
    with apps.make() as app:
        calls = list[int]()

        def slow(batch: LineBatch) -> Tally:
            calls.append(batch.first)
            time.sleep(0.6)  # three blocks outlast the lease
            return by_day(batch)

        send(app, "access", "send_lines", written(tmp_path, lines))
        blocks = app.files("access").info().last - 3  # without BEGIN, END and CLOSE
        aggregate = app.aggregate("access", receiver="agg")(slow)
        both = [threading.Thread(target=aggregate.run, kwargs={"share": True, "lease": 1}) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join(scaled(60))
        assert counted(aggregate) == truth(lines)
        assert len(calls) == len(set(calls)) == blocks >= 3
        app.files("access").delete()


@alone
def test_counts_of_blocks_before_an_exception_are_kept(apps: Apps, tmp_path: Path, small: None):
    lines = some_lines(60)
    with apps.make() as app:
        seen = Counter[int]()

        def failing(batch: LineBatch) -> Tally:
            seen[batch.first] += 1
            if len(seen) == 3 and seen[batch.first] == 1:
                raise KeyError("the third block")
            return by_day(batch)

        send(app, "access", "send_lines", written(tmp_path, lines))
        aggregate = app.aggregate("access", receiver="agg")(failing)
        with pytest.raises(KeyError, match="third block"):
            aggregate.run(share=True)
        aggregate.run(share=True)
        assert counted(aggregate) == truth(lines)
        assert sorted(seen.values(), reverse=True)[:2] == [2, 1]
        app.files("access").delete()
