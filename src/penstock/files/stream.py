"""What comes through a channel, one by one, whoever pulls it (`intake.py`, `sharing.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from penstock.core.operations import Driver, Operation, verb
from penstock.errors import FilesError

T = TypeVar("T")


class Stream(Generic[T]):
    """What comes, one by one: `for`, `async for`; and with `with` what was done with is settled at its end."""

    _driver: Driver
    _doubtful = False
    """What is ready may be another's by now: ask before it is given."""

    def __init__(self) -> None:
        self._ready: deque[tuple[T, Any]] = deque()
        self._error: FilesError | None = None
        self._counted: Callable[[], bytes] = bytes
        self._given: Any = None
        self._done: Any = None
        self._reached: Any = None

    def fill(self) -> Operation[None]:
        """Until there is something ready, an error, or the end. What was given by then is done with."""
        raise NotImplementedError

    def leave(self) -> Operation[None]:
        """Settle what was done with; what is ready and was not given goes to whoever comes next."""
        raise NotImplementedError

    def commit(self) -> Operation[None]:
        """Settle what was given so far, in the middle of it."""
        raise NotImplementedError

    def along(self, counted: Callable[[], bytes]) -> None:
        """What is settled is settled together with these counts, as `counts.lua` has them, or not at all."""
        self._counted = counted

    @verb
    def fetch(self) -> Operation[None]:
        """Settle what was done with, and wait for more, in one round trip; for a loop of your own."""
        return self.fill()

    @verb
    def settle(self) -> Operation[None]:
        """Settle what was done with, and let another process receive. Two round trips."""
        return self.leave()

    def taken(self) -> Iterator[T]:
        """What is ready, one by one; the rest of it is given later."""
        while self._ready:
            item, self._given = self._ready.popleft()
            yield item

    def fault(self) -> FilesError | None:
        """What went wrong behind all that was ready."""
        if self._ready or self._error is None:
            return None
        error, self._error = self._error, None
        self._given = self._reached
        return error

    def _give(self, stop: type[Exception]) -> T:
        self._done = self._given
        if self._ready:
            item, self._given = self._ready.popleft()
            return item
        if self._error is not None:
            error, self._error = self._error, None
            self._given = self._reached
            raise error
        raise stop

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        if self._doubtful or (not self._ready and self._error is None):
            self.fetch()
        return self._give(StopIteration)

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        if self._doubtful or (not self._ready and self._error is None):
            await self.fetch.aio()
        return self._give(StopAsyncIteration)

    def _left(self, error: object) -> None:
        if error is None:
            self._done = self._given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._left(error)
        self.settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._left(error)
        await self.settle.aio()
