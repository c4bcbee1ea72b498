"""The durable steps of one run: which of them were recorded before, and what this run records. See `durable.lua`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

import msgspec

from penstock import sealing
from penstock.core.operations import Operation
from penstock.errors import LeaseLost, NoCurrentJob, PayloadTooLarge, PenstockError, ProgramChanged, StepError
from penstock.jobs.constants import FAILED, PATCH, RESULT
from penstock.jobs.current import in_step, running
from penstock.jobs.durable_bindings import PATCH_SIGN, Recorded, StepBindings
from penstock.jobs.retry import Suspended
from penstock.settings import Seal

if TYPE_CHECKING:
    from penstock.jobs.current import Run


_LONGEST_ERROR: Final = 2000
"""Characters of the recorded text of an error."""

FOR_CHILDREN: Final = ("", "", 0.0)
"""The suspension of a run whose job waits until its children have ended."""


class ChildWatch(Protocol):
    """The children for which asyncio tasks of a run wait (see `children.py`)."""

    async def wait(self, child: Any) -> NoReturn: ...
    def step_ended(self) -> None: ...
    def close(self) -> None: ...


class RunningStep(NamedTuple):
    """A step that runs now.

    what   its call, for errors
    waits  it ends the run, so that no other step can run meanwhile
    child  it runs a child
    """

    what: str
    waits: bool = False
    child: bool = False


class StepFailure(NamedTuple):
    """An error that the function of a step has raised."""

    name: str
    error: Exception
    execution: object
    """The asyncio task, or the thread, in which it was raised."""

    @property
    def has_ended(self) -> bool:
        """Whether that asyncio task is over, so that only another one can have caught the error."""
        return isinstance(self.execution, asyncio.Task) and self.execution.done()

    def packed(self, seal: Seal | None) -> bytes:
        """The error as JSON, which `seal` seals: its class, its text, and its arguments, if plain values and short."""
        kind, args = type(self.error), self.error.args
        if not all(isinstance(one, str | int | float | None) for one in args) or len(repr(args)) > _LONGEST_ERROR:
            args = (_text_of(self.error)[:_LONGEST_ERROR],)
        sendable = [one.encode(errors="replace").decode() if isinstance(one, str) else one for one in args]
        packed = msgspec.json.encode([kind.__module__, kind.__qualname__, sendable])
        return packed if seal is None else sealing.seal_body(packed, seal, f"the error of step {self.name}")[1]


def error_again(what: str, value: bytes, seal: Seal | None) -> Exception:
    """The error of a step that an earlier run has recorded, for the task to catch it again.

    It has the class and the arguments that it had; other attributes are gone. If this process has not imported the
    class, it is a StepError with the text.
    """
    module, name, args = msgspec.json.decode(sealing.open_body(value, seal, f"the error of {what}"))
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with suppress(Exception):
            error = found.__new__(found, *args)
            error.args = tuple(args)
            error.add_note(f"{what} raised this in an earlier run of the job, and the task caught it")
            return error
    return StepError(f"{what} failed in an earlier run: {module}.{name}: {', '.join(map(str, args))}")


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except BaseException:  # a class of the user's may raise anything here
        return "(its text cannot be read)"


def _execution() -> object:
    """What runs this code: an asyncio task, or a thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.current_thread()


class Steps:
    """The steps of one run. The face of the task runs its operations."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._bindings = StepBindings(run.shard.bindings)
        self._calls = 0
        self._names: set[str] = set()
        self._begun: set[str] = set()
        """The keys of all steps that this run has called."""
        self.now_running: dict[str, RunningStep] = {}
        """The steps that are running, by their keys."""
        self.children: ChildWatch | None = None
        """The children for which asyncio tasks of this run wait; None: it has called none."""
        self._failures: dict[str, StepFailure] = {}
        """The failed steps of this run, by their keys, until it is known whether the task has caught the error."""
        self._recorded: dict[str, Recorded] | None = None
        self._loaded_at = 0.0
        self._now = 0
        self.first_release = ""
        """The release that recorded the first step; "": unknown."""
        self._load_error: PenstockError | None = None
        self._patches: dict[str, bool] = {}
        self._new_patches: list[str] = []
        """The keys of patches that are to be recorded before the next step."""
        self.suspension: tuple[str, str, float] | None = None
        """Step, signal and seconds, once the run has to end; 0 seconds: until the signal. Or FOR_CHILDREN."""
        self.error: StepError | None = None
        """Why the task cannot be repeated, if a step began after the run had to end."""

    @property
    def driver(self) -> Any:
        return self._run.shard._driver

    @property
    def seal(self) -> Seal | None:
        """The codec that seals what the steps record."""
        return self._run.shard.settings.seal

    @property
    def run(self) -> Run:
        return self._run

    @property
    def bindings(self) -> StepBindings:
        return self._bindings

    @property
    def claim(self) -> tuple[str, bytes]:
        return self._run.incarnation, self._run.claim.token

    def begin(self, name: str | None) -> str:
        """The key of the step that the task calls now: its name, or its number. Raises StepError."""
        if name is None:
            self._calls += 1
            self._begun.add(str(self._calls))
            return str(self._calls)
        if name in self._names:
            raise StepError(
                f"step {name!r}: this run has another step of that name; give each its own, as in f'pay-{{n}}'"
            )
        self._names.add(name)
        self._begun.add(f"@{name}")
        return f"@{name}"

    def _refuse_inside_step(self, what: str) -> None:
        if in_step.get():
            raise StepError(f"{what} is called inside step {in_step.get()!r}: call it in the task itself")

    def begin_child(self, name: str | None, what: str) -> str:
        """The key of the step that runs a child. Raises StepError if its number could change from run to run.

        Children of one `gather` are all called before one of them runs, so that their numbers are always the same.
        """
        self._refuse_inside_step(what)
        if name is None:
            for other, one in self.now_running.items():
                if not other.startswith("@"):
                    raise _unordered(what, one.what)
        return self.begin(name)

    @contextmanager
    def running(self, key: str, what: str, *, waits: bool = False, child: bool = False) -> Iterator[None]:
        """Encloses a step. Raises StepError if it cannot run at the same time as those that run now.

        Two steps without names cannot. A wait cannot run at the same time as any step, because it ends the run.
        """
        self._refuse_inside_step(what)
        if self.suspension == FOR_CHILDREN:
            raise Suspended("the run ends here, because its job waits for its children")
        if self.suspension is not None:
            self.error = StepError(
                f"{what} begins after a sleep() or wait_for() has ended this run: call it neither in a `finally` that "
                "a wait may leave (use `except Exception`) nor at the same time as a wait"
            )
            raise self.error
        numbered = not key.startswith("@")
        for other, one in self.now_running.items():
            if waits or one.waits:
                raise StepError(
                    f"{what} begins while {one.what} runs: a wait ends the run, so no other step can run at the "
                    "same time. Wait for one after the other: a signal that comes early is kept. To wait for the first "
                    "of several events, send them as one signal with different payloads"
                )
            if numbered and not other.startswith("@") and not (child and one.child):
                raise _unordered(what, one.what)
        self.now_running[key] = RunningStep(what, waits, child)
        try:
            yield
        finally:
            del self.now_running[key]
            if self.children is not None:
                self.children.step_ended()

    def lost(self) -> LeaseLost:
        job = f"{self._run.shard.name}:{self._run.claim.id}"
        return LeaseLost(f"job {job}: this worker does not hold it any longer; it runs elsewhere")

    def find(self, key: str, name: str, kinds: tuple[str, ...], what: str) -> Operation[Recorded | None]:
        """The record of a step, or None. One round trip if nothing was loaded yet. Raises ProgramChanged if it was
        another step.
        """
        yield from self._record_failures()
        yield from self._record_patches()
        recorded = yield from self.load()
        one = recorded.get(key)
        if one is None:
            return None
        if one.kind not in kinds or (one.name != name and not key.startswith("@")):
            was = f"run({one.name})" if one.is_of_child else one.name if one.is_of_function else "sleep()"
            was = f"wait_for({one.name!r})" if one.name and was == "sleep()" else was
            raise ProgramChanged(
                f"step {key.removeprefix('@')} was {was} when this job ran before, and now it is {what}: its task has "
                "changed. Requeue the job with the earlier code, or remove it and enqueue it again. To change a task "
                "while its jobs run, branch by `if patched('…'):`"
            )
        return one

    def load(self) -> Operation[dict[str, Recorded]]:
        """The records of earlier runs. One round trip in each run that is not the first. Raises LeaseLost."""
        recorded = self._recorded
        if recorded is None and not self._run.claim.record.has_notes:
            recorded = {}
        if recorded is None:
            self._loaded_at = time.monotonic()
            found = yield self._bindings.load(*self.claim)
            if found is None:
                raise self.lost()
            self._now, recorded, self.first_release = found
        self._recorded = recorded
        return recorded

    async def load_early(self) -> None:
        """Load before the task begins, so that `patched` can answer at once. An error is raised where it matters."""
        try:
            await self.driver.aio.run(self.load())
        except PenstockError as error:
            self._load_error = error

    # --- changed programs ---

    def patched(self, name: str) -> bool:
        """Whether the job takes the new branch of a changed program (see `patched`)."""
        if (known := self._patches.get(name)) is not None:
            return known
        recorded, key = self._loaded(), PATCH_SIGN + name
        is_new = all(step in self._begun or step.startswith(PATCH_SIGN) for step in recorded)
        if key not in recorded and is_new:
            self._new_patches.append(key)
        self._patches[name] = key in recorded or is_new
        return self._patches[name]

    def _loaded(self) -> dict[str, Recorded]:
        if self._load_error is not None and self._recorded is None:
            raise self._load_error
        if self._recorded is None and self._run.claim.record.has_notes:
            loaded: dict[str, Recorded] = self.driver.blocking.run(self.load())
            return loaded
        return self._recorded or {}

    def _record_patches(self) -> Operation[None]:
        """Record the patches that this run has decided, before a step is recorded behind them."""
        while self._new_patches:
            yield from self.record(self._new_patches[-1], "", b"", PATCH)
            self._new_patches.pop()

    def note_failure(self, key: str, name: str, error: Exception) -> None:
        """Remember that a step raised. It is recorded if the task continues with another step, and so has caught it."""
        self._failures[key] = StepFailure(name, error, _execution())

    def _record_failures(self) -> Operation[None]:
        """Record the errors that the task must have caught, because it begins another step now.

        A step that begins in another asyncio task proves nothing: after one step of a `gather` has failed, the others
        may run on, while the task itself ends by that error and will be retried.
        """
        here, main = _execution(), getattr(self._run, "asyncio_task", None)
        for key, failure in [*self._failures.items()]:
            if failure.execution is here or (here is main and failure.has_ended):
                del self._failures[key]
                yield from self.record(key, failure.name, failure.packed(self.seal), FAILED)

    def record(self, key: str, name: str, value: bytes, kind: bytes = RESULT) -> Operation[bytes]:
        """Record the result of a function, its error, or a patch. Returns the value that counts. One round trip."""
        answer = yield self._bindings.record(*self.claim, key, name, value, kind)
        if isinstance(answer, Recorded):
            return answer.value
        if answer is None:
            return value
        if answer < 0:
            raise self.lost()
        raise PayloadTooLarge(
            f"step {key.removeprefix('@')} ({name}): a job records at most 1 MiB in all, and counts 256 bytes for each "
            f"step; it has {answer:,} bytes already, and this result has {len(value):,}: store it elsewhere and return "
            "its address"
        )

    # --- waits ---

    def sleep(self, key: str, seconds: float) -> Operation[None]:
        """Returns if the time is over, by the server's clock; else raises Suspended."""
        one = yield from self.find(key, "", ("waits",), "sleep()")
        now = self._now + (time.monotonic() - self._loaded_at) * 1000
        if one is None or int(one.value) > now:
            raise self._suspend(key, "", seconds)

    def receive(self, key: str, signal: str, seconds: float) -> Operation[bytes | None]:
        """The payload of a signal; None after the time-out. Raises Suspended if the job has to wait. One round trip."""
        one = yield from self.find(key, signal, ("waits", "signal", "timeout"), f"wait_for({signal!r})")
        if one is None or one.kind == "waits":
            one = yield self._bindings.receive(*self.claim, key, signal)
        if isinstance(one, Recorded):
            return one.value if one.kind == "signal" else None
        raise self._suspend(key, signal, seconds) if one else self.lost()

    def _suspend(self, key: str, signal: str, seconds: float) -> Suspended:
        self.suspension = self.suspension or (key, signal, seconds)
        return Suspended("the run ends here, and the job continues later")

    def suspend_for_children(self) -> Suspended:
        """Note that the run has to end, because its job waits for its children."""
        return self._suspend(*FOR_CHILDREN)

    def ended_for_children(self, error: BaseException) -> bool:
        """Whether the run ended by this exception because its job waits for its children."""
        return self.suspension == FOR_CHILDREN and not isinstance(error, Exception) and not self._run.cancelled

    def close(self) -> None:
        """End what waits for children in other asyncio tasks, once the task has ended."""
        if self.children is not None:
            self.children.close()


def _unordered(what: str, other: str) -> StepError:
    """The error of two steps without names that run at the same time."""
    return StepError(
        f"{what} begins while {other} runs: which of them is the first could change from run to run. "
        "Give names to steps that run at the same time: step.named('…')(function, …), run(call, name='…')"
    )


def steps_of_run(what: str) -> Steps:
    """The steps of the run that the calling code is a part of. Raises NoCurrentJob."""
    run = running.get(None)
    if run is None:
        raise NoCurrentJob(
            f"{what}: this code runs in no job, so there is nothing to record it with. A worker sets the job when it "
            "runs a task; in a test, run the task with a worker, or call the function itself"
        )
    if run.steps is None:
        run.steps = Steps(run)
    steps: Steps = run.steps
    return steps
