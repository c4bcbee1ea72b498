"""Ends a lease with its `with` block, even if an exception interrupts `__exit__` before it has done anything.

A signal handler may raise at the first line of `__exit__`. Then nothing is released, and if the lock's object kept the
lease, it would be renewed for as long as that object exists. So each `with` statement has an exit of its own:

    with lock:    Python looks up `__exit__`, calls `__enter__`, and keeps the exit until the block has been left
      │
      ├─ left ──────────────▶ the exit releases its lease
      └─ interrupted ───────▶ Python drops the exit, and the lease is not renewed any longer
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from penstock.locks.lease import Lease

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Lease)


class BlockExit(Generic[T]):
    """The bound `__exit__` or `__aexit__` of one `with` statement, and the lease that it has to release."""

    __slots__ = ("__weakref__", "_function", "_resource", "held")

    def __init__(self, function: Callable[..., Any], resource: Any) -> None:
        self._function = function
        self._resource = resource
        self.held: T | None = None
        """The lease; None if this exit was not looked up by the `with` statement that acquired it."""

    def __call__(self, *error: Any) -> Any:
        # Now, because asyncio keeps the frames of an interrupted task, and with them this exit, for a while.
        if self.held is not None:
            self.held.stop_renewing()
        return self._function(self._resource, *error, leaving=self)

    def __del__(self) -> None:
        if self.held is not None:
            self.held.drop()

    def take(self) -> T | None:
        held, self.held = self.held, None
        return held


class LatestExits:
    """The exit that each thread or task looked up last, for the `__enter__` that follows."""

    def __init__(self) -> None:
        self._latest: dict[object, weakref.ref[BlockExit[Any]]] = {}

    def note(self, context: object, found: BlockExit[Any]) -> None:
        latest = self._latest

        def forget(dropped: object) -> None:
            if latest.get(context) is dropped:
                del latest[context]

        # A WeakValueDictionary would do the same, and take a lock that is used once 2 µs more.
        latest[context] = weakref.ref(found, forget)

    def give(self, context: object, held: Lease) -> bool:
        """Have the exit of this `with` statement release the lease. False if none was looked up."""
        reference = self._latest.pop(context, None)
        found = None if reference is None else reference()
        if found is None or found.held is not None:
            return False
        found.held = held
        return True


class _ExitMethod:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, resource: Any, kind: type) -> Any:
        if resource is None:  # `ExitStack` binds it itself
            return self._function
        found = BlockExit[Any](self._function, resource)
        resource._note_exit(found)
        return found


def exit_per_block(function: F) -> F:
    """Decorate `__exit__` or `__aexit__`: each `with` statement gets a BlockExit, which it passes as `leaving`."""
    return cast(F, _ExitMethod(function))
