"""One run of a job: from the claimed record to the settlement that says how it ended."""

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
from penstock.jobs.bindings import Claim, Settlement
from penstock.jobs.definition import Definition
from penstock.jobs.job import Reason
from penstock.jobs.registry import Registry
from penstock.jobs.retry import Drop, Retry, RetryLater
from penstock.jobs.signature import split
from penstock.settings import WorkerSettings
from penstock.worker.overtime import Overtime, TimeIsUp

log = logging.getLogger("penstock.worker")

_TRACEBACK = 16_000
"""Characters of a traceback that are kept, from its end: the place of the error, not the way there."""

_REASON = 4_000
"""Characters of a reason that are kept."""


@dataclass(frozen=True, slots=True)
class Run:
    """A claim that can be run here: its task and its decoded arguments."""

    claim: Claim
    definition: Definition
    arguments: msgspec.Struct


class Execution:
    """Prepares and runs jobs; every error becomes a settlement, none gets out."""

    def __init__(self, registry: Registry, settings: WorkerSettings, max_payload: int, worker: str) -> None:
        self._registry = registry
        self._settings = settings
        self._max_payload = max_payload
        self._worker = worker

    def prepare(self, claim: Claim) -> Run | Settlement:
        """Decode the call. A settlement: it cannot be run (here)."""
        try:
            if not claim.record.is_call:
                return self._unknown(claim, "a bare value, not a call of a task")
            name, arguments = split(claim.record.payload)
            definition = self._registry.get(name)
            if definition is None:
                return self._unknown(claim, f"no task {name!r} in this worker")
            return Run(claim, definition, definition.signature.decode(arguments))
        except Exception as error:
            reason = str(error) if isinstance(error, BadCall) else _sentence(error)
            log.error("job %s cannot be read: %s", claim.id, reason)
            return self._bury(claim, reason)

    def _unknown(self, claim: Claim, reason: str) -> Settlement:
        """Hand it back for a worker that knows it (a rolling deploy); the server says for how long, and when to end."""
        log.warning("job %s handed back: %s", claim.id, reason)
        why = Reason(_clean(reason), "", self._worker, milliseconds(self._settings.unknown_limit))
        return Settlement(claim.token, msgspec.json.encode(why), "unknown", self._settings.unknown_backoff)

    def cancelled(self, run: Run) -> Settlement:
        """The task cancelled itself, and nobody here did."""
        return self.failed(run, asyncio.CancelledError("the task cancelled itself"))

    def timed_out(self, run: Run, cause: BaseException | None = None) -> Settlement:
        """Its time is over, and it has ended or was ended for that. `cause` tells where it was."""
        error = TimeoutError(f"ran longer than its timeout of {run.definition.timeout:g} s")
        error.__cause__ = cause
        return self.failed(run, error)

    def crashed(self, run: Run, cause: str, *, alone: bool = True) -> Settlement:
        """Its process died of it; or, where others died with it, of one of them."""
        log.error("job %s (%s) has crashed: %s", run.claim.id, run.definition.name, cause)
        return Settlement(run.claim.token, self._reason(cause), "crash" if alone else "suspect")

    def postponed(self, run: Run, error: OSError) -> Settlement:
        """It could not even begin here, for lack of memory or descriptors: no fault of its own."""
        log.error("job %s (%s) is handed back: %s", run.claim.id, run.definition.name, error)
        return Settlement(run.claim.token, self._reason(_sentence(error)), "later", self._settings.unknown_backoff)

    async def run(self, run: Run, *, timed: bool = True) -> Settlement:
        """Run an `async def` task on this loop; with its timeout, unless another sees to that."""
        timeout = run.definition.timeout if timed else None
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

    def run_blocking(self, run: Run, overtime: Overtime | None = None) -> Settlement:
        """Run a `def` task in this thread; with its timeout, if there is somebody to watch the time."""
        try:
            if overtime is None:
                result = run.definition.signature.call(run.arguments)
            else:
                result = overtime.limit(lambda: run.definition.signature.call(run.arguments))
            if inspect.isawaitable(result):
                raise TypeError(f"task {run.definition.name} returned an awaitable: make it an `async def`")
        except TimeIsUp as error:
            return self.timed_out(run, error)
        except BaseException as error:
            return self.failed(run, error)
        return self._completed(run, result)

    def _completed(self, run: Run, result: Any) -> Settlement:
        if run.claim.record.ttl == 0 or result is None:
            return Settlement(run.claim.token)
        try:
            what = f"the result of {run.definition.name}"
            return Settlement(run.claim.token, codec.encode(result, limit=self._max_payload, what=what))
        except Exception as error:
            reason = str(error) if isinstance(error, BadCall) else f"its result cannot be encoded: {_sentence(error)}"
            log.error("job %s ran, but is a dead letter: %s", run.claim.id, reason)
            return self._bury(run.claim, reason)

    def failed(self, run: Run, error: BaseException) -> Settlement:
        """What becomes of a job that ended with `error`; an error that cannot be handled buries it."""
        try:
            return self._judge(run, error)
        except Exception as own:
            log.error("job %s is a dead letter: its %s cannot be handled: %s", run.claim.id, type(error).__name__, own)
            return self._bury(run.claim, f"{type(error).__name__}, which cannot be handled: {_sentence(own)}")

    def _judge(self, run: Run, error: BaseException) -> Settlement:
        claim, name = run.claim, run.definition.name
        if isinstance(error, Drop):
            why = _clean(str(error))
            log.info("job %s (%s) dropped: %s", claim.id, name, why)
            return Settlement(claim.token, why[:_REASON].encode(), "drop")
        if isinstance(error, RetryLater):
            log.info("job %s (%s) runs again in %g s: %s", claim.id, name, error.seconds, _clean(str(error)))
            return Settlement(claim.token, self._reason(str(error)), "later", error.seconds)
        policy = run.definition.retry
        attempt = claim.record.attempts + 1
        if isinstance(error, Retry):
            policy = error if error.times is not None else policy if policy.times else Retry()
            wanted = True
        else:
            wanted = policy.applies(error)
        reason = _sentence(error)
        text = "" if isinstance(error, Retry) else "".join(traceback.format_exception(error))[-_TRACEBACK:]
        if wanted and policy.left(attempt):
            delay = policy.delay(attempt)
            log.warning("job %s (%s) failed, attempt %d, again in %.1f s: %s", claim.id, name, attempt, delay, reason)
            return Settlement(claim.token, self._reason(reason, text), "retry", delay)
        log.error("job %s (%s) is a dead letter after attempt %d: %s", claim.id, name, attempt, reason)
        return self._bury(claim, reason, text)

    def _bury(self, claim: Claim, reason: str, text: str = "") -> Settlement:
        return Settlement(claim.token, self._reason(reason, text), "bury")

    def _reason(self, reason: str, text: str = "") -> bytes:
        return msgspec.json.encode(Reason(_clean(reason)[:_REASON], _clean(text), self._worker))


def _clean(text: str) -> str:
    """Without lone surrogates, which no server text may hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _sentence(error: BaseException) -> str:
    """One line that says what happened."""
    if isinstance(error, SystemExit):
        return f"the task called sys.exit({error.code!r}); raise an exception instead"
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be read)"
    return f"{type(error).__name__}: {_clean(text)}" if text else type(error).__name__
