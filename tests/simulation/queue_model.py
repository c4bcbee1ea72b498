"""A model of the queue in Python, written from its promises: what each script must do, and what a turn may do.

The model predicts everything except three choices of the server: which tenants a turn serves, which claims a slice
takes back, and which jobs a slice of a purge cancels. It reads these choices from the reply and the keys, and judges
them: priorities are strict, tenants take turns (`Fairness`), the jobs of one tenant are served in order, and a turn
that leaves jobs reports that there are more.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import msgspec

from penstock.jobs import constants
from penstock.jobs.claims import Claim, Ending, Failure, Settlement, Trial, TurnReply
from penstock.jobs.constants import NUMBER_BYTES, UNIQUE_KEY
from penstock.jobs.failures import Failures
from penstock.jobs.finished import BLOCK_HEAD, read_block
from penstock.jobs.record import Record, entry_has_more, entry_id, read_sections
from tests.jobs.stand import DEAD, DELAYED, READY, RESULT_START, RUNNING, Dump
from tests.simulation.fairness import LEVELS, Fairness
from tests.simulation.queue_state import Incarnation, Job, ReadyJobs

GONE = "its worker was gone when the lease ran out"
HOST_GONE = "its host died while the job ran alone in a trial; the limit is %d such trials"
DEATHS = {"crash", "contained", "loss", "unseen", "host"}
SLICE = 100
LOOK = 64
SLICE_OF_INCARNATIONS = 8
INTAKE = 128
_ENDS: dict[str | None, tuple[str, bytes]] = {
    None: ("completed", constants.COMPLETED),
    "drop": ("dropped", constants.DROPPED),
    "cancel": ("cancelled", constants.CANCELLED),
}
"""Endings with which a job leaves the queue: the total that counts them, and the letter that is kept."""
PLACES = {READY: "ready", DELAYED: "delayed", RUNNING: "running", DEAD: "dead"}


ONLY_TRIALS = (b"c/1", b"d/1")
"""The addresses of workers that take only suspects: the server wakes them too, but does not wait for them."""


class QueueModel:
    """The state that the server must have. Each method stands for one script, and returns what that must return."""

    def __init__(self, now: int, *, in_batches: bool = False) -> None:
        """`in_batches`: a turn leaves what fills no whole batch, and reports that there is more."""
        self.now = now
        self.in_batches = in_batches
        self.seq = 0
        self.jobs: dict[str, Job] = {}
        self.ready: dict[tuple[int, str], ReadyJobs] = defaultdict(ReadyJobs)
        self.incarnations: dict[str, Incarnation] = {}
        self.done: dict[str, tuple[int, bytes]] = {}
        """Key -> until when the result is kept, and the result."""
        self.staged: list[tuple[Job, int, tuple[str, int]]] = []
        """Jobs that were accepted and are in no lane yet, with the time and the call of each."""
        self.keys: dict[str, str] = {}
        """Unique key -> the job that holds it."""
        self.windows: dict[str, tuple[int, str]] = {}
        """Key of a throttle -> until when it is held, and by which job."""
        self.waiters: dict[str, list[str]] = {}
        self.replays: dict[str, tuple[int, Any]] = {}
        self.settled: dict[str, set[bytes]] = {}
        self.weights: dict[str, float] = {}
        self.totals: Counter[str] = Counter()
        self.rows: Counter[tuple[str, str]] = Counter()
        """Ends of jobs, as id and outcome. Those of a purge have no id."""
        self.keeps_arguments = False
        self.kept: dict[str, Job] = {}
        """Jobs that have ended, as they were when they ended, the latest of each id, if arguments are kept."""
        self.paused = self.due_first = False
        self.bound = (0, 0)
        """The most unfinished jobs, and the most of a tenant; 0: no bound."""
        self.refused = 0
        self.fairness = Fairness()
        self._pushes = 0

    # --- the states of a job ---

    def in_state(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def claimable(self, job: Job) -> bool:
        """Whether a claim may take the job when its turn comes."""
        return job.state == READY and not job.suspect and not 0 < job.expires <= self.now

    def suspects(self) -> list[Job]:
        return sorted((job for job in self.in_state(READY) if job.suspect), key=lambda job: (job.since, job.generation))

    def _become_ready(self, job: Job, since: int, *, first: bool = False) -> None:
        job.state, job.since = READY, since
        if job.suspect:
            return
        jobs = self.ready[job.level, job.tenant]
        (jobs.front if first else jobs.lane).append(job.id)
        self._pushes += 1

    def holder(self, job: Job) -> str | None:
        """The job that holds the unique key of this one, if another call has it."""
        if job.unique is None:
            return None
        key, mode, _ = job.unique
        if mode != "t":
            return self.keys.get(key)
        until, holder = self.windows.get(key, (0, ""))
        return holder if until > self.now else None

    def _hold(self, job: Job) -> None:
        if job.unique is not None:
            key, mode, ms = job.unique
            if mode == "t":
                self.windows[key] = self.now + ms, job.id
            else:
                self.keys[key] = job.id

    def _give_up(self, job: Job, *modes: str) -> None:
        """Give up its key, if it holds one in one of these modes."""
        if job.unique is not None and job.unique[1] in modes and self.holder(job) == job.id:
            (self.windows if job.unique[1] == "t" else self.keys).pop(job.unique[0])

    def _finish(self, job: Job, end: bytes) -> None:
        self._give_up(job, *{READY: "dst", DELAYED: "dst", RUNNING: "d"}.get(job.state, ""))
        if job.state == READY and not job.suspect:
            self.ready[job.level, job.tenant].remove(job.id)
        del self.jobs[job.id]
        if job.ttl:
            self.done[job.id] = (self.now + job.ttl, end)
        self.waiters.pop(job.id, None)

    def _count_end(self, outcome: str, job: Job, *, purged: bool = False) -> None:
        self.totals[outcome] += 1
        self.rows["" if purged else job.id, outcome] += 1
        if self.keeps_arguments and not purged and outcome != "failed":
            self.kept[job.id] = replace(job)

    def keep_arguments(self, on: bool) -> None:
        self.empty_intake()
        self.keeps_arguments = on
        if not on:
            self.kept.clear()

    def is_over(self, job: Job) -> bool:
        return job.state in (READY, DELAYED) and 0 < job.expires <= self.now

    def _expire(self, key: str) -> bool:
        """End the job if it waits and may not be started any more. Returns whether it did."""
        job = self.jobs.get(key)
        if job is None or not self.is_over(job):
            return False
        self._finish(job, constants.EXPIRED)
        self._count_end("expired", job)
        return True

    def sweep(self) -> None:
        """Turns, and scripts that count or show jobs, end the jobs that are over: here never more than a slice."""
        for key in list(self.jobs):
            self._expire(key)

    def _next_generation(self, job: Job) -> None:
        self.seq += 1
        job.generation = self.seq

    # --- every script but the turn ---

    def stage(self, jobs: Sequence[Job], last: tuple[str, int], accepted: bool, before: Dump) -> None:
        """Plain calls with consecutive numbers: all are accepted, unless a worker is idle or the intake is full."""
        idle = any(till > self.now for _, till in before.get("sleepers", []))
        assert not (accepted and idle), "accepted beside an idle worker"
        assert not accepted or len(self.staged) + len(jobs) <= INTAKE
        most, of_tenant = self.bound
        assert not accepted or not of_tenant, "accepted without counting the jobs of the tenant"
        assert not accepted or not most or len(self._unfinished()) + len(self.staged) + len(jobs) <= most
        if accepted:
            numbers = range(last[1] - len(jobs) + 1, last[1] + 1)
            self.staged += [(job, self.now, (last[0], number)) for job, number in zip(jobs, numbers, strict=True)]

    def set_bound(self, most: int, of_tenant: int) -> int:
        self.empty_intake()
        self.bound = (most, of_tenant)
        if not most and not of_tenant:
            self.refused = 0
        return len(self._unfinished())

    def _unfinished(self, tenant: str | None = None) -> list[Job]:
        jobs = self.in_state(READY, DELAYED, RUNNING)
        return jobs if tenant is None else [job for job in jobs if job.tenant == tenant]

    def _refusal(self, tenant: str) -> list[Any] | None:
        """Count, bound and, if it is its bound, the tenant."""
        most, of_tenant = self.bound
        if most and (n := len(self._unfinished())) >= most:
            return [n, most]
        if of_tenant and (n := len(self._unfinished(tenant))) >= of_tenant:
            return [n, of_tenant, tenant]
        return None

    def empty_intake(self) -> None:
        """Every script that reads or moves jobs does so first."""
        for job, at, call in self.staged:
            self.seq += 1
            if call[1] > self.replays.get(call[0], (0, []))[0]:
                job.generation = self.seq
                job.enqueued = at
                self.jobs[job.id] = job
                self._become_ready(job, at)
                self.replays[call[0]] = (call[1], [])
        self.staged.clear()

    def enqueue(self, jobs: Sequence[Job], due: Sequence[int], call: tuple[str, int] | None = None) -> list[int]:
        """`due`: for each job its time, or 0. `call`: its caller and number."""
        self.empty_intake()
        last, answer = self.replays.get(call[0], (0, [])) if call else (0, [])
        if call and call[1] <= last:
            return answer
        known: list[Any] = []
        for place, (job, at) in enumerate(zip(jobs, due, strict=True)):
            if job.id in self.jobs and not self._expire(job.id):
                known.append(place)
                continue
            if (holder := self.holder(job)) is not None and not self._expire(holder):
                known.append([place, holder])
                continue
            if refusal := self._refusal(job.tenant):
                self.refused += 1
                known.append([place, job.id, *refusal])
                continue
            self._hold(job)
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

    def alive(self, incarnation: str) -> bool:
        return incarnation in self.incarnations and self.incarnations[incarnation].alive_until > self.now

    def heartbeat(self, incarnation: str, lease: int) -> list[bytes] | None:
        self.empty_intake()
        if not self.alive(incarnation):
            return None
        mine = self.incarnations[incarnation]
        mine.alive_until = max(self.now + lease, mine.alive_until if mine.idle else 0)
        mine.cancels &= {claim[:6] + key.encode() for key, claim in mine.held.items()}
        return sorted(mine.cancels)

    def abandon(
        self, incarnation: str, ending: Ending, cause: bytes, started: Sequence[bytes]
    ) -> tuple[int, bool, float | None]:
        self.empty_intake()
        if incarnation not in self.incarnations:
            return 0, True, self._untried
        mine = self.incarnations[incarnation]
        for token in started:
            self._settle(mine, Settlement(token, cause, ending))
        for key, claim in sorted(mine.held.items(), key=itemgetter(1)):
            self._settle(mine, Settlement(claim[:NUMBER_BYTES] + key.encode(), b"", "release"))
        del self.incarnations[incarnation]
        return 0, True, self._untried

    def settle(self, incarnation: str, settlement: Settlement) -> bool:
        """Settle one claim outside of a turn. That may be repeated."""
        self.empty_intake()
        if not self.alive(incarnation) or not self._settle(self.incarnations[incarnation], settlement):
            return settlement.token in self.settled.get(incarnation, ())
        self.settled.setdefault(incarnation, set()).add(settlement.token)
        if not self.incarnations[incarnation].held:
            del self.incarnations[incarnation]
        return True

    def cancel(self, ids: Sequence[str]) -> list[str]:
        self.empty_intake()
        for key in ids:
            self._expire(key)
        return [self._cancel(key) for key in ids]

    def _cancel(self, key: str, *, purged: bool = False) -> str:
        job = self.jobs.get(key)
        if job is None:
            until, result = self.done.get(key, (0, b""))
            end = result[:1] if until > self.now else b""
            return "cancelled" if end == constants.CANCELLED else "done" if end else "none"
        if job.state == RUNNING:
            for one in self.incarnations.values():
                if key in one.held:
                    one.cancels.add(one.held[key][:6] + key.encode())
        if job.state in {RUNNING, DEAD}:
            return "running" if job.state == RUNNING else "dead"
        self._finish(job, constants.CANCELLED)
        self._count_end("cancelled", job, purged=purged)
        return "cancelled"

    def edit(self, key: str, due: int | None, priority: int | None, payload: bytes | None) -> str:
        """`due`: a date in ms."""
        self.empty_intake()
        job = self.jobs.get(key)
        if job is None:
            return "done" if key in self.done and self.done[key][0] > self.now else "none"
        if job.state in (DEAD, RUNNING):
            return {DEAD: "dead", RUNNING: "running"}[job.state]
        if self.is_over(job):
            return "done"
        was, since = job.state, job.since
        if was == READY and due is not None and due <= self.now and priority is None and payload is None:
            return "edited"  # it keeps its turn
        if job.unique is not None and payload is not None:
            return "fixed"
        if was == READY and not job.suspect:
            self.ready[job.level, job.tenant].remove(key)
        job.level = job.level if priority is None else priority
        job.payload = job.payload if payload is None else payload
        self._next_generation(job)
        due = since if due is None else due
        if due > self.now:
            job.state, job.since = DELAYED, due
        else:
            self._become_ready(job, since if was == READY else self.now)
        return "edited"

    def purge(
        self, tenant: str | None, slice_: int, cancelled: int, finished: bool, after: Dump, *, suspects: bool = False
    ) -> None:
        """Waiting jobs of the tenant (None: of all) have been cancelled, ready ones first."""
        self.empty_intake()
        left = after.get("jobs", {})
        gone = [job for job in self.in_state(READY, DELAYED) if job.id.encode() not in left]
        assert len(gone) == cancelled <= slice_
        assert all(tenant in (None, job.tenant) for job in gone)
        others = self.suspects if suspects else lambda: self.in_state(DELAYED)
        reached_the_others = finished or any(job in others() for job in gone)
        for job in gone:
            self._cancel(job.id, purged=True)
        in_lanes = [job for job in self.in_state(READY) if not job.suspect]
        assert not (reached_the_others and any(tenant in (None, job.tenant) for job in in_lanes))
        assert not (finished and tenant is None and others())

    def requeue(self, ids: Sequence[str]) -> int:
        self.empty_intake()
        dead = self._dead(ids)
        for job in [*dead]:
            if job.unique is not None and job.unique[1] != "t":
                if (holder := self.holder(job)) is not None and not self._expire(holder):
                    dead.remove(job)
                    continue
                self._hold(job)
            self._run_again(job)
        return len(dead)

    def _run_again(self, job: Job) -> None:
        self._next_generation(job)
        job.attempts = job.deliveries = job.expires = 0
        job.clear_deaths()
        self._become_ready(job, self.now)

    def edit_dead(
        self, key: str, task: str, unique: tuple[str, str, int] | None, payload: bytes, call: tuple[str, int] | None
    ) -> str | list[str]:
        """`call`: its caller and number; then a repeated call gets the same answer. The jobs here have no task."""
        self.empty_intake()
        job = self.jobs[key]
        if task:
            return "task"
        holder = self.keys.get(unique[0]) if unique else None
        if holder is not None and not self._expire(holder):
            return [holder]
        job.edit(unique, payload, self.now)
        self._hold(job)
        self._run_again(job)
        if call:
            self.replays[call[0]] = (call[1], "requeued")
        return "requeued"

    def remove_dead(self, ids: Sequence[str]) -> int:
        self.empty_intake()
        dead = self._dead(ids)
        for job in dead:
            self._finish(job, constants.CANCELLED + b"removed from the dead letters")
        return len(dead)

    def _dead(self, ids: Sequence[str]) -> list[Job]:
        found = (self.jobs.get(key) for key in dict.fromkeys(ids))
        return [job for job in found if job and job.state == DEAD]

    def wait_for(self, key: str, address: str) -> None:
        self.empty_intake()
        self.sweep()
        if key in self.jobs and self.jobs[key].state != "d":
            waiting = self.waiters.setdefault(key, [])
            waiting.extend({address} - set(waiting))

    def forget(self, key: str, address: str) -> None:
        left = [other for other in self.waiters.pop(key, []) if other != address]
        if left:
            self.waiters[key] = left

    def set_weight(self, tenant: str, weight: float) -> None:
        self.empty_intake()
        self.weights[tenant] = weight
        self.fairness.weights_changed()

    # --- the turn ---

    def turn(
        self,
        incarnation: str,
        number: int,
        want: int,
        settlements: Sequence[Settlement],
        *,
        trial: Trial,
        supervised: bool = False,
        host_deaths: int | None = None,
        lease: int,
        sleep: int,
        once: bool,
        reply: TurnReply,
        before: Dump,
        after: Dump,
    ) -> None:
        """Judge a reply by the keys before and after the turn, and update the model."""
        staged = bool(self.staged)
        self._pushes = 0
        self.empty_intake()
        entries = _entries(before) + self._pushes
        mine = self.incarnations.get(incarnation)
        if mine and mine.number == number and self.alive(incarnation):
            assert staged or before == after, "a repeated turn has changed something"
            self._judge_repeated(mine, reply)
            return
        if number != (mine.number + 1 if mine else 1) or (mine and not self.alive(incarnation)):
            assert not reply.alive, f"turn {number} of {incarnation} was not due"
            assert staged or before == after, "an ended incarnation has changed something"
            return
        assert reply.alive, f"turn {number} of {incarnation} was due"

        mine = self.incarnations.setdefault(incarnation, Incarnation(self.now + 1, not once, supervised, host_deaths))
        self._pushes = 0
        mine.stale = tuple(s for s in _in_order(settlements) if not self._settle(mine, s))
        assert reply.stale == mine.stale
        promoted = self._promote()
        self.sweep()
        more_lost = self._take_back(after)
        looked = entries + self._pushes - _entries(after)
        most = max(4 * want, LOOK) if want else 0
        assert looked <= most, f"a turn for {want} looked at {looked} entries"
        tried = self._judge_trial(mine, reply, trial) if want and not self.paused else 0
        self._judge_claims(mine, reply.claims[tried:], after)

        assert len(reply.claims) == 1 or not tried
        assert trial != "only" or len(reply.claims) == tried
        left = 0 if tried else want - len(reply.claims)
        assert left >= 0
        assert reply.suspect == (None if self.paused else self._untried)
        if promoted == SLICE or more_lost or not left:
            assert reply.more == bool(left)
        elif trial == "only":
            assert not reply.more
        elif reply.more:
            left_a_piece = self.in_batches and any(map(self.claimable, self.jobs.values()))
            assert left_a_piece or looked == most, f"cut short after {looked} entries"
        else:
            assert self.paused or all(job.suspect for job in self.in_state(READY)), "there was more"
        idle = bool(sleep and left and not reply.more and not (once and reply.claims))
        assert idle or reply.due_in is None or b"next_expiry" in after["meta"]
        mine.number, mine.given = number, tuple(claim.token for claim in reply.claims)
        mine.alive_until = self.now + (max(sleep, lease) if idle and not mine.held else lease)
        mine.idle = idle
        if once and not mine.held and not idle:
            del self.incarnations[incarnation]

    def _judge_repeated(self, mine: Incarnation, reply: TurnReply) -> None:
        still = [token for token in mine.given if mine.holds(token)]
        assert (reply.alive, [claim.token for claim in reply.claims], reply.stale) == (True, still, mine.stale)

    def _settle(self, mine: Incarnation, settlement: Settlement) -> bool:
        if not mine.holds(settlement.token):
            return False
        key = settlement.token[NUMBER_BYTES:].decode()
        del mine.held[key]
        job, delay = self.jobs[key], round(settlement.delay * 1000)
        if settlement.ending in _ENDS:
            total, letter = _ENDS[settlement.ending]
            self._count_end(total, job)
            self._finish(job, letter + settlement.data)
            return True
        self._next_generation(job)
        job.expires, job.has_tail = 0, True
        job.deliveries += settlement.ending != "release"
        if settlement.data:
            job.fail(settlement, self.now)
        job.attempts += settlement.ending in ("retry", "bury")
        is_dead = settlement.ending == "bury"
        if settlement.ending in DEATHS:
            self.totals["lost"] += 1
            is_dead = job.die(settlement.ending, mine.host_deaths or 0)
        elif settlement.ending != "release":
            job.clear_deaths()
        if is_dead:
            self._count_end("failed", job)
            self._give_up(job, "d")
            self.waiters.pop(key, None)
            job.state, job.since = DEAD, self.now
        elif settlement.ending == "release" or settlement.ending in DEATHS:
            self._become_ready(job, self.now, first=True)
        else:
            self.totals["retried"] += settlement.ending == "retry"
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
            self._next_generation(job)
            self._become_ready(job, job.since, first=self.due_first)
        return len(due)

    def _take_back(self, after: Dump) -> bool:
        """Take claims of ended incarnations back. Which claims of the last one is the server's choice."""
        ended = sorted(
            (one.alive_until, incarnation.encode(), incarnation)
            for incarnation, one in self.incarnations.items()
            if one.alive_until <= self.now
        )
        lost: list[tuple[bytes, str, str]] = []
        for _, _, incarnation in ended[:SLICE_OF_INCARNATIONS]:
            held, kept = self.incarnations[incarnation].held, after.get(f"held:{incarnation}", {})
            taken = sorted((key for key in held if key.encode() not in kept), key=held.__getitem__)
            assert len(taken) == min(len(held), SLICE - len(lost))
            lost += [(held[key][:NUMBER_BYTES], key, incarnation) for key in taken]
        for claim, key, incarnation in sorted(lost):
            one = self.incarnations[incarnation]
            ending: Any = "loss" if one.worker and not one.supervised else "unseen"
            if self.jobs[key].suspect:
                ending = "crash" if one.host_deaths is None else "host"
            reason = HOST_GONE % one.host_deaths if ending == "host" else GONE
            why = Failure(reason=reason, worker=incarnation if one.worker else "")
            self._settle(one, Settlement(claim + key.encode(), why.encode(), ending))
        for _, _, incarnation in ended[:SLICE_OF_INCARNATIONS]:
            if not self.incarnations[incarnation].held:
                del self.incarnations[incarnation]
        return any(one.alive_until <= self.now for one in self.incarnations.values())

    @property
    def _untried(self) -> float | None:
        """For how many seconds a suspect has waited."""
        waiting = self.suspects()
        return (self.now - waiting[0].since) / 1000 if waiting else None

    def _judge_trial(self, mine: Incarnation, reply: TurnReply, trial: Trial) -> int:
        """The suspect that waits longest is claimed first, and no second one. Returns how many were claimed."""
        suspects = self.suspects()
        if not suspects or not trial:
            return 0
        assert reply.claims[0].id == suspects[0].id
        self._hand_out(suspects[0], reply.claims[0], mine)
        return 1

    def _hand_out(self, job: Job, claim: Claim, mine: Incarnation) -> None:
        self.seq += 1
        assert claim.token == self.seq.to_bytes(NUMBER_BYTES) + job.id.encode()
        job.state = RUNNING
        self._give_up(job, "s")
        assert claim.record.body == job.record()
        mine.held[job.id] = job.held(self.seq, self.now)

    def _judge_claims(self, mine: Incarnation, claims: Sequence[Claim], after: Dump) -> None:
        assert not (self.paused and claims)
        waiting: dict[int, Counter[str]] = {level: Counter() for level in LEVELS}
        for job in filter(self.claimable, self.jobs.values()):
            waiting[job.level][job.tenant] += 1
        level = 0
        for claim in claims:
            job = self.jobs[claim.id]
            ready = self.ready[job.level, job.tenant]
            assert job.id == next((key for key in ready if self.claimable(self.jobs[key])), None), "out of order"
            assert job.level >= level, "a more urgent job came after a less urgent one"
            self.fairness.served(job.level, job.tenant, set(+waiting[job.level]), self.weights)
            waiting[job.level][job.tenant] -= 1
            level = job.level
            ready.remove(job.id)
            self._hand_out(job, claim, mine)
        assert not any(+waiting[urgent] for urgent in range(level)), "a more urgent job was passed over"
        for job in self.in_state(READY):
            if job.id.encode() not in after.get("jobs", {}):
                assert not self.claimable(job), f"{job.id} is lost"
                self._finish(job, constants.EXPIRED)
                self._count_end("expired", job)

    # --- the key space ---

    def judge(self, dump: Dump) -> None:
        """Compare everything, and update which tenants `fairness` sees."""
        self._judge_jobs(dump)
        self._judge_order(dump)
        self._judge_counts(dump)
        self._judge_rows(dump)
        self._judge_wake(dump)
        bounds = [int(dump.get("meta", {}).get(name, 0)) for name in (b"bound", b"tenant_bound", b"refused")]
        assert bounds == [*self.bound, self.refused]
        claims = {
            name: {key: held for key, held in claims.items() if key} for name, claims in _family(dump, "held:").items()
        }
        assert claims == {
            f"held:{incarnation}": {key.encode(): claim for key, claim in one.held.items()}
            for incarnation, one in self.incarnations.items()
        }
        assert {key: owner.partition(b" ")[0] for key, owner in dump.get("owners", {}).items() if key} == {
            key.encode(): incarnation.encode() for incarnation, one in self.incarnations.items() for key in one.held
        }
        assert dict(dump.get("leases", [])) == {
            incarnation.encode(): float(one.alive_until) for incarnation, one in self.incarnations.items()
        }
        assert _family(dump, "settled:") == {
            f"settled:{incarnation}": sorted(tokens) for incarnation, tokens in self.settled.items()
        }
        assert _family(dump, "replay:") == {
            f"replay:{caller}": b"".join(map(msgspec.msgpack.encode, kept)) for caller, kept in self.replays.items()
        }

    def _judge_jobs(self, dump: Dump) -> None:
        jobs = self.jobs.values()
        assert dump.get("jobs", {}) == {job.id.encode(): job.record() for job in jobs}
        intake = dump.get("intake", [b""])
        assert intake[0] == b"", "an open intake begins with an empty text"
        assert [_id_of_call(value) for value in intake[1:]] == [job.id.encode() for job, _, _ in self.staged]
        assert dump.get("delayed", []) == [(job.entry(), float(job.since)) for job in self._delayed()]
        assert dict(dump.get("dead", [])) == {job.id.encode(): float(job.since) for job in self.in_state(DEAD)}
        kept = {id: Failures.read(packed).attempts for id, packed in dump.get("failures", {}).items()}
        runs = [one for attempts in kept.values() for one in attempts if one.outcome != "edited"]
        assert all(0 < (one.began or 0) <= one.ended for one in runs)
        assert {id: [replace(one, began=None) for one in attempts] for id, attempts in kept.items()} == {
            job.id.encode(): job.failures for job in jobs if job.failures
        }
        self._judge_results(dump)
        assert dump.get("unique", {}) == {key.encode(): job.encode() for key, job in self.keys.items()}
        windows = {
            name: (int.from_bytes(held[:6]), held[6:].decode()) for name, held in _family(dump, "throttle:").items()
        }
        assert {name: held for name, held in windows.items() if held[0] > self.now} == {
            f"throttle:{key}": held for key, held in self.windows.items() if held[0] > self.now
        }
        listeners = {key.encode(): " ".join(waiting).encode() for key, waiting in self.waiters.items()}
        assert dump.get("listeners", {}) == listeners

    def _judge_results(self, dump: Dump) -> None:
        """Results are kept as long as they must be. Overdue ones may be there still; each has an entry in `ends`."""
        found = dump.get("results", {})
        stored = {key.decode(): (int.from_bytes(text[:6]), text[RESULT_START:]) for key, text in found.items()}
        self.done = {key: kept for key, kept in self.done.items() if kept[0] > self.now or key in stored}
        assert stored == self.done
        ends = {(entry[6:].decode(), entry[:6]) for entries in _family(dump, "ends:").values() for entry in entries}
        assert ends >= {(key, until.to_bytes(6)) for key, (until, _) in self.done.items()}

    def _judge_order(self, dump: Dump) -> None:
        """Each ready job has one entry in the right list. All other entries belong to jobs that are gone."""
        assert dump.get("suspects", []) == [(job.entry(), float(job.since)) for job in self.suspects()]
        ready = {job.entry() for job in self.in_state(READY) if not job.suspect}
        found: dict[tuple[int, str], ReadyJobs] = defaultdict(ReadyJobs)
        entries: Counter[int] = Counter()
        for name in sorted(dump):  # heads before lanes
            kind, _, place = name.partition(":")
            if kind == "heads":
                for tenant, head in dump[name].items():
                    jobs = found[int(place), tenant.decode()]
                    jobs.lane.extend(entry_id(e).decode() for e in [_unmarked(head)] if e in ready)
                    entries[int(place)] += 1
                    assert entry_has_more(head) or f"lane:{place}:{tenant.decode()}" not in dump
            elif kind in ("lane", "front"):
                at, _, tenant = place.partition(":")
                assert kind == "front" or tenant.encode() in dump[f"heads:{at}"]
                getattr(found[int(at), tenant], kind).extend(entry_id(e).decode() for e in dump[name] if e in ready)
                entries[int(at)] += len(dump[name])
        meta = dump.get("meta", {})
        assert {level: int(meta.get(b"entries%d" % level, 0)) for level in LEVELS} == {
            level: entries[level] for level in LEVELS
        }
        assert int(meta.get(b"suspects", 0)) == len(self.suspects())
        assert {place: jobs for place, jobs in self.ready.items() if [*jobs]} == {
            place: jobs for place, jobs in found.items() if [*jobs]
        }
        for level in LEVELS:
            tenants = {tenant for place, tenant in found if place == level}
            assert {tenant.decode() for tenant, _ in dump.get(f"rotation:{level}", [])} == tenants
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
        assert int(meta.get(b"sequence", 0)) == self.seq
        by_tenant: dict[bytes, Counter[str]] = defaultdict(Counter)
        for job in self.jobs.values():
            by_tenant[job.tenant.encode()][PLACES[job.state]] += 1
        packed = {tenant: struct.pack(">4I", *(n[name] for name in places)) for tenant, n in by_tenant.items()}
        assert dump.get("tenants", {}) == packed
        ages = Counter(job.since // 1000 for job in self.in_state(READY))
        stored = {int(second): int(n) for second, n in dump.get("age", {}).items()}
        assert dump.get("ages", []) == [(b"%d" % second, float(second)) for second in sorted(stored)]
        if b"second_ready" in meta:
            stored[int(meta[b"second"])] = int(meta[b"second_ready"])
        assert stored == ages

    def _judge_rows(self, dump: Dump) -> None:
        """Each end of a job has one row, whatever was repeated. The histories are too short to drop any."""
        found: Counter[tuple[str, str]] = Counter()
        for name in ("finished", "failed"):
            blocks = [block[BLOCK_HEAD:] for block in dump.get(f"{name}:blocks", [])] + [dump.get(name, b"")]
            for row in (row for block in blocks for row in read_block("q", block)):
                assert row is not None
                found[row.id.removeprefix("q:"), row.outcome] += row.jobs
        assert found == self.rows
        kept: dict[str, tuple[bytes, dict[int, bytes]]] = {}
        found_blocks = _family(dump, "arguments:")
        for name in sorted(
            found_blocks, key=lambda name: int(name.partition(":")[2])
        ):  # the latest end of an id comes last
            found_records = {key.decode(): Record(body) for key, body in found_blocks[name].items()}
            kept |= {key: (one.payload, one.sections) for key, one in found_records.items()}
        assert kept == {
            key: (job.payload, read_sections(UNIQUE_KEY * bool(job.unique), job.sections)[0])
            for key, job in self.kept.items()
        }

    def _judge_wake(self, dump: Dump) -> None:
        """While a job is ready and a worker that takes it is idle, a wake-up is pending."""
        if (
            any(not job.suspect for job in self.in_state(READY))
            and not self.paused
            and any(till > self.now for who, till in dump.get("sleepers", []) if who not in ONLY_TRIALS)
        ):
            assert b"woken" in dump["meta"]


def _in_order(settlements: Sequence[Settlement]) -> Iterator[Settlement]:
    """The settlements in the order of a turn: of batches, completed with null, with a result, all others."""

    def place(one: Settlement) -> int:
        return 0 if one.jobs else 3 if one.ending else 1 + (one.data != b"null")

    return (each for one in sorted(settlements, key=place) for each in one.each())


def _family(dump: Dump, prefix: str) -> Dump:
    return {name: held for name, held in dump.items() if name.startswith(prefix)}


def _id_of_call(value: bytes) -> bytes:
    """The id in a value of the intake, behind time, number and caller (`_call` in intake.lua)."""
    at = 13 + value[12]
    return value[at + 1 : at + 1 + value[at]]


def _unmarked(head: bytes) -> bytes:
    return head[:6] + bytes([head[6] % 128]) + head[7:]


def _entries(dump: Dump) -> int:
    return sum(len(held) for name, held in dump.items() if name.startswith(("heads:", "lane:", "front:")))
