"""A backend for Django's tasks: `django.tasks` of Django 6, and the backport `django-tasks` for older ones.

    TASKS = {"default": {"BACKEND": "penstock.integrations.django.PenstockBackend"}}

A task of Django becomes a task of Penstock whose name is its module path. Its jobs are ordinary jobs, so that the
command line and the dashboard show everything about them. `penstock worker penstock.integrations.django_worker:app`
runs them.
"""

from __future__ import annotations

import functools
import inspect
import traceback
import typing
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.app import Penstock
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall, ConfigurationError, SealError
from penstock.integrations.requirements import needs
from penstock.jobs.current import current
from penstock.jobs.definition import Definition
from penstock.jobs.job import Job, JobInfo
from penstock.jobs.options import Options
from penstock.jobs.registry import Registry
from penstock.jobs.retry import Retry, RetryLater
from penstock.jobs.status import Status
from penstock.jobs.task import Call, Task
from penstock.sealing import Sealed

with needs("django", "django"):
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.db import close_old_connections, transaction
    from django.utils.module_loading import import_string

with needs("asgiref", "django"):
    from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from penstock.integrations.django_outbox import DjangoOutbox

__all__ = ["PenstockBackend", "app_of"]

_OPTIONS: Final = {"URL", "PREFIX", "RETRY", "TIMEOUT", "RESULT_TTL", "ON_COMMIT", "DATABASE", "OUTBOX"}

_apps: dict[str, Penstock] = {}
"""The apps by alias and options. Django makes a backend for each thread, and these share one app."""


_outboxes: dict[tuple[Penstock, str], DjangoOutbox] = {}


class _Ended(msgspec.Struct):
    """The stored result of a job that succeeded, from which Django's `TaskResult` is made."""

    task: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    value: Any
    attempts: int
    started: float
    finished: float


class _Draft:
    """A call with the id of its job. The id is known before the transaction commits and the call is enqueued."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._key, self._record = call.draft()
        self.job: Job[Any] = call.job(self._key)

    @property
    def _driver(self) -> Driver:
        return self._call.task.queue._driver

    @verb
    def enqueue(self) -> RoundTrip[Job[Any]] | Operation[Job[Any]]:
        task = self._call.task
        return task.queue.enqueue_job(self._key, self._record, self.job, task.options)


class _DjangoRegistry(Registry):
    """The tasks that Django has imported. Workers serve each queue of the settings, also one without a task so far."""

    def __init__(self, queues: Iterable[str]) -> None:
        super().__init__()
        self._queues = tuple(sorted(queues))

    def queues(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._queues, *super().queues())))


class _Backend:
    """Everything of a backend that does not depend on which of the two packages it serves."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    alias: str
    queues: set[str]
    options: dict[str, Any]
    _django: SimpleNamespace
    """The names of the package that the backend serves: `django.tasks` or `django_tasks`."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)  # type: ignore[call-arg]  # the other base class is Django's
        if unknown := set(self.options) - _OPTIONS:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS'] has {', '.join(sorted(unknown))}; "
                f"Penstock knows {', '.join(sorted(_OPTIONS))}"
            )
        self._retry = self.options.get("RETRY", 0)

    @property
    def app(self) -> Penstock:
        """The app that all instances of this backend share. Nothing is connected before its first use."""
        identity = repr((self.alias, sorted(self.queues), sorted(self.options.items())))
        if identity not in _apps:
            app = Penstock(self.options.get("URL"), prefix=self.options.get("PREFIX"))
            app.registry = _DjangoRegistry(self.queues)
            _apps.setdefault(identity, app)
        return _apps[identity]

    # --- enqueueing ---

    def validate_task(self, task: Any) -> None:
        """Called when a task is defined, and when `using` changes it. Makes it known to workers of this process."""
        super().validate_task(task)  # type: ignore[misc]
        self._definition(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a call; inside a transaction, when it commits. One round trip.

        With ON_COMMIT False it is enqueued at once. Raises BadCall if the arguments do not fit the task's function.
        """
        self.validate_task(task)
        self._check_call(task, args, kwargs)
        result = self._result(task, "", list(args), dict(kwargs), self._django.TaskResultStatus.READY)
        options = Options(priority=_priority(task.priority), at=_aware(task.run_after))
        queue = self.app.queue(task.queue_name)
        call: Call[Any] = Task(_unused, self._definition(task), queue, options).call(*result.args, **result.kwargs)
        database = self.options.get("DATABASE", "default")

        def report() -> None:
            _set(result, enqueued_at=datetime.now(UTC))
            self._django.task_enqueued.send(type(self), task_result=result)

        if self.options.get("OUTBOX") and transaction.get_connection(database).in_atomic_block:
            _set(result, id=self._outbox(database).enqueue(call).id)
            transaction.on_commit(report, using=database)
            return result
        draft = _Draft(call)
        _set(result, id=draft.job.id)

        def send() -> None:
            draft.enqueue()
            report()

        if self.options.get("ON_COMMIT", True) and transaction.get_connection(database).in_atomic_block:
            transaction.on_commit(send, using=database)
        else:
            send()
        return result

    def _outbox(self, database: str) -> DjangoOutbox:
        """The app's outbox in this database. All threads share it."""
        from penstock.integrations.django_outbox import DjangoOutbox

        return _outboxes.setdefault((self.app, database), DjangoOutbox(self.app, database))

    def _check_call(self, task: Any, args: Any, kwargs: Any) -> None:
        try:
            inspect.signature(task.func).bind(*[None] * bool(task.takes_context), *args, **kwargs)
        except TypeError as error:
            raise BadCall(f"{task.module_path}(): {error}") from None

    def _definition(self, task: Any) -> Definition:
        known = self.app.registry.get(task.module_path)
        if known is not None and inspect.unwrap(known.function) is task.func:
            return known
        retry = self._retry if isinstance(self._retry, Retry) else Retry(self._retry)
        options = self.options
        definition = Definition(
            task.module_path,
            self._runnable(task),
            task.queue_name,
            retry,
            options.get("TIMEOUT"),
            options.get("RESULT_TTL"),
            middleware=self.app.middleware,
        )
        self.app.registry.add(definition)
        return definition

    # --- running, in a worker ---

    def _runnable(self, task: Any) -> Callable[..., Any]:
        """The function that a worker calls: the task's, with Django's signals and database connections around it."""

        @functools.wraps(task.func)
        def run(*args: Any, **kwargs: Any) -> Any:
            close_old_connections()
            try:
                result, arguments = self._started(task, args, kwargs)
                try:
                    value = task.func(*arguments, **kwargs)
                except Exception as error:
                    self._failed(result, error)
                    raise
                return self._succeeded(result, value)
            finally:
                close_old_connections()

        @functools.wraps(task.func)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            await sync_to_async(close_old_connections)()
            try:
                result, arguments = await sync_to_async(self._started)(task, args, kwargs)
                try:
                    value = await task.func(*arguments, **kwargs)
                except Exception as error:
                    await sync_to_async(self._failed)(result, error)
                    raise
                return await sync_to_async(self._succeeded)(result, value)
            finally:
                await sync_to_async(close_old_connections)()

        runnable: Any = run_async if inspect.iscoroutinefunction(task.func) else run
        # Pass the arguments on as they were enqueued: Django's own rules apply to them, not the annotations.
        runnable.__signature__ = inspect.signature(_unused)
        runnable.__annotations__ = {}
        return typing.cast("Callable[..., Any]", runnable)

    def _started(self, task: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        job, now = current(), datetime.now(UTC)
        task = task.using(queue_name=job.queue)
        result = self._result(task, job.id, list(args), kwargs, self._django.TaskResultStatus.RUNNING)
        _set(result, started_at=now, last_attempted_at=now, worker_ids=_workers(job.attempt))
        self._django.task_started.send(type(self), task_result=result)
        context = [self._django.TaskContext(task_result=result)] if task.takes_context else []
        return result, [*context, *args]

    def _succeeded(self, result: Any, value: Any) -> _Ended:
        now = datetime.now(UTC)
        _set(result, status=self._django.TaskResultStatus.SUCCESSFUL, finished_at=now, _return_value=value)
        self._django.task_finished.send(type(self), task_result=result)
        return _Ended(
            result.task.module_path,
            result.task.queue_name,
            result.args,
            result.kwargs,
            value,
            result.attempts,
            result.started_at.timestamp(),
            now.timestamp(),
        )

    def _failed(self, result: Any, error: BaseException) -> None:
        """Report a run that failed for good. One that is retried has not finished."""
        policy = self.app.registry.find(result.task.module_path).retry
        if isinstance(error, (Retry, RetryLater)) or (policy.applies(error) and policy.left(current().attempt)):
            return
        _set(result, status=self._django.TaskResultStatus.FAILED, finished_at=datetime.now(UTC))
        text = "".join(traceback.format_exception(error))
        result.errors.append(self._django.TaskError(exception_class_path=_path(type(error)), traceback=text))
        self._django.task_finished.send(type(self), task_result=result)

    # --- results ---

    def get_result(self, result_id: str) -> Any:
        """The task result with this id, for as long as its job or the job's result is kept. One round trip.

        Raises TaskResultDoesNotExist for an unknown id, and for a job that was cancelled or that expired.
        """
        missing = self._django.TaskResultDoesNotExist
        try:
            info = self.app.job(result_id).info()
        except ConfigurationError as error:
            raise missing(f"task result {result_id!r}: {error}") from None
        if info.status is Status.COMPLETED:
            return self._ended(info)
        if info.body is None:
            raise missing(f"task result {result_id}: its job is {info.status}, and nothing more is known about it")
        return self._waiting(info)

    def _ended(self, info: JobInfo) -> Any:
        _check_opened(info, info.result)
        try:
            ended = msgspec.convert(info.result, _Ended)
        except msgspec.ValidationError:
            raise self._django.TaskResultDoesNotExist(
                f"task result {info.id}: this job was not enqueued by Django"
            ) from None
        task = self._task(ended.task, ended.queue, info)
        result = self._result(task, info.id, ended.args, ended.kwargs, self._django.TaskResultStatus.SUCCESSFUL)
        started = _date(ended.started)
        _set(result, started_at=started, last_attempted_at=started, finished_at=_date(ended.finished))
        _set(result, worker_ids=_workers(ended.attempts), _return_value=ended.value)
        return result

    def _waiting(self, info: JobInfo) -> Any:
        """A job that waits, runs or is a dead letter."""
        statuses = self._django.TaskResultStatus
        status = {Status.RUNNING: statuses.RUNNING, Status.DEAD: statuses.FAILED}.get(info.status, statuses.READY)
        name, arguments = info.body if isinstance(info.body, list) else ("", {})
        _check_opened(info, arguments)
        task = self._task(name, info.id.partition(":")[0], info)
        result = self._result(task, info.id, arguments.get("*args", []), arguments.get("**kwargs", {}), status)
        runs = info.attempts + (info.status is Status.RUNNING)
        _set(result, enqueued_at=_date(info.enqueued), worker_ids=_workers(runs))
        if info.reason:
            result.errors.append(
                self._django.TaskError(
                    exception_class_path=_path_in(info.traceback), traceback=info.traceback or info.reason
                )
            )
        if info.status is Status.DEAD:
            _set(result, finished_at=_date(info.since), last_attempted_at=_date(info.since))
        return result

    def _task(self, path: str, queue: str, info: JobInfo) -> Any:
        try:
            task = import_string(path)
        except ImportError as error:
            raise self._django.TaskResultDoesNotExist(f"task result {info.id}: its task is gone: {error}") from None
        return task if task.queue_name == queue else task.using(queue_name=queue)

    def _result(self, task: Any, id: str, args: list[Any], kwargs: dict[str, Any], status: Any) -> Any:
        return self._django.TaskResult(
            task=task,
            id=id,
            status=status,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )


def app_of(alias: str = "default") -> Penstock:
    """The app of a backend of the settings TASKS. Raises ConfigurationError for a backend of another library."""
    try:
        backend = import_string(settings.TASKS[alias]["BACKEND"])
    except (AttributeError, KeyError) as error:
        raise ConfigurationError(f"the settings have no TASKS[{alias!r}]: {error}") from None
    if not issubclass(backend, _Backend):
        raise ConfigurationError(
            f"TASKS[{alias!r}] is a {backend.__name__}: set BACKEND to penstock.integrations.django.PenstockBackend"
        )
    backends: Any = backend._django.task_backends
    app: Penstock = backends[alias].app
    return app


def _unused(*args: Any, **kwargs: Any) -> None:
    """Has the parameters of each call that Django enqueues."""


def _set(result: Any, **values: Any) -> None:
    """Django's `TaskResult` is frozen for users, and filled by backends in this way."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _priority(priority: int) -> int:
    """Map Django's priorities (100 is most urgent) to ten levels (0 is): 100 becomes 0, 0 becomes 5, -100 becomes 9."""
    return 5 - -(-priority // 20) if priority > 0 else 5 + -(priority // 25)


def _aware(date: datetime | None) -> datetime | None:
    return date.astimezone() if date is not None and date.tzinfo is None else date


def _date(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _workers(attempts: int) -> list[str]:
    """Django counts attempts by their workers. Penstock stores the worker of the last failure only."""
    return ["penstock"] * attempts


def _path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _path_in(text: str) -> str:
    """The class of the exception that a traceback ends with: the first line after the last call that it lists."""
    lines = iter(text.rpartition("Traceback (most recent call last):\n")[2].splitlines())
    name = next((line for line in lines if not line.startswith(" ")), "").partition(":")[0]
    if not all(part.isidentifier() for part in name.split(".")):
        return "builtins.Exception"
    return name if "." in name else f"builtins.{name}"


def _package() -> str:
    for name in ("django.tasks", "django_tasks"):
        if find_spec(name) is not None:
            return name
    raise ImproperlyConfigured("Django before 6.0 has no tasks of its own: install the backport, django-tasks")


def _names_of(package: str) -> SimpleNamespace:
    names: dict[str, Any] = {}
    for part, wanted in {
        "__init__": ("task", "task_backends"),
        "base": ("TaskContext", "TaskError", "TaskResult", "TaskResultStatus"),
        "backends.base": ("BaseTaskBackend",),
        "exceptions": ("TaskResultDoesNotExist",),
        "signals": ("task_enqueued", "task_finished", "task_started"),
    }.items():
        module = import_module(package if part == "__init__" else f"{package}.{part}")
        names.update((name, getattr(module, name)) for name in wanted)
    return SimpleNamespace(**names)


def _backend(package: str, name: str) -> type[Any]:
    django = _names_of(package)
    return type(name, (_Backend, django.BaseTaskBackend), {"_django": django, "__doc__": _DOC, "__module__": __name__})


_DOC: Final = """Enqueues the tasks of Django on Penstock. Its OPTIONS:

    URL         the server; without it $PENSTOCK_URL decides, as for any app
    PREFIX      first part of every key, where two projects share a server
    RETRY       a number of retries, or a `penstock.Retry`; default: a job that fails is not run again
    TIMEOUT     seconds that one run may take; default: no limit
    RESULT_TTL  seconds that a result is kept; default: ten minutes
    ON_COMMIT   True (default): inside a transaction, enqueue when it commits; False: always enqueue at once
    DATABASE    the alias of the database whose transaction counts; default: "default"
    OUTBOX      True: inside a transaction, write the call into an outbox in that transaction, so that it is not lost
                if the process dies after the commit (see `penstock.integrations.django_outbox`)
"""

PenstockBackend: Any = _backend(_package(), "PenstockBackend")
"""The backend for `django.tasks`; with a Django before 6.0, that for `django_tasks`."""


def __getattr__(name: str) -> Any:
    if name == "BackportBackend":  # for `django_tasks`, also where Django has tasks of its own
        globals()[name] = _backend("django_tasks", name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check_opened(info: JobInfo, value: Any) -> None:
    """Raises SealError for what the codec of this process cannot open."""
    if isinstance(value, Sealed):
        raise SealError(f"task result {info.id} is {value}, which this process does not have", key=value.key)
