"""The app: one server, one registry of tasks, and a factory for every component."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakValueDictionary

from penstock.config import Configuration
from penstock.core.arguments import check_many, is_text, names_options, shown, utf8_size
from penstock.core.clock import Clock
from penstock.core.keys import MAX_NAME_BYTES
from penstock.core.operations import Operation, verb
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ConfigurationError
from penstock.jobs.decorator import make_task, timing_of
from penstock.jobs.definition import Definition
from penstock.jobs.item import Item, check_claim, checked_lease
from penstock.jobs.job import Job
from penstock.jobs.middleware import Middleware, MiddlewareStack
from penstock.jobs.queue import Queue
from penstock.jobs.registry import Registry
from penstock.jobs.retry import Retry
from penstock.jobs.shard_table import whole_name
from penstock.jobs.task import Call, Task
from penstock.lazy import finish_imports
from penstock.locks.factory import LockFactory
from penstock.sealing import check_seal
from penstock.settings import Settings

if TYPE_CHECKING:  # each component is imported when it is first used, so that a program does not wait for the others
    from penstock.completion.contacts import ContactOrder, Contacts
    from penstock.completion.directory import Directory
    from penstock.core.renewal import Renewer
    from penstock.counting.aggregate import Aggregate, Function
    from penstock.counting.kinds import Declared
    from penstock.files.channel import Channel
    from penstock.jobs.batching import Batch
    from penstock.jobs.decorator import AsyncTask, BatchDecorator, PlainTask, TaskDecorator, TaskOptions
    from penstock.jobs.limits import Limit
    from penstock.jobs.schedules import Schedules
    from penstock.jobs.timing import Missed
    from penstock.jobs.unique import Unique
    from penstock.locks.lock import Held
    from penstock.messages.chats import Chats
    from penstock.messages.mailbox import Mailbox

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[[], Any])

# Here and not in lazy.py, because hooks run in reverse order: this one has to run before that of `logging`, which holds
# a lock without which other threads could not end their imports.
os.register_at_fork(before=finish_imports)


class Penstock(LockFactory):
    """The app of one program: its tasks, and the components it uses on one Valkey or Redis.

    address   a URL (`valkey://`, `redis://`, with TLS, `unix://`, Sentinel, cluster) or a client of valkey-py or
              redis-py. None: $PENSTOCK_URL, else `url` in [tool.penstock] of pyproject.toml, else an embedded server,
              whose data is in the folder `.penstock`
    prefix    the beginning of every key; two apps on one server need different ones. None: that of `settings` if it is
              given, else $PENSTOCK_PREFIX, else `prefix` in [tool.penstock], else "penstock"
    settings  all other settings
    middleware  code around every enqueue and every run of a job, the first outermost (see `Middleware`)

    Nothing is connected, started or sent before the first operation. Raises ConfigurationError for an address or a
    prefix that cannot work. An app may be used by any number of threads and event loops, and in forked children.
    """

    @names_options
    def __init__(
        self,
        address: Any = None,
        *,
        prefix: str | None = None,
        settings: Settings | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        chosen = settings or Settings()
        if settings is None:
            found = Configuration()
            prefix = prefix if prefix is not None else found.text("prefix")
            chosen = replace(chosen, shards=found.numbers("shards"), seal=found.loaded("seal"))
        self.settings = replace(chosen, prefix=prefix) if prefix is not None else chosen
        check_seal(self.settings.seal)
        if not is_text(self.settings.prefix, 1, MAX_NAME_BYTES) or any(c in self.settings.prefix for c in "{}: \n"):
            raise ConfigurationError(f"prefix {self.settings.prefix!r}: use a word without braces, colons and spaces")
        self.registry = Registry()
        self.middleware = MiddlewareStack(middleware)
        self.clock = Clock()
        self._driver = ServerDriver(address, self.settings)
        self._reentrant: WeakValueDictionary[object, Held] = WeakValueDictionary()
        self._queues: dict[str, Queue] = {}

    @property
    def _renewer(self) -> Renewer:
        """Renews the leases of locks, permits and the like. It is made when one of these is first used."""
        if "renewer" not in vars(self):
            from penstock.core.renewal import Renewer

            vars(self).setdefault("renewer", Renewer(self._driver))  # threads that get here at the same time share one
        renewer: Renewer = vars(self)["renewer"]
        return renewer

    def __repr__(self) -> str:
        return f"<Penstock {self.settings.prefix}>"

    def add_middleware(self, middleware: Middleware) -> None:
        """Add code around the jobs of this app, as the innermost. Raises ConfigurationError for hooks that cannot work.

        Call it in the module that defines the app: isolated processes import only the modules of tasks, and what
        those import.
        """
        self.middleware.add(middleware)

    def on_start(self, hook: H) -> H:
        """Have `hook`, a `def` or an `async def` without parameters, called when a worker process starts. A decorator.

        Each worker calls the hooks on its event loop before its first claim, in order; an isolated run calls them in
        its own process. If one fails, the worker does not start. Raises ConfigurationError for a function with
        parameters.
        """
        self.middleware.lifecycle.check(hook, "on_start")
        self.middleware.lifecycle.start_hooks.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Have `hook` called when a worker process stops, after its last job. A decorator; see `on_start`.

        An error in it is logged. A process that is killed calls nothing.
        """
        self.middleware.lifecycle.check(hook, "on_stop")
        self.middleware.lifecycle.stop_hooks.append(hook)
        return hook

    # --- tasks ---

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, /, *, batch: Batch, **options: Unpack[TaskOptions]) -> BatchDecorator: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = "default",
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        result_ttl: float | None = None,
        isolate: bool = False,
        schedule: str = "",
        timezone: str = "UTC",
        every: float | None = None,
        missed: Missed = "one",
        unique: Unique | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        batch: Batch | None = None,
        tags: Sequence[str] = (),
        **unknown: Any,
    ) -> Any:
        """Register a function as a task. Calling it still runs it here; `enqueue` makes a job that a worker runs.

        queue       the queue of its jobs
        name        its name in the server; None: the name of the function
        retry       a policy, or a number of retries. None: the first failure makes a dead letter, unless the task
                    raises Retry; 0: also if the task raises Retry
        timeout     seconds that one run may take; None: no limit. A `def` task runs in a thread and is interrupted at
                    its next line of Python; C code cannot be interrupted
        result_ttl  seconds that its result is kept; None: as the app's settings say, 0: not at all
        isolate     run it in a process of its own. The timeout kills that process whatever it is doing, and a crash
                    affects no other job. Adds some milliseconds to each run. Only for functions at the top of a module
        limit       how many of its jobs with one key run, or start per interval: Concurrency, Rate, or a list
        schedule    a cron line, such as "0 7 * * mon-fri": workers enqueue the task at these times, each once, without
                    arguments. Its name is the name of its schedule (see `app.schedules`)
        timezone    of the cron line, such as Europe/Berlin
        every       instead of a cron line: seconds between two ticks, from 1
        missed      what to do if no worker served some ticks: "one" enqueues a job for the latest of them, "skip" skips
                    all that are more than a minute late, "all" enqueues a job for each
        unique      which calls count as the same, and for how long: only the first is enqueued (see `Unique`)
        batch       the function takes a list, and a worker calls it for many jobs together (see `Batch`)
        tags        of its jobs, to find them by: texts that may have arguments in braces, as ["order:{order}"]

        Raises ConfigurationError for a function or an option that cannot work, and for a name that another task has.
        """
        if unknown:
            from penstock.jobs.decorator import TaskOptions as Known
            from penstock.jobs.other_words import unknown_option

            raise unknown_option("@app.task", unknown, (*Known.__annotations__, "batch"))
        policy = retry if isinstance(retry, Retry) else Retry(0 if retry is None else retry)
        timing = timing_of(schedule, timezone, every, missed)
        never_retries = retry is not None and policy.times == 0
        rest: Any = {"timing": timing, "unique": unique, "limit": limit, "batch": batch, "never_retries": never_retries}
        rest["tags"] = tags

        def register(chosen: Callable[..., Any]) -> Task[..., Any]:
            label = getattr(chosen, "__name__", None) if name is None else name
            if label is None and callable(chosen):
                raise ConfigurationError(
                    f"app.task: a {type(chosen).__name__} has no name of its own: give it a name=…"
                )
            label = str(chosen) if label is None else label
            definition = Definition(label, chosen, queue, policy, timeout, result_ttl, isolate, self.middleware, **rest)
            task = make_task(definition, self.queue(queue))
            self.registry.add(definition)
            return task

        return register if function is None else register(function)

    @verb
    def enqueue_many(self, calls: Iterable[Call[R]]) -> Operation[list[Job[R]]]:
        """Enqueue many calls (`task.call(…)`), of one task or several. Returns their jobs in order.

        One round trip for 500 calls, or 250 tenants, of a queue. The iterable is read while calls are sent: if
        it raises an error, earlier calls may already be enqueued. Raises BadCall for anything but a call.
        """
        from penstock.jobs.bulk import enqueue_all

        return enqueue_all(calls)

    # --- components ---

    @names_options
    def queue(self, name: str, *, shards: int | None = None) -> Queue:
        """The queue of this name, always the same object. No round trip.

        shards  spread its tenants over this many shards, each in a slot of the cluster and with a name such as
                `mail~1`. Give the number once, in the module that defines the app. The first program that uses the
                queue stores it in the server. From then on the stored number counts, and `queue.add_shards`
                increases it. None: the number in the settings

        Raises ConfigurationError for a bad name or number, and if this program gave another number before.
        """
        if name not in self._queues:
            self._queues[name] = Queue(name, self._driver, self.settings, self.clock, self.middleware)
            shards = self.settings.shards.get(name) if shards is None else shards
            self._route_new_jobs(whole_name(name))
        if shards is not None:
            self._queues[name].shards.split(shards)
            self._route_new_jobs(name)
        return self._queues[name]

    def _route_new_jobs(self, name: str) -> None:
        """If a queue is split, have Queue objects opened by a shard's name put each new job into its tenant's shard."""
        whole = self._queues.get(name)
        if whole is not None and whole.shards.named is not None:
            for queue in [*self._queues.values()]:  # other threads may add some
                if whole_name(queue.name) == name:
                    queue.new_jobs_in = whole.shards

    @property
    def schedules(self) -> Schedules:
        """The schedules of the queues that the app uses: add, list, pause, resume, trigger and remove them."""
        from penstock.jobs.schedules import Schedules

        return Schedules(self._driver, self.queue, lambda: self._queues)

    def job(self, job_id: str) -> Job[Any]:
        """The job with this id (`queue:key`), which may not exist. No round trip. ConfigurationError for a bad id."""
        queue, colon, key = job_id.partition(":") if isinstance(job_id, str) else ("", "", "")
        if not colon or not key:
            raise ConfigurationError(f"job id {job_id!r}: it must have the form queue:key")
        utf8_size("job id", job_id)
        return Job(self.queue(queue).first, key)

    @verb
    @names_options
    def claim(
        self, queues: Sequence[str], n: int = 1, *, wait: float | None = 0.0, lease: float | None = None
    ) -> Operation[list[Item]]:
        """Claim up to `n` jobs: from the first of these queues, then from the next, until it has `n`.

            for item in app.claim(["high", "normal", "low"], wait=5): item.queue, item.body; item.complete()

        For a program that serves several queues in strict order.

        wait   seconds to wait if no queue has a job; 0: do not wait, None: no limit. It returns the jobs of the first
               queue that gets some
        lease  seconds after which a job that is not settled goes to another program; None: the app's setting

        Raises ValueError if no queue is named, or one twice. One round trip for each queue and shard that it asks, two
        if it waits. Then it sends about one command per 10 s for each.
        """
        from penstock.jobs.claiming import claim_or_wait

        check_many("claim", "queues", queues)
        names = [*queues]
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"claim(queues={shown(queues)}): the names of one or more queues")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"claim(queues={shown(queues)}): {twice[0]} is named twice; name each queue once")
        check_claim(n, wait)
        seconds = checked_lease(self.settings.lease if lease is None else lease)
        chosen = [self.queue(name) for name in names]
        claims = [partial(queue.claim_now, lease=seconds) for queue in chosen]
        return claim_or_wait(claims, [queue.shards for queue in chosen], n, wait, seconds)

    @names_options
    def contacts(
        self,
        name: str,
        *,
        limit: int = 100,
        by: ContactOrder | None = None,
        accents: bool | None = None,
        equivalents: Mapping[str, str] | None = None,
        pinyin: bool | None = None,
    ) -> Contacts:
        """The contacts of one user, to complete names from. No round trip.

        limit        how many are kept, up to 10,000
        by           which are kept and come first: `recency`: the last used ones, `frequency`: the most used ones
        accents      False: ignore accents, in the names and in what is typed
        equivalents  letters to replace, such as {"ü": "ue", "ё": "е"}: then both spellings find each other
        pinyin       True: find Chinese names by their pinyin and its initials; needs `penstock[pinyin]`

        The first contact that is added stores these options for good, except `limit`. Defaults: `recency`, True, {}
        and False. Leave them out to use the stored values.
        """
        from penstock.completion.contacts import Contacts

        return Contacts(
            name,
            self._driver,
            self.settings.prefix,
            limit=limit,
            by=by,
            accents=accents,
            equivalents=equivalents,
            pinyin=pinyin,
        )

    @names_options
    def directory(
        self,
        name: str,
        *,
        accents: bool | None = None,
        words: bool | None = None,
        equivalents: Mapping[str, str] | None = None,
        pinyin: bool | None = None,
        apostrophes: bool | None = None,
        initials: bool | None = None,
        shards: int | None = None,
    ) -> Directory:
        """The names of one group, to complete names from. No round trip.

        accents      False: ignore accents, in the names and in what is typed
        words        True: find a name by the start of any of its words, and by several words
        equivalents  letters to replace, such as {"ü": "ue", "ё": "е"}: then both spellings find each other
        pinyin       True: find Chinese names by their pinyin and its initials; needs `penstock[pinyin]`
        apostrophes  False: ignore apostrophes, so that `obrien` finds O'Brien
        initials     True: find Korean names by the first consonants of their syllables, 정보관리 by ㅈㅂㄱㄹ
        shards       number of cluster slots that share the names; the first character of a name decides its slot

        The first name that is added stores these options for good. Defaults: True, False, {}, False, True, False
        and 1. Leave them out to use the stored values.
        """
        from penstock.completion.directory import Directory

        return Directory(
            name,
            self._driver,
            self.settings.prefix,
            accents=accents,
            words=words,
            equivalents=equivalents,
            pinyin=pinyin,
            apostrophes=apostrophes,
            initials=initials,
            shards=shards,
        )

    @names_options
    def mailbox(self, name: str) -> Mailbox:
        """The mailbox of this name: many senders post to it, and one reader pulls from it. No round trip.

        Raises ConfigurationError for a bad name.
        """
        from penstock.messages.mailbox import Mailbox

        return Mailbox(name, self._driver, self.settings, self.clock)

    @property
    def chats(self) -> Chats:
        """Group chats: `create` one, `get` one by its id, or list those `of` a user."""
        from penstock.messages.chats import Chats

        return Chats(self._driver, self.settings, self.clock)

    @names_options
    def files(self, channel: str) -> Channel:
        """The channel of this name: it sends files of any size to many receivers, in a fixed amount of server memory.

        No round trip. Raises ConfigurationError for a bad name.
        """
        from penstock.files.channel import Channel

        return Channel(channel, self._driver, self._renewer, self.settings, self.clock)

    @names_options
    def aggregate(
        self,
        channel: str,
        *,
        receiver: str | None = None,
        tables: Declared | None = None,
        max_attempts: int | None = None,
    ) -> Callable[[Function], Aggregate]:
        """A decorator that makes a function an Aggregate, which counts each line exactly once. No round trip.

        receiver  the name under which it receives; None: the name of the function
        tables    the kinds of its tables, such as {"visitors": Uniques()}; other tables add up integers
        max_attempts  errors after which a batch becomes a dead batch (`Aggregate.dead`) and the rest is counted

        Raises ConfigurationError for a coroutine function or a wrong `max_attempts`, and BadName for a channel or a
        receiver that cannot be stored.
        """
        from penstock.counting.aggregate import Aggregate

        return lambda function: Aggregate(function, self.files(channel), receiver, tables, max_attempts)

    # --- closing ---

    def close(self) -> None:
        """Close the connections of blocking code, and end an embedded server if this was its last user.

        Renewals stop too, so leases that are still held run out. The next operation connects again.
        """
        if "renewer" in vars(self):
            self._renewer.close()
        self._driver.close()

    async def aclose(self) -> None:
        """Do the same as `close()` from asyncio code, and close the connections of the running event loop."""
        import asyncio

        if "renewer" in vars(self):
            await asyncio.to_thread(self._renewer.close)
        await self._driver.aclose()

    def __enter__(self) -> Penstock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Penstock:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
