"""One queue as a worker sees it: its incarnation there, its turns, and the jobs that it holds."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from penstock.core.ids import mint_id
from penstock.core.operations import RoundTrip, recheck_delay
from penstock.errors import FormatTooNew, ServerError
from penstock.jobs import effort
from penstock.jobs.batching import Batch
from penstock.jobs.claims import Claim, Failure, Registration, Settlement, TurnReply, claim_number
from penstock.jobs.finished import CompletedRows
from penstock.jobs.record import FLAGS_AT
from penstock.jobs.shard import Shard
from penstock.settings import SLEEPER_TTL_FACTOR, MiB
from penstock.worker.emitted import PendingOutput
from penstock.worker.notes import MOST_NOTES, PendingNotes
from penstock.worker.processes import resident_kib
from penstock.worker.shared_status import QueueStatus

log = logging.getLogger("penstock.worker")

MAX_SETTLEMENTS = 250
"""Completions of jobs without limits that one turn carries, and claims that it asks for; keeps a turn below a few
milliseconds of server time."""

_SMALL = MiB // MAX_SETTLEMENTS
"""The bytes of a result that need not be counted, because as many as one turn carries fit into it."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
"""Seconds between two tries to reach a server that does not answer. The pause doubles each time."""

_WARN_INTERVAL = 60.0
"""Seconds between two warnings that a server does not answer."""


_MEMORY_INTERVAL = 2.0
"""Seconds between two turns that report how much memory the process has."""

_MOST_IN_VAIN, _PAUSE_IN_VAIN = 20, 0.1
"""After `_MOST_IN_VAIN` turns in quick succession that found no job, each further wake-up takes effect only after
`_PAUSE_IN_VAIN` seconds. Otherwise a worker would spin if a server wakes it again and again without having work."""


class Feed:
    """Builds the turns of an incarnation and applies their replies. When the incarnation has ended, begins a new one.

    If the reply to a turn is lost, the same turn is sent again. The server recognises its number, returns the same
    jobs, and settles nothing twice.
    """

    def __init__(
        self,
        shard: Shard,
        lease: float,
        sleep: float,
        registration: Registration,
        slot: int = 0,
        batch: Batch | None = None,
        *,
        burst: bool = False,
        round_due: asyncio.Event | None = None,
    ) -> None:
        """
        sleep         an idle worker registers again after this many seconds
        registration  what the worker reports about itself in its first turn
        slot          the position of the queue among all that the process may serve
        batch         the batch options of the queue's task; None: it gets its jobs one by one
        burst         do not wait for a batch to fill up
        round_due     an event that the feed sets when a turn becomes due, so that the worker begins a round
        """
        self.shard = shard
        self.seal = shard.settings.seal
        self.slot = slot
        self.batch = batch
        self._waits = not (burst and batch)
        self._round_due = round_due or asyncio.Event()
        if batch is not None:
            registration = structs.replace(registration, batch=batch.declared)
        self._worker = self._registration = registration
        self._publish: Callable[[QueueStatus], None] = lambda _: None
        self.lease = lease
        self.sleep = sleep
        self.address = ""
        """Where wake-ups are sent to; set before the first turn."""
        self.held: dict[bytes, Claim] = {}
        """The held claims by their tokens."""
        self.rows = CompletedRows(registration.name, registration.release.name)
        """The rows of completed jobs that no turn has carried yet."""
        self.trial = False
        """Whether the turns claim suspects only."""
        self.untried_since: float | None = None
        """`time.monotonic()` when the first suspect of the queue began to wait; None: the last turn saw no suspect."""
        self.to_settle: list[Settlement] = []
        """The settlements that no turn has carried yet."""
        self.notes = PendingNotes(self.seal)
        """The reports of the running jobs that no turn has carried yet."""
        self.output = PendingOutput(self.seal)
        """What the running jobs have emitted and no turn has carried yet."""
        self.awake = True
        """False while the worker is registered as idle in this queue, or waits for the next due time."""
        self.wake_at = 0.0
        """`time.monotonic()` at which the next turn is due, even if no runner is free."""
        self.tick_at = math.inf
        """`time.monotonic()` at which a turn is due although no runner is free, because a schedule has a tick."""
        self.is_quiet = False
        """Whether the worker claims no more jobs, and stays registered."""
        self.renewed_at = 0.0
        self._in_vain, self._last_in_vain = 0, 0.0
        self._has_met_costly = False
        """Whether some claimed job was costly to complete: only then the ends of jobs are weighed."""
        self._begin_incarnation()

    def _begin_incarnation(self) -> None:
        self.incarnation = mint_id()
        self.turns = 0
        self._unanswered: RoundTrip[TurnReply] | None = None
        self._wanted = 0
        self._sent: list[Settlement] = []
        self.held.clear()
        self.rows.clear()
        self.to_settle.clear()
        self.notes.clear()
        self.output.clear()
        self.awake = True
        self.wake_at = 0.0
        self._memory_at = 0.0
        self._publish(self._status)

    @property
    def runs_one_job(self) -> bool:
        """Whether the worker's settings let it run only one job at a time. False in a trial, which always does so."""
        return self._worker.concurrency == 1 and not self.trial

    def has_supervisor(self) -> None:
        """Report to the server that another process watches this one. Call it before the first turn."""
        self._worker = self._registration = structs.replace(self._worker, supervised=True)

    def begin_trials(self, host_deaths: int | None) -> None:
        """Begin a new incarnation, which claims one suspect at a time and nothing else.

        host_deaths  see `WorkerSettings`; None: the process has no supervisor, so if its lease runs out, its job is
                     charged with a crash
        """
        self._begin_as(True, structs.replace(self._worker, concurrency=1, host_deaths=host_deaths, trial=True))

    def end_trials(self) -> None:
        """Begin a new incarnation, which claims any job that is not a suspect."""
        self._begin_as(False, self._worker)

    def _begin_as(self, trial: bool, registration: Registration) -> None:
        self.trial, self._registration = trial, registration
        self._begin_incarnation()

    @property
    def _status(self) -> QueueStatus:
        return QueueStatus(self.incarnation, self.renewed_at, bool(self.held))

    def publish_status(self, publish: Callable[[QueueStatus], None]) -> None:
        """Call `publish` with the status now, and again at each new incarnation and each renewal of the lease."""
        self._publish = publish
        publish(self._status)

    def wants_turn(self, can_claim: bool) -> bool:
        """Whether a turn is due even if the worker has nothing to send. `can_claim`: the worker has room for a job."""
        return min(self.wake_at, self.tick_at) <= time.monotonic() or (self.awake and can_claim)

    def settle(self, *settlements: Settlement) -> None:
        """Keep these settlements for the next turns, which carry them to the server."""
        self.to_settle += settlements

    def settle_batch(self, settlements: Sequence[Settlement]) -> None:
        """As `settle`, for a batch: as one if its jobs are completed without results, and nothing is left to report."""
        tokens = tuple([one.token for one in settlements])
        numbers_rise_by_one = claim_number(tokens[-1]) - claim_number(tokens[0]) == len(tokens) - 1
        if (
            1 < len(tokens) <= MAX_SETTLEMENTS
            and numbers_rise_by_one
            and not (self.notes or self.output)
            and all(one.ending is None and one.data == b"null" for one in settlements)
        ):
            self.to_settle.append(Settlement(tokens[0], jobs=tokens))
        else:
            self.to_settle += settlements

    def hand_back(self, claims: Iterable[Claim]) -> None:
        """Return claims to the queue, as if they had not been claimed."""
        self.settle(*(Settlement(claim.token, b"", "release") for claim in claims))

    async def take_turn(self, want: int, *, leave: bool = False, give_up: Callable[[], bool]) -> TurnReply:
        """Take a turn, and repeat it unchanged until the server answers. See `turn`.

        Raises FormatTooNew at once. Raises any other ServerError if `give_up()` returns true when it occurs.
        """
        pause, warned_at = 0.0, -math.inf
        while True:
            sent_at = time.monotonic()
            try:
                reply = await self.shard._driver.aio.run(self.turn(want, leave=leave))
            except FormatTooNew:
                raise
            except ServerError as error:
                if give_up():
                    raise
                pause = min(_LONGEST_PAUSE, pause * 2 or _FIRST_PAUSE)
                if time.monotonic() - warned_at >= _WARN_INTERVAL:
                    warned_at = time.monotonic()
                    log.warning("the server does not answer, trying again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
            else:
                if pause:
                    log.info("the server answers again")
                self.answered(reply, sent_at)
                return reply

    def turn(self, want: int, *, leave: bool = False) -> RoundTrip[TurnReply]:
        """Return the next turn, which asks for up to `want` jobs. While a turn is unanswered, return that one again.

        `leave`: end the incarnation if it holds no job after this turn.
        """
        if self._unanswered is None:
            self.turns += 1
            n = self._count_to_send()
            self._sent, self.to_settle = self.to_settle[:n], self.to_settle[n:]
            tokens = [token for one in self._sent for token in one.tokens] if self.notes or self.output else ()
            emitted = self.output.take(tokens, self.held) if self.output else ()
            if self.output:
                self._settle_after_output()
            # A wake-up may arrive before the reply. Reset this now, so that the reply does not overwrite the wake-up.
            self.wake_at = self.tick_at = math.inf
            if self.batch is None:
                want = min(want, MAX_SETTLEMENTS)
            self._wanted = want
            self._unanswered = self.shard.bindings.turn(
                self.incarnation,
                self.turns,
                lease=self.lease,
                want=want,
                settlements=self._sent if self.seal is None else [one.sealed(self.seal) for one in self._sent],
                trial="only" if self.trial else "",
                address=self.address,
                sleep=self.sleep * SLEEPER_TTL_FACTOR if want and self._waits and not self.trial else 0.0,
                once=leave,
                memory=self._memory(),
                registration=structs.replace(self._registration, address=self.address) if self.turns == 1 else None,
                notes=self.notes.take(tokens) if self.notes else (),
                emitted=emitted,
                rows=self.rows.take,
            )
        return self._unanswered

    def _memory(self) -> int:
        """What the turn reports of the process's memory: KiB, or 0 if another turn did so a moment ago."""
        now = time.monotonic()
        if now < self._memory_at:
            return 0
        self._memory_at = now + _MEMORY_INTERVAL
        return resident_kib()

    def _settle_after_output(self) -> None:
        """Let a later turn settle each job of whose output this turn does not carry all."""
        later = [one for one in self._sent if any(map(self.output.has, one.tokens))]
        if later:
            self._sent = [one for one in self._sent if not any(map(self.output.has, one.tokens))]
            self.to_settle = [*later, *self.to_settle]

    def _count_to_send(self) -> int:
        """How many settlements the next turn carries.

        The server rewrites the whole record of a job that does not simply complete, so one turn carries settlements
        for at most 1 MiB of such records, results and staged effects, or a single larger one; and for fewer jobs than
        `MAX_SETTLEMENTS` if their ends cost more than those of ordinary ones.
        """
        most = MOST_NOTES if self.notes else MAX_SETTLEMENTS  # a job is not settled before its notes are sent
        some, jobs, size, spent = self.to_settle[:most], 0, 0, 0
        if not self._has_met_costly:
            for one in some:  # not `any`: its generator would be called for each settlement
                if one.ending or one.weight or one.jobs or len(one.data) > _SMALL:
                    break
            else:
                return most
        for position, settlement in enumerate(some):
            jobs += len(settlement.tokens)
            size += len(settlement.data) + settlement.weight
            is_ordinary = settlement.ending is None and not self._has_met_costly
            if not is_ordinary and (claim := self.held.get(settlement.token)) is not None:
                is_completed, text = settlement.ending is None, len(settlement.data)
                spent += effort.of_end(claim.record, is_completed=is_completed, text=text)
                if settlement.ending:
                    size += len(claim.record.body)
            if (jobs > most or size > MiB or spent > MAX_SETTLEMENTS) and position:
                return position
        return most

    def answered(self, turn: TurnReply, sent_at: float) -> list[Claim]:
        """Apply the reply to a turn that was sent at `sent_at`. Returns the new claims.

        If the incarnation has ended, everything that it held is dropped and a new incarnation begins.
        """
        self._unanswered = None
        if not turn.alive:
            if self.held:
                log.warning(
                    "lease lost on queue %s: this worker's results for %d jobs are ignored",
                    self.shard.name,
                    len(self.held),
                )
            self._begin_incarnation()
            return []
        for settlement in self._sent:
            for token in settlement.tokens:
                self.held.pop(token, None)
        self.output.forget(self._sent)
        for settlement in turn.stale:
            log.warning("settlement of job %s:%s refused: the job was taken back", self.shard.name, settlement.id)
        for settlement in turn.buried:
            log.error(
                "job %s:%s is a dead letter: no other worker could run it: %s",
                self.shard.name,
                settlement.id,
                Failure.read(settlement.data).reason,
            )
        self._sent = []
        self.held.update([(claim.token, claim) for claim in turn.claims])
        if not self._has_met_costly:
            for claim in turn.claims:
                if claim.record.body[FLAGS_AT] & effort.COSTLY:
                    self._has_met_costly = True
                    break
        self.lease_renewed(sent_at)
        self._note_in_vain(turn)
        self.untried_since = None if turn.suspect is None else sent_at - turn.suspect
        # After a turn that asked for no jobs `awake` is True: its reply does not show whether there are jobs, and the
        # server did not register the worker as idle.
        self.awake = len(turn.claims) == self._wanted or turn.more
        if self.awake and turn.due_in is not None:
            self.tick_at = time.monotonic() + turn.due_in
        due = self.sleep if turn.due_in is None else min(self.sleep, turn.due_in)
        self.wake_at = min(self.wake_at, time.monotonic() + due)
        return turn.claims

    def _note_in_vain(self, turn: TurnReply) -> None:
        now = time.monotonic()
        if turn.claims or turn.more or not self._wanted or now - self._last_in_vain > 2 * _PAUSE_IN_VAIN:
            self._in_vain = 0
        self._in_vain, self._last_in_vain = self._in_vain + 1, now

    def lease_renewed(self, sent_at: float) -> None:
        """The server accepted a turn or a heartbeat that was sent at this time."""
        self.renewed_at = max(self.renewed_at, sent_at)
        self._publish(self._status)

    @property
    def must_send(self) -> bool:
        """Whether settlements, reports or output that are due, or an unanswered turn must reach the server."""
        return bool(self.to_settle) or self._unanswered is not None or self.notes.are_due or self.output.are_due

    def start_notes(self) -> None:
        """From now on, begin a round when reports or output of the jobs are due. Call it on the worker's loop."""
        loop = asyncio.get_running_loop()
        self.notes.start(loop, self._round_due.set)
        self.output.start(loop, self._round_due.set)

    def wake_up(self, message: str) -> None:
        """Make the next turn due at the time that this wake-up names."""
        pause = _PAUSE_IN_VAIN if self._in_vain > _MOST_IN_VAIN else 0.0
        self.wake_at = min(self.wake_at, time.monotonic() + max(pause, recheck_delay(message)))
        self._round_due.set()

    def look_again(self) -> None:
        """Make a turn due now."""
        self.wake_at = 0.0
        self._round_due.set()

    def lease_refused(self, incarnation: str) -> None:
        """The server refused a heartbeat. Take a turn: if the server refuses that too, a new incarnation begins."""
        if self.incarnation == incarnation:
            self.look_again()
