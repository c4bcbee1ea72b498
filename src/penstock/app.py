"""Penstock: one address, one registry, a factory for every component."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakValueDictionary

from penstock.completion.contacts import ContactOrder, Contacts
from penstock.completion.directory import Directory
from penstock.config import Configuration
from penstock.core.clock import Clock
from penstock.core.keys import key_with_tag
from penstock.core.operations import Operation, verb
from penstock.core.renewal import Renewer
from penstock.counting.aggregate import Aggregate, Function
from penstock.driver.connect import ServerDriver
from penstock.errors import ConfigurationError
from penstock.files.channel import Channel
from penstock.jobs.definition import Definition
from penstock.jobs.item import Item
from penstock.jobs.job import Job
from penstock.jobs.queue import Queue
from penstock.jobs.registry import Registry
from penstock.jobs.retry import Retry
from penstock.jobs.task import Call, Task, enqueue_all
from penstock.locks.lock import Held, Lock
from penstock.locks.rate_limit import RateLimit
from penstock.locks.rwlock import ReadWriteLock
from penstock.locks.semaphore import Permit, Semaphore
from penstock.locks.transaction import Transaction
from penstock.messages.chats import Chats
from penstock.messages.mailbox import Mailbox
from penstock.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class _Decorator(Protocol):
    """Typed so that an `async def` task's jobs give what awaiting it gives."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class AsyncTask(Task[P, R], Generic[P, R]):
    """A task from an `async def` function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = super().__call__(*args, **kwargs)
        return coroutine


class PlainTask(Task[P, R], Generic[P, R]):
    """A task from a `def` function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = super().__call__(*args, **kwargs)
        return value


class Penstock:
    """An application's components on one Valkey or Redis.

    address  a URL (`valkey://`, `redis://`, TLS, `unix://`, Sentinel, cluster) or a client of valkey-py or redis-py;
             None: $PENSTOCK_URL, else `url` in [tool.penstock] of pyproject.toml, else an embedded server with its data
             in `.penstock`
    prefix   first part of every key; two apps on one server differ in it. None: as in `settings` if given, else
             $PENSTOCK_PREFIX, else `prefix` in [tool.penstock], else "penstock"
    settings every other knob

    Nothing is sent before the first verb.
    """

    def __init__(self, address: Any = None, *, prefix: str | None = None, settings: Settings | None = None) -> None:
        if prefix is None and settings is None:
            prefix = Configuration().text("prefix")
        chosen = settings or Settings()
        self.settings = replace(chosen, prefix=prefix) if prefix is not None else chosen
        if not self.settings.prefix or any(c in self.settings.prefix for c in "{}: \n"):
            raise ConfigurationError(f"prefix {self.settings.prefix!r}: a word without braces, colons and spaces")
        self.registry = Registry()
        self.clock = Clock()
        self._driver = ServerDriver(address, self.settings)
        self._renewer = Renewer(self._driver)
        self._reentrant: WeakValueDictionary[object, Held] = WeakValueDictionary()
        self._queues: dict[str, Queue] = {}

    def __repr__(self) -> str:
        return f"<Penstock {self.settings.prefix}>"

    # --- tasks ---

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        queue: str = "default",
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        result_ttl: float | None = None,
        isolate: bool = False,
    ) -> _Decorator: ...
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
    ) -> Any:
        """Register a function as a task; it stays an ordinary function.

        queue       where its jobs wait
        name        what it is called in the server; None: the function's own name
        retry       a policy, or a number of retries; None: the first failure makes a dead letter
        timeout     seconds one run may take; a `def` task in a thread ends at its next line of Python, not in C code
        result_ttl  seconds its result is kept; None: the app's setting, 0: not at all
        isolate     run it in a process of its own, which its timeout kills whatever it is doing, and whose crash is
                    no other job's; some milliseconds a run. Only for functions at the top of a module
        """
        policy = retry if isinstance(retry, Retry) else Retry(retry or 0)

        def register(chosen: Callable[..., Any]) -> Task[..., Any]:
            label = name or str(getattr(chosen, "__name__", chosen))
            definition = Definition(label, chosen, queue, policy, timeout, result_ttl, isolate)
            self.registry.add(definition)
            kind = AsyncTask if definition.is_async else PlainTask
            return kind(chosen, definition, self.queue(queue))

        return register if function is None else register(function)

    @verb
    def enqueue_many(self, calls: Iterable[Call[R]]) -> Operation[list[Job[R]]]:
        """Enqueue many calls (`task.call(…)`), of one task or several, 500 a round trip.

        The iterable is read as it goes: an error in it leaves what was sent before it enqueued.
        """
        return enqueue_all(calls)

    # --- components ---

    def queue(self, name: str) -> Queue:
        """The queue of this name; the same object each time."""
        if name not in self._queues:
            self._queues[name] = Queue(name, self._driver, self.settings, self.clock)
        return self._queues[name]

    def job(self, job_id: str) -> Job[Any]:
        """A handle on a job by its id (`queue:…`). No round trip."""
        queue, colon, key = job_id.partition(":")
        if not colon or not key:
            raise ConfigurationError(f"job id {job_id!r}: it has the form queue:key")
        return Job(self.queue(queue), key)

    @verb
    def claim(self, queues: Sequence[str], n: int = 1, *, lease: float | None = None) -> Operation[list[Item]]:
        """Up to `n` jobs from the first of these queues that has any, then from the next; never waits.

        For a program that wants the most urgent of several queues. One round trip a queue asked.
        """
        items: list[Item] = []
        for name in queues:
            found = yield from self.queue(name).claim_now(n - len(items), lease)
            items += found
            if len(items) >= n:
                break
        return items

    def contacts(
        self, name: str, *, limit: int = 100, by: ContactOrder | None = None, accents: bool | None = None
    ) -> Contacts:
        """The last contacts of a user. No round trip.

        limit    how many are kept, up to 10,000
        by       `recency`: last used first; `frequency`: most used first
        accents  False: ignored altogether

        `by` and `accents` are fixed with the first contact (then `recency`, True unless given); leave them out to take
        what is stored.
        """
        return Contacts(name, self._driver, self.settings.prefix, limit=limit, by=by, accents=accents)

    def directory(
        self, name: str, *, accents: bool | None = None, words: bool | None = None, shards: int | None = None
    ) -> Directory:
        """The names of a group. No round trip.

        accents  False: ignored altogether
        words    True: found by the start of every word, and by several words
        shards   over how many slots of a cluster it is spread, by the first character of what a name is found by

        All are fixed with the first name (then True, False, 1 unless given); leave them out to take what is stored.
        """
        return Directory(name, self._driver, self.settings.prefix, accents=accents, words=words, shards=shards)

    def lock(
        self,
        name: str | Sequence[str],
        *,
        lease: float,
        wait: float | None = None,
        on_loss: Callable[[Held], object] | None = None,
        cancel_on_loss: bool = False,
        reentrant: bool = False,
    ) -> Lock:
        """A lock: `with app.lock("invoice:7", lease=10, wait=5) as held:`. No round trip before it is entered.

        name     also several names at once, taken all together or not at all; on a cluster they share a hash tag. The
                 lock is the key of that name in the server, whatever the app's prefix, so that the locks of
                 other libraries (redis-py, redsync) and of other apps on the same name are respected.
        lease    seconds after which the lock passes on when its owner died; a living one renews it
        wait     seconds to stand in line; None for ever, 0 answers at once
        on_loss  called with what was held when it is lost: on the loop that took it, or in a thread of its own
        cancel_on_loss  cancel the asyncio task that took it; `async with` then raises LeaseLost
        reentrant  the thread or task that holds it may enter again, by any lock of this app that says so too; what it
                 gets is what it has, and the last release gives it back
        """
        return Lock(
            name, self._driver, self._renewer, lease=lease, wait=wait, on_loss=on_loss, cancel_on_loss=cancel_on_loss,
            reentrant=self._reentrant if reentrant else None,
        )  # fmt: skip

    def read_write_lock(
        self,
        name: str,
        *,
        lease: float,
        wait: float | None = None,
        on_loss: Callable[[Any], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> ReadWriteLock:
        """A lock for many readers or one writer: `with app.read_write_lock("catalog", lease=10).read():`, `.write()`.

        Served in order of arrival, so that neither side starves. It belongs to this app's prefix, and to no other
        library. `lease`, `wait`, `on_loss`, `cancel_on_loss` as for `lock`.
        """
        return ReadWriteLock(
            name, self.settings.prefix, self._driver, self._renewer, lease=lease, wait=wait, on_loss=on_loss,
            cancel_on_loss=cancel_on_loss,
        )  # fmt: skip

    def semaphore(
        self,
        name: str,
        *,
        limit: int,
        permits: int = 1,
        lease: float | None = None,
        wait: float | None = None,
        on_loss: Callable[[Permit], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> Semaphore:
        """A semaphore: `with app.semaphore("market:17", limit=5) as permit:`. No round trip before it is entered.

        limit    permits there are; a limit set in the server (`set_limit`) goes before it
        permits  how many to take, together
        lease    seconds after which the permits of a holder that died are free; None: the app's setting
        wait, on_loss, cancel_on_loss  as for `lock`
        """
        return Semaphore(
            name, self.settings.prefix, self._driver, self._renewer, limit=limit, permits=permits,
            lease=self.settings.lease if lease is None else lease, wait=wait, on_loss=on_loss,
            cancel_on_loss=cancel_on_loss,
        )  # fmt: skip

    def rate_limit(
        self,
        name: str,
        *,
        limit: int,
        per: float,
        burst: int | None = None,
        kind: Literal["bucket", "window"] = "bucket",
        wait: float | None = None,
    ) -> RateLimit:
        """A rate limit: `with app.rate_limit("api", limit=100, per=60):`, also a decorator. No round trip before it is
        used. All who use it should say the same.

        limit  so many in `per` seconds
        burst  of a bucket: how many may come at once after a rest; None: as many as `limit`
        kind   "bucket" lets one through every `per / limit` seconds, and `burst` at once: in any `per` seconds at most
               limit + burst; the server keeps one number. "window": at most `limit` in any `per` seconds; it keeps each
        wait   seconds to wait for one's turn, for `acquire`, `with` and the decorator; None for ever
        """
        return RateLimit(
            name, self.settings.prefix, self._driver, limit=limit, per=per, burst=burst, kind=kind, wait=wait
        )

    def transaction(self, tag: str | None = None) -> Transaction:
        """Conditions and writes on keys of one hash tag, done in one step, all of them or none. Nothing is sent before
        its `commit()`. `tag`: that of the keys; None: that of the first key named. See `held.transaction()` for one
        that only the owner of a lock can do."""
        return Transaction(self._driver, home=None if tag is None else key_with_tag(tag))

    def mailbox(self, name: str) -> Mailbox:
        """The mailbox of this name: many post, one reads. No round trip."""
        return Mailbox(name, self._driver, self.settings, self.clock)

    @property
    def chats(self) -> Chats:
        """Group chats: `create`, `get` one by its id, those `of` a user."""
        return Chats(self._driver, self.settings, self.clock)

    def files(self, channel: str) -> Channel:
        """The channel of this name: files of any size to many receivers, through a fixed window. No round trip."""
        return Channel(channel, self._driver, self._renewer, self.settings, self.clock)

    def aggregate(self, channel: str, *, receiver: str | None = None) -> Callable[[Function], Aggregate]:
        """`@app.aggregate("access")` on a function from a batch of lines to counts: `run` lets it count what comes
        through the channel, exactly. `receiver`: as which; None: the function's name. No round trip."""
        return lambda function: Aggregate(function, self.files(channel), receiver)

    # --- life ---

    def close(self) -> None:
        """Close connections and, if this was its last user, the embedded server."""
        self._renewer.close()
        self._driver.close()

    async def aclose(self) -> None:
        """`close()` for asyncio code."""
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
