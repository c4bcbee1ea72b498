"""Dependencies of tasks, and hooks at the start and the stop of a worker process.

    process begins ─▶ on_start ─▶ per_process ─▶ [ per_job ─▶ the task ─▶ per_job ] … ─▶ per_process ─▶ on_stop ─▶ end

A dependency is a generator that yields once: it opens something before the `yield`, and closes it afterwards. The
worker passes what was yielded to the parameters of tasks whose default names the dependency.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, overload

from penstock.errors import ConfigurationError

T = TypeVar("T")

log = logging.getLogger("penstock.worker")

Lifetime: TypeAlias = Literal["process", "job"]


class Dependency:
    """The default of a parameter that a worker fills."""

    __slots__ = ("is_async", "lifetime", "parameters", "source")

    def __init__(self, source: Callable[..., Any], lifetime: Lifetime) -> None:
        self.source = source
        self.lifetime = lifetime
        self.is_async = inspect.isasyncgenfunction(source)
        if not self.is_async and not inspect.isgeneratorfunction(source):
            raise ConfigurationError(
                f"per_{lifetime}({_name(source)}): give a generator, a `def` or an `async def` that yields once, where "
                "the task runs"
            )
        self.parameters = dependencies_of(source)
        for name, parameter in inspect.signature(source).parameters.items():
            if name not in self.parameters and parameter.default is inspect.Parameter.empty:
                raise ConfigurationError(
                    f"dependency {_name(source)}: nothing fills its parameter {name!r}; give it a default, such as "
                    "per_process(…)"
                )
        if lifetime == "process" and any(one.lifetime == "job" for one in self.parameters.values()):
            raise ConfigurationError(
                f"dependency {_name(source)}: it lives as long as the process, and cannot use one that lives for a job"
            )

    def __repr__(self) -> str:
        return f"per_{self.lifetime}({_name(self.source)})"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self!r} is filled in by a worker; a direct call of the task passes the argument (asked for {name!r})"
        )

    @property
    def needs_loop(self) -> bool:
        """Whether it, or what it uses for a job, is an `async def` that is opened for each job."""
        if self.lifetime == "process":
            return False
        return self.is_async or any(one.needs_loop for one in self.parameters.values())

    def opened(self, values: dict[str, Any]) -> Any:
        """A context manager around the `yield`. Its errors name the dependency if that does not yield once."""
        opened = _once_async if self.is_async else _once
        return opened(self, values)


@overload
def per_process(source: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def per_process(source: Callable[..., Iterator[T]], /) -> T: ...
def per_process(source: Callable[..., Any], /) -> Any:
    """The default of a task's parameter that is filled with what `source` yields, once in each worker process.

        async def pool() -> AsyncIterator[Pool]:
            async with create_pool() as opened:
                yield opened

        @app.task
        async def report(day: str, db: Pool = per_process(pool)) -> None: ...

    The worker opens it before its first claim, on its event loop, and closes it after the last job; an isolated run
    opens it in its own process. Calls of the task do not pass this parameter; it comes after those that they pass. A
    dependency may have dependencies itself. Raises ConfigurationError for anything but a generator.
    """
    return Dependency(source, "process")


@overload
def per_job(source: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def per_job(source: Callable[..., Iterator[T]], /) -> T: ...
def per_job(source: Callable[..., Any], /) -> Any:
    """As `per_process`, but opened for each job, inside the middleware and the task's timeout, and closed when it ends.

    If the task fails, the `yield` raises its exception. If the dependency catches it and raises nothing, the job is
    completed with None. An `async def` dependency serves `async def` tasks only. A `def` dependency runs where the task
    runs: on the event loop, where it must not block, or in the task's thread.
    """
    return Dependency(source, "job")


def dependencies_of(function: Callable[..., Any]) -> dict[str, Dependency]:
    """The parameters of a function that a worker fills."""
    parameters = inspect.signature(function).parameters.values()
    for one in parameters:
        check_annotation(_name(function), one.name, one.annotation)
    return {one.name: one.default for one in parameters if type(one.default) is Dependency}


def check_annotation(owner: str, name: str, annotation: Any) -> None:
    """Raise ConfigurationError for `Annotated[…, per_job(…)]`: to type checkers, callers would have to pass it."""
    for one in getattr(annotation, "__metadata__", ()):
        if type(one) is Dependency:
            kind = getattr(annotation.__origin__, "__name__", str(annotation.__origin__))
            raise ConfigurationError(
                f"{owner}: a dependency is the default of its parameter, not a part of its annotation: write "
                f"`{name}: {kind} = {one!r}`"
            )


def has_dependencies(function: Callable[..., Any]) -> bool:
    """As `dependencies_of`, for any callable, and without the time that it takes to read a signature."""
    defaults = getattr(function, "__defaults__", None) or ()
    named = getattr(function, "__kwdefaults__", None) or {}
    for name, annotation in (getattr(function, "__annotations__", None) or {}).items():
        check_annotation(_name(function), name, annotation)
    return any(type(one) is Dependency for one in (*defaults, *named.values()))


class Lifecycle:
    """The hooks of an app for the start and the stop of a worker process, in order."""

    __slots__ = ("start_hooks", "stop_hooks")

    def __init__(self) -> None:
        self.start_hooks: list[Callable[[], Any]] = []
        self.stop_hooks: list[Callable[[], Any]] = []

    @staticmethod
    def check(hook: Callable[[], Any], name: str) -> None:
        """Raise ConfigurationError for a hook that cannot be called without arguments."""
        if not callable(hook) or inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
            raise ConfigurationError(
                f"{name}({_name(hook)}): give a function, a `def` or an `async def`, that does not yield"
            )
        try:
            inspect.signature(hook).bind()
        except TypeError as error:
            raise ConfigurationError(f"{name}({_name(hook)}): it is called without arguments: {error}") from None


class ProcessLifetime:
    """The hooks and dependencies of a worker process: enter it before the first job, leave it after the last one."""

    def __init__(self, lifecycle: Lifecycle, needed: Iterable[Dependency]) -> None:
        self._lifecycle = lifecycle
        self._needed = tuple(needed)
        self._values: dict[Callable[..., Any], Any] = {}
        self._stack = AsyncExitStack()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to open and nothing to call."""
        return not (self._lifecycle.start_hooks or self._lifecycle.stop_hooks or self._needed)

    async def __aenter__(self) -> ProcessLifetime:
        """Call the start hooks, then open the dependencies. If one fails, all is closed, and its error raised."""
        try:
            self._stack.push_async_callback(self._call_stop_hooks)
            for hook in self._lifecycle.start_hooks:
                await _call(hook)
            for dependency in self._needed:
                await self._open(dependency)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _open(self, dependency: Dependency) -> Any:
        """Open the dependencies that it needs for the process, and the dependency itself if it lives that long."""
        values = {name: await self._open(one) for name, one in dependency.parameters.items()}
        if dependency.lifetime == "job":
            return None
        if dependency.source not in self._values:
            opened = dependency.opened(values)
            enter = self._stack.enter_async_context if dependency.is_async else self._enter
            self._values[dependency.source] = await enter(opened)
        return self._values[dependency.source]

    async def _enter(self, context: Any) -> Any:
        return self._stack.enter_context(context)

    async def __aexit__(self, *_: object) -> None:
        """Close the dependencies, the latest first, then call the stop hooks. Errors are logged, not raised."""
        try:
            await self._stack.aclose()
        except Exception:
            log.exception("a dependency could not be closed when the worker stopped")
        self._values.clear()

    async def _call_stop_hooks(self) -> None:
        for hook in self._lifecycle.stop_hooks:
            try:
                await _call(hook)
            except Exception:
                log.exception("the hook %s failed when the worker stopped", _name(hook))

    def enter(self, stack: ExitStack, dependencies: dict[str, Dependency]) -> dict[str, Any]:
        """The values of a `def` task's parameters. The stack closes the dependencies that live for the job."""
        return self._values_of(dependencies, {}, stack.enter_context)

    def _values_of(
        self, dependencies: dict[str, Dependency], opened: dict[Any, Any], enter: Callable[[Any], Any]
    ) -> dict[str, Any]:
        values = {}
        for name, one in dependencies.items():
            if one.lifetime == "process":
                values[name] = self._values[one.source]
                continue
            if one.source not in opened:
                opened[one.source] = enter(one.opened(self._values_of(one.parameters, opened, enter)))
            values[name] = opened[one.source]
        return values

    async def enter_async(self, stack: AsyncExitStack, dependencies: dict[str, Dependency]) -> dict[str, Any]:
        """The values of an `async def` task's parameters. The stack closes the dependencies that live for the job."""
        return await self._async_values_of(dependencies, {}, stack)

    async def _async_values_of(
        self, dependencies: dict[str, Dependency], opened: dict[Any, Any], stack: AsyncExitStack
    ) -> dict[str, Any]:
        values = {}
        for name, one in dependencies.items():
            if one.lifetime == "process":
                values[name] = self._values[one.source]
                continue
            if one.source not in opened:
                context = one.opened(await self._async_values_of(one.parameters, opened, stack))
                opened[one.source] = (
                    await stack.enter_async_context(context) if one.is_async else stack.enter_context(context)
                )
            values[name] = opened[one.source]
        return values


async def _call(hook: Callable[[], Any]) -> None:
    answer = hook()
    if inspect.isawaitable(answer):
        await answer


@contextmanager
def _once(dependency: Dependency, values: dict[str, Any]) -> Iterator[Any]:
    generator = dependency.source(**values)
    try:
        value = next(generator)
    except StopIteration:
        raise _yields(dependency, "never") from None
    try:
        yield value
    except BaseException as error:
        try:
            generator.throw(error)
        except StopIteration:
            return
        raise _close(generator, _yields(dependency, "twice")) from None
    try:
        next(generator)
    except StopIteration:
        return
    raise _close(generator, _yields(dependency, "twice"))


@asynccontextmanager
async def _once_async(dependency: Dependency, values: dict[str, Any]) -> AsyncIterator[Any]:
    generator = dependency.source(**values)
    try:
        value = await anext(generator)
    except StopAsyncIteration:
        raise _yields(dependency, "never") from None
    try:
        yield value
    except BaseException as error:
        try:
            await generator.athrow(error)
        except StopAsyncIteration:
            return
        await generator.aclose()
        raise _yields(dependency, "twice") from None
    try:
        await anext(generator)
    except StopAsyncIteration:
        return
    await generator.aclose()
    raise _yields(dependency, "twice")


def _close(generator: Any, error: ConfigurationError) -> ConfigurationError:
    generator.close()
    return error


def _yields(dependency: Dependency, how: str) -> ConfigurationError:
    return ConfigurationError(
        f"dependency {_name(dependency.source)} yields {how}: it opens something, yields once, and closes it again"
    )


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))
