"""Tasks that take many jobs in one call: the option `batch=`, and the parameters of such a task."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Any, Final

from penstock.core.arguments import check_flag, check_number, check_whole
from penstock.core.cached import cached_property
from penstock.core.clock import milliseconds
from penstock.errors import ConfigurationError
from penstock.jobs.claims import Claim
from penstock.jobs.constants import CALL, FORMAT
from penstock.jobs.record import FLAGS_AT, FORMAT_AT, HEADER_SIZE, POWERS_AT, Record
from penstock.jobs.signature import Signature

MOST: Final = 500
"""Jobs in one batch: as many as one turn of a worker settles."""

LONGEST_LINGER: Final = 3600.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Has a task get many jobs in one call: `@app.task(batch=Batch(100, linger=0.2))`.

    The function takes a list with one item for each job. It returns a list with one outcome for each item, in the same
    order: the result of that job, or an exception, which counts as if a task had raised it for this job only (`Retry`,
    `RetryLater` and `Drop`, too). If it returns None, all jobs are done. An exception that the function raises fails
    each of its jobs, and a list of another length makes all of them dead letters. Such a task has a queue of its own.

    size       the most jobs of one call, up to 500. A call may get fewer: after `linger`, or if their records are
               large, because one call gets at most 1 MiB of them
    linger     seconds that the oldest job waits for others, up to an hour. The server's clock measures them
    by_tenant  a call gets jobs of one tenant only, and each tenant has batches of its own

    Raises ValueError for numbers out of range.
    """

    size: int
    linger: float = 0.1
    by_tenant: bool = False

    def __post_init__(self) -> None:
        check_whole("Batch", "size", self.size, 1, MOST, f"1 to {MOST} jobs")
        check_number("Batch", "linger", self.linger, 0, LONGEST_LINGER, f"seconds from 0 to {LONGEST_LINGER:.0f}")
        check_flag("Batch", "by_tenant", self.by_tenant)

    @property
    def declared(self) -> tuple[int, int, int]:
        """The settings as a worker declares them to the server."""
        return self.size, milliseconds(self.linger), int(self.by_tenant)


class BatchSignature(Signature):
    """The parameters of a task with `batch=`: its function takes a list, and each call has one item of it.

    `returns` decodes the result of one job: an item of what the function returns, apart from exceptions.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__(name, function)
        if len(self._parameters) != 1 or len(self._positional) != 1:
            raise ConfigurationError(
                f"task {name}: with batch=… its function has one parameter, a list of what each call has, besides "
                "those that a worker fills: def index(docs: list[Doc]) -> …"
            )

    @cached_property
    def _hints(self) -> dict[str, Any]:
        hints, (name,) = self._annotations(), self._positional
        items = _item(hints.get(name, list))
        if items is None:
            raise ConfigurationError(
                f"task {self._name}: with batch=… its parameter {name} is a list: annotate it as {name}: list[…]"
            )
        return {name: items[0], "return": _without_exceptions((_item(hints.get("return", Any)) or (Any,))[0])}

    def call(self, arguments: Any, filled: dict[str, Any] | None = None) -> Any:
        """Call the function with the decoded arguments of all jobs of a batch."""
        (name,) = self._positional
        return self._function([getattr(one, name) for one in arguments], **(filled or {}))


def payloads_of_one_task(records: Sequence[Record]) -> tuple[bytes, list[bytes]]:
    """The encoded name of the task, and the payloads of these records.

    The name is empty if they are not all calls of one task that a worker can read as they are.
    """
    names = records[0].names + b"\0"  # and no trace: then the payload follows, and nothing behind it
    end = HEADER_SIZE - 1 + len(names)
    payloads = [
        body[end:]
        for body in [record.body for record in records]
        if body.startswith(names, HEADER_SIZE - 1)
        and body[FLAGS_AT] & CALL
        and not body[POWERS_AT]
        and body[FORMAT_AT] == FORMAT
    ]
    if len(payloads) == len(records):
        return records[0].call[0], payloads
    others = [record for record in records if not record.is_plain_call]
    if any(record.needs_opening or not (record.is_call and record.is_understood) for record in others):
        return b"", []
    calls = [record.call for record in records]
    return calls[0][0] if len({name for name, _ in calls}) == 1 else b"", [payload for _, payload in calls]


def batches_of(claims: Sequence[Claim], batch: Batch) -> Iterator[Sequence[Claim]]:
    """Divide the claims of a turn, in their order, into batches."""
    of_tenant = groupby(claims, lambda claim: claim.record.tenant) if batch.by_tenant else [("", claims)]
    for _, some in of_tenant:
        rest = list(some)
        for at in range(0, len(rest), batch.size):
            yield rest[at : at + batch.size]


def _item(kind: Any) -> tuple[Any] | None:
    """The type of the items of a list or another sequence; None if `kind` is another type."""
    origin = typing.get_origin(kind) or kind
    if not isinstance(origin, type) or not issubclass(origin, Sequence) or issubclass(origin, str | bytes):
        return None
    arguments = typing.get_args(kind)
    return (arguments[0] if arguments else Any,)


def _without_exceptions(kind: Any) -> Any:
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return Any if _is_exception(kind) else kind
    values = [one for one in typing.get_args(kind) if not _is_exception(one)]
    return reduce(or_, values) if values else Any


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def wrong_outcomes(name: str, outcomes: object, n: int) -> str:
    """Why the outcomes of a batch of `n` jobs cannot be assigned to them; "" if they can."""
    fix = "return one outcome for each job, in their order: its result or an exception; or None if all are done"
    if not isinstance(outcomes, list | tuple):
        return f"{name}() returned a {type(outcomes).__name__} for a batch of {n} jobs: {fix}"
    if len(outcomes) != n:
        return f"{name}() returned {len(outcomes)} outcomes for a batch of {n} jobs: {fix}"
    return ""


def check_definition(name: str, *, isolate: bool, limited: bool) -> None:
    """Raise ConfigurationError for options that a task with batch=… cannot have."""
    if isolate:
        raise ConfigurationError(
            f"task {name}: batch=… and isolate=True: a batch runs in the worker; choose one of them"
        )
    if limited:
        raise ConfigurationError(
            f"task {name}: batch=… and limit=…: a limit would count each job. Limit the calls inside the task, with "
            "app.semaphore(…) or app.rate_limit(…), which count a batch as one"
        )
