"""What a task is, before anyone enqueues it; and the options of one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from penstock.errors import ConfigurationError
from penstock.jobs.retry import LONGEST, Retry
from penstock.jobs.signature import Signature

LONGEST_KEPT: Final = 10 * 365 * 86400.0
"""Seconds a result may be kept; a record has five bytes for it."""


@dataclass(frozen=True)
class Definition:
    """A function with the promises it was registered with."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    queue: str = "default"
    retry: Retry = field(default_factory=lambda: Retry(0))
    timeout: float | None = None
    result_ttl: float | None = None
    isolate: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function) or inspect.isclass(self.function):
            raise ConfigurationError(f"task {self.name}: a task is a function")
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise ConfigurationError(f"task {self.name}: a generator cannot be a task; return a list")
        if self.result_ttl is not None and not 0 <= self.result_ttl <= LONGEST_KEPT:
            raise ConfigurationError(f"task {self.name}: result_ttl={self.result_ttl}: seconds from 0 to ten years")
        if self.timeout is not None and not 0 < self.timeout <= LONGEST:
            raise ConfigurationError(f"task {self.name}: timeout={self.timeout}: seconds above 0, or None")
        if self.isolate and self.importable is None:
            raise ConfigurationError(
                f"task {self.name}: isolate=True runs it in another process, which finds it by module and name: "
                "define it with `def` at the top of a module, not inside a function, nor as a lambda, a bound method "
                "or a partial"
            )

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.name, self.function)

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def importable(self) -> tuple[str, str] | None:
        """Module and name by which another process finds it; None for what only this one has."""
        name = getattr(self.function, "__qualname__", "<")
        if "<" in name or inspect.ismethod(self.function):
            return None
        return self.function.__module__, name

    @property
    def place(self) -> str:
        """Where it is defined. The same function of a module that was loaded again has the same."""
        function = inspect.unwrap(getattr(self.function, "func", self.function))
        code = getattr(function, "__code__", None)
        line = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return f"{function.__module__}.{getattr(function, '__qualname__', function)}{line}"


@dataclass(frozen=True, slots=True)
class Options:
    """How one call travels. Seconds from now, or a date with a time zone.

    delay, at     not before; only one of them
    priority      0 most urgent … 9
    tenant        the party that fairness is between; '' is a tenant like any other
    expires       not after: what was not started by then is dropped
    result_ttl    how long the result is kept, seconds; None: the task's, else the app's
    id            one's own id: while a job of this id waits or runs, enqueueing it again changes nothing
    durable       answer only when the write is on disk or on a replica
    """

    delay: float = 0.0
    at: datetime | None = None
    priority: int = 5
    tenant: str = ""
    expires: float | datetime | None = None
    result_ttl: float | None = None
    id: str | None = None
    durable: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.delay <= LONGEST:
            raise ValueError(f"delay={self.delay}: seconds from 0 to {LONGEST:.0f}")
        if self.at is not None and self.delay:
            raise ValueError("delay and at: give one of them")
        for name, date in (("at", self.at), ("expires", self.expires)):
            if isinstance(date, datetime) and (date.tzinfo is None or not 0 <= date.timestamp() < 1e11):
                raise ValueError(f"{name}={date!r}: a date with a time zone, e.g. datetime.now(UTC), after 1970")
        if isinstance(self.expires, int | float) and not 0 < self.expires <= LONGEST:
            raise ValueError(f"expires={self.expires}: seconds above 0, or a date")
        if self.priority not in range(10):
            raise ValueError(f"priority={self.priority!r}: 0 (most urgent) to 9 (least)")
        if self.result_ttl is not None and not 0 <= self.result_ttl <= LONGEST_KEPT:
            raise ValueError(f"result_ttl={self.result_ttl}: seconds from 0 to ten years")
        if len(self.tenant.encode("utf-8", "strict")) > 255:
            raise ValueError("tenant: at most 255 bytes of UTF-8")
        if self.id is not None and not 1 <= len(self.id.encode()) <= 200:
            raise ValueError("id: 1 to 200 bytes of UTF-8")
