"""Random histories of schedules, ticked by two workers, with lost replies, pauses, changes and workers that come late.

The model computes the ticks by itself, and has each of them once. The default run is short and always the same.
PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from penstock.jobs.schedule import ScheduleDefinition, StoredSchedule
from penstock.jobs.schedule_bindings import ScheduleBindings, Tick
from penstock.jobs.timing import Missed, Timing
from tests.jobs.stand import FakeWorker, Stand, problems_in, record
from tests.simulation.histories import run_histories

MINUTE, DAY = 60_000, 86_400_000
AGAIN = 5000
MISSED: list[Missed] = ["one", "skip", "all"]
GRACE = 60_000
"""Milliseconds. A later tick has been missed."""


@dataclass
class Schedule:
    """What the server must have stored. Times are server ms."""

    every: int
    missed: Missed
    release: int
    declared: int
    next_tick: int
    state: str = "a"
    version: int = 0
    offered_at: int = -AGAIN
    count: int = 0

    def is_orphaned(self, now: int) -> bool:
        return self.declared > 0 and now - self.declared > DAY

    def ticks(self, now: int) -> tuple[list[int], int]:
        """The ticks whose jobs are enqueued at this time, and the one after them."""
        passed = [*range(self.next_tick, now + 1, self.every)]
        if self.missed == "all":
            return passed[:100], passed[:100][-1] + self.every
        kept = passed[-1:] if self.missed == "one" or now - passed[-1] <= GRACE else []
        return kept, passed[-1] + self.every


@dataclass
class Offer:
    """What a turn has offered to a worker: the tick as the worker computed it, and the state that it knew."""

    name: str
    tick: Tick
    version: int
    expected: int
    at: int


class ScheduleHistory:
    """One random history of a queue, decided by its seed."""

    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.stand = Stand(client)
        self.bindings = ScheduleBindings(self.stand.bindings)
        self.schedules: dict[str, Schedule] = {}
        self.jobs: set[str] = set()
        self.enqueued: set[str] = set()
        self.offers: list[Offer] = []
        self.workers = [FakeWorker(self.stand, f"{name}.1", lease=10_000_000.0) for name in "ab"]
        self.versions = 0
        self.actions: list[Callable[[], None]] = [
            *[self.define] * 6,
            *[self.turn] * 6,
            *[self.serve] * 6,
            *[self.wait] * 4,
            *[self.switch] * 4,
            self.remove,
            self.complete,
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.actions)()
            self.judge()
        self.finish()

    @property
    def now(self) -> int:
        return self.stand.clock.now_ms

    def define(self) -> None:
        pick = self.random
        how: Literal["declare", "renew", "put"] = pick.choice(["declare", "renew", "put"])
        name, release = pick.choice("st"), pick.choice([1, 2]) if how != "put" else 0
        one = self.schedules.get(name)
        every = pick.choice([MINUTE, 5 * MINUTE])
        missed: Missed = pick.choice(MISSED)
        if one is not None and pick.random() < 0.5:
            every, missed = one.every, one.missed
        timing = Timing(every=every / 1000, missed=missed)
        definition = ScheduleDefinition(name, timing, record(ttl=0), release)
        (word,) = self.stand.run(self.bindings.define(how, [(definition, self.now + every)]))
        assert word == self.expect_definition(how, name, every, missed, release * 1000)

    def expect_definition(self, how: str, name: str, every: int, missed: Missed, release: int) -> str:
        one, declared = self.schedules.get(name), 0 if how == "put" else self.now
        if one is None:
            if how == "renew":
                return "gone"
            self.schedules[name] = Schedule(every, missed, release, declared, self.now + every)
            self.change(name)
            return "created"
        if how == "put" and one.declared and not one.is_orphaned(self.now):
            return "declared"
        word = "replaced"
        if (one.every, one.missed) == (every, missed):
            word = "kept"
        elif how != "put" and one.declared and self.is_older(one, release, every, missed):
            word = "older"
        one.declared = declared
        if word == "replaced" or (word == "kept" and one.state == "o"):
            one.every, one.missed, one.next_tick = every, missed, self.now + every
            one.state = "a" if one.state == "o" else one.state
            self.change(name)
        if word != "older":
            one.release = max(one.release, release)
        return word

    def is_older(self, one: Schedule, release: int, every: int, missed: Missed) -> bool:
        """Of two definitions of one release, the one with the higher hash wins."""
        mine, theirs = (release, self.hash(every, missed)), (one.release, self.hash(one.every, one.missed))
        return mine < theirs

    @staticmethod
    def hash(every: int, missed: Missed) -> bytes:
        return ScheduleDefinition("", Timing(every=every / 1000, missed=missed), record(ttl=0)).hash

    def change(self, name: str) -> None:
        """Offers that were made before are void, and the next one is made when the next tick is due."""
        self.versions += 1
        self.schedules[name].version, self.schedules[name].offered_at = self.versions, -AGAIN

    def turn(self) -> None:
        """A turn offers each due tick, unless that was offered less than five seconds ago."""
        reply = self.random.choice(self.workers).turn(0, address=f"{self.random.choice('ab')}/1")
        due: set[str] = set()
        for name, one in self.schedules.items():
            if one.state != "a" or max(one.next_tick, one.offered_at + AGAIN) > self.now:
                continue
            if one.is_orphaned(self.now):
                one.state = "o"
                self.change(name)
            else:
                one.offered_at = self.now
                due.add(name)
        names = {name.decode() for name in reply.ticks[1::2]}
        assert names == due, f"{names} were offered, and not {due}"
        for name, packed in zip(reply.ticks[1::2], reply.ticks[2::2], strict=True):
            stored = StoredSchedule.read(name, packed)
            times, following = stored.timing.due(stored.next_tick, reply.ticks[0])
            tick = Tick(stored, times, [(stored.job_id(at), stored.draft) for at in times], following)
            one = self.schedules[stored.name]
            self.offers.append(Offer(stored.name, tick, one.version, one.next_tick, self.now))

    def serve(self) -> None:
        """A worker serves an offer, at once or much later, and perhaps twice."""
        if self.offers:
            self.serve_one(self.random.choice(self.offers))

    def serve_one(self, offer: Offer) -> None:
        one = self.schedules.get(offer.name)
        is_first = (
            one is not None and one.state == "a" and (one.version, one.next_tick) == (offer.version, offer.expected)
        )
        call = self.bindings.tick([offer.tick])
        assert self.stand.run(call) == [is_first], f"the tick {offer.expected} of {offer.name}"
        if one is not None and is_first:
            ticks, one.next_tick = one.ticks(offer.at)
            for at in ticks:
                id = f"schedule:{offer.name}:{at}"
                assert id not in self.enqueued, f"{id} was enqueued twice"
                self.enqueued.add(id)
                self.jobs.add(id)
            one.count, one.offered_at = one.count + len(ticks), -AGAIN
        assert self.stand.run(call) == [False], "a repeated tick counts"

    def switch(self) -> None:
        name, on = self.random.choice("st"), self.random.random() < 0.6
        one = self.schedules.get(name)
        following = self.now + (one.every if one else MINUTE)
        call = self.bindings.resume(name, following) if on else self.bindings.pause(name)
        assert self.stand.run(call) == (one is not None)
        if one is None or (on and one.state == "a" and not one.is_orphaned(self.now)):
            return
        if on:
            one.declared = 0 if one.state == "o" or one.is_orphaned(self.now) else one.declared
            one.next_tick = following
        one.state = "a" if on else "p"
        self.change(name)

    def remove(self) -> None:
        name = self.random.choice("st")
        assert self.stand.run(self.bindings.remove(name)) == (self.schedules.pop(name, None) is not None)
        self.enqueued = {id for id in self.enqueued if not id.startswith(f"schedule:{name}:")} | self.jobs

    def complete(self) -> None:
        worker = self.workers[0]
        claims = worker.claim(20)
        if claims:
            worker.settle(*claims)
        self.jobs -= {claim.id for claim in claims}

    def wait(self) -> None:
        self.stand.advance(self.random.choice([1, 5.001, 30, 59, 61, 61, 300, 1000, 43_000]))

    def judge(self) -> None:
        dump = self.stand.raw_dump()
        stored = {
            name.decode(): StoredSchedule.read(name, packed) for name, packed in dump.get("schedules", {}).items()
        }
        assert set(stored) == set(self.schedules)
        for name, one in self.schedules.items():
            found = stored[name]
            seen = found.next_tick, found.state.decode(), found.count, found.declared, found.timing.missed
            assert seen == (one.next_tick, one.state, one.count, one.declared, one.missed), name
        assert {id.decode() for id in dump.get("jobs", {})} == self.jobs, "there are other jobs than ticks"
        problems = problems_in(dump)
        assert not problems, problems

    def finish(self) -> None:
        """All ticks that are due are enqueued, and then the schedules are removed."""
        for _ in range(100):
            self.stand.advance(5.001)
            self.offers.clear()
            self.turn()
            for offer in self.offers:
                self.serve_one(offer)
            if not self.offers:
                break
        else:
            raise AssertionError("ticks are offered for ever")
        for name in [*self.schedules]:
            assert self.stand.run(self.bindings.remove(name))
            del self.schedules[name]
        while self.jobs:
            self.complete()
        self.judge()
        assert not {"ticks", "schedules", "jobs"} & set(self.stand.raw_dump())


def test_each_tick_is_enqueued_once(client: Any) -> None:
    run_histories(partial(ScheduleHistory, client), quick=12, steps=60)
