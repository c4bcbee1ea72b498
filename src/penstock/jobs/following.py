"""Following what a job reports while it runs: its output, and the lines of its log."""

from __future__ import annotations

import math
import re
import time
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from penstock.core.arguments import check_wait, check_whole, shown
from penstock.core.operations import Driver, Listen, Operation, RoundTrip, Wait, refuse_for_in_loop, verb
from penstock.errors import BadCall, JobNotFound
from penstock.jobs.shard import Shard

_RECHECK: Final = 60.0
"""Seconds after which a reader looks again: a script that has many readers to notify does not notify all of them."""


class Part(Protocol):
    """Something that a job reports. `id`: its position."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Part)


@dataclass(frozen=True, slots=True)
class FollowedPage(Generic[T]):
    """What one round trip reads.

    lives       whether the job is not done
    is_known    whether there is such a job, or was one until recently
    expires_in  seconds until a waiting job expires; None: it does not
    is_last     whether there is nothing after these parts yet
    parts       in order
    """

    lives: bool
    is_known: bool
    expires_in: float | None
    is_last: bool
    parts: list[T]


class Followed(Generic[T]):
    """What one job reports: iterate over it with `for` or `async for`.

    The loop gets each part that is stored and each one that the job still reports, in order, and ends when the job
    does. It does not raise how the job ended: `job.result()` does.
    """

    _what: ClassVar[str]
    """What is followed, in the words of an error."""
    _part: ClassVar[type[Any]]
    _form: ClassVar[re.Pattern[str]]
    """The form of a position."""
    _give: ClassVar[str]
    """What a caller can give as `after`, in the error about anything else."""
    _others: ClassVar[tuple[str, ...]]
    """The beginnings of messages about something else that the job reports."""

    def __init__(
        self, shard: Shard, key: str, after: T | str | None, wait: float | None, *, last: int | None, most: int
    ) -> None:
        """Begin behind the part `after`, or with the `last` ones, of which at most `most` are kept."""
        check_wait(self._what, wait)
        if last is not None:
            check_whole(self._what, "last", last, 1, most, f"from 1 to {most:,}")
            if after is not None:
                raise BadCall(f"{self._what}(): give `after` or `last`, not both")
        self._after = self._position(f"{self._what}(after=…)", after)
        self._last = last or 0
        self._shard, self._key, self._wait = shard, key, wait
        self._parts: deque[T] = deque()
        self._was_seen = False
        """Whether the job existed at an earlier read."""
        self._is_at_end = False
        """Whether the last read returned all that there was."""
        self.has_ended = False
        """Whether the job is done, or a dead letter, and every part was fetched."""

    @property
    def _driver(self) -> Driver:
        return self._shard._driver

    @abstractmethod
    def _request(self, address: str, *, register: bool) -> RoundTrip[FollowedPage[T]]:
        """Read the parts behind the last one. If `register`, the listener at `address` is notified of further ones;
        else it is deregistered.
        """

    @classmethod
    def _position(cls, what: str, after: T | str | None) -> str:
        """The position of a part; "" for None. Raises BadCall for anything else."""
        if after is None:
            return ""
        given: Any = after
        position = given.id if isinstance(given, cls._part) else given
        if not isinstance(position, str) or not cls._form.match(position):
            raise BadCall(f"{what}({shown(after)}): give {cls._give}")
        return position

    def _keep_place(self, parts: list[T]) -> None:
        """The next request begins behind these parts."""
        self._last = 0
        if parts:
            self._after = parts[-1].id

    @verb
    def fetch(self, wait: float | None = None) -> Operation[list[T]]:
        """Return the next parts, at most about 256 KiB of them, for a loop that you write.

        wait  seconds to wait for the first one; 0 answers at once, None waits until the job ends

        Returns an empty list if no part came in time, or if the job has ended; then `has_ended` is set. Raises
        JobNotFound for a job that is unknown, or whose parts have expired, and SealError for output that is sealed
        with a key that this program does not have. One round trip when there are parts; else
        two or three, between which it waits for a message, and one in a minute.
        """
        check_wait("fetch", wait)
        return self._fetch(wait)

    def _fetch(self, wait: float | None) -> Operation[list[T]]:
        deadline = math.inf if wait is None else time.monotonic() + wait
        parts: list[T] = []
        if wait == 0 or not self._is_at_end:
            parts = (yield from self._read("", register=False)).parts
        while not parts and not self.has_ended and time.monotonic() < deadline:
            parts = (yield from self._wait_for_more(deadline)).parts
        return parts

    def _wait_for_more(self, deadline: float) -> Operation[FollowedPage[T]]:
        """Register a listener, read, and if there is nothing, wait and read again."""
        listener = yield Listen(self._shard.bindings.keys.base + self._key, shared=True)
        is_registered = True
        try:
            page = yield from self._read(listener.address, register=True)
            if page.parts or self.has_ended:
                return page
            ends = min(deadline, time.monotonic() + _RECHECK)
            if page.expires_in is not None:
                ends = min(ends, time.monotonic() + page.expires_in)
            while (messages := (yield Wait(listener, max(0.0, ends - time.monotonic())))) and all(
                message.startswith(self._others) for message in messages
            ):
                pass
            # While other waiters in this process share the address, it stays registered.
            is_registered = listener.close()
            page = yield from self._read(listener.address if is_registered else "", register=False)
            is_registered = False
            return page
        finally:
            if is_registered and listener.close() and not self.has_ended:
                yield self._shard.bindings.forget(self._key, listener.address)

    def _read(self, address: str, *, register: bool) -> Operation[FollowedPage[T]]:
        page: FollowedPage[T] = yield self._request(address, register=register)
        if not page.is_known and not self._was_seen:
            job_id = f"{self._shard.name}:{self._key}"
            raise JobNotFound(f"no job {job_id}: never enqueued here, or it ended and its {self._what} has expired")
        self._was_seen = True
        self._is_at_end = page.is_last
        self.has_ended = page.is_last and not page.lives
        self._keep_place(page.parts)
        return page

    def __iter__(self) -> Self:
        refuse_for_in_loop()
        return self

    def __next__(self) -> T:
        if not self._parts and not self.has_ended:
            self._parts.extend(self.fetch(self._wait))
        if not self._parts:
            raise StopIteration
        return self._parts.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._parts and not self.has_ended:
            self._parts.extend(await self.fetch.aio(self._wait))
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.popleft()
