"""Jobs that wait for other jobs: one after another (`chain`), side by side (`group`), or in any mixture of both.

`flow.lua` says what the server does with them. Here a flow is an expression of calls. It becomes a plan, in which each
job knows the jobs that it waits for, and the plan becomes rows, which are sent in slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast, overload

from penstock.core.operations import Driver, Operation, verb
from penstock.errors import BadCall
from penstock.jobs.awaited import AwaitedResult
from penstock.jobs.flow_plan import FlowCall, FlowJob, OnFailure, Plan, is_call, with_empty_result
from penstock.jobs.job import Job
from penstock.jobs.options import EnqueueOptions

R = TypeVar("R")
J = TypeVar("J")
K = TypeVar("K")


class UsingOptions(EnqueueOptions, total=False):
    """The keyword arguments of `using`, for type checkers. `Task.using` describes the last two."""

    after: Job[Any] | Iterable[Job[Any]] | None
    on_failure: OnFailure


# --- expressions ---


class Flow(Generic[J]):
    """Calls that wait for each other, not enqueued yet: what `chain` and `group` return.

    Each use of a call, here or in another flow, is a job of its own.
    """

    __slots__ = ("_driver", "_is_group", "_calls")

    def __init__(self, calls: Sequence[CallOrFlow], *, is_group: bool, driver: Driver) -> None:
        self._calls = tuple(calls)
        self._is_group = is_group
        self._driver = driver

    def __repr__(self) -> str:
        return f"<{'group' if self._is_group else 'chain'} of {len(self._calls)}>"

    @overload
    def then(self, following: FlowCall[R], /) -> Flow[Job[R]]: ...
    @overload
    def then(self, following: Flow[K], /) -> Flow[K]: ...
    def then(self, following: Any, /) -> Flow[Any]:
        """This flow, and then a call or another flow, which waits for all last jobs of this one. No round trip."""
        return chain(self, following)

    @verb
    def enqueue(self) -> Operation[J]:
        """Enqueue all jobs of the flow. Returns its last job; of a group: a list of all its last jobs.

        A job runs when all jobs that it waits for have completed. While one of those is a dead letter, it is blocked:
        requeue the dead letter, and the flow continues; remove it, and the flow stops. `using(on_failure=…)` changes
        that.

        The jobs may belong to several queues. If a job waits for a job of another queue, a worker of that queue reports
        the end, usually within milliseconds, and each report counts once.

        If an error is raised, the jobs that were enqueued before it are cancelled. If the program dies meanwhile, the
        jobs that wait are cancelled after ten minutes. Raises BadCall for arguments that do not fit. One round trip for
        250 jobs, or 1 MiB; with several queues, three for each queue.
        """
        plan = Plan()
        ends = _add(plan, self, _Ends((), ()))
        if plan.nodes:
            yield from plan.enqueue()
        jobs = [node.call.job(node.key) for node in ends.jobs]
        return jobs if ends.is_list else jobs[0]  # type: ignore[return-value]


CallOrFlow: TypeAlias = FlowCall[Any] | Flow[Any]


def result_of(job: Job[R]) -> R:
    """Stands for the result of a job, as an argument of a job that waits for it:
    `report.using(after=count).enqueue(result_of(count))`. A list of them is a list of results. No round trip.
    """
    return cast("R", AwaitedResult(job.id, job.key))


@overload
def chain(*calls: FlowCall[R]) -> Flow[Job[R]]: ...
@overload
def chain(first: CallOrFlow, last: FlowCall[R], /) -> Flow[Job[R]]: ...
@overload
def chain(first: CallOrFlow, last: Flow[J], /) -> Flow[J]: ...
@overload
def chain(first: CallOrFlow, second: CallOrFlow, last: FlowCall[R], /) -> Flow[Job[R]]: ...
@overload
def chain(first: CallOrFlow, second: CallOrFlow, last: Flow[J], /) -> Flow[J]: ...
@overload
def chain(*calls: CallOrFlow) -> Flow[Any]: ...
def chain(*calls: Any) -> Flow[Any]:
    """A flow that runs calls one after another: `chain(fetch.call(url), parse.call(RESULT)).enqueue()`.

    Another flow may take the place of a call. `RESULT` as an argument stands for the result of the call before, or for
    the list of results if that is a group. No round trip.
    """
    return _checked("chain", calls, is_group=False)


def group(*calls: FlowCall[R] | Flow[Any] | Iterable[FlowCall[R] | Flow[Any]]) -> Flow[list[Job[R]]]:
    """A flow that runs calls side by side: `group(resize.call(p) for p in paths).then(publish.call(RESULT)).enqueue()`.

    Another flow may take the place of a call, and an iterable stands for all its calls. No round trip.
    """
    flat: list[Any] = []
    for one in calls:
        if isinstance(one, Flow) or is_call(one) or not isinstance(one, Iterable):
            flat.append(one)
        else:
            flat.extend(one)
    return _checked("group", flat, is_group=True)


def _checked(name: str, calls: Sequence[Any], *, is_group: bool) -> Flow[Any]:
    if not calls:
        raise BadCall(f"{name}() is empty: give it calls, as in task.call(…)")
    for one in calls:
        if not (isinstance(one, Flow) or is_call(one)):
            raise BadCall(f"{name}() takes calls, as in task.call(…), and other flows, not {type(one).__name__}")
    first = calls[0]
    driver: Driver = first._driver if isinstance(first, Flow) else first.task.queue._driver
    return Flow(calls, is_group=is_group, driver=driver)


class _Ends(NamedTuple):
    """The last jobs of a call or a flow, whose results what follows may get, and the jobs for which that waits.

    A group without jobs has no last jobs, and what follows it waits for the jobs before it.
    """

    jobs: Sequence[FlowJob]
    to_wait_for: Sequence[FlowJob]
    is_list: bool = False


def _add(plan: Plan, added: CallOrFlow, start: _Ends) -> _Ends:
    """Add a call, or a flow, which begins when `start` has ended."""
    if not isinstance(added, Flow):
        call = added if start.jobs or not start.is_list else with_empty_result(added)
        return _Ends([node := plan.add(call, start.to_wait_for, is_list=start.is_list)], [node])
    if not added._is_group:
        for one in added._calls:
            start = _add(plan, one, start)
        return start
    ends = [_add(plan, one, start) for one in added._calls]
    jobs = [job for one in ends for job in one.jobs]
    return _Ends(jobs, jobs or [job for one in ends for job in one.to_wait_for] or start.to_wait_for, is_list=True)


def enqueue_waiting(call: FlowCall[R]) -> Operation[Job[R]]:
    """Enqueue one call of a task with `using(after=…)`."""
    plan = Plan()
    node = plan.add(call, (), is_list=False)
    yield from plan.enqueue()
    return call.job(node.key)
