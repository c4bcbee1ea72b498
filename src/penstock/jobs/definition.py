"""The definition of a task: its function, and the options of `@app.task`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from penstock.core.arguments import is_number, is_text, shown
from penstock.core.cached import cached_property
from penstock.errors import ConfigurationError
from penstock.jobs.dependencies import has_dependencies
from penstock.jobs.middleware import MiddlewareStack
from penstock.jobs.options import LONGEST_RESULT_TTL
from penstock.jobs.retry import LONGEST_DELAY, Retry
from penstock.jobs.signature import Signature, check_classes

if TYPE_CHECKING:
    from penstock.jobs.batching import Batch
    from penstock.jobs.limits import Limit, TaskLimits
    from penstock.jobs.tags import TaskTags
    from penstock.jobs.timing import Timing
    from penstock.jobs.unique import Unique

_LONGEST_NAME: Final = 255
"""Bytes. A record stores the length in one byte."""


@dataclass(frozen=True)
class Definition:
    """A registered function and the options it was registered with (see `Penstock.task`).

    Raises ConfigurationError for a function or an option that cannot work.
    """

    name: str
    function: Callable[..., Any] = field(repr=False)
    queue: str = "default"
    retry: Retry = field(default_factory=lambda: Retry(0))
    timeout: float | None = None
    result_ttl: float | None = None
    isolate: bool = False
    middleware: MiddlewareStack = field(default_factory=MiddlewareStack, repr=False, compare=False)
    timing: Timing | None = None
    """The ticks of its schedule; None: it has no schedule."""
    unique: Unique | None = None
    limit: Limit | Sequence[Limit] | None = None
    batch: Batch | None = None
    tags: Sequence[str] = ()
    never_retries: bool = False
    """Whether it was defined with retry=0. Then `raise Retry` does not run it again; without a policy, it would."""

    def __post_init__(self) -> None:
        if not is_text(self.name, 1, _LONGEST_NAME):
            raise ConfigurationError(
                f"task {shown(self.name)}: a name has 1 to {_LONGEST_NAME} bytes of UTF-8: give another name="
            )
        if not callable(self.function) or inspect.isclass(self.function):
            raise ConfigurationError(f"task {self.name}: a task is a function")
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise ConfigurationError(f"task {self.name}: a generator cannot be a task; return a list")
        self._check_options()
        self._check_queue()
        has_some = has_dependencies(self.function)
        if has_some:
            self._check_dependencies()
        dependencies = self.signature.dependencies if has_some else ()
        check_classes(self.name, getattr(self.function, "__annotations__", {}), dependencies)
        if self.isolate and self.import_path is None:
            raise ConfigurationError(
                f"task {self.name}: isolate=True runs it in another process, which finds it by module and name: "
                "define it with `def` at the top of a module, not inside a function, nor as a lambda, a bound method "
                "or a partial"
            )

        if self.batch is not None:
            from penstock.jobs.batching import check_definition

            check_definition(self.name, isolate=self.isolate, limited=bool(self.limit))
            _ = self.signature
        if self.timing is not None:
            from penstock.jobs.schedule import check_declared

            self.timing.check()
            check_declared(self.name, self.signature.required)
        if self.unique is not None:
            from penstock.jobs.unique import TaskKey, check_unique

            check_unique(self.name, self.unique, limited=bool(self.limit))
            TaskKey(self.name, self.unique, self.signature.names)
        if self.limit is not None:
            _ = self.limits
        if self.tags != ():
            _ = self.task_tags

    def _check_options(self) -> None:
        if self.result_ttl is not None and not is_number(self.result_ttl, 0, LONGEST_RESULT_TTL):
            raise ConfigurationError(
                f"task {self.name}: result_ttl={shown(self.result_ttl)}: seconds from 0 to ten years"
            )
        if self.timeout is not None and not (is_number(self.timeout, 0, LONGEST_DELAY) and self.timeout > 0):
            raise ConfigurationError(f"task {self.name}: timeout={shown(self.timeout)}: seconds above 0, or None")
        if not isinstance(self.isolate, bool):
            raise ConfigurationError(f"task {self.name}: isolate={shown(self.isolate)}: True or False")

    def _check_queue(self) -> None:
        if not isinstance(self.queue, str):
            raise ConfigurationError(f"task {self.name}: queue={shown(self.queue)}: the name of a queue")
        if "~" in self.queue:
            raise ConfigurationError(
                f"task {self.name}: queue={self.queue!r} is the name of a shard: name the whole queue, "
                f"{self.queue.partition('~')[0]!r}, or write the name without '~'"
            )

    def _check_dependencies(self) -> None:
        for one in self.signature.dependencies.values():
            if one.needs_loop and not self.is_async:
                raise ConfigurationError(
                    f"task {self.name}: a `def` task runs in a thread, and {one!r} is an `async def`; make the task an "
                    "`async def`, or the dependency a `def`"
                )

    @cached_property
    def signature(self) -> Signature:
        if self.batch is not None:
            from penstock.jobs.batching import BatchSignature

            return BatchSignature(self.name, self.function)
        return Signature(self.name, self.function)

    @cached_property
    def task_tags(self) -> TaskTags | None:
        """The templates of its tags; None: it has none."""
        if self.tags in ((), []):
            return None
        from penstock.jobs.tags import TaskTags

        return TaskTags(self.name, self.tags, self.signature.names)

    @cached_property
    def limits(self) -> TaskLimits | None:
        """None: it has none."""
        if not self.limit:
            return None
        from penstock.jobs.limits import TaskLimits
        from penstock.jobs.release import release_time

        return TaskLimits.of(self.name, self.limit, self.signature.names, release_time(self.function))

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def is_coroutine_function(self) -> bool:
        """Whether the function is an `async def` itself: to call it makes a coroutine and runs none of its code."""
        flags = self.function.__code__.co_flags if isinstance(self.function, FunctionType) else 0
        return bool(flags & inspect.CO_COROUTINE)

    @cached_property
    def is_plain_coroutine_function(self) -> bool:
        """Whether the worker calls the function itself, with the arguments of the call and nothing else."""
        return self.is_coroutine_function and not self.signature.dependencies

    @cached_property
    def import_path(self) -> tuple[str, str] | None:
        """The module and the name by which another process can import the function; None if it cannot."""
        name = getattr(self.function, "__qualname__", "<")
        if "<" in name or inspect.ismethod(self.function):
            return None
        return self.function.__module__, name

    @property
    def _source(self) -> Callable[..., Any]:
        """The function as it is written, below the decorators that wrap it."""
        source: Callable[..., Any] = inspect.unwrap(getattr(self.function, "func", self.function))
        return source

    @property
    def _own_function(self) -> Callable[..., Any]:
        """The function that was given; of a Task that is registered again, the function of that."""
        known = getattr(self.function, "definition", None)
        return known._own_function if isinstance(known, Definition) else self.function

    @cached_property
    def _execution(self) -> tuple[object, object]:
        """The objects that are new if the function's module is executed again: its globals, and its spec or code.

        A script and a notebook have no spec, but the code that runs: of the file, or of the cell.
        """
        function = self._source if hasattr(self._source, "__globals__") else type(self._source).__call__
        module: dict[str, Any] = getattr(function, "__globals__", {})
        spec = module.get("__spec__")
        return module, spec if spec is not None else _running_code(module) or getattr(function, "__code__", None)

    def is_replaced_by(self, other: Definition) -> bool:
        """Whether `other` is the same function, or the same `def` of a module that was executed again (a reload).

        A `def` in a function or in a loop makes a different function each time, at the same location in the source.
        """
        if self._own_function == other._own_function:
            return True
        (module, spec), (other_module, other_spec) = self._execution, other._execution
        return self.location == other.location and (module is not other_module or spec is not other_spec)

    @property
    def location(self) -> str:
        """The function's module, name and line. Reloading an unchanged module gives the same location."""
        function = self._source
        code = getattr(function, "__code__", None)
        line = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return f"{function.__module__}.{getattr(function, '__qualname__', function)}{line}"


def _running_code(module: dict[str, Any]) -> CodeType | None:
    """The code of the module that is being executed; None if its execution has ended."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is module and frame.f_code.co_name == "<module>":
            return frame.f_code
        frame = frame.f_back
    return None
