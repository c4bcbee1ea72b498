"""What `@app.task` returns: the kinds of task that type checkers tell apart, and the type of the decorator."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, overload

from penstock.jobs.task import Task

if TYPE_CHECKING:
    from penstock.jobs.definition import Definition
    from penstock.jobs.limits import Limit
    from penstock.jobs.queue import Queue
    from penstock.jobs.retry import Retry
    from penstock.jobs.timing import Missed, Timing
    from penstock.jobs.unique import Unique

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict, total=False):
    """The keyword arguments of `@app.task(…)`, for type checkers. `Penstock.task` describes them."""

    queue: str
    name: str | None
    retry: Retry | int | None
    timeout: float | None
    result_ttl: float | None
    isolate: bool
    schedule: str
    timezone: str
    every: float | None
    missed: Missed
    unique: Unique | None
    limit: Limit | Sequence[Limit] | None
    tags: Sequence[str]


class TaskDecorator(Protocol):
    """The type of the decorator `app.task(…)`. For an `async def`, `R` is the type of the awaited value."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


T = TypeVar("T")


class BatchDecorator(Protocol):
    """The type of the decorator `app.task(batch=…)`. A call takes one item of the list, and its job has one result."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], ...], Coroutine[Any, Any, Sequence[R | Exception]]], /
    ) -> BatchTask[T, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], ...], Coroutine[Any, Any, None]], /
    ) -> BatchTask[T, None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], ...], Sequence[R | Exception]], /
    ) -> BatchTask[T, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[list[T], ...], None], /) -> BatchTask[T, None]: ...


class BatchTask(Task[[T], R], Generic[T, R]):
    """A task with `batch=`. Called itself, it takes the whole list; `enqueue` takes one item."""

    def __call__(self, items: list[T], /, **filled: Any) -> Any:  # type: ignore[override]
        return self._function(items, **filled)  # type: ignore[arg-type]


class AsyncTask(Task[P, R], Generic[P, R]):
    """A task from an `async def` function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = super().__call__(*args, **kwargs)
        return coroutine


class PlainTask(Task[P, R], Generic[P, R]):
    """A task from a `def` function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = super().__call__(*args, **kwargs)
        return value


def make_task(definition: Definition, queue: Queue) -> Task[..., Any]:
    kind: type[Task[..., Any]] = AsyncTask if definition.is_async else PlainTask
    return (BatchTask if definition.batch is not None else kind)(definition.function, definition, queue)


def timing_of(schedule: str, timezone: str, every: float | None, missed: Missed) -> Timing | None:
    """The times of a task's schedule; None: it has none."""
    if not schedule and every is None and timezone == "UTC" and missed == "one":
        return None
    from penstock.jobs.timing import Timing  # imported here, because most programs have no schedule

    return Timing(schedule, timezone, every, missed)
