"""Tasks and calls: `@app.task` turns a function into a task, whose calls can be enqueued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from penstock.core.arguments import check_many
from penstock.core.cached import cached_property
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall
from penstock.jobs import effort
from penstock.jobs.constants import CALL, IN_SHARDS, LIMITED, LIMITS, TAGS, UNIQUE, UNIQUE_KEY
from penstock.jobs.definition import Definition
from penstock.jobs.job import Job
from penstock.jobs.options import Options, job_start, options_of
from penstock.jobs.queue import Queue
from penstock.jobs.record import pack_sections
from penstock.jobs.sealed import encode_limit, new_record
from penstock.jobs.shard import Shard
from penstock.jobs.tags import MOST_TAGS, pack_tags

if TYPE_CHECKING:
    from penstock.jobs.flow import Flow, UsingOptions
    from penstock.jobs.flow_plan import Waiting
    from penstock.jobs.unique import TaskKey, Unique

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Call(msgspec.Struct, Generic[R_co], frozen=True):
    """A task with its arguments, checked and encoded, but not enqueued yet. `app.enqueue_many` takes many of them."""

    task: Task[..., R_co]
    payload: bytes
    powers: bytes = b""
    """The sections of the record before the payload: of its unique key, its limits and its tags."""
    wanted: tuple[tuple[str, Any], ...] = ()
    """The parameters that get results of other jobs, each with the argument that stands for them (see `flow.py`)."""

    def draft(self) -> tuple[str, bytes]:
        """The key and the record of a new job.

        Raises BadCall for a call that has to wait for others, or would react to failures and waits for none; if the
        app seals, SealError and PayloadTooLarge.
        """
        task = self.task
        waiting, settings = task.waiting, task.queue.settings
        if self.wanted or (waiting is not None and waiting.after):
            raise BadCall(
                f"{task.name}() has to wait for other jobs: enqueue it with using(after=…).enqueue(…), or in a "
                "chain behind them"
            )
        if waiting is not None:
            waiting.check_unused(task.name)
        if settings.seal is None:
            record = task.record_start + self.powers + self.payload
        else:
            record = new_record(task.record_start, self.powers, self.payload, settings, f"{task.name}()")
        return task.options.id or mint_id(), record

    def belonging_to(self, queue: Queue, tenant: str, priority: int, tags: Sequence[str]) -> Call[R_co]:
        """The same call for a job of this queue, tenant and priority. Keys that contain the tenant follow from it.

        `tags`: of the job, unless the call or its task has tags.
        """
        task = self.task
        own = task.options.tags or (() if task.definition.tags else tags)
        options = replace(task.options, tenant=tenant, priority=priority, tags=own)
        made: Task[..., R_co] = Task(task._function, task.definition, queue, options, task.waiting)
        return made._call_of(self.payload, self.wanted)

    def job(self, key: str) -> Job[R_co]:
        task = self.task
        return Job(task.shard, key, task.definition.signature.returns, task.result_ttl)


class Task(Generic[P, R]):
    """A registered function. Call it to run it here and now; `enqueue` has a worker run it."""

    def __init__(
        self,
        function: Callable[P, Any],
        definition: Definition,
        queue: Queue,
        options: Options | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        update_wrapper(self, function)
        self._function = function
        self.definition = definition
        self.queue = queue
        """The queue of its jobs."""
        self.options = options or Options()
        self.waiting = waiting
        if queue.shards.named is not None:
            self._check_keys  # noqa: B018

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.definition.name} on {self.shard.name}>"

    @property
    def name(self) -> str:
        """The name by which the server and the workers know the task."""
        return self.definition.name

    @property
    def shard(self) -> Shard:
        """The shard of its tenant, as far as this program knows."""
        queue = self.queue
        if queue.shards.named is None:
            return queue.first
        self._check_keys  # noqa: B018
        return queue.shard_for(self.options.tenant)

    @cached_property
    def _check_keys(self) -> None:
        """Raises ConfigurationError for keys that cannot hold in a queue with shards."""
        from penstock.jobs.sharded_enqueue import check_limit_key, check_unique_key

        if self.unique is not None and self._task_key is not None:
            uses_tenant = self._task_key.uses_tenant
            check_unique_key(f"task {self.name}", self.unique, self.options.tenant, uses_tenant=uses_tenant)
        for one in self.definition.limits.limits if self.definition.limits else ():
            check_limit_key(f"task {self.name}: limit {one.name[2:]}", one.key.text, uses_tenant=one.key.uses_tenant)

    @cached_property
    def result_ttl(self) -> float | None:
        """Of its jobs, in seconds; None: as the app's settings say."""
        return self.options.result_ttl if self.options.result_ttl is not None else self.definition.result_ttl

    @cached_property
    def record_start(self) -> bytes:
        """The record of each of its jobs, up to the powers and the payload."""
        options, flags, powers = self.options, CALL, 0
        if self.unique is not None:
            flags, powers = CALL | UNIQUE, UNIQUE_KEY
            options = replace(options, unique=self.unique)
        if self.definition.limits is not None:
            flags, powers = flags | LIMITED, powers | LIMITS
        if powers and self.queue.shards.named is not None:
            powers |= IN_SHARDS
        if options.tags or self.definition.tags:
            powers |= TAGS
        return job_start(self.queue.settings, options, flags, self.name, self.definition.result_ttl, powers)

    @cached_property
    def unique(self) -> Unique | None:
        """Which of its calls are doubles; None: no call is a double of another."""
        return self.options.unique or self.definition.unique

    @cached_property
    def _task_key(self) -> TaskKey | None:
        if self.unique is None:
            return None
        from penstock.jobs.unique import TaskKey

        signature = self.definition.signature
        return TaskKey(self.name, self.unique, signature.names, signature.mixed)

    @cached_property
    def effort(self) -> int:
        """What one of its calls costs the script that enqueues it, in ordinary jobs."""
        limits, unique = self.definition.limits, self.unique
        if limits is None and unique is None:
            return 1
        return effort.of_call(len(limits.limits) if limits else 0, unique.section("")[:1] if unique else None)

    @cached_property
    def _has_fixed_sections(self) -> bool:
        """Whether no key and no tag of a call follows from its arguments."""
        return self._task_key is None and self.definition.limits is None and self.definition.task_tags is None

    @cached_property
    def _tags_of_options(self) -> bytes:
        """The sections of a call without any other power."""
        return pack_sections({TAGS: pack_tags(self.options.tags)}) if self.options.tags else b""

    @property
    def _driver(self) -> Driver:
        return self.queue._driver

    def using(self, **options: Unpack[UsingOptions]) -> Task[P, R]:
        """A copy of this task with other options for the jobs made from it; see `Options`. No round trip.

        Options that you leave out get their defaults, even if this task has other values for them.

        after       a job, or several: the new job starts when they have completed
        on_failure  what happens if one of them fails. "stop": the new job is cancelled; while the failed one is a dead
                    letter, it is only blocked. "continue": the new job starts nevertheless. A call: the new job runs
                    that call instead
        """
        waiting, chosen = None, dict[str, Any](options)
        if "after" in options or "on_failure" in options:
            from penstock.jobs.flow_plan import Waiting

            waiting = Waiting.of(chosen.pop("after", None), chosen.pop("on_failure", "stop"))
        made: Task[P, R] = Task(
            self._function, self.definition, self.queue, options_of(f"{self.name}.using", chosen), waiting
        )
        tags = self.definition.task_tags
        if made.options.tags and tags and len(tags) + len(made.options.tags) > MOST_TAGS:
            raise ValueError(
                f"{self.name}.using(tags=…): {len(made.options.tags)} tags, and {len(tags)} of the task; "
                f"a job has at most {MOST_TAGS}"
            )
        if made.options.unique is not None:
            from penstock.jobs.unique import check_unique

            check_unique(self.name, made.options.unique, limited=bool(self.definition.limit))
            _ = made._task_key  # checks the template here
        return made

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or "definition" not in self.__dict__:
                raise AttributeError(name)
            from penstock.jobs.other_words import unknown_method

            raise unknown_method(self.name, name)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check and encode the arguments, for `app.enqueue_many`. Raises BadCall if they do not fit. No round trip."""
        return self._call_with(args, kwargs)

    def _call_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        signature = self.definition.signature
        limit = encode_limit(self.queue.settings)
        try:
            payload = signature.encode(args, kwargs, limit)
        except BadCall:
            wanted = signature.awaited(args, kwargs)
            if not wanted:
                raise
        else:
            return self._call_of(payload, ())
        return self._call_of(signature.encode_without(wanted, args, kwargs, limit), wanted)

    def _call_of(self, payload: bytes, wanted: tuple[tuple[str, Any], ...]) -> Call[R]:
        """The call with these arguments, and with the keys and tags that follow from them."""
        if self._has_fixed_sections:
            return Call(self, payload, self._tags_of_options, wanted)
        signature, limits, tags = self.definition.signature, self.definition.limits, self.definition.task_tags
        unknown = [name for name, _ in wanted]
        value_of, tenant = signature.values(payload, unknown), self.options.tenant
        sections: dict[int, bytes] = {}
        if self._task_key is not None:
            canonical = partial(signature.canonical, payload, unknown)
            sections[UNIQUE_KEY] = self._task_key.section(canonical, value_of, tenant)
        if limits is not None:
            sections[LIMITS] = limits.section(value_of, tenant)
        if sections and self.queue.shards.named is not None:
            sections[IN_SHARDS] = b""
        if tags is not None or self.options.tags:
            filled = [] if tags is None else tags.fill(value_of, tenant)
            sections[TAGS] = pack_tags([*filled, *self.options.tags])
        return Call(self, payload, pack_sections(sections), wanted)

    def map(self, items: Iterable[Any]) -> Flow[list[Job[R]]]:
        """A flow with one call for each item, side by side: `resize.map(paths).then(publish.call(RESULT))`.

        Without items its result is the empty list. See `group`. No round trip.
        """
        from penstock.jobs.flow import Flow, group

        check_many(f"{self.name}.map", "items", items, letters=True)
        calls = [self.call(item) for item in items]  # type: ignore[call-arg]
        return group(calls) if calls else Flow((), is_group=True, driver=self.queue._driver)

    @verb
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> RoundTrip[Job[R]] | Operation[Job[R]]:
        """Have a worker run the task. When this returns, the job is accepted and will run at least once.

        Raises BadCall if the arguments do not fit, PayloadTooLarge, and ServerFull when the server is out of memory;
        then nothing was enqueued. With `using(durable=True)` also DurabilityUnavailable and NotDurable. One round trip.

        With `using(after=…)` arguments may stand for results of those jobs: `result_of(job)`, a list of them, or
        `RESULT`. Then it raises JobNotFound for a job that is gone. One round trip for 250 jobs to wait for.
        """
        call = self._call_with(args, kwargs)
        if self.waiting is not None and self.waiting.after:
            from penstock.jobs.flow import enqueue_waiting

            return enqueue_waiting(call)
        key, record = call.draft()
        return self.queue.enqueue_job(key, record, call.job(key), self.options)

    def enqueue_in(self, pipeline: Any, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue in a pipeline or transaction of your own; see `Queue.put_in`."""
        call = self.call(*args, **kwargs)
        key, record = call.draft()
        job = call.job(key)
        self.queue.add_to_pipeline(pipeline, job.shard, key, record)
        return job
