"""What `@app.task` makes of a function: still callable, and a way to enqueue it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall
from penstock.jobs.definition import Definition, Options
from penstock.jobs.job import Job
from penstock.jobs.queue import CHUNK, Queue
from penstock.jobs.record import CALL

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A task with its arguments, checked and encoded, not enqueued yet."""

    task: Task[..., R]
    payload: bytes

    def draft(self) -> tuple[str, bytes]:
        task = self.task
        return task.home.draft(self.payload, task.options, CALL, task.definition.result_ttl)

    def job(self, key: str) -> Job[R]:
        task = self.task
        ttl = task.options.result_ttl if task.options.result_ttl is not None else task.definition.result_ttl
        return Job(task.home, key, returns=task.definition.signature.returns, ttl=ttl)


class Task(Generic[P, R]):
    """A registered function. Calling it runs it here and now; `enqueue` has a worker run it."""

    def __init__(
        self, function: Callable[P, Any], definition: Definition, home: Queue, options: Options | None = None
    ) -> None:
        update_wrapper(self, function)
        self._function = function
        self.definition = definition
        self.home = home
        self.options = options or Options()

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.definition.name} on {self.home.name}>"

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def _driver(self) -> Driver:
        return self.home._driver

    def using(
        self,
        *,
        delay: float = 0.0,
        at: datetime | None = None,
        priority: int = 5,
        tenant: str = "",
        expires: float | datetime | None = None,
        result_ttl: float | None = None,
        id: str | None = None,
        durable: bool = False,
    ) -> Task[P, R]:
        """The same task with other options for the calls made from it; see `Options`. No round trip."""
        options = Options(delay, at, priority, tenant, expires, result_ttl, id, durable)
        return Task(self._function, self.definition, self.home, options)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check and encode the arguments; for `app.enqueue_many`. Raises BadCall where they do not fit."""
        return Call(self, self.definition.signature.encode(args, kwargs, self.home.settings.max_payload))

    @verb
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> RoundTrip[Job[R]]:
        """Have a worker run it. Once this returns, the job is accepted and will run at least once.

        Raises BadCall before anything is sent where the arguments do not fit, ServerFull when the server is out of
        memory. One round trip.
        """
        call = self.call(*args, **kwargs)
        key, record = call.draft()
        return self.home.bindings.enqueue((key, record), durable=self.options.durable).then(lambda _: call.job(key))

    def enqueue_in(self, pipeline: Any, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue inside a pipeline or transaction of your own; see `Queue.put_in`."""
        call = self.call(*args, **kwargs)
        key, record = call.draft()
        self._driver.add_to_pipeline(pipeline, self.home.bindings.enqueue((key, record)))
        return call.job(key)


def enqueue_all(calls: Iterable[Call[R]]) -> Operation[list[Job[R]]]:
    """Enqueue calls of any tasks, some hundreds a round trip, as they come out of the iterable."""
    jobs: list[Job[R]] = []
    waiting: dict[tuple[Queue, bool], list[tuple[str, bytes]]] = {}
    for call in calls:
        if not isinstance(call, Call):
            raise BadCall(f"enqueue_many takes calls, as in task.call(…), not {type(call).__name__}")
        key, record = call.draft()
        jobs.append(call.job(key))
        lot = waiting.setdefault((call.task.home, call.task.options.durable), [])
        lot.append((key, record))
        if len(lot) == CHUNK:
            yield from call.task.home.enqueue_drafts(lot, durable=call.task.options.durable)
            lot.clear()
    for (queue, durable), lot in waiting.items():
        yield from queue.enqueue_drafts(lot, durable=durable)
    return jobs
