"""Decorators: each call of a function runs inside the `with` block of a lock, of permits, or of a rate limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Enterable(Protocol):
    """A lock, permits or a rate limit: what can be entered by `with` and by `async with`."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...


def guard_calls(
    function: F, by: Enterable, of_call: Callable[[tuple[Any, ...], dict[str, Any]], Enterable] | None = None
) -> F:
    """Return a function that enters `by` at each call, and leaves it at the end of the call.

    of_call  makes, from the arguments of one call, the object that this call enters instead of `by`

    An `async def` function is awaited inside `async with`, any other is called inside `with`. Raises TypeError for
    generators, which would do their work only after the block, and for objects that are not functions.
    """
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, staticmethod | classmethod | property):
        kind = type(function).__name__
        raise TypeError(f"{by!r} decorates a {kind}: write @{kind} above this decorator")
    if not inspect.isroutine(function) and not isinstance(function, partial):
        raise TypeError(
            f"{by!r} decorates {name}, which is not a function: decorate a function or a method. On a task, write "
            "this decorator below @app.task"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{by!r} decorates the generator {name}, which does its work after the call has returned: "
            "write a `with` block around that work instead"
        )
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            async with by if of_call is None else of_call(args, kwargs):
                return await function(*args, **kwargs)

        return cast(F, awaited)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                f"{name}() waits for {by!r} and would block the running event loop: make it an `async def` function, "
                "or call it with `asyncio.to_thread`"
            )
        with by if of_call is None else of_call(args, kwargs):
            return function(*args, **kwargs)

    return cast(F, called)
