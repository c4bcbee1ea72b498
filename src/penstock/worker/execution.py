"""Runs one job: from the claimed record to the settlement that says how the run ended."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Literal, TypeVar

from msgspec import structs

from penstock import codec
from penstock.errors import BadCall, ProgramChanged, SealError, StepError
from penstock.jobs.batching import payloads_of_one_task, wrong_outcomes
from penstock.jobs.claims import Claim, Failure, Settlement
from penstock.jobs.current import running
from penstock.jobs.dependencies import ProcessLifetime
from penstock.jobs.durable_bindings import suspension
from penstock.jobs.registry import Registry
from penstock.jobs.retry import Drop, HeldSuspension, Retry, RetryLater
from penstock.jobs.sealed import open_call
from penstock.jobs.signature import UnknownName
from penstock.jobs.stage import Stage
from penstock.jobs.steps import Steps
from penstock.settings import Seal, WorkerSettings
from penstock.worker.batches import BatchRun, batch_run
from penstock.worker.error_text import cause_of, class_name, describe, encodable, traceback_of, with_cause
from penstock.worker.job_task import cancelled_by_others
from penstock.worker.run import JobRun
from penstock.worker.thread_timeout import ThreadTimeout, TimeIsUp, run_cancellable

log = logging.getLogger("penstock.worker")

T = TypeVar("T")

_SIMPLE = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})
"""Types of most results. To find out whether another object is awaitable takes longer than to call a short task."""

_MAX_REASON = 2_000
"""Characters of a reason to keep."""


class Execution:
    """Prepares and runs jobs. Every error of a job becomes a settlement; none is raised."""

    def __init__(
        self,
        registry: Registry,
        settings: WorkerSettings,
        max_payload: int,
        worker: str,
        lifetime: ProcessLifetime,
        release: str = "",
        seal: Seal | None = None,
    ) -> None:
        """
        seal             opens calls, and seals results; None: the app has no codec
        worker, release  the worker's name and its release, which are stored with each failure
        lifetime         the hooks and dependencies that live as long as the process
        """
        self._registry = registry
        self._settings = settings
        self._max_payload = max_payload
        self._worker, self._release = worker, release
        self._lifetime = lifetime
        self._seal = seal

    def prepare(self, claim: Claim, queue: str) -> JobRun | Settlement:
        """Decode the call in a claimed job of `queue`. Returns a settlement if this worker cannot run the job."""
        record = claim.record
        try:
            is_plain = record.is_plain_call
            if not is_plain and (refusal := self._cannot_read(claim)) is not None:
                return refusal
            name, sent = record.call
            definition = self._registry.get_encoded(name)
            if definition is None:
                return self._unknown(
                    claim, f"no task {record.task!r} in this worker; {self._registry.hint(record.task)}"
                )
            arguments = sent
            if not is_plain and record.needs_opening:
                sent, arguments = open_call(record, sent, self._seal)
            return JobRun(claim, definition, definition.signature.read(arguments, sent), queue)
        except SealError as error:
            return self._unknown(claim, str(error))
        except BadCall as error:
            return self._unread(claim, error)
        except Exception as error:
            return self._dead_letter(claim, describe(error))

    def _cannot_read(self, claim: Claim) -> Settlement | None:
        """Hand back a job that is a bare value, or that has a power that this release does not know."""
        if not claim.record.is_call:
            return self._unknown(claim, "a bare value, not a call of a task")
        if not claim.record.is_understood:
            return self._unknown(claim, "a newer Penstock enqueued it with an option that this one does not know")
        return None

    def prepare_batch(
        self, claims: Sequence[Claim], queue: str
    ) -> tuple[BatchRun | None, list[tuple[Claim, Settlement]]]:
        """Prepare a call with these claims: the run, and the settlements of the claims that this worker cannot run.

        None: it can run none of them.
        """
        if (alike := self._prepare_alike(claims, queue)) is not None:
            return alike, []
        prepared = [(claim, self.prepare(claim, queue)) for claim in claims]
        refused = [(claim, end) for claim, end in prepared if isinstance(end, Settlement)]
        runs = [run for _, run in prepared if isinstance(run, JobRun)]
        arguments = [run.arguments for run in runs]
        batch = batch_run([run.claim for run in runs], runs[0].definition, arguments, queue) if runs else None
        return batch, refused

    def _prepare_alike(self, claims: Sequence[Claim], queue: str) -> BatchRun | None:
        """Prepare the call together if all claims are valid calls of one task. None: prepare them one by one."""
        name, payloads = payloads_of_one_task([claim.record for claim in claims])
        definition = self._registry.get_encoded(name)
        if definition is None or (arguments := definition.signature.decode_all(payloads)) is None:
            return None
        return batch_run(claims, definition, arguments, queue)

    def _unknown(self, claim: Claim, reason: str) -> Settlement:
        """Hand the job back for a worker that knows its task, as in a rolling deploy.

        The server decides how long the job waits, and when it becomes a dead letter.
        """
        return self._hand_back(claim, reason, "unknown")

    def _hand_back(self, claim: Claim, reason: str, ending: Literal["unknown", "unread", "changed"]) -> Settlement:
        delay, limit = self._settings.unknown_backoff, self._settings.unknown_limit
        return Settlement(claim.token, self._reason(reason), ending, delay, limit)

    def _unread(self, claim: Claim, error: BadCall) -> Settlement:
        """Hand back a call that does not fit the task, for a worker of another release.

        Without such a worker it becomes a dead letter; unless it has a name that only a program of another release
        can have sent, because then its workers are still to come.
        """
        release = f" (release {self._release})" if self._release else ""
        return self._hand_back(claim, f"{error}{release}", "unknown" if isinstance(error, UnknownName) else "unread")

    def _changed(self, run: JobRun, steps: Steps, error: ProgramChanged) -> Settlement:
        """Hand back a job that this task cannot continue, for a worker of the release that has begun it."""
        first, reason = steps.first_release, describe(error)
        if first and first != self._release:
            reason = f"{reason} (release {first} has begun the job, and this is release {self._release})"
        return self._hand_back(run.claim, reason, "changed")

    # --- running ---

    def start(self, run: JobRun) -> Coroutine[Any, Any, Any]:
        """The coroutine of an `async def` task, with its hooks. Raises an error if the function cannot be called.

        Pass its result to `completed` and its exception to `failed`; or, once it has suspended, its rest to `finish`.
        """
        definition = run.definition
        is_rerun = run.claim.record.has_notes
        if definition.is_plain_coroutine_function and not (definition.middleware.execute_hooks or is_rerun):
            started: Coroutine[Any, Any, Any] = definition.signature.call(run.arguments)
            return started
        return self._call_and_await(run)

    async def run_async(self, run: JobRun, *, enforce_timeout: bool = True) -> Settlement:
        """Run an `async def` task on this loop.

        `enforce_timeout` False leaves the task's timeout to the caller.
        """
        running.set(run)
        if run.feed is None:
            run.asyncio_task = asyncio.current_task()
        try:
            started = self.start(run)
        except BaseException as error:
            return self.failed(run, error)
        return await self.finish(run, started, run.definition.timeout if enforce_timeout else None)

    async def finish(self, run: JobRun, rest: Awaitable[Any], timeout: float | None) -> Settlement:
        """Wait for the rest of an `async def` task, for at most `timeout` seconds.

        Raises CancelledError if code other than the job's had cancelled the run, whatever error the run then raised.
        """
        limit = asyncio.timeout(timeout) if timeout is not None else None
        try:
            if limit is None:
                result = await rest
            else:
                async with limit:
                    result = await rest
        except BaseException as error:
            if run.steps is not None and run.steps.ended_for_children(error):
                return self.failed(run, error)
            if cancelled_by_others(run):
                raise asyncio.CancelledError from error
            if isinstance(error, TimeoutError) and limit is not None and limit.expired():
                return self.timed_out(run)
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                return self.cancelled_itself(run)
            return self.failed(run, error)
        finally:
            if run.steps is not None:
                run.steps.close()
        return self.completed(run, result)

    def run_blocking(self, run: JobRun, timeout: ThreadTimeout | None = None) -> Settlement:
        """Run a `def` task in the current thread; `timeout` interrupts it there."""
        try:
            result = self._call(run, timeout)
        except TimeIsUp as error:
            return self.timed_out(run, error)
        except BaseException as error:
            return self.failed(run, error)
        return self.completed(run, result)

    async def run_in_async_hooks(
        self,
        run: JobRun,
        submit: Callable[[Callable[[], None]], None],
        start_timeout: Callable[[JobRun], ThreadTimeout | None] = lambda _: None,
    ) -> Settlement:
        """Run a `def` task in another thread, inside the `async def` hooks, which run on this loop.

        `submit` hands a call to that thread. `start_timeout` is called once the hooks have been entered.
        """
        running.set(run)
        result: Any = None
        try:
            async with run.definition.middleware.around_thread(run.context):
                timeout = start_timeout(run)
                result, error = await _call_in_thread(submit, lambda: self._call(run, timeout))
                if error is not None:
                    raise error
        except TimeIsUp as error:
            return self.timed_out(run, error)
        except BaseException as error:
            if cancelled_by_others(run):
                raise asyncio.CancelledError from error
            return self.failed(run, error)
        return self.completed(run, result)

    def _call(self, run: JobRun, timeout: ThreadTimeout | None) -> Any:
        """Call a `def` task, with its timeout and inside the `def` hooks."""
        running.set(run)
        call: Callable[[Any], Any] = run.definition.signature.call
        argument: Any = run.arguments
        if run.definition.signature.dependencies:
            call, argument = self._call_with_dependencies, run
        if run.definition.middleware.sync_hooks:
            call, argument = self._call_inside_hooks, run
        result = run_cancellable(run, call, argument) if timeout is None else timeout.run(call, argument)
        if type(result) not in _SIMPLE and inspect.isawaitable(result):
            raise TypeError(f"task {run.definition.name} returned an awaitable: make it an `async def`")
        return result

    def _call_inside_hooks(self, run: JobRun) -> Any:
        result: Any = None
        with run.definition.middleware.around_sync_task(run.context):
            result = self._call_with_dependencies(run)
        return result

    def _call_with_dependencies(self, run: JobRun) -> Any:
        signature, result = run.definition.signature, None
        if not signature.dependencies:
            return signature.call(run.arguments)
        held = HeldSuspension()
        with ExitStack() as stack:
            values = self._lifetime.enter(stack, signature.dependencies)
            with held:
                result = signature.call(run.arguments, values)
        held.release()
        return result

    async def _call_and_await(self, run: JobRun) -> Any:
        """Call an `async def` task, inside the hooks if there are any. What the job has recorded is read before."""
        definition = run.definition
        if run.claim.record.has_notes and not run.batch:
            run.steps = Steps(run)
            await run.steps.load_early()
        if not definition.middleware.execute_hooks:
            return await self._await_with_dependencies(run)
        result: Any = None
        async with definition.middleware.around_async_task(run.context):
            result = await self._await_with_dependencies(run)
        return result

    async def _await_with_dependencies(self, run: JobRun) -> Any:
        signature, result = run.definition.signature, None
        if not signature.dependencies:
            return await signature.call(run.arguments)
        held = HeldSuspension()
        async with AsyncExitStack() as stack:
            values = await self._lifetime.enter_async(stack, signature.dependencies)
            with held:
                result = await signature.call(run.arguments, values)
        held.release()
        return result

    def completed(self, run: JobRun, result: Any) -> Settlement:
        """The settlement of a run that returned `result`."""
        if run.steps is not None and run.steps.suspension is not None:
            return self.failed(
                run,
                StepError(
                    "the task has caught the exception by which sleep(), wait_for() and run() end a run: catch "
                    "Exception, not BaseException, and use no bare `except:`"
                ),
            )
        if isinstance(run, BatchRun):
            return self._batch_completed(run, result)
        if run.stage is not None:
            return self._completed_with_effects(run, run.stage, result)
        if result is None or run.claim.record.ttl == 0:  # as for most jobs, which are spared a call
            return Settlement(run.claim.token)
        return self._with_result(run, run.claim, result)

    def _with_result(self, run: JobRun, claim: Claim, result: Any) -> Settlement:
        if result is None or claim.record.ttl == 0:
            return Settlement(claim.token)
        try:
            what = f"the result of {run.definition.name}"
            data = codec.encode(result, limit=self._max_payload, what=what, seal=self._seal)
            return Settlement(claim.token, data)
        except Exception as error:
            explains_itself = isinstance(error, BadCall | SealError)
            reason = str(error) if explains_itself else f"its result cannot be encoded: {describe(error)}"
            return self._dead_letter(claim, reason)

    def _batch_completed(self, run: BatchRun, outcomes: Any) -> Settlement:
        """Settle each job of a batch by its own outcome. Wrong outcomes make all of them dead letters."""
        if outcomes is None:
            run.outcomes = [Settlement(claim.token) for claim in run.batch]
            return run.outcomes[0]
        if why := wrong_outcomes(run.definition.name, outcomes, len(run.batch)):
            return self._dead_letter(run.claim, why)
        run.outcomes = [
            self.failed(run.of_job(claim), outcome)
            if isinstance(outcome, BaseException)
            else self._with_result(run, claim, outcome)
            for claim, outcome in zip(run.batch, outcomes, strict=True)
        ]
        return run.outcomes[0]

    def _completed_with_effects(self, run: JobRun, stage: Stage, result: Any) -> Settlement:
        run.stage = None
        settlement = self.completed(run, result)
        if settlement.ending is None and stage:
            return structs.replace(settlement, effects=stage.pack(), weight=stage.weight)
        return settlement

    # --- runs that did not complete ---

    def cancelled_itself(self, run: JobRun) -> Settlement:
        """The settlement of a run that raised CancelledError after its own code had cancelled it."""
        return self.failed(run, asyncio.CancelledError("the task cancelled itself"))

    def cancelled(self, run: JobRun) -> Settlement:
        """The settlement of a run whose job was cancelled in the server."""
        return Settlement(run.claim.token, b"", "cancel")

    def timed_out(self, run: JobRun, cause: BaseException | None = None) -> Settlement:
        """The settlement of a run that exceeded its timeout. The traceback of `cause` shows where the task was then."""
        if run.cancelled:
            return self.cancelled(run)
        error = TimeoutError(f"ran longer than its timeout of {run.definition.timeout:g} s")
        error.__cause__ = cause
        return self.failed(run, error)

    def unavailable(self, run: JobRun, reason: str) -> Settlement:
        """Hand the job back, as for an unknown task: this process knows the task, but cannot run it."""
        return self._unknown(run.claim, reason)

    def crashed(self, run: JobRun, cause: str) -> Settlement:
        """The settlement of a run whose own process died: the job is charged with a crash."""
        return Settlement(run.claim.token, self._reason(cause), "contained")

    def lost(self, run: JobRun, cause: str) -> Settlement:
        """The settlement of a run whose process died because another one died, through no fault of the job."""
        return Settlement(run.claim.token, self._reason(cause), "loss")

    def interrupted(self, run: JobRun, cause: str, *, in_trial: bool) -> Settlement:
        """The settlement of a run that other code ended, perhaps because of the job: a loss or, in a trial, a crash."""
        return self.crashed(run, cause) if in_trial else self.lost(run, cause)

    def could_not_start(self, run: JobRun, error: OSError) -> Settlement:
        """Hand back a job that could not start for lack of memory or file descriptors. It is not charged."""
        log.error("job %s (%s) is handed back: %s", run.context.id, run.definition.name, error)
        return Settlement(run.claim.token, self._reason(describe(error)), "later", self._settings.unknown_backoff)

    def failed(self, run: JobRun, error: BaseException) -> Settlement:
        """Decide what follows a run that raised `error`: a retry, a postponement, a drop or a dead letter.

        If the decision itself fails, for example because a condition of its retry policy raises, the job becomes a dead
        letter.
        """
        if isinstance(run, BatchRun):
            run.outcomes = [self.failed(run.of_job(claim), error) for claim in run.batch]
            return run.outcomes[0]
        try:
            if run.steps is not None and run.steps.error is not None:
                error = run.steps.error
            if run.steps is not None and run.steps.suspension is not None and not isinstance(error, Exception):
                step, signal, seconds = run.steps.suspension
                return Settlement(run.claim.token, suspension(step, signal), "suspend", seconds)
            return self._decide(run, error)
        except BaseException as own:
            return self._dead_letter(run.claim, f"{class_name(error)}, which cannot be handled: {describe(own)}")

    def _decide(self, run: JobRun, error: BaseException) -> Settlement:
        claim = run.claim
        if isinstance(error, Drop):
            why = encodable(str(error))
            return Settlement(claim.token, why[:_MAX_REASON].encode(), "drop")
        if isinstance(error, RetryLater) and not error.attempt:
            return self._postponed(claim, error)
        if isinstance(error, ProgramChanged) and run.steps is not None:
            return self._changed(run, run.steps, error)
        if isinstance(error, StepError):
            return self._dead_letter(claim, describe(error), traceback_of(error))
        if isinstance(error, SealError) and error.key:  # a step that another worker recorded, or a message
            return self._unknown(claim, str(error))
        policy = run.definition.retry
        cause: BaseException = error
        attempt = claim.record.attempts + 1
        if isinstance(error, Retry):
            if error.times is not None:
                policy = error
            elif not policy.times and not run.definition.never_retries:
                policy = Retry()
            cause = cause_of(error) or error
            retry = True
        else:
            retry = isinstance(error, RetryLater) or policy.applies(error)
        reason, text = describe(cause), "" if isinstance(cause, Retry) else traceback_of(cause)
        if isinstance(error, RetryLater):
            reason = with_cause(reason, error)
        if retry and policy.left(attempt):
            delay = policy.delay(attempt) if not isinstance(error, RetryLater) else error.seconds or 0.0
            return Settlement(claim.token, self._reason(reason, text), "retry", delay)
        if isinstance(error, Retry) and run.definition.never_retries and policy is not error:
            reason = f"{reason} (the task raised Retry and is defined with retry=0, so it is not retried)"
        return self._dead_letter(claim, reason, text)

    def _postponed(self, claim: Claim, error: RetryLater) -> Settlement:
        reason = self._reason(with_cause(str(error), error))
        if error.date is not None:
            return Settlement(claim.token, reason, "until", error.date)
        return Settlement(claim.token, reason, "later", error.seconds or 0.0)

    def _dead_letter(self, claim: Claim, reason: str, text: str = "") -> Settlement:
        return Settlement(claim.token, self._reason(reason, text), "bury")

    def _reason(self, reason: str, text: str = "") -> bytes:
        why = Failure(
            worker=self._worker,
            reason=encodable(reason)[:_MAX_REASON],
            release=self._release,
            traceback=encodable(text),
        )
        return why.encode()


def _is_cancelled() -> bool:
    """Whether the current asyncio task was cancelled. If not, something that the job awaited was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _call_in_thread(
    submit: Callable[[Callable[[], None]], None], call: Callable[[], Any]
) -> tuple[Any, BaseException | None]:
    """Run `call` in the thread that `submit` hands it to, in the current context. Return its result and its exception.

    The exception is returned, not raised, because a coroutine cannot raise StopIteration.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def work() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = context.run(call), None
        except BaseException as error:
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
            loop.call_soon_threadsafe(_set_result, ended, outcome)

    submit(work)
    return await ended


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)
