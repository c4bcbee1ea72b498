"""The queue in Python, as its promises say it: what each script must do, and what a turn may do.

Everything is predicted but three choices of the server: which tenants a turn serves, which claims a slice of a
take-back takes, which jobs a slice of a purge cancels. Those are read from the reply and the key space, and judged:
priorities are strict, tenants take turns (`Fairness`), the jobs of one tenant go in order, and nothing that could be
had is left behind unsaid.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.jobs import constants
from penstock.jobs.claims import Claim, Ending, Settlement, Trial, TurnReply
from penstock.jobs.constants import CLAIM_DIGITS
from penstock.jobs.record import entry_id
from tests.jobs.stand import DEAD, DELAYED, READY, RUNNING, Dump

OWN_ID, SUSPECT, KEEPS_REASON = 8, 16, 32
DEADLY = 12
"""Of doubt, in quarters of a crash."""
GONE = b'{"reason":"its worker was gone when the lease ran out"}'
SLICE = 100
LOOK = 64
SLICE_OF_INCARNATIONS = 8
LEVELS = range(10)
PLACES = {READY: "ready", DELAYED: "delayed", RUNNING: "running", DEAD: "dead"}

_HEADER = struct.Struct(">BcBB 6s6s6s6s HHB 5s BB")


@dataclass
class Job:
    """A job that the queue has accepted and not finished."""

    id: str
    tenant: str
    level: int
    own: bool
    ttl: int
    expires: int
    payload: bytes = b"null"
    state: str = READY
    generation: int = 0
    enqueued: int = 0
    since: int = 0
    attempts: int = 0
    deliveries: int = 0
    doubt: int = 0
    suspect: bool = False
    reason: bytes | None = None

    def header(self) -> bytes:
        """The record up to its payload, by the table in `record.lua`."""
        flags = OWN_ID * self.own | SUSPECT * self.suspect | KEEPS_REASON * (self.reason is not None)
        name = self.tenant.encode()
        times = [number.to_bytes(6) for number in (self.generation, self.enqueued, self.since, self.expires)]
        fields = (1, self.state.encode(), self.level, flags, *times, self.attempts, self.deliveries, self.doubt)
        return _HEADER.pack(*fields, self.ttl.to_bytes(5), len(name), 0) + name

    def entry(self) -> bytes:
        """For records up to 1 KiB, whose letter is `a`."""
        return b"%010xa" % self.generation + self.id.encode()


@dataclass
class Line:
    """The ready jobs of one tenant at one level, in order: those of `front` go first."""

    front: list[str] = field(default_factory=list)
    lane: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.front, *self.lane))

    def remove(self, key: str) -> None:
        (self.front if key in self.front else self.lane).remove(key)


@dataclass
class Incarnation:
    """A worker as the server knows it: its lease, what it holds, and the answer to its last turn."""

    till: int = 0
    worker: bool = False
    """It said who it is; else a program without a worker."""
    held: dict[str, bytes] = field(default_factory=dict)
    number: int = 0
    stale: tuple[Settlement, ...] = ()
    given: tuple[bytes, ...] = ()


@dataclass
class Patience:
    """What one tenant saw at one level since it came there: how often it was served, and how often the others."""

    services: int = 0
    others: Counter[str] = field(default_factory=Counter)
    exempt: bool = False


class Fairness:
    """Judges the order of services, from nothing but that order.

    While a tenant that has come to a level waits for its first service there, any other is served once at most; before
    its k-th, k + 1 times at most: so however long it lasts its share is no smaller. A tenant of n times the weight may
    be served n times as often, and once more.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[str, Patience]] = {level: {} for level in LEVELS}

    def present(self, level: int, tenants: Iterable[str]) -> None:
        """These have entries at the level now; who had before keeps its memory."""
        known = self._levels[level]
        self._levels[level] = {tenant: known.get(tenant) or Patience() for tenant in tenants}

    def weights_changed(self) -> None:
        """Turns that are set keep their times: what was seen so far proves nothing."""
        for level in self._levels.values():
            for patience in level.values():
                patience.exempt = True

    def served(self, level: int, tenant: str, waiting: set[str], weights: dict[str, float]) -> None:
        """`tenant` was served, while those in `waiting` had jobs that could have been."""
        present = self._levels[level]
        for other in waiting - {tenant}:
            patience = present.setdefault(other, Patience())
            patience.others[tenant] += 1
            limit = self._limit(patience.services, weights.get(tenant, 1.0) / weights.get(other, 1.0))
            assert patience.exempt or patience.others[tenant] <= limit, (
                f"{other!r}, served {patience.services} times at level {level}, was passed over "
                f"{patience.others[tenant]} times for {tenant!r}"
            )
        mine = present.setdefault(tenant, Patience())
        if mine.exempt:
            present[tenant] = Patience(services=1)
        mine.services += 1

    @staticmethod
    def _limit(services: int, ratio: float) -> int:
        if services == 0 and ratio <= 1:
            return 1
        return 1 + int((services + 1) * ratio + 0.01)


class QueueModel:
    """What the server must hold. Each method is one script and answers what that must answer."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.seq = 0
        self.jobs: dict[str, Job] = {}
        self.lines: dict[tuple[int, str], Line] = defaultdict(Line)
        self.incarnations: dict[str, Incarnation] = {}
        self.done: dict[str, bytes] = {}
        self.waiters: dict[str, list[str]] = {}
        self.replays: dict[str, tuple[int, list[int]]] = {}
        self.settled: dict[str, set[bytes]] = {}
        self.weights: dict[str, float] = {}
        self.totals: Counter[str] = Counter()
        self.paused = self.due_first = False
        self.fairness = Fairness()
        self._pushes = 0

    # --- the states of a job ---

    def in_state(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def claimable(self, job: Job) -> bool:
        """In its turn."""
        return job.state == READY and not job.suspect and not 0 < job.expires <= self.now

    def suspects(self) -> list[Job]:
        return sorted((job for job in self.in_state(READY) if job.suspect), key=lambda job: (job.since, job.generation))

    def _become_ready(self, job: Job, since: int, *, first: bool = False) -> None:
        job.state, job.since = READY, since
        if job.suspect:
            return
        line = self.lines[job.level, job.tenant]
        (line.front if first else line.lane).append(job.id)
        self._pushes += 1

    def _finish(self, job: Job, end: bytes) -> None:
        if job.state == READY and not job.suspect:
            self.lines[job.level, job.tenant].remove(job.id)
        del self.jobs[job.id]
        if job.ttl:
            self.done[job.id] = end
        self.waiters.pop(job.id, None)

    # --- every script but the turn ---

    def enqueue(self, jobs: Sequence[Job], due: Sequence[int], call: tuple[str, int] | None = None) -> list[int]:
        """`due`: for each job its time, or 0. `call`: its caller and number."""
        last, answer = self.replays.get(call[0], (0, [])) if call else (0, [])
        if call and call[1] <= last:
            return answer
        known = []
        for place, (job, at) in enumerate(zip(jobs, due, strict=True)):
            if job.id in self.jobs:
                known.append(place)
                continue
            job.generation, job.enqueued = self.seq + place + 1, self.now
            self.jobs[job.id] = job
            if job.own:
                self.done.pop(job.id, None)
            if at > self.now:
                job.state, job.since = DELAYED, at
            else:
                self._become_ready(job, self.now)
        self.seq += len(jobs)
        if call:
            self.replays[call[0]] = (call[1], known)
        return known

    def alive(self, me: str) -> bool:
        return me in self.incarnations and self.incarnations[me].till > self.now

    def beat(self, me: str, lease: int) -> bool:
        if self.alive(me):
            self.incarnations[me].till = self.now + lease
        return self.alive(me)

    def abandon(self, me: str, ending: Ending, cause: bytes, started: Sequence[bytes]) -> tuple[int, bool]:
        if me not in self.incarnations:
            return 0, True
        mine = self.incarnations[me]
        for token in started:
            self._settle(mine, Settlement(token, cause, ending))
        for key, claim in list(mine.held.items()):
            self._settle(mine, Settlement(claim + key.encode(), b"", "release"))
        del self.incarnations[me]
        return 0, True

    def settle(self, me: str, settlement: Settlement) -> bool:
        """One claim on its own. What was settled so may be said again."""
        if not self.alive(me) or not self._settle(self.incarnations[me], settlement):
            return settlement.token in self.settled.get(me, ())
        self.settled.setdefault(me, set()).add(settlement.token)
        if not self.incarnations[me].held:
            del self.incarnations[me]
        return True

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return [self._cancel(key) for key in ids]

    def _cancel(self, key: str) -> str:
        job = self.jobs.get(key)
        if job is None:
            end = self.done.get(key, b"")[:1]
            return "cancelled" if end == constants.CANCELLED else "done" if end else "none"
        if job.state in {RUNNING, DEAD}:
            return "running" if job.state == RUNNING else "dead"
        self._finish(job, constants.CANCELLED)
        self.totals["cancelled"] += 1
        return "cancelled"

    def purge(
        self, tenant: str | None, slice_: int, cancelled: int, finished: bool, after: Dump, *, suspects: bool = False
    ) -> None:
        """Waiting jobs of the tenant (None: of all) have been cancelled, ready ones first."""
        left = after.get("jobs", {})
        gone = [job for job in self.in_state(READY, DELAYED) if job.id.encode() not in left]
        assert len(gone) == cancelled <= slice_
        assert all(tenant in (None, job.tenant) for job in gone)
        others = self.suspects if suspects else lambda: self.in_state(DELAYED)
        reached_the_others = finished or any(job in others() for job in gone)
        self.cancel([job.id for job in gone])
        in_lanes = [job for job in self.in_state(READY) if not job.suspect]
        assert not (reached_the_others and any(tenant in (None, job.tenant) for job in in_lanes))
        assert not (finished and tenant is None and others())

    def requeue(self, ids: Sequence[str]) -> int:
        dead = self._dead(ids)
        for job in dead:
            job.attempts = job.deliveries = job.doubt = 0
            job.reason, job.suspect = None, False
            self._become_ready(job, self.now)
        return len(dead)

    def remove_dead(self, ids: Sequence[str]) -> int:
        dead = self._dead(ids)
        for job in dead:
            self._finish(job, constants.CANCELLED + b"removed from the dead letters")
        return len(dead)

    def _dead(self, ids: Sequence[str]) -> list[Job]:
        found = (self.jobs.get(key) for key in dict.fromkeys(ids))
        return [job for job in found if job and job.state == DEAD]

    def wait_for(self, key: str, address: str) -> None:
        if key in self.jobs and self.jobs[key].state != "d":
            waiting = self.waiters.setdefault(key, [])
            waiting.extend({address} - set(waiting))

    def forget(self, key: str, address: str) -> None:
        left = [other for other in self.waiters.pop(key, []) if other != address]
        if left:
            self.waiters[key] = left

    def weigh(self, tenant: str, weight: float) -> None:
        self.weights[tenant] = weight
        self.fairness.weights_changed()

    # --- the turn ---

    def turn(
        self,
        me: str,
        number: int,
        want: int,
        settlements: Sequence[Settlement],
        *,
        trial: Trial,
        lease: int,
        sleep: int,
        once: bool,
        reply: TurnReply,
        before: Dump,
        after: Dump,
    ) -> None:
        """Judge a reply by the key space before and after it, and follow it."""
        mine = self.incarnations.get(me)
        if mine and mine.number == number:
            assert before == after, "a repeated turn has changed something"
            self._judge_repeated(mine, reply)
            return
        if number != (mine.number + 1 if mine else 1) or (number > 1 and not self.alive(me)):
            assert not reply.alive, f"turn {number} of {me} was not due"
            assert before == after, "an ended incarnation has changed something"
            return
        assert reply.alive, f"turn {number} of {me} was due"

        mine = self.incarnations.setdefault(me, Incarnation(till=self.now + 1, worker=not once))
        self._pushes = 0
        mine.stale = tuple(s for s in _in_order(settlements) if not self._settle(mine, s))
        assert reply.stale == mine.stale
        promoted = self._promote()
        more_lost = self._take_back(after)
        looked = _entries(before) + self._pushes - _entries(after)
        most = max(4 * want, LOOK) if want else 0
        assert looked <= most, f"a turn for {want} looked at {looked} entries"
        tried = self._judge_trial(mine, reply, trial) if want and not self.paused else 0
        self._judge_claims(mine, reply.claims[tried:], after)

        left = 0 if tried and trial == "alone" else want - len(reply.claims)
        assert left >= 0
        assert left or not (tried and trial == "alone") or len(reply.claims) == 1
        if promoted == SLICE or more_lost or not left:
            assert reply.more == bool(left)
        elif reply.more:
            assert looked == most, f"cut short after {looked} entries"
        else:
            assert self.paused or all(job.suspect for job in self.in_state(READY)), "there was more"
        asleep = bool(sleep and left and not reply.more and not (once and reply.claims))
        assert asleep or reply.due_in is None
        mine.number, mine.given = number, tuple(claim.token for claim in reply.claims)
        mine.till = self.now + (max(sleep, lease) if asleep and not mine.held else lease)
        if once and not mine.held and not asleep:
            del self.incarnations[me]

    def _judge_repeated(self, mine: Incarnation, reply: TurnReply) -> None:
        assert reply.alive == (not mine.given or mine.till > self.now)
        if reply.alive:
            still = [
                token for token in mine.given if mine.held.get(token[CLAIM_DIGITS:].decode()) == token[:CLAIM_DIGITS]
            ]
            assert ([claim.token for claim in reply.claims], reply.stale) == (still, mine.stale)

    def _settle(self, mine: Incarnation, settlement: Settlement) -> bool:
        token = settlement.token
        key = token[CLAIM_DIGITS:].decode()
        if mine.held.get(key) != token[:CLAIM_DIGITS]:
            return False
        del mine.held[key]
        job, delay = self.jobs[key], round(settlement.delay * 1000)
        if settlement.ending in (None, "drop"):
            self.totals["dropped" if settlement.ending else "completed"] += 1
            self._finish(job, (constants.DROPPED if settlement.ending else constants.COMPLETED) + settlement.data)
            return True
        job.reason = settlement.data or job.reason
        job.attempts += settlement.ending in ("retry", "bury")
        if settlement.ending in ("crash", "suspect"):
            self.totals["lost"] += 1
            job.doubt += 4 if settlement.ending == "crash" else job.suspect
            job.suspect = True
        elif settlement.ending != "release":
            job.suspect, job.doubt = False, 0
        if settlement.ending == "bury" or job.doubt >= DEADLY:
            self.totals["failed"] += 1
            self.waiters.pop(key, None)
            job.state, job.since = DEAD, self.now
        elif settlement.ending == "release":
            job.deliveries -= 1
            self._become_ready(job, self.now, first=True)
        else:
            self.totals["retried"] += settlement.ending in ("retry", "later")
            if delay:
                job.state, job.since = DELAYED, self.now + delay
            else:
                self._become_ready(job, self.now)
        return True

    def _delayed(self) -> list[Job]:
        return sorted(self.in_state(DELAYED), key=lambda job: (job.since, job.generation))

    def _promote(self) -> int:
        due = [job for job in self._delayed() if job.since <= self.now][:SLICE]
        for job in due:
            self._become_ready(job, job.since, first=self.due_first)
        return len(due)

    def _take_back(self, after: Dump) -> bool:
        """Of the last incarnation that the slice reached it has taken any claims."""
        ended = sorted((one.till, me.encode(), me) for me, one in self.incarnations.items() if one.till <= self.now)
        lost: list[tuple[bytes, str]] = []
        for _, _, me in ended[:SLICE_OF_INCARNATIONS]:
            held, kept = self.incarnations[me].held, after.get(f"held:{me}", {})
            taken = [key for key in held if key.encode() not in kept]
            assert len(taken) == min(len(held), SLICE - len(lost))
            lost += [(held[key], key) for key in taken]
            for key in taken:
                alone = self.jobs[key].suspect and not self.incarnations[me].worker
                ending: Ending = "crash" if alone else "suspect"
                self._settle(self.incarnations[me], Settlement(held[key] + key.encode(), GONE, ending))
            if not held:
                del self.incarnations[me]
        return len(ended) >= SLICE_OF_INCARNATIONS or len(lost) == SLICE

    def _judge_trial(self, mine: Incarnation, reply: TurnReply, trial: Trial) -> int:
        """The suspect that waits longest comes first, and no second one; returns how many came."""
        suspects = self.suspects()
        if not suspects or not trial:
            return 0
        assert reply.claims[0].id == suspects[0].id
        self._hand_out(suspects[0], reply.claims[0], mine)
        return 1

    def _hand_out(self, job: Job, claim: Claim, mine: Incarnation) -> None:
        self.seq += 1
        assert claim.token == b"%012x" % self.seq + job.id.encode()
        job.state, job.expires = RUNNING, 0
        job.deliveries += 1
        assert claim.record.body == job.header() + job.payload
        mine.held[job.id] = claim.token[:CLAIM_DIGITS]

    def _judge_claims(self, mine: Incarnation, claims: Sequence[Claim], after: Dump) -> None:
        assert not (self.paused and claims)
        waiting: dict[int, Counter[str]] = {level: Counter() for level in LEVELS}
        for job in filter(self.claimable, self.jobs.values()):
            waiting[job.level][job.tenant] += 1
        level = 0
        for claim in claims:
            job = self.jobs[claim.id]
            line = self.lines[job.level, job.tenant]
            assert job.id == next((key for key in line if self.claimable(self.jobs[key])), None), "out of order"
            assert job.level >= level, "a more urgent job came after a less urgent one"
            self.fairness.served(job.level, job.tenant, set(+waiting[job.level]), self.weights)
            waiting[job.level][job.tenant] -= 1
            level = job.level
            line.remove(job.id)
            self._hand_out(job, claim, mine)
        assert not any(+waiting[urgent] for urgent in range(level)), "a more urgent job was passed over"
        for job in self.in_state(READY):
            if job.id.encode() not in after.get("jobs", {}):
                assert not self.claimable(job), f"{job.id} is lost"
                self._finish(job, constants.EXPIRED)
                self.totals["expired"] += 1

    # --- the key space ---

    def judge(self, dump: Dump) -> None:
        """Compare everything, and tell `fairness` who has come and gone."""
        self._judge_jobs(dump)
        self._judge_order(dump)
        self._judge_counts(dump)
        self._judge_wake(dump)
        held = {
            f"held:{me}": {key.encode(): claim + self.jobs[key].header() + b" " * 13 for key, claim in one.held.items()}
            for me, one in self.incarnations.items()
            if one.held
        }
        assert _family(dump, "held:") == held
        assert dict(dump.get("leases", [])) == {me.encode(): float(one.till) for me, one in self.incarnations.items()}
        assert set(_family(dump, "turn:")) == {f"turn:{me}" for me in self.incarnations}
        assert _family(dump, "settled:") == {f"settled:{me}": sorted(tokens) for me, tokens in self.settled.items()}
        assert _family(dump, "replay:") == {
            f"replay:{caller}": b"".join(map(msgspec.msgpack.encode, kept)) for caller, kept in self.replays.items()
        }

    def _judge_jobs(self, dump: Dump) -> None:
        jobs = self.jobs.values()
        assert dump.get("jobs", {}) == {job.id.encode(): job.header() + job.payload for job in jobs}
        assert dump.get("delayed", []) == [(job.entry(), float(job.since)) for job in self._delayed()]
        assert dict(dump.get("dead", [])) == {job.id.encode(): float(job.since) for job in self.in_state(DEAD)}
        assert dump.get("reasons", {}) == {job.id.encode(): job.reason for job in jobs if job.reason is not None}
        assert _family(dump, "done:") == {f"done:{key}": end for key, end in self.done.items()}
        told = {key.encode(): " ".join(waiting).encode() for key, waiting in self.waiters.items()}
        assert dump.get("listeners", {}) == told

    def _judge_order(self, dump: Dump) -> None:
        """Each ready job has one entry, in its place; what else stands in the lists is of jobs that are gone."""
        assert dump.get("suspects", []) == [(job.entry(), float(job.since)) for job in self.suspects()]
        ready = {job.entry() for job in self.in_state(READY) if not job.suspect}
        found: dict[tuple[int, str], Line] = defaultdict(Line)
        for name in dump:
            kind, _, place = name.partition(":")
            if kind in ("lane", "front"):
                at, _, tenant = place.partition(":")
                getattr(found[int(at), tenant], kind).extend(entry_id(e).decode() for e in dump[name] if e in ready)
        assert {place: line for place, line in self.lines.items() if [*line]} == {
            place: line for place, line in found.items() if [*line]
        }
        for level in LEVELS:
            tenants = {tenant for place, tenant in found if place == level}
            assert {tenant.decode() for tenant, _ in dump.get(f"turns:{level}", [])} == tenants
            self.fairness.present(level, tenants)
        assert int(dump.get("meta", {}).get(b"front", 0)) == sum(map(len, _family(dump, "front:").values()))

    def _judge_counts(self, dump: Dump) -> None:
        meta = dump.get("meta", {})
        places = [*PLACES.values()]
        states = Counter(PLACES[job.state] for job in self.jobs.values())
        assert {name: int(meta.get(name.encode(), 0)) for name in places} == {name: states[name] for name in places}
        totals = ("completed", "retried", "failed", "dropped", "cancelled", "expired", "lost")
        assert {name: int(meta.get(name.encode(), 0)) for name in totals} == {
            name: self.totals[name] for name in totals
        }
        assert int(meta.get(b"seq", 0)) == self.seq
        by_tenant: dict[bytes, Counter[str]] = defaultdict(Counter)
        for job in self.jobs.values():
            by_tenant[job.tenant.encode()][PLACES[job.state]] += 1
        packed = {tenant: struct.pack(">4I", *(n[name] for name in places)) for tenant, n in by_tenant.items()}
        assert dump.get("tenants", {}) == packed
        ages = Counter(job.since // 1000 for job in self.in_state(READY))
        assert dump.get("age", {}) == {b"%d" % second: b"%d" % n for second, n in ages.items()}
        assert dump.get("ages", []) == [(b"%d" % second, float(second)) for second in sorted(ages)]

    def _judge_wake(self, dump: Dump) -> None:
        """While a job is ready and someone sleeps, a wake-up is on its way."""
        if (
            any(not job.suspect for job in self.in_state(READY))
            and not self.paused
            and any(till > self.now for _, till in dump.get("sleepers", []))
        ):
            assert b"woken" in dump["meta"]


def _in_order(settlements: Sequence[Settlement]) -> Iterator[Settlement]:
    """As a turn sends them: completed with null, with a result, all others."""
    return iter(sorted(settlements, key=lambda s: 2 if s.ending else s.data != b"null"))


def _family(dump: Dump, prefix: str) -> Dump:
    return {name: held for name, held in dump.items() if name.startswith(prefix)}


def _entries(dump: Dump) -> int:
    return sum(len(held) for name, held in dump.items() if name.startswith(("lane:", "front:")))
