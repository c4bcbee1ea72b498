"""Reads the waiting calls from the server, so that a test can check what its code enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

from penstock import codec
from penstock.app import Penstock
from penstock.driver.server_driver import ServerDriver
from penstock.errors import BadCall
from penstock.jobs.constants import DELAYED, PARKED, READY, SLEEPING, WAITING
from penstock.jobs.job import Job
from penstock.jobs.options import Options
from penstock.jobs.queue import Queue
from penstock.jobs.record import Record
from penstock.jobs.shard import Shard
from penstock.jobs.task import Task
from penstock.sealing import opened_or_kept
from penstock.settings import Seal

P = ParamSpec("P")
R = TypeVar("R")

_WAITS = {READY, DELAYED, SLEEPING, PARKED, WAITING}

_DUE_TOLERANCE = 1.0
"""Seconds by which a due time may differ from the expected one, because the test checks a little later."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that was enqueued and is not claimed yet.

    arguments  by name, as JSON types. For a value that was put without a task, `task` is "" and `arguments` holds it
               under "value"
    due        seconds since 1970; None if the call is ready
    """

    job: str
    task: str
    arguments: dict[str, Any]
    priority: int
    tenant: str
    due: float | None

    def __str__(self) -> str:
        options = [f"tenant={self.tenant}"] if self.tenant else []
        options += [f"priority={self.priority}"] if self.priority != Options().priority else []
        options += [f"due={self.due:.3f}"] if self.due is not None else []
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return "  ".join([f"{self.task or 'put'}({arguments})", *options])


def enqueued(where: Penstock | Queue | Task[..., Any]) -> list[WaitingCall]:
    """The calls that wait, ready or delayed, in the order in which they were enqueued.

    `where` is a task, a queue, or an app; an app means the queues of all its tasks. Running jobs, results and
    dead letters are not included. Reads every job of these queues. Works in blocking code and inside a running event
    loop.
    """
    if isinstance(where, Task):
        return [call for call in _waiting([where.queue]) if call.task == where.name]
    if isinstance(where, Queue):
        return _waiting([where])
    return _waiting(map(where.queue, where.registry.queues()))


def assert_enqueued(task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
    """Raises AssertionError unless this call of the task waits; returns its job, the first if there are several.

    Arguments are compared as JSON, with the task's defaults filled in. Options that `task.using(…)` sets (priority,
    tenant, id, delay, or date to the second) must be equal too. The error lists the calls that do wait.
    """
    expected = _expected_call(task, args, kwargs)
    waiting = _waiting([task.queue])
    for call in waiting:
        if call.task == task.name and _fits(call, expected, task):
            shard = task.queue.shards.of_job(call.job)
            return Job(shard, shard.key_of(call.job), returns=task.definition.signature.returns)
    rows = [f"  {call}" for call in waiting] or ["  nothing"]
    raise AssertionError("\n".join([f"no such call waits: {expected}", f"queue {task.queue.name} has waiting:", *rows]))


def _waiting(queues: Iterable[Queue]) -> list[WaitingCall]:
    rows = [row for queue in queues for shard in queue.shards.current.known for row in _read(shard)]
    return [call for _, _, call in sorted(rows, key=itemgetter(0, 1))]


def _client(shard: Shard) -> Any:
    return cast("ServerDriver", shard._driver).connector.blocking_client()


def _read(shard: Shard) -> Iterator[tuple[int, int, WaitingCall]]:
    """Each waiting call, with the time and the generation of its enqueue, by which calls can be ordered."""
    shard._driver.blocking.run(shard.bindings.counts())  # moves accepted calls into their lanes
    client, base = _client(shard), shard.bindings.keys.base
    running = set(client.hkeys(f"{base}owners"))
    for key, body in client.hgetall(f"{base}jobs").items():
        record = Record.read(body)
        if record is not None and key not in running and record.state in _WAITS:
            due = record.since / 1000 if record.state in {DELAYED, SLEEPING} else None
            task, arguments = _decoded(record, shard.settings.seal)
            call = WaitingCall(f"{shard.name}:{key.decode()}", task, arguments, record.priority, record.tenant, due)
            yield record.enqueued, record.generation, call


def _decoded(record: Record, seal: Seal | None) -> tuple[str, dict[str, Any]]:
    try:
        value = msgspec.json.decode(opened_or_kept(record.payload, seal))
        return (record.task, value) if record.is_call else ("", {"value": value})
    except ValueError:
        return "", {"damaged": record.payload}


def _expected_call(task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> WaitingCall:
    shard, options = task.shard, task.options
    due = options.at.timestamp() if options.at else _now(shard) + options.delay if options.delay else None
    job = f"{shard.name}:{options.id}" if options.id else ""
    arguments = msgspec.json.decode(task.call(*args, **kwargs).payload)
    return WaitingCall(job, task.name, arguments, options.priority, options.tenant, due)


def _now(shard: Shard) -> float:
    if shard.bindings.clock.now_ms:
        return shard.bindings.clock.now_ms / 1000
    seconds, microseconds = _client(shard).time()
    return float(seconds + microseconds / 1e6)


def _fits(call: WaitingCall, expected: WaitingCall, task: Task[..., Any]) -> bool:
    default = Options()
    options = [
        (expected.job, call.job, ""),
        (expected.priority, call.priority, default.priority),
        (expected.tenant, call.tenant, default.tenant),
    ]
    if any(wanted not in (found, default_) for wanted, found, default_ in options):
        return False
    if expected.due is not None and (call.due is None or abs(call.due - expected.due) > _DUE_TOLERANCE):
        return False
    return _filled(task, call.arguments) == _filled(task, expected.arguments)


def _filled(task: Task[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, plus the defaults of omitted ones. A default that cannot be encoded is left out."""
    filled = dict(arguments)
    for name, parameter in inspect.signature(task._function).parameters.items():
        if name not in filled and parameter.default is not inspect.Parameter.empty:
            try:
                default = codec.encode(parameter.default, limit=task.queue.settings.max_payload, what=name)
            except BadCall:
                continue
            filled[name] = codec.decode(default, what=name)
    return filled
