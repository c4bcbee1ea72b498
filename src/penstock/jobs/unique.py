"""Unique jobs: of the calls with one key, only the first is enqueued, until it starts or ends, or for a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

from penstock.core.arguments import check_flag, check_number, is_text, shown
from penstock.core.clock import milliseconds
from penstock.errors import ConfigurationError
from penstock.jobs.constants import DEBOUNCE, DONE, LATEST, REPLACE, START, THROTTLE
from penstock.jobs.key_template import LONGEST_KEY, KeyTemplate, escapes

_LONGEST: Final = 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Unique:
    """Which calls are the same, and for how long only the first of them is enqueued.

        @app.task(unique=Unique("{order}"))                  one job for each order at a time, until it is done
        @app.task(unique=Unique("{doc}", until="start"))     one waiting job; another may be enqueued once it runs
        @app.task(unique=Unique("{doc}", until="start", replace=True))   as before, but the last arguments count
        @app.task(unique=Unique("{doc}", on_double="replace", running="cancel"))     the newest call wins, always
        @app.task(unique=Unique("{doc}", debounce=5))        runs 5 s after the last call, with its arguments
        @app.task(unique=Unique("{user}", throttle=60))      at most one a minute; the others are dropped

    key       a template with names of parameters; None: all arguments. The name of the task belongs to the key
    until     "done": while the job waits or runs, also between retries. "start": while it waits
    replace   with until="start": a double gives its arguments to the job that waits, which keeps its id and position
    on_double "replace": another way to write replace=True
    running   with on_double="replace", "cancel": the same while the job waits. A job that has begun is cancelled, as
              `cancel()` does, and the new one starts when its run has ended, however it ends. Until then it waits, and
              a further double replaces its arguments
    debounce  seconds. As `replace`, and the job runs this many seconds after the last double
    throttle  seconds for which no other job is enqueued, also after the first has run; a cancel or expiry ends them
    exact     instead of a template: this text is the key, which other tasks of the queue and `queue.put` may share.
              A double replaces the arguments only of a job that has replace or debounce itself

    A double changes nothing else, and `enqueue` returns a handle on the first job. The job gives up its key when the
    reason to hold it ends: it is done, dead, cancelled or expired, it was started, or the time is over. Raises
    ValueError for arguments that contradict each other.
    """

    key: str | None = None
    _: KW_ONLY
    until: Literal["done", "start"] = "done"
    replace: bool = False
    debounce: float | None = None
    throttle: float | None = None
    exact: str | None = None
    on_double: Literal["keep", "replace"] = "keep"
    running: Literal["keep", "cancel"] = "keep"

    def __post_init__(self) -> None:
        for name, value, values in (
            ("on_double", self.on_double, ("keep", "replace")),
            ("running", self.running, ("keep", "cancel")),
        ):
            if value not in values:
                raise ValueError(f"Unique({name}={shown(value)}): use {values[0]!r} or {values[1]!r}")
        if self.running == "cancel" and (not self._gives_arguments or self.until != "done"):
            raise ValueError(
                'Unique(running="cancel") needs on_double="replace", and no until: its key is held until the job ends'
            )
        if self.until not in ("done", "start"):
            raise ValueError(f"Unique(until={self.until!r}): use 'done' or 'start', or throttle=seconds for a time")
        check_flag("Unique", "replace", self.replace)
        if self.key is not None and self.exact is not None:
            raise ValueError("Unique: give a template or exact=, not both")
        if (self.debounce is not None) + (self.throttle is not None) > 1:
            raise ValueError("Unique: give debounce or throttle, not both")
        for name, seconds in (("debounce", self.debounce), ("throttle", self.throttle)):
            if seconds is not None:
                check_number("Unique", name, seconds, 0.001, _LONGEST, "seconds from 0.001 to a year")
            if seconds is not None and (self._gives_arguments or self.until != "done"):
                raise ValueError(f"Unique: {name} decides itself how long the key is held, and about doubles")
        if self._gives_arguments and self.until != "start" and self.running != "cancel":
            raise ValueError(
                f"Unique({'replace=True' if self.replace else 'on_double=' + repr(self.on_double)}) needs "
                'until="start", because a job that runs has its arguments already; or running="cancel", to cancel that'
            )
        if self.exact is not None and not is_text(self.exact, 1, LONGEST_KEY):
            raise ValueError(f"Unique(exact={shown(self.exact)}): 1 to {LONGEST_KEY} bytes of UTF-8")

    @property
    def _gives_arguments(self) -> bool:
        return self.replace or self.on_double == "replace"

    @property
    def replaces(self) -> bool:
        return self._gives_arguments or self.debounce is not None

    def section(self, key: str) -> bytes:
        """The section of a record that has this key."""
        if self.throttle is not None:
            return unique_section(key, THROTTLE, milliseconds(self.throttle))
        if self.debounce is not None:
            return unique_section(key, DEBOUNCE, milliseconds(self.debounce))
        if self.running == "cancel":
            return unique_section(key, LATEST)
        return unique_section(key, DONE if self.until == "done" else REPLACE if self._gives_arguments else START)


def check_unique(task: str, unique: Unique, *, limited: bool) -> None:
    """Check `unique=` of a task. Raises ConfigurationError for one that cannot work with it."""
    if not isinstance(unique, Unique):
        raise ConfigurationError(f"task {task}: unique={shown(unique)}: give Unique(…)")
    if limited and unique.replaces:
        raise ConfigurationError(
            f"task {task}: a double would replace arguments that its limits have used already: give the task limits, "
            "or Unique with replace or debounce, but not both"
        )


class TaskKey:
    """Makes the key of a call. Raises ConfigurationError for a template that names no argument of the task.

    mixed  parameters that take text and other values, so that 1 and "1" are different calls
    """

    def __init__(self, task: str, unique: Unique, parameters: Sequence[str], mixed: Collection[str] = ()) -> None:
        self._task = task.translate(escapes(":"))
        self._unique = unique
        self._template: KeyTemplate | None = None
        if unique.key is not None:
            self._template = KeyTemplate(f"task {task}: unique", unique.key, parameters, mixed)
            if not self._template.fields:
                raise ConfigurationError(
                    f"task {task}: unique: the key {unique.key!r} names no argument, so all calls would be doubles: "
                    f"write a name in braces, or Unique(exact={unique.key!r}) if you mean that"
                )

    @property
    def uses_tenant(self) -> bool:
        """Whether the key contains the tenant of the job."""
        return self._template is not None and self._template.uses_tenant

    def section(self, arguments: Callable[[], bytes], value_of: Callable[[str], Any], tenant: str) -> bytes:
        """The section of a record that has the key of one call. Raises BadCall if it is too long.

        `arguments`: all of them, in one form for equal calls (see `Signature.canonical`).
        """
        if self._unique.exact is not None:
            return self._unique.section(self._unique.exact)
        if self._template is not None:
            return self._unique.section(f"{self._task}:{self._template.fill(value_of, tenant)}")
        return self._unique.section(f"{self._task}:{hashlib.blake2b(arguments(), digest_size=12).hexdigest()}")


def exact_section(unique: Unique) -> bytes:
    """The section of a record that has the key of a bare value. Raises ValueError for a template."""
    if unique.exact is None:
        raise ValueError("put(unique=…): a value has no arguments: give the key as Unique(exact=…)")
    return unique.section(unique.exact)


def unique_section(key: str, mode: bytes, ms: int = 0) -> bytes:
    """The section of a record (`record.lua`). `mode`, `ms`: how long the key is held (`unique.lua`)."""
    return mode + ms.to_bytes(5) + key.encode()
