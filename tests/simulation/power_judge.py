"""Judges a queue with limits, unique keys and pauses, after every call: by its promises, and by an audit of its keys.

The judge follows only what a caller knows: the jobs that were accepted, who holds them, and which keys they hold. What
else the server decides, it reads from the records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.jobs import constants
from penstock.jobs.claims import Claim
from penstock.jobs.record import Record
from penstock.jobs.row import Row, read_row
from tests.jobs.stand import Dump, Limits, problems_in

ANY_TIME = "d"
"""A job with this mode of unique key holds it until it ends. With the others but `t` it does until it is claimed."""


@dataclass
class Job:
    """A job that was accepted and has not ended. `order`: of two jobs, the lower one became ready first."""

    id: str
    limits: Sequence[Limits] = ()
    unique: tuple[str, str, int] | None = None
    payload: bytes = b""
    order: float = 0
    token: bytes | None = None
    """Of its claim, while it runs."""
    booked: dict[str, int] = field(default_factory=dict)
    """name=key of a rate -> the units that its present claim has taken of it."""
    claimed_at: int = 0
    dead: bool = False
    handed_back: bool = False
    """A run of it was interrupted. Until the next claim it keeps its places."""
    may_start: bool = False
    """The numbers of its rate have changed since it was admitted, or may have."""
    in_order: bool = True
    """It was ready at once, and neither displaced nor paused."""

    @property
    def keys(self) -> list[str]:
        return [f"{name}={key}" for name, key, *_ in self.limits]


@dataclass
class Bucket:
    """A rate: when its bucket is full again, in microseconds."""

    full: float = 0

    def left(self, now: int, interval: int, burst: int) -> int:
        return int(max(0, (now * 1000 + burst * interval - max(self.full, now * 1000)) // interval))

    def take(self, now: int, interval: int, units: int) -> None:
        self.full = max(self.full, now * 1000) + interval * units

    def refund(self, now: int, interval: int, units: int, taken: int, since: int) -> None:
        back = min(units * interval, taken * interval - (now - since) * 1000)
        if back > 0 and self.full > now * 1000:
            self.full -= back


def needed(cost: int, burst: int) -> int:
    """The units that must be free before a job with this cost is admitted."""
    return max(1, min(cost, burst))


@dataclass
class Judge:
    """The jobs that must be in the queue, and what the last dump has of them."""

    now: int
    jobs: dict[str, Job] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """Unique key -> the job that holds it."""
    windows: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Key of a throttle -> its end, and its first job."""
    leases: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=lambda: defaultdict(Bucket))
    definitions: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """Name of a limit -> number, interval, burst, release, as stored."""
    most: dict[str, int] = field(default_factory=dict)
    """Name of a limit -> the highest number that held during the last call. It may have met jobs of two releases."""
    sent: dict[str, set[tuple[int, int, int, int]]] = field(default_factory=lambda: defaultdict(set))
    holds: dict[str, int] = field(default_factory=dict)
    """name=key of a rate -> until when it is closed."""
    keeps: int | None = None
    """The most dead letters that the queue keeps."""
    records: dict[str, Record] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    dump: Dump = field(default_factory=dict)
    row: Row | None = None
    holders: dict[str, str] = field(default_factory=dict)
    """Job -> the incarnation that claimed it last."""

    # --- what calls do ---

    def holder(self, unique: tuple[str, str, int]) -> str | None:
        key, mode, _ = unique
        if mode != "t":
            return self.held.get(key)
        until, id = self.windows.get(key, (0, ""))
        return id if until > self.now else None

    def accept(self, job: Job) -> str | None:
        """A job was sent. Returns the job that holds its key, if it is a double."""
        if job.unique is not None:
            key, mode, ms = job.unique
            if (holder := self.holder(job.unique)) is not None and not self.expire(holder):
                first = self.jobs.get(holder)
                if mode in "rb" and first and first.unique and first.unique[1] in "rb":
                    first.payload, first.unique = job.payload, job.unique
                return holder
            if mode == "t":
                self.windows[key] = self.now + ms, job.id
            else:
                self.held[key] = job.id
        for name, _, most, interval, burst, release, _ in job.limits:
            self.sent[name].add((most, interval, burst, release))
        self.jobs[job.id] = job
        return None

    def is_over(self, id: str) -> bool:
        """Whether the job waits and may not be started any more."""
        job, record = self.jobs.get(id), self.records.get(id)
        is_waiting = job is not None and job.token is None and not job.dead
        return is_waiting and record is not None and 0 < record.expires <= self.now

    def expire(self, id: str) -> bool:
        """End the job if it is over. Returns whether it was."""
        if is_over := self.is_over(id):
            self.end(self.jobs[id])
        return is_over

    def end(self, job: Job) -> None:
        """A job leaves the queue."""
        running = job.token is not None
        if job.unique is not None and not job.dead and (not running or job.unique[1] == ANY_TIME):
            self.give_up(job, throttle=not running)
        del self.jobs[job.id]

    def give_up(self, job: Job, *, throttle: bool = False) -> None:
        assert job.unique is not None
        key, mode, _ = job.unique
        if mode == "t" and throttle and self.windows.get(key, (0, ""))[1] == job.id:
            del self.windows[key]
        elif mode != "t" and self.held.get(key) == job.id:
            del self.held[key]

    def claimed(self, claims: Iterable[Claim], before: dict[str, Record]) -> None:
        """Judge claims by what was waiting before."""
        for claim in claims:
            job = self.jobs[claim.id]
            assert job.token is None, f"{job.id} was claimed twice"
            assert not job.dead, f"{job.id} was claimed as a dead letter"
            assert claim.record.payload == job.payload, f"{job.id} has old arguments"
            limits = claim.record.limits
            assert claim.record.limits_passed == len(limits), f"{job.id} was claimed without its places"
            for (name, key), cost in zip(limits, claim.record.costs, strict=True):
                if name.startswith("r:"):
                    self._judge_start(job, name, key, cost)
            self._judge_strict_order(job, before)
            job.booked = dict(zip(job.keys, claim.record.costs, strict=True))
            job.claimed_at = self.now
            job.token, job.handed_back, job.may_start = claim.token, False, False
            if job.unique and job.unique[1] != ANY_TIME and job.unique[1] != "t":
                self.give_up(job)

    def _judge_start(self, job: Job, name: str, key: str, cost: int) -> None:
        _, interval, burst, _ = self.definitions[name]
        bucket = self.buckets[f"{name}={key}"]
        assert self.holds.get(f"{name}={key}", 0) <= self.now, f"{job.id} started although {name}={key} is closed"
        fits = bucket.left(self.now, interval, burst) >= (cost and needed(cost, burst))
        assert job.may_start or fits, f"too many starts of {name}={key}"
        bucket.take(self.now, interval, cost)

    def book(self, job: Job, key: str, units: int) -> None:
        """A running job says what it has taken of a rate."""
        _, interval, _, _ = self.definitions[key.partition("=")[0]]
        before, bucket = job.booked[key], self.buckets[key]
        if units > before:
            bucket.take(self.now, interval, units - before)
        else:
            own = next(limit[3] for limit in job.limits if key.startswith(limit[0] + "="))
            bucket.refund(self.now, min(interval, own), before - units, before, job.claimed_at)
        job.booked[key] = units

    def _judge_strict_order(self, job: Job, before: dict[str, Record]) -> None:
        """The jobs of a key with one place start in the order in which they became ready, by tenant and level."""
        if not (job.in_order and [limit[0] for limit in job.limits] == ["c:one"] and job.id in before):
            return
        lane = before[job.id].tenant, before[job.id].priority
        for other in self.jobs.values():
            record = before.get(other.id)
            if record and other.keys == job.keys and other.in_order and (record.tenant, record.priority) == lane:
                is_overtaken = other.order < job.order and other.token is None and not other.dead
                is_waiting = record.state in (constants.READY, constants.PARKED) and not record.is_suspect
                expired = 0 < record.expires <= self.now
                assert expired or not (is_overtaken and is_waiting), f"{job.id} has overtaken {other.id}"

    def settled(self, job: Job, ending: str | None) -> None:
        """A claim of the job has ended. Whether it died is in its record."""
        if ending in (None, "drop", "cancel"):
            self.end(job)
            return
        job.token = None
        job.handed_back = ending not in ("retry", "later")
        record = self.records.get(job.id)
        if record is None or record.state == constants.DEAD:  # none: one dead letter too many
            job.dead = True
            if job.unique and job.unique[1] == ANY_TIME:
                self.give_up(job)

    def requeue(self, ids: Iterable[str]) -> int:
        n = 0
        for job in (self.jobs.get(id) for id in dict.fromkeys(ids)):
            if job is None or not job.dead:
                continue
            if job.unique and job.unique[1] != "t":
                holder = self.held.get(job.unique[0])
                if holder is not None and not self.expire(holder):
                    continue
                self.held[job.unique[0]] = job.id
            job.dead, job.handed_back, job.in_order = False, False, False
            n += 1
        return n

    def edit_dead(
        self, job: Job, limits: Sequence[Limits], unique: tuple[str, str, int] | None, payload: bytes
    ) -> str | None:
        """A dead letter runs again with another call. Returns the job that holds its new key; then it stays dead."""
        if unique is not None and (holder := self.held.get(unique[0])) is not None and not self.expire(holder):
            return holder
        job.limits, job.unique, job.payload = limits, unique, payload
        for name, _, most, interval, burst, release, _ in limits:
            self.sent[name].add((most, interval, burst, release))
        self.requeue([job.id])
        return None

    # --- the key space ---

    def look(self, dump: Dump) -> None:
        """Read the records before the replies are judged, because a settlement needs the state of its job."""
        self.dump = dump
        self.row = read_row(dump["meta"][b"row"]) if "meta" in dump else None
        self.records = {id.decode(): Record(body) for id, body in dump.get("jobs", {}).items()}
        self._judge_definitions()

    def judge(self, before: dict[str, Record]) -> None:
        """`before`: the records before the last call."""
        self._judge_ended(before)
        self._judge_keys()
        problems = problems_in(self.dump)
        assert not problems, problems
        self._judge_places()

    def _judge_definitions(self) -> None:
        """The numbers of a limit are those of one release, and a later one never yields to an earlier one."""
        for key, packed in self.dump.get("limits", {}).items():
            name = key.decode()
            most, interval, burst, release, _ = msgspec.msgpack.decode(b"\x95" + packed)
            numbers = most, interval, burst, release
            assert numbers in self.sent[name], f"{name} has {numbers}"
            old = self.definitions.get(name)
            assert old is None or release >= old[3], f"{name} went back from {old} to {numbers}"
            if name.startswith("r:") and numbers != old:
                for id, record in self.records.items():
                    self.jobs[id].may_start = record.state != constants.PARKED
            learned = [one[0] for one in self.sent[name] if (old[3] if old else 0) < one[3] <= release]
            self.most[name] = max(most, *learned, old[0] if old else 0) if numbers != old else most
            self.definitions[name] = numbers

    def _judge_ended(self, before: dict[str, Record]) -> None:
        owners = self.dump.get("owners", {})
        for job in [*self.jobs.values()]:
            if job.id not in self.records:
                record = before.get(job.id)
                assert record, f"{job.id} was never stored"
                assert job.token is None, f"{job.id} is lost"
                is_expired = 0 < record.expires <= self.now and not job.dead
                assert is_expired or (job.dead and self.keeps is not None), f"{job.id} is lost"
                self.end(job)
            elif job.token is not None and job.id.encode() not in owners:
                assert self.leases[self.holders[job.id]] <= self.now, f"{job.id} was taken from a live worker"
                self.settled(job, "unseen")
            elif job.token is None:
                assert job.id.encode() not in owners, f"{job.id} is held without a claim"
        assert set(self.records) == set(self.jobs), "there are other jobs than were sent"

    def _judge_keys(self) -> None:
        found = {key.decode(): id.decode() for key, id in self.dump.get("unique", {}).items()}
        assert found == self.held, "the unique keys have other holders"
        windows = {
            name.removeprefix("throttle:"): (int.from_bytes(held[:6]), held[6:].decode())
            for name, held in self.dump.items()
            if name.startswith("throttle:")
        }
        assert {key: one for key, one in windows.items() if one[0] > self.now} == {
            key: one for key, one in self.windows.items() if one[0] > self.now
        }

    def _judge_places(self) -> None:
        """No limit is exceeded, no parked job is forgotten, and none waits behind a less urgent one of its key."""
        pending = {key.decode(): at for key, at in self.dump.get("admissions", [])}
        used: Counter[str] = Counter()
        parked: dict[str, list[Record]] = defaultdict(list)
        admitted: dict[str, int] = {}
        displaced: Counter[str] = Counter()
        for id, record in self.records.items():
            job, keys = self.jobs[id], [f"{name}={key}" for name, key in record.limits]
            running = job.token is not None
            if record.state == constants.PARKED and record.limits_passed < len(keys):
                parked[keys[record.limits_passed]].append(record)
                displaced[keys[record.limits_passed]] += job.may_start
                job.may_start = False
            elif record.state == constants.PARKED:
                job.in_order = job.may_start = False
                continue
            if record.state == constants.READY:
                assert record.limits_passed == len(keys), f"{id} is ready without its places"
                for key in keys:
                    if not (running or job.handed_back):
                        admitted[key] = max(admitted.get(key, 0), record.priority)
            for key, cost in [*zip(keys, record.costs, strict=True)][: record.limits_passed]:
                used[key] += 0 if running and key.startswith("r:") else cost
        for key, n in used.items():
            if key.startswith("c:"):
                most = self.most[key.partition("=")[0]]
                assert n <= max(most, self.used[key]), f"{n} jobs have places of {key}, the limit is {most}"
        self.used = used
        self._pass_on(displaced)
        for key, waiting in parked.items():
            self._judge_parked(key, waiting, used[key], admitted.get(key, 0), pending)
        earliest = min(pending.values(), default=0)
        assert not earliest or (self.row and 0 < self.row.next_admission <= earliest), "an admission is overlooked"

    def _pass_on(self, displaced: Counter[str]) -> None:
        """A job that may start although the number is lower now has given its place to a more urgent one."""
        for id, record in self.records.items():
            job, keys = self.jobs[id], [f"{name}={key}" for name, key in record.limits[: record.limits_passed]]
            given = next((key for key in keys if displaced[key]), None)
            if given and record.state == constants.READY and job.token is None and not job.may_start:
                job.may_start = True
                displaced[given] -= 1

    def _needed_first(self, key: str, waiting: list[Record], burst: int) -> int:
        """The most units that the first parked job may need: one of the most urgent ones, of any tenant."""
        level = min(record.priority for record in waiting)
        return max(needed(record.costs[record.limits_passed], burst) for record in waiting if record.priority == level)

    def _judge_parked(
        self, key: str, waiting: list[Record], used: int, admitted: int, pending: dict[str, float]
    ) -> None:
        name = key.partition("=")[0]
        if min(pending.get(key, 1e15), pending.get("=" + name, 1e15)) <= self.now:
            return  # the next turn looks
        most, interval, burst, _ = self.definitions[name]
        if self.holds.get(key, 0) > self.now:
            assert key in pending, f"{key} is closed, and there is no time to look at it"
            return
        if name.startswith("c:"):
            assert used >= most, f"{key} has room, and {len(waiting)} parked jobs"
        else:
            left = self.buckets[key].left(self.now, interval, burst) - used
            first = self._needed_first(key, waiting, burst)
            overlooked = key not in pending and used + first <= burst
            assert not overlooked, f"{key} has parked jobs, and no time to look at them"
            assert left < first, f"{key} has room, and {len(waiting)} parked jobs"
        urgent = [record.priority for record in waiting if not 0 < record.expires <= self.now]
        assert not urgent or min(urgent) >= admitted, f"{key}: an urgent job waits behind a less urgent one"
