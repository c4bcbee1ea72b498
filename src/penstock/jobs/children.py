"""Children of a durable job: `run` enqueues a call as a step, and returns its answer when it has ended.

    paid = await run(charge.call(order))
    label, invoice = await gather(run(print_label.call(order)), run(write_invoice.call(order)))

The run of the parent ends there, so that it occupies no runner, and the parent continues when its children have ended.
`children.lua` is the specification.

Several steps may run children at the same time. All of them have to begin before the run of the parent ends. So each
waits for a future that never completes, and one asyncio task watches over them: as soon as no other step of the job
runs, it enqueues the children and cancels the job's own asyncio task. The worker then settles the run as suspended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from penstock.core.arguments import shown
from penstock.core.ids import derived_id
from penstock.core.operations import Operation
from penstock.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    PayloadTooLarge,
    ProgramChanged,
    StepError,
)
from penstock.jobs import effort
from penstock.jobs.claims import Failure
from penstock.jobs.constants import CANCELLED, DEAD, DROPPED, EXCEEDS, EXPIRED
from penstock.jobs.durable import refuse_loop
from penstock.jobs.durable_bindings import CHILDREN, ChildRecord, ChildRow, Recorded, check_name
from penstock.jobs.middleware import EnqueueContext, JobDraft
from penstock.jobs.record import kept_for
from penstock.jobs.steps import Steps, steps_of_run
from penstock.sealing import open_body, open_text
from penstock.settings import Seal

if TYPE_CHECKING:
    from penstock.jobs.shard import Shard
    from penstock.jobs.task import Call

R = TypeVar("R")

MOST_CHILDREN: Final = 2000
"""The most children that a job runs at the same time."""

_KEPT: Final = 60_000
"""The shortest time to keep the result of a child, in ms. A worker does not send a result that is not kept."""

_QUIET_ROUNDS: Final = 3
"""If no step of a job begins within this many rounds of the event loop, none is about to begin."""


@dataclass(frozen=True, slots=True)
class Child:
    """A child that a step of this run asks for.

    step  the key of the step
    key   the id of the child in its queue
    """

    step: str
    shard: Shard
    key: str
    call: Call[Any]

    @classmethod
    def of(cls, call: Call[Any], steps: Steps, step: str) -> Child:
        run = steps.run
        parent, enqueued = f"{run.shard.name}:{run.claim.id}", run.claim.record.enqueued
        return cls(step, call.task.shard, derived_id(enqueued, parent, str(enqueued), step), call)

    @property
    def task(self) -> str:
        return self.call.task.name

    def draft(self) -> JobDraft:
        _, record = self.call.draft()
        return JobDraft(self.shard.name, self.key, kept_for(record, _KEPT))

    def answer(self, one: Recorded, queue: str, seal: Seal | None) -> Any:
        """What the child has returned; or raise why it has not completed, as `Job.result` does.

        queue  of its parent
        seal   opens what is sealed

        Raises ProgramChanged if the result does not fit the annotation.
        """
        child = ChildRecord.of(one)
        what = f"job {child.id(queue)} ({one.name}), which this job ran"
        if one.kind == "answer":
            try:
                return self.call.task.definition.signature.returns.decode(
                    open_body(child.answer, seal, f"the result of {what}")
                )
            except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
                raise ProgramChanged(f"the result of {what}, does not fit its annotation: {error}") from error.__cause__
        letter, text = child.answer[:1], open_text(child.answer[1:].decode(errors="replace"), seal)
        if letter == DEAD:
            text = Failure.read(child.answer[1:], seal).reason
            raise JobFailed(f"{what}, failed: {text}", reason=text)
        if letter == EXPIRED:
            raise JobExpired(f"{what}, expired before a worker was free")
        if letter == EXCEEDS:
            raise PayloadTooLarge(
                f"{what}, returned {int(text):,} bytes: a job records at most 1 MiB in all: store the result elsewhere "
                "and return its address"
            )
        word = {CANCELLED: "was cancelled", DROPPED: "was dropped by its task"}.get(letter, "has ended")
        raise JobCancelled(f"{what}, {word}" + (f": {text}" if text else ""))


def enqueue_children(steps: Steps, children: Sequence[Child]) -> Operation[None]:
    """Enqueue children of a running job: those of each shard in slices of 250, and of 1 MiB. One round trip for each.

    A child with limits counts as several, because it costs the server as much.

    Raises LeaseLost, and PayloadTooLarge if the job has no room for their answers.
    """
    by_shard: dict[str, list[tuple[Child, JobDraft]]] = {}
    for child in children:
        by_shard.setdefault(child.shard.name, []).append((child, child.draft()))
    own = steps.run.shard.name
    for some in by_shard.values():
        for part in effort.slices(some, _effort, CHILDREN, lambda pair: len(pair[1].record)):
            shard, drafts = part[0][0].shard, [draft for _, draft in part]
            with shard.middleware.around_enqueue(EnqueueContext(shard.name, drafts)):
                rows = [
                    ChildRow(child.step, "" if shard.name == own else shard.name, child.key, child.task, draft.record)
                    for child, draft in part
                ]
                durable = any(child.call.task.options.durable for child, _ in part)
                answer = yield steps.bindings.run_children(*steps.claim, rows, durable=durable)
            if answer is not None and answer < 0:
                raise steps.lost()
            if answer is not None:
                raise PayloadTooLarge(
                    f"{len(children):,} children: a job records at most 1 MiB in all, counts 256 bytes for each step, "
                    f"and has {answer:,} bytes already: let each child do more"
                )


def _effort(child: tuple[Child, JobDraft]) -> int:
    return child[0].call.task.effort


class AwaitedChildren:
    """The children for which asyncio tasks of one run wait."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._waiting: dict[str, tuple[Child, asyncio.Future[NoReturn]]] = {}
        """Each child by the key of its step, and what its step waits for."""
        self._watch: asyncio.Task[None] | None = None
        self._step_ended = asyncio.Event()
        self._closed = False

    def step_ended(self) -> None:
        """A step has ended, so that the run may be over now."""
        self._step_ended.set()

    async def wait(self, child: Child) -> NoReturn:
        """Wait until the run ends, which enqueues the child. Raises why that was impossible."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[NoReturn] = loop.create_future()
        self._waiting[child.step] = child, future
        if self._watch is None:
            self._watch = loop.create_task(self._end_run())
        try:
            await future
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task is not self._main or self._steps.suspension is None:
                raise
            task.uncancel()
        finally:
            self._waiting.pop(child.step, None)
        raise self._steps.suspend_for_children()

    @property
    def _main(self) -> asyncio.Task[Any] | None:
        """The asyncio task of the job."""
        task: asyncio.Task[Any] | None = getattr(self._steps.run, "asyncio_task", None)
        return task

    async def _end_run(self) -> None:
        """Enqueue the children once nothing else of the job runs, and end its run."""
        enqueued: set[str] = set()
        try:
            while True:
                await self._quiet()
                new = [child for step, (child, _) in self._waiting.items() if step not in enqueued]
                if not new:
                    break
                enqueued.update(child.step for child in new)
                if len(enqueued) > MOST_CHILDREN:
                    raise StepError(
                        f"{len(enqueued):,} children at the same time: a job runs at most {MOST_CHILDREN:,}: run them "
                        "in portions, or let each child run some of them"
                    )
                await self._steps.driver.aio.run(enqueue_children(self._steps, new))
        except Exception as error:
            for _, future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            self._watch = None
            return
        self._watch = None
        if not self._waiting or self._closed:
            return
        suspended = self._steps.suspend_for_children()
        if (main := self._main) is not None:
            main.cancel("the job waits for its children")
            return
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(suspended)

    async def _quiet(self) -> None:
        """Wait until no step of this job runs except those that run children, and none is about to begin."""
        rounds = 0
        while rounds < _QUIET_ROUNDS:
            before = self._steps.now_running.keys() | ()
            self._step_ended.clear()
            if before - self._waiting.keys():
                await self._step_ended.wait()
                rounds = 0
                continue
            await asyncio.sleep(0)
            rounds = rounds + 1 if self._steps.now_running.keys() == before else 0

    def close(self) -> None:
        """End the steps that still wait in other asyncio tasks."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for _, future in self._waiting.values():
            future.cancel()


class RunChild:
    """`run`: runs a call as a child of the durable job, and returns its answer. No process waits meanwhile.

        paid = await run(charge.call(order))                    # in an `async def` task
        paid = run.run(charge.call(order))                      # in a `def` task
        label, bill = await asyncio.gather(run(print_label.call(order)), run(write_bill.call(order)))

    The run of the job ends, as at a `sleep`; the child is enqueued, and its end makes the job ready again. Several
    children at the same time need an `async def` task; the job continues when all of them have ended. Other code of the
    job that runs at that time, and is not a step, is cancelled, and begins again.

    The id of a child follows from its parent and the step, so that a step runs one child, however often it is repeated.
    The answer is recorded with the steps of the job, and read as the task of the child is annotated. If the child does
    not complete, each run of the job raises why: JobFailed if it is a dead letter, whatever becomes of that later;
    JobCancelled; JobExpired; PayloadTooLarge for a result that has no room. To try again, call `run` again: that is
    another step, with another child. If the job ends or is cancelled first, children for which nobody else waits are
    cancelled.

    call  of any task of any queue. Its options count, except for an id; it cannot be unique, or wait for other jobs
    name  of the step, instead of its number. Needed if children are called while others run, except for those of one
          `gather`

    At most 2,000 at the same time. They take one round trip for 250, and 256 bytes each of the 1 MiB that a job
    records. Raises StepError for other objects, and ProgramChanged if the earlier run called something else here.
    """

    def __call__(self, call: Call[R], /, *, name: str | None = None) -> Coroutine[Any, Any, R]:
        what = _described(call)
        steps = steps_of_run(what)
        if steps.run.definition.is_async:
            return self._awaited(steps, _begin(call, steps, name, what), what)
        raise StepError(f"{what}: `await` needs an `async def` task: in a `def` task write run.run(…)")

    async def _awaited(self, steps: Steps, child: Child, what: str) -> Any:
        with steps.running(child.step, what, child=True):
            one = await steps.driver.aio.run(_find(steps, child, what))
            if one is not None:
                return child.answer(one, steps.run.shard.name, steps.seal)
            if steps.children is None:
                steps.children = AwaitedChildren(steps)
            await steps.children.wait(child)

    def run(self, call: Call[R], /, *, name: str | None = None) -> R:
        """For a `def` task, in its thread. Raises RuntimeError on an event loop."""
        what = _described(call)
        refuse_loop("run")
        steps = steps_of_run(what)
        child, run = _begin(call, steps, name, what), steps.driver.blocking.run
        with steps.running(child.step, what, child=True):
            one = run(_find(steps, child, what))
            if one is None:
                run(enqueue_children(steps, [child]))
                raise steps.suspend_for_children()
            answer: R = child.answer(one, steps.run.shard.name, steps.seal)
            return answer


def _find(steps: Steps, child: Child, what: str) -> Operation[Recorded | None]:
    """How the child of a step has ended; None if it has not."""
    one = yield from steps.find(child.step, child.task, ("child", "answer", "failure"), what)
    return None if one is None or one.kind == "child" else one


def _described(call: Any) -> str:
    """The step for errors. Raises StepError for anything but a call."""
    if hasattr(call, "draft"):
        return f"run({call.task.name})"
    if inspect.iscoroutine(call):
        call.close()  # otherwise Python warns that it was never awaited
    raise StepError(f"run({shown(call)}): give a call, as in run(task.call(…))")


def _begin(call: Call[Any], steps: Steps, name: str | None, what: str) -> Child:
    task = call.task
    if task.unique is not None:
        raise StepError(
            f"{what}: a unique call cannot be a child, because the job that holds its key may be its own parent: give "
            "this work a task without unique=…"
        )
    prefix, own = task.shard.settings.prefix, steps.run.shard.settings.prefix
    if prefix != own:
        raise StepError(
            f"{what}: its app has the prefix {prefix!r}, and this job's app has {own!r}: a child is a job of the same "
            "app. Enqueue the call in a step instead"
        )
    if task.options.id:
        raise StepError(f"{what}: the id of a child follows from its parent and the step: leave out id=")
    if call.wanted or (task.waiting is not None and (task.waiting.after or task.waiting.on_failure != "stop")):
        raise StepError(f"{what}: a child cannot wait for other jobs: run those first, and pass their answers")
    step = steps.begin_child(None if name is None else check_name("step", name), what)
    return Child.of(call, steps, step)


run: Final = RunChild()
