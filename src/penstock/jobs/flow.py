"""Jobs that wait for other jobs: one after another (`chain`), side by side (`group`), or in any mixture of both.

`flow.lua` says what the server does with them. Here a flow is an expression of calls. It becomes a plan, in which each
job knows the jobs that it waits for, and the plan becomes rows, which are sent in slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

import msgspec

from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, verb
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.constants import AFTER_OTHERS, CONTINUE, INSTEAD, STOP
from penstock.jobs.flow_bindings import ROWS, FlowBindings, FlowRow
from penstock.jobs.job import Job
from penstock.jobs.middleware import EnqueueContext, JobDraft, MiddlewareStack
from penstock.jobs.options import EnqueueOptions
from penstock.jobs.outputs import Output
from penstock.jobs.record import POWERS_AT

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
J = TypeVar("J")
K = TypeVar("K")

MOST_EDGES: Final = 100_000
"""Pairs of a job and one that it waits for, in one flow."""

_SLICE_BYTES: Final = 1 << 20
_LARGEST_POWERS: Final = 60_000


class FlowCall(Protocol[R_co]):
    """A call, as `task.call(…)` returns it."""

    @property
    def task(self) -> Any: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def powers(self) -> bytes: ...
    @property
    def wanted(self) -> tuple[tuple[str, Any], ...]: ...
    def draft(self) -> tuple[str, bytes]: ...
    def job(self, key: str) -> Job[R_co]: ...


class FlowQueue(Protocol):
    """The parts of a queue that a flow uses."""

    name: str
    bindings: QueueBindings
    middleware: MiddlewareStack
    shards: Any


OnFailure: TypeAlias = Literal["stop", "continue"] | FlowCall[Any]


class UsingOptions(EnqueueOptions, total=False):
    """The keyword arguments of `using`, for type checkers. `Task.using` describes the last two."""

    after: Job[Any] | Iterable[Job[Any]] | None
    on_failure: OnFailure


def _is_call(value: Any) -> bool:
    return isinstance(getattr(value, "powers", None), bytes) and hasattr(value, "task")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The jobs to wait for, and the policy if one of them fails, as `using(after=…, on_failure=…)` sets them."""

    after: tuple[Job[Any], ...] = ()
    is_list: bool = True
    on_failure: OnFailure = "stop"

    @classmethod
    def of(cls, after: Job[Any] | Iterable[Job[Any]] | None, on_failure: OnFailure) -> Waiting:
        """Raises BadCall for anything but jobs, and for a job whose result is not kept."""
        if on_failure not in ("stop", "continue") and not _is_call(on_failure):
            raise ValueError(f"on_failure={on_failure!r}: 'stop', 'continue', or a call, as in task.call(…)")
        jobs = () if after is None else (after,) if isinstance(after, Job) else tuple(after)
        for job in jobs:
            if not isinstance(job, Job):
                raise BadCall(f"after= takes jobs, as `enqueue` returns them, not {type(job).__name__}")
            if job.keeps_no_result:
                raise BadCall(
                    f"after=: job {job.id} was enqueued with result_ttl=0, so that nothing shows later whether it has "
                    "ended: give it a result_ttl, or put both into a chain"
                )
        return cls(tuple(dict.fromkeys(jobs)), not isinstance(after, Job), on_failure)


# --- expressions ---


class Flow(Generic[J]):
    """Calls that wait for each other, not enqueued yet: what `chain` and `group` return.

    Each use of a call, here or in another flow, is a job of its own.
    """

    __slots__ = ("_is_group", "_steps")

    def __init__(self, steps: Sequence[Step], *, is_group: bool) -> None:
        self._steps = tuple(steps)
        self._is_group = is_group

    def __repr__(self) -> str:
        return f"<{'group' if self._is_group else 'chain'} of {len(self._steps)}>"

    @overload
    def then(self, step: FlowCall[R], /) -> Flow[Job[R]]: ...
    @overload
    def then(self, step: Flow[K], /) -> Flow[K]: ...
    def then(self, step: Any, /) -> Flow[Any]:
        """This flow, and then a call or another flow, which waits for all last jobs of this one. No round trip."""
        return chain(self, step)

    @property
    def _driver(self) -> Driver:
        driver: Driver = next(_calls(self)).task.home._driver
        return driver

    @verb
    def enqueue(self) -> Operation[J]:
        """Enqueue all jobs of the flow. Returns its last job; of a group: a list of all its last jobs.

        A job runs when all jobs that it waits for have completed. While one of those is a dead letter, it is blocked:
        requeue the dead letter, and the flow continues; remove it, and the flow stops. `using(on_failure=…)` changes
        that.

        If an error is raised, the jobs that were enqueued before it are cancelled. Raises BadCall for arguments that do
        not fit, and ConfigurationError for jobs of several queues. One round trip for 250 jobs, or 1 MiB.
        """
        plan = _Plan()
        exits = plan.add(self, (), is_list=False)
        yield from plan.enqueue()
        jobs = [node.call.job(node.key) for node in exits]
        return jobs if self._is_list else jobs[0]  # type: ignore[return-value]

    @property
    def _is_list(self) -> bool:
        last = self._steps[-1]
        return self._is_group or (isinstance(last, Flow) and last._is_list)


Step: TypeAlias = FlowCall[Any] | Flow[Any]


@overload
def chain(*steps: FlowCall[R]) -> Flow[Job[R]]: ...
@overload
def chain(first: Step, last: FlowCall[R], /) -> Flow[Job[R]]: ...
@overload
def chain(first: Step, last: Flow[J], /) -> Flow[J]: ...
@overload
def chain(first: Step, second: Step, last: FlowCall[R], /) -> Flow[Job[R]]: ...
@overload
def chain(first: Step, second: Step, last: Flow[J], /) -> Flow[J]: ...
@overload
def chain(*steps: Step) -> Flow[Any]: ...
def chain(*steps: Any) -> Flow[Any]:
    """A flow whose steps run one after another: `chain(fetch.call(url), parse.call(RESULT)).enqueue()`.

    A step is a call or another flow. `RESULT` as an argument stands for the result of the step before, or for the
    list of results if that is a group. No round trip.
    """
    return _checked("chain", steps, is_group=False)


def group(*steps: FlowCall[R] | Flow[Any] | Iterable[FlowCall[R] | Flow[Any]]) -> Flow[list[Job[R]]]:
    """A flow whose steps run side by side: `group(resize.call(p) for p in paths).then(publish.call(RESULT)).enqueue()`.

    A step is a call or another flow; an iterable stands for all its steps. No round trip.
    """
    flat: list[Any] = []
    for step in steps:
        if isinstance(step, Flow) or _is_call(step) or not isinstance(step, Iterable):
            flat.append(step)
        else:
            flat.extend(step)
    return _checked("group", flat, is_group=True)


def _checked(name: str, steps: Sequence[Any], *, is_group: bool) -> Flow[Any]:
    if not steps:
        raise BadCall(f"{name}() is empty: give it calls, as in task.call(…)")
    for step in steps:
        if not (isinstance(step, Flow) or _is_call(step)):
            raise BadCall(f"{name}() takes calls, as in task.call(…), and other flows, not {type(step).__name__}")
    return Flow(steps, is_group=is_group)


def _calls(flow: Step) -> Iterator[FlowCall[Any]]:
    if isinstance(flow, Flow):
        for step in flow._steps:
            yield from _calls(step)
    else:
        yield flow


# --- plans ---


@dataclass(eq=False, slots=True)
class _Node:
    """One job of a flow, and the jobs of the flow that it waits for."""

    key: str
    call: FlowCall[Any]
    predecessors: Sequence[_Node] = ()
    is_list: bool = False
    dependents: list[_Node] = field(default_factory=list)

    @property
    def waiting(self) -> Waiting:
        return self.call.task.waiting or Waiting()

    @property
    def waits(self) -> bool:
        return bool(self.predecessors or self.waiting.after)


class _Plan:
    """The jobs of one flow, in the order in which they are to run."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self._edges = 0

    def add(self, step: Step, predecessors: Sequence[_Node], *, is_list: bool) -> Sequence[_Node]:
        """Add a part of the flow, which waits for `predecessors`. Returns its last jobs."""
        if not isinstance(step, Flow):
            node = _Node(step.task.options.id or mint_id(), step, predecessors, is_list)
            for one in predecessors:
                one.dependents.append(node)
            self.nodes.append(node)
            self._edges += len(predecessors)
            if self._edges > MOST_EDGES:
                raise BadCall(
                    f"the flow has more than {MOST_EDGES:,} pairs of a job and one that waits for it: put a call "
                    "between two large groups, so that each waits for one job"
                )
            return [node]
        if step._is_group:
            return [last for one in step._steps for last in self.add(one, predecessors, is_list=is_list)]
        for part in step._steps:
            predecessors = self.add(part, predecessors, is_list=is_list)
            is_list = isinstance(part, Flow) and part._is_list
        return predecessors

    def enqueue(self) -> Operation[bool]:
        """Returns False if the first job, which has an id of the user's own, is in the queue already."""
        queue = self._queue()
        rows = self._rows(queue)
        durable = any(node.call.task.options.durable for node in self.nodes)
        sent: list[str] = []
        bindings = FlowBindings(queue.bindings)
        try:
            for some in _slices(rows):
                is_new = yield from _send(queue, bindings, some, durable=durable)
                if not is_new and not sent:
                    return False
                sent += [row.key for row in some if row.draft]
        except Exception:
            for at in range(0, len(sent), ROWS):
                yield queue.bindings.cancel(sent[at : at + ROWS])
            raise
        return True

    def _queue(self) -> FlowQueue:
        queue: FlowQueue = self.nodes[0].call.task.home
        if queue.shards is not None:
            raise ConfigurationError(
                f"queue {queue.name} has shards, between which tenants may move: give a flow a queue without shards"
            )
        for node in self.nodes:
            task = node.call.task
            for home in (task.home, *(job.home for job in node.waiting.after)):
                if home.name != queue.name:
                    raise ConfigurationError(
                        f"a flow has jobs of the queues {queue.name} and {home.name}: give its tasks one queue"
                    )
            if task.unique is not None:
                raise ConfigurationError(
                    f"task {task.name} is unique: a double would have nothing to wait for. Enqueue it first, and "
                    "pass its job as after="
                )
            if node.waits and not task.options.is_due_now:
                raise ConfigurationError(
                    f"task {task.name}: delay and at: a job that waits for others starts when they have ended; delay "
                    "the first job of the flow"
                )
        return queue

    def _rows(self, queue: FlowQueue) -> list[FlowRow]:
        opens, edges, jobs, closes = [], [], [], []
        places: dict[_Node, dict[str, int]] = {node: {} for node in self.nodes if node.waits}

        def place(dependent: _Node, key: str) -> str:
            places[dependent][key] = len(places[dependent])
            return dependent.key

        for node in reversed(self.nodes):
            if node.waits:
                opens.append((node, place(node.dependents[0], node.key) if len(node.dependents) == 1 else ""))
                closes.append(FlowRow("close", node.key))
        for node in self.nodes:
            if len(node.dependents) > 1:
                edges += [FlowRow("edge", node.key, b"", place(one, node.key)) for one in node.dependents]
            if not node.waits:
                to = place(node.dependents[0], node.key) if len(node.dependents) == 1 else ""
                jobs.append(FlowRow("job", node.key, node.call.draft()[1], to))
            for job in node.waiting.after:
                if job.key == node.key:
                    raise BadCall(f"job {job.id} would wait for itself: a cycle never ends")
                edges.append(FlowRow("after", job.key, b"", place(node, job.key)))
        rows = [_open(queue, node, to, places[node]) for node, to in opens]
        return [*rows, *edges, *jobs, *closes]


def _open(queue: FlowQueue, node: _Node, dependent: str, places: dict[str, int]) -> FlowRow:
    """The row of a job that waits."""
    call, waiting = node.call, node.waiting
    fields: dict[str, Any] = msgspec.msgpack.decode(call.powers[2:]) if call.powers else {}
    policy = {"stop": STOP, "continue": CONTINUE}.get(waiting.on_failure if isinstance(waiting.on_failure, str) else "")
    if not isinstance(waiting.on_failure, str):
        other, policy = waiting.on_failure, INSTEAD
        if other.task.home.name != queue.name:
            raise ConfigurationError(
                f"on_failure: task {other.task.name} is of queue {other.task.home.name}: the call takes the place of a "
                f"job in queue {queue.name}, so its task needs that queue"
            )
        if other.task.unique is not None:
            raise ConfigurationError(
                f"on_failure: task {other.task.name} is unique, and so cannot take another's place"
            )
        draft = other.draft()[1]
        fields["f"] = msgspec.Raw(
            b"\xda" + min(len(draft), 0xFFFF).to_bytes(2) + draft
        )  # Lua reads no other type of bytes
    if call.wanted:
        fields["i"] = {name: _input(call, node, value, places) for name, value in call.wanted}
    packed = msgspec.msgpack.encode(fields)
    if len(packed) > _LARGEST_POWERS:
        raise BadCall(
            f"{call.task.name}(): the call of on_failure and the places of results have {len(packed):,} bytes, at most "
            f"{_LARGEST_POWERS:,} fit: pass less to that call, or put a call between"
        )
    powers = len(packed).to_bytes(2) + packed
    start = call.task.record_start
    start = start[:POWERS_AT] + bytes([start[POWERS_AT] | AFTER_OTHERS]) + start[POWERS_AT + 1 :]
    verb = f"open{(policy or STOP).decode()}{'w' if call.wanted else ''}"
    return FlowRow(verb, node.key, start + powers + call.payload, dependent)


def _input(call: FlowCall[Any], node: _Node, value: Any, places: dict[str, int]) -> int | list[int]:
    """The place of the result that an argument stands for; of several, their places, or [first, -number]."""
    what = f"{call.task.name}()"
    for one in node.predecessors:
        task = one.call.task
        if (task.result_ttl if task.result_ttl is not None else task.home.settings.result_ttl) == 0:
            raise BadCall(
                f"{what} wants the result of {task.name}, which is enqueued with result_ttl=0, so that its result is "
                "not kept: give it a result_ttl"
            )
    if isinstance(value, Output) and not value.key:
        before = [one.key for one in node.predecessors] or [job.key for job in node.waiting.after]
        found = [places[key] for key in before]
        if not (node.is_list if node.predecessors else node.waiting.is_list):
            return found[0]
    else:
        found, outputs = [], [value] if isinstance(value, Output) else value
        for output in outputs:
            found.append(places.get(output.key, -1))
            if found[-1] < 0:
                job = f"job {output.job_id}" if output.key else "RESULT in a list"
                raise BadCall(f"{what} wants the result of {job}, and does not wait for it: name the job in after=[…]")
        if isinstance(value, Output):
            return found[0]
    if found == list(range(found[0], found[0] + len(found))):
        return [found[0], -len(found)]
    return found


def _slices(rows: Sequence[FlowRow]) -> Iterator[list[FlowRow]]:
    some: list[FlowRow] = []
    size = 0
    for row in rows:
        if some and (len(some) == ROWS or size + len(row.draft) > _SLICE_BYTES):
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row.draft)
    if some:
        yield some


def _send(queue: FlowQueue, bindings: FlowBindings, rows: list[FlowRow], *, durable: bool) -> Operation[bool]:
    if not queue.middleware.enqueue_hooks:
        is_new: bool = yield bindings.enqueue(rows, durable=durable)
        return is_new
    drafts = {at: JobDraft(queue.name, row.key, row.draft) for at, row in enumerate(rows) if row.draft}
    with queue.middleware.around_enqueue(EnqueueContext(queue.name, [*drafts.values()])):
        changed = [row._replace(draft=drafts[at].record) if at in drafts else row for at, row in enumerate(rows)]
        is_new = yield bindings.enqueue(changed, durable=durable)
    return is_new


def enqueue_waiting(call: FlowCall[R]) -> Operation[Job[R]]:
    """Enqueue one call of a task with `using(after=…)`."""
    plan = _Plan()
    (node,) = plan.add(call, (), is_list=False)
    yield from plan.enqueue()
    return call.job(node.key)
