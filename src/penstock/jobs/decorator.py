"""What `@app.task` returns: the kinds of task that type checkers tell apart, and the type of the decorator."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, overload

from penstock.jobs.task import Task

if TYPE_CHECKING:
    from penstock.jobs.limits import Limit
    from penstock.jobs.retry import Retry
    from penstock.jobs.timing import Missed
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


class TaskDecorator(Protocol):
    """The type of the decorator `app.task(…)`. For an `async def`, `R` is the type of the awaited value."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


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
