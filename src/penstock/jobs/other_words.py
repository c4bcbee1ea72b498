"""Names that other libraries have for the options and methods of a task: an error names what it is called here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core import other_words
from penstock.errors import ConfigurationError

_LATER: Final = "using(delay=seconds)"

_OPTIONS: Final[Mapping[str, str]] = {
    "countdown": _LATER,
    "defer_by": _LATER,
    "delay_seconds": _LATER,
    "in_": _LATER,
    "eta": "using(at=…), a date with a time zone",
    "defer_until": "using(at=…), a date with a time zone",
    "run_at": "using(at=…), a date with a time zone",
    "prio": "using(priority=…), from 0 (most urgent) to 9",
    "job_id": "using(id=…)",
    "task_id": "using(id=…)",
    "deduplication_id": "using(id=…)",
    "ttl": "using(expires=…), or using(result_ttl=…) for the result",
    "expires_in": "using(expires=…)",
    "max_retries": "@app.task(retry=…), a number or a Retry(…)",
    "retries": "@app.task(retry=…), a number or a Retry(…)",
    "autoretry_for": "@app.task(retry=Retry(times, on=…))",
    "retry_backoff": "@app.task(retry=Retry(times, base=seconds, factor=2))",
    "default_retry_delay": "@app.task(retry=Retry(times, base=seconds))",
    "time_limit": "@app.task(timeout=…)",
    "job_timeout": "@app.task(timeout=…)",
    "soft_time_limit": "@app.task(timeout=…)",
    "rate_limit": "@app.task(limit=Rate(…))",
    "cron": '@app.task(schedule="0 7 * * *")',
    "queue_name": "@app.task(queue=…)",
    "bind": "no option: current() returns the running job",
    "priority": "using(priority=…)",
    "delay": _LATER,
    "tenant": "using(tenant=…)",
    "queue": "@app.task(queue=…)",
    "retry": "@app.task(retry=…)",
    "timeout": "@app.task(timeout=…)",
}

_METHODS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("delay", "send", "defer", "kiq", "kick", "submit", "apply_async", "perform_async"), "enqueue(…)"),
    **dict.fromkeys(("s", "si", "signature"), "call(…)"),
    **dict.fromkeys(("schedule", "send_with_options", "defer_async", "options", "set"), "using(delay=…).enqueue(…)"),
    **dict.fromkeys(("apply",), "a plain call of the task"),
    **dict.fromkeys(("starmap", "chunks"), "map(…), or app.enqueue_many(…)"),
}


def unknown_option(where: str, unknown: Iterable[str], known: Iterable[str]) -> ConfigurationError:
    """The error for options of a task or a job that do not exist."""
    return other_words.unknown_option(where, unknown, known, _OPTIONS)


def unknown_method(task: str, name: str) -> AttributeError:
    """The error for an attribute that a task does not have."""
    hint = f": write {_METHODS[name]}" if name in _METHODS else ""
    return AttributeError(f"task {task} has no attribute {name!r}{hint}", name=name)
