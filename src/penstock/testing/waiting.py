"""Which calls wait: what the code under test enqueued, read back from the server."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

from penstock import codec
from penstock.app import Penstock
from penstock.driver.connect import ServerDriver
from penstock.errors import BadCall
from penstock.jobs.job import Job
from penstock.jobs.options import Options
from penstock.jobs.queue import Queue
from penstock.jobs.record import Record
from penstock.jobs.signature import split_payload
from penstock.jobs.task import Task

P = ParamSpec("P")
R = TypeVar("R")

_NEAR = 1.0
"""Seconds by which the time of a delayed call may differ from what is asked for: the test asks a little later."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that is enqueued and not claimed yet.

    `arguments` as they travel, by name, JSON's types; of a value that was put without a task `task` is "" and it is all
    there under `value`. `due`: seconds since 1970, None for one that is ready.
    """

    job: str
    task: str
    arguments: dict[str, Any]
    priority: int
    tenant: str
    due: float | None

    def __str__(self) -> str:
        told = [f"tenant={self.tenant}"] if self.tenant else []
        told += [f"priority={self.priority}"] if self.priority != Options().priority else []
        told += [f"due={self.due:.3f}"] if self.due is not None else []
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return "  ".join([f"{self.task or 'put'}({arguments})", *told])


def enqueued(where: Penstock | Queue | Task[..., Any]) -> list[WaitingCall]:
    """The calls that wait, ready ones and delayed ones, in the order they were enqueued: of a task, of a queue, or of
    all queues that a task of the app has.

    Running, finished and dead jobs are not among them. Reads every job of the queue: for tests. Works in either face.
    """
    if isinstance(where, Task):
        return [call for call in _waiting([where.home]) if call.task == where.name]
    if isinstance(where, Queue):
        return _waiting([where])
    return _waiting(where.queue(name) for name in where.registry.queues())


def assert_enqueued(task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
    """This call of the task waits; answers with its job, the first if there are several.

    Arguments are compared as they travel, with the task's defaults filled in. What `task.using(…)` says beyond the
    defaults (priority, tenant, id, delay or date to the second) must be so as well. AssertionError shows what waits
    instead.
    """
    wanted = _wanted(task, args, kwargs)
    waiting = enqueued(task.home)
    for call in waiting:
        if call.task == task.name and _fits(call, wanted, task):
            return Job(task.home, call.job.partition(":")[2], returns=task.definition.signature.returns)
    rows = [f"  {call}" for call in waiting] or ["  nothing"]
    raise AssertionError("\n".join([f"no such call waits: {wanted}", f"queue {task.home.name} has waiting:", *rows]))


def _waiting(queues: Iterable[Queue]) -> list[WaitingCall]:
    rows = [row for queue in queues for row in _read(queue)]
    return [call for _, _, call in sorted(rows, key=itemgetter(0, 1))]


def _client(queue: Queue) -> Any:
    return cast("ServerDriver", queue._driver).connector.blocking_client()


def _read(queue: Queue) -> Iterator[tuple[int, bytes, WaitingCall]]:
    """Each with its time and its generation, which say who came first."""
    for key, body in _client(queue).hgetall(f"{queue.bindings.keys.base}jobs").items():
        record = Record.read(body)
        if record is not None and record.state in {b"r", b"s"}:
            due = record.since / 1000 if record.state == b"s" else None
            call = WaitingCall(
                f"{queue.name}:{key.decode()}", *_opened(record), record.priority, record.tenant, due
            )  # fmt: skip
            yield record.enqueued, body[4:10], call


def _opened(record: Record) -> tuple[str, dict[str, Any]]:
    try:
        if record.is_call:
            name, raw = split_payload(record.payload)
            return name, msgspec.json.decode(raw)
        return "", {"value": msgspec.json.decode(record.payload)}
    except (BadCall, ValueError):
        return "", {"damaged": record.payload}


def _wanted(task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> WaitingCall:
    home, options = task.home, task.options
    due = options.at.timestamp() if options.at else _now(home) + options.delay if options.delay else None
    job = f"{home.name}:{options.id}" if options.id else ""
    _, arguments = split_payload(task.call(*args, **kwargs).payload)
    return WaitingCall(job, task.name, msgspec.json.decode(arguments), options.priority, options.tenant, due)


def _now(queue: Queue) -> float:
    if queue.bindings.clock.now_ms:
        return queue.bindings.clock.now_ms / 1000
    seconds, microseconds = _client(queue).time()
    return float(seconds + microseconds / 1e6)


def _fits(call: WaitingCall, wanted: WaitingCall, task: Task[..., Any]) -> bool:
    default = Options()
    pairs = [
        (wanted.job, call.job, ""),
        (wanted.priority, call.priority, default.priority),
        (wanted.tenant, call.tenant, default.tenant),
    ]
    if any(asked not in (had, usual) for asked, had, usual in pairs):
        return False
    if wanted.due is not None and (call.due is None or abs(call.due - wanted.due) > _NEAR):
        return False
    return _filled(task, call.arguments) == _filled(task, wanted.arguments)


def _filled(task: Task[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of what was left out, as far as they can travel."""
    filled = dict(arguments)
    for name, parameter in inspect.signature(task._function).parameters.items():
        if name not in filled and parameter.default is not inspect.Parameter.empty:
            try:
                default = codec.encode(parameter.default, limit=task.home.settings.max_payload, what=name)
            except BadCall:
                continue
            filled[name] = codec.decode(default, what=name)
    return filled
