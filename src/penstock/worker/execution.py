"""Runs one job: from the claimed record to the settlement that says how the run ended."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock import codec
from penstock.core.clock import milliseconds
from penstock.errors import BadCall
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.definition import Definition
from penstock.jobs.job import Failure
from penstock.jobs.registry import Registry
from penstock.jobs.retry import Drop, Retry, RetryLater
from penstock.jobs.signature import split_payload
from penstock.settings import WorkerSettings
from penstock.worker.thread_timeout import ThreadTimeout, TimeIsUp

log = logging.getLogger("penstock.worker")

_MAX_TRACEBACK = 16_000
"""Characters of a traceback to keep, counted from its end: the place of the error matters more than the way there."""

_MAX_REASON = 4_000
"""Characters of a reason to keep."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """A claim that this worker can run: its task and its decoded arguments."""

    claim: Claim
    definition: Definition
    arguments: msgspec.Struct


class Execution:
    """Prepares and runs jobs. Every error of a job becomes a settlement; none is raised."""

    def __init__(self, registry: Registry, settings: WorkerSettings, max_payload: int, worker: str) -> None:
        """`worker` is the worker's name, which reasons of failures mention."""
        self._registry = registry
        self._settings = settings
        self._max_payload = max_payload
        self._worker = worker

    def prepare(self, claim: Claim) -> JobRun | Settlement:
        """Decode the call. Returns a settlement if this worker cannot run the job."""
        try:
            if not claim.record.is_call:
                return self._unknown(claim, "a bare value, not a call of a task")
            name, arguments = split_payload(claim.record.payload)
            definition = self._registry.get(name)
            if definition is None:
                return self._unknown(claim, f"no task {name!r} in this worker")
            return JobRun(claim, definition, definition.signature.decode(arguments))
        except Exception as error:
            reason = str(error) if isinstance(error, BadCall) else _describe(error)
            log.error("job %s cannot be read: %s", claim.id, reason)
            return self._dead_letter(claim, reason)

    def _unknown(self, claim: Claim, reason: str) -> Settlement:
        """Hand the job back for a worker that knows its task, as in a rolling deploy.

        The server decides how long the job waits, and when it becomes a dead letter.
        """
        log.warning("job %s handed back: %s", claim.id, reason)
        why = Failure(_encodable(reason), "", self._worker, milliseconds(self._settings.unknown_limit))
        return Settlement(claim.token, msgspec.json.encode(why), "unknown", self._settings.unknown_backoff)

    # --- running ---

    async def run_async(self, run: JobRun, *, enforce_timeout: bool = True) -> Settlement:
        """Run an `async def` task on this loop.

        `enforce_timeout` False leaves the task's timeout to the caller.
        """
        timeout = run.definition.timeout if enforce_timeout else None
        limit = asyncio.timeout(timeout) if timeout is not None else None
        try:
            if limit is None:
                result = await run.definition.signature.call(run.arguments)
            else:
                async with limit:
                    result = await run.definition.signature.call(run.arguments)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self.failed(run, error)
        except TimeoutError as error:
            if limit is not None and limit.expired():
                return self.timed_out(run)
            return self.failed(run, error)
        except BaseException as error:
            return self.failed(run, error)
        return self._completed(run, result)

    def run_blocking(self, run: JobRun, timeout: ThreadTimeout | None = None) -> Settlement:
        """Run a `def` task in the current thread; `timeout` interrupts it there."""
        try:
            if timeout is None:
                result = run.definition.signature.call(run.arguments)
            else:
                result = timeout.run(lambda: run.definition.signature.call(run.arguments))
            if inspect.isawaitable(result):
                raise TypeError(f"task {run.definition.name} returned an awaitable: make it an `async def`")
        except TimeIsUp as error:
            return self.timed_out(run, error)
        except BaseException as error:
            return self.failed(run, error)
        return self._completed(run, result)

    def _completed(self, run: JobRun, result: Any) -> Settlement:
        if run.claim.record.ttl == 0 or result is None:
            return Settlement(run.claim.token)
        try:
            what = f"the result of {run.definition.name}"
            return Settlement(run.claim.token, codec.encode(result, limit=self._max_payload, what=what))
        except Exception as error:
            reason = str(error) if isinstance(error, BadCall) else f"its result cannot be encoded: {_describe(error)}"
            log.error("job %s ran, but is a dead letter: %s", run.claim.id, reason)
            return self._dead_letter(run.claim, reason)

    # --- runs that did not complete ---

    def cancelled_itself(self, run: JobRun) -> Settlement:
        """The task raised CancelledError, and the worker had not cancelled it."""
        return self.failed(run, asyncio.CancelledError("the task cancelled itself"))

    def timed_out(self, run: JobRun, cause: BaseException | None = None) -> Settlement:
        """The run took longer than its task's timeout. The traceback of `cause` shows where it was."""
        error = TimeoutError(f"ran longer than its timeout of {run.definition.timeout:g} s")
        error.__cause__ = cause
        return self.failed(run, error)

    def crashed(self, run: JobRun, cause: str, *, alone: bool = True) -> Settlement:
        """The run's process died.

        The job is charged with a crash if it was `alone`. If other runs died with it, each becomes a suspect.
        """
        log.error("job %s (%s) has crashed: %s", run.claim.id, run.definition.name, cause)
        return Settlement(run.claim.token, self._reason(cause), "crash" if alone else "suspect")

    def could_not_start(self, run: JobRun, error: OSError) -> Settlement:
        """There was no memory or no descriptor to start the run: it is handed back and not charged."""
        log.error("job %s (%s) is handed back: %s", run.claim.id, run.definition.name, error)
        return Settlement(run.claim.token, self._reason(_describe(error)), "later", self._settings.unknown_backoff)

    def failed(self, run: JobRun, error: BaseException) -> Settlement:
        """The run raised `error`: retry, later, drop or dead letter.

        An error that breaks this decision itself, such as one whose `__str__` raises, makes a dead letter.
        """
        try:
            return self._decide(run, error)
        except Exception as own:
            log.error("job %s is a dead letter: its %s cannot be handled: %s", run.claim.id, type(error).__name__, own)
            return self._dead_letter(run.claim, f"{type(error).__name__}, which cannot be handled: {_describe(own)}")

    def _decide(self, run: JobRun, error: BaseException) -> Settlement:
        claim, name = run.claim, run.definition.name
        if isinstance(error, Drop):
            why = _encodable(str(error))
            log.info("job %s (%s) dropped: %s", claim.id, name, why)
            return Settlement(claim.token, why[:_MAX_REASON].encode(), "drop")
        if isinstance(error, RetryLater):
            log.info("job %s (%s) runs again in %g s: %s", claim.id, name, error.seconds, _encodable(str(error)))
            return Settlement(claim.token, self._reason(str(error)), "later", error.seconds)
        policy = run.definition.retry
        attempt = claim.record.attempts + 1
        if isinstance(error, Retry):
            policy = error if error.times is not None else policy if policy.times else Retry()
            retry = True
        else:
            retry = policy.applies(error)
        reason = _describe(error)
        text = "" if isinstance(error, Retry) else "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]
        if retry and policy.left(attempt):
            delay = policy.delay(attempt)
            log.warning("job %s (%s) failed, attempt %d, again in %.1f s: %s", claim.id, name, attempt, delay, reason)
            return Settlement(claim.token, self._reason(reason, text), "retry", delay)
        log.error("job %s (%s) is a dead letter after attempt %d: %s", claim.id, name, attempt, reason)
        return self._dead_letter(claim, reason, text)

    def _dead_letter(self, claim: Claim, reason: str, text: str = "") -> Settlement:
        return Settlement(claim.token, self._reason(reason, text), "bury")

    def _reason(self, reason: str, text: str = "") -> bytes:
        return msgspec.json.encode(Failure(_encodable(reason)[:_MAX_REASON], _encodable(text), self._worker))


def _encodable(text: str) -> str:
    """The text with lone surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _describe(error: BaseException) -> str:
    """One line that says what happened."""
    if isinstance(error, SystemExit):
        return f"the task called sys.exit({error.code!r}); raise an exception instead"
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be read)"
    return f"{type(error).__name__}: {_encodable(text)}" if text else type(error).__name__
