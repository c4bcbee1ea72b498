"""Durable steps: what a task has done, and how long it has waited, survives the end of its run.

    paid = await step(charge, order)
    await sleep(days=3)
    answer = await wait_for("approved", timeout=86400)

A step records its result in the server. When the job runs again, because its worker died, because it failed or because
it has slept, the task begins from the top, and the steps that were recorded return what they returned before. `sleep`
and `wait_for` end the run, so they occupy no runner; the job runs again when the time is over or the signal arrives.

A task that uses steps must call the same ones in each run. Calls whose results differ from run to run (the time, a
random number, another service) belong in a step.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import Any, Final, ParamSpec, TypeVar, overload

from penstock import codec
from penstock.core.arguments import check_number, shown
from penstock.errors import ProgramChanged, SignalTimeout, StepError
from penstock.jobs.current import in_step
from penstock.jobs.durable_bindings import LONGEST_NAME, Recorded, check_name
from penstock.jobs.retry import LONGEST_DELAY
from penstock.jobs.steps import Steps, error_again, steps_of_run
from penstock.sealing import open_body
from penstock.settings import MiB, Seal

P = ParamSpec("P")
R = TypeVar("R")


def refuse_loop(what: str) -> None:
    """Raises RuntimeError on an event loop, which the blocking form of this step would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{what}.run() would block the event loop: write `await {what}(…)`")


def _described(function: Any) -> str:
    """The name of a step for errors. Raises StepError for anything but a function."""
    if callable(function):
        return f"step({_name_of(function)})"
    if inspect.iscoroutine(function):
        function.close()  # otherwise Python warns that it was never awaited
    raise StepError(f"step({shown(function)}): give a function, then its arguments: step(charge, order)")


def _name_of(function: Any) -> str:
    function = getattr(function, "func", function)
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name)[:LONGEST_NAME]


@lru_cache(1000)
def _decoder(function: Any) -> Any:
    """Reads the result of a function as its annotation says."""
    try:
        returns = typing.get_type_hints(inspect.unwrap(getattr(function, "func", function))).get("return")
    except Exception:
        return None
    if returns is None or returns is Any:
        return None
    try:
        return codec.decoder(returns)
    except TypeError:
        return None


class _Results:
    """Encodes and decodes the results of one function."""

    def __init__(self, function: Any, key: str, seal: Seal | None) -> None:
        self.name, self._seal = _name_of(function), seal
        self._what = f"the result of step {key.removeprefix('@')} ({self.name})"
        try:
            self._decoder = _decoder(function)
        except TypeError:  # the function cannot be hashed
            self._decoder = None

    def replay(self, one: Recorded) -> Any:
        """What the step returned in an earlier run, or raise what it raised there."""
        if one.kind == "failed":
            raise error_again(f"step({self.name})", one.value, self._seal)
        return self.decode(one.value)

    def encode(self, result: Any) -> bytes:
        return codec.encode(result, limit=MiB, what=self._what, seal=self._seal)

    def decode(self, value: bytes) -> Any:
        value = open_body(value, self._seal, self._what)
        if self._decoder is None:
            return codec.decode(value, what=self._what)
        try:
            return self._decoder.decode(value)
        except ValueError as error:
            raise ProgramChanged(
                f"{self._what} is not what {self.name} is annotated to return: {error}"
            ) from error.__cause__


class Step:
    """`step`: calls a function once for a job, however often the job runs, and returns its recorded result.

        paid = await step(charge, order)                  # in an `async def` task
        paid = step.run(charge, order)                    # in a `def` task
        paid = await step.named("deposit")(charge, order)

    The result is recorded under the job's lease when the function has returned, and is decoded as its annotation
    says: so the first run gets the same value as a later one. If the worker dies between the call and the record, the
    function is called again: give what it calls an idempotency key, such as `current().id`.

    If the function raises and the error ends the run, nothing is recorded, and the task's retry policy decides. If the
    task catches the error and continues with another step or a wait, the error is recorded by its class and its
    text, and a later run raises it again. So the later run does not do what the task has compensated for.

    Steps are numbered in the order of their calls. Steps that run at the same time need names, each its own. A `def`
    function that an `async def` task calls runs in a thread. A job records at most 1 MiB, with 256 bytes for each step.

    One round trip for each step that is called, and one for each run, which reads what was recorded before. Raises
    StepError for a name that is used twice and for anything but a function, ProgramChanged if the earlier run called
    something else here, LeaseLost if another worker has the job now, BadCall and PayloadTooLarge for a result that
    cannot be recorded.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name

    def named(self, name: str) -> Step:
        """`step` with a name instead of a number."""
        return Step(check_name("step", name))

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        what = _described(function)
        steps = steps_of_run(what)
        return self._awaited(steps, steps.begin(self._name), what, function, args, kwargs)

    async def _awaited(self, steps: Steps, key: str, what: str, function: Any, args: Any, kwargs: Any) -> Any:
        run = steps.driver.aio.run
        with steps.running(key, what):
            results = _Results(function, key, steps.seal)
            one = await run(steps.find(key, results.name, ("result", "failed"), what))
            if one is not None:
                return results.replay(one)
            token = in_step.set(key.removeprefix("@"))
            try:
                if inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", function))):
                    result = await function(*args, **kwargs)
                else:
                    result = await asyncio.to_thread(function, *args, **kwargs)
                    if inspect.isawaitable(result):
                        result = await result
                value = results.encode(result)
            except Exception as error:
                steps.note_failure(key, results.name, error)
                raise
            finally:
                in_step.reset(token)
            return results.decode(await run(steps.record(key, results.name, value)))

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """For a `def` task, in its thread. Raises RuntimeError on an event loop."""
        what = _described(function)
        refuse_loop("step")
        steps = steps_of_run(what)
        key, run = steps.begin(self._name), steps.driver.blocking.run
        with steps.running(key, what):
            results = _Results(function, key, steps.seal)
            one = run(steps.find(key, results.name, ("result", "failed"), what))
            if one is None:
                token = in_step.set(key.removeprefix("@"))
                try:
                    value = results.encode(function(*args, **kwargs))
                except Exception as error:
                    steps.note_failure(key, results.name, error)
                    raise
                finally:
                    in_step.reset(token)
                answer: R = results.decode(run(steps.record(key, results.name, value)))
            else:
                answer = results.replay(one)
            return answer


class DurableSleep:
    """`sleep`: continues the task after a time, without a runner in between.

        await sleep(days=3)       # in an `async def` task
        sleep.run(minutes=10)     # in a `def` task

    The run ends, and the job is delayed. When the time is over by the server's clock, the job runs again, whatever died
    meanwhile, and continues after the `sleep`. No attempt is counted, `expires` no longer has an effect, and the task's
    timeout counts running time only. The run ends by an exception that `except Exception` does not catch; a `finally`
    is executed.
    """

    def __call__(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, name: str | None = None
    ) -> Awaitable[None]:
        steps, total = steps_of_run("sleep()"), _total(seconds, minutes, hours, days)
        return self._awaited(steps, steps.begin(None if name is None else check_name("step", name)), total)

    async def _awaited(self, steps: Steps, key: str, seconds: float) -> None:
        with steps.running(key, "sleep()", waits=True):
            await steps.driver.aio.run(steps.sleep(key, seconds))

    def run(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, name: str | None = None
    ) -> None:
        """For a `def` task, in its thread. Raises RuntimeError on an event loop."""
        refuse_loop("sleep")
        steps, total = steps_of_run("sleep()"), _total(seconds, minutes, hours, days)
        key = steps.begin(None if name is None else check_name("step", name))
        with steps.running(key, "sleep()", waits=True):
            steps.driver.blocking.run(steps.sleep(key, total))


class WaitFor:
    """`wait_for`: continues the task when its job gets a signal, without a runner in between.

        answer = await wait_for("approved", timeout=86400)    # in an `async def` task
        answer = wait_for.run("approved")                     # in a `def` task
        job.signal("approved", {"by": "ada"})                 # elsewhere

    Returns the payload. A signal may come before the wait, or before the job runs: the server stores it. Each wait
    receives one signal, in the order in which they were sent. If there is no signal yet, the run ends as at a `sleep`.

    timeout  seconds, from the first time that the job waits here; None: no limit

    Raises SignalTimeout if no signal comes in time. Whichever was recorded first, signal or time-out, also counts when
    the job runs again later. One round trip.
    """

    def __call__(self, signal: str, *, timeout: float | None = None, name: str | None = None) -> Awaitable[Any]:
        steps, seconds = steps_of_run(f"wait_for({signal!r})"), _limit(signal, timeout)
        return self._awaited(steps, steps.begin(None if name is None else check_name("step", name)), signal, seconds)

    async def _awaited(self, steps: Steps, key: str, signal: str, seconds: float) -> Any:
        with steps.running(key, f"wait_for({signal!r})", waits=True):
            return _received(await steps.driver.aio.run(steps.receive(key, signal, seconds)), signal, steps.seal)

    def run(self, signal: str, *, timeout: float | None = None, name: str | None = None) -> Any:
        """For a `def` task, in its thread. Raises RuntimeError on an event loop."""
        refuse_loop("wait_for")
        steps, seconds = steps_of_run(f"wait_for({signal!r})"), _limit(signal, timeout)
        key = steps.begin(None if name is None else check_name("step", name))
        with steps.running(key, f"wait_for({signal!r})", waits=True):
            return _received(steps.driver.blocking.run(steps.receive(key, signal, seconds)), signal, steps.seal)


def _received(payload: bytes | None, signal: str, seal: Seal | None) -> Any:
    if payload is None:
        raise SignalTimeout(f"wait_for({signal!r}): no such signal arrived in time")
    return codec.decode(payload, what=f"the payload of signal {signal!r}", seal=seal)


def _limit(signal: str, timeout: float | None) -> float:
    check_name("signal", signal)
    if timeout is None:
        return 0.0
    rule = "seconds above 0, at most 100 years; None: no limit"
    check_number("wait_for", "timeout", timeout, 1e-6, LONGEST_DELAY, rule)
    return timeout


def _total(seconds: float, minutes: float, hours: float, days: float) -> float:
    for name, value in (("seconds", seconds), ("minutes", minutes), ("hours", hours), ("days", days)):
        check_number("sleep", name, value, -LONGEST_DELAY, LONGEST_DELAY, "a number; together at most 100 years")
    total = seconds + 60 * minutes + 3600 * hours + 86400 * days
    if not 0 < total <= LONGEST_DELAY:
        raise ValueError(f"sleep() of {total} s: more than 0, at most 100 years")
    return total


def patched(name: str) -> bool:
    """Whether this job takes the new branch of a changed program.

        if patched("charge-v2"):
            paid = await step(charge_by_token, order)
        else:
            paid = await step(charge, order)

    True for a job that has not recorded a step after this call yet. The answer is recorded with its next step, and
    stays True when another release runs the job. False for a job that an earlier program has carried past this call.
    A name has one answer in a job, however often it is asked. When no job of the earlier program is left, delete the
    condition and the old branch.

    No round trip; one with the next step of a job that takes the new branch. Raises NoCurrentJob, and
    ConfigurationError for a name above 200 bytes.
    """
    return steps_of_run(f"patched({name!r})").patched(check_name("patch", name))


step: Final = Step()
sleep: Final = DurableSleep()
wait_for: Final = WaitFor()
