"""Values that the verbs return: the owners and waiters of locks and semaphores, and the allowance of a rate limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds a lock or permits, or that waits for them.

    host, pid  where it runs; "" and 0 if the lock is held by another library
    token      unique for each acquisition; the lock's key in the server holds it
    age        seconds since it acquired the lock, or since it began to wait; None if the server does not keep that
    left       seconds until its lease expires; None for a waiter, and for a lock without a lease
    permits    of a semaphore: how many it holds, or waits for
    """

    host: str
    pid: int
    token: str
    age: float | None
    left: float | None = None
    permits: int = 1

    @classmethod
    def from_token(cls, token: str, age: float | None, left: float | None = None, permits: int = 1) -> Owner:
        """Read host and process from a token of `mint_token`. Any other token belongs to another library."""
        match token.split("/"):
            case ["penstock", host, pid, _, *_] if pid.isdecimal():
                return cls(host, int(pid), token, age, left, permits)
        return cls("", 0, token, None, left, permits)


@dataclass(frozen=True, slots=True)
class LockInfo:
    """The state of a lock in the server.

    holder   its owner; None if the lock is free
    fence    the fence of the last owner; None if the server has forgotten it
    waiting  how many wait
    waiters  in the order in which they will be served, at most a hundred
    """

    name: str
    holder: Owner | None
    fence: int | None
    waiting: int
    waiters: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class SemaphoreInfo:
    """The state of a semaphore in the server.

    limit    the limit that `set_limit` stored; None if each program uses its own
    held     how many permits are held
    holders  at most a hundred
    waiting  how many wait
    waiters  in the order in which they will be served, at most a hundred
    """

    name: str
    limit: int | None
    held: int
    holders: tuple[Owner, ...]
    waiting: int
    waiters: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class ReadWriteLockInfo:
    """The state of a read-write lock in the server.

    writer          the writer that holds it; None if nobody writes
    reading         how many readers hold it
    readers         at most a hundred of them
    fence           the fence of the last writer; None if the server has forgotten it
    waiting         how many wait
    waiters         in the order in which they will be served, at most a hundred
    waits_to_write  for each of `waiters`, whether it wants to write
    """

    name: str
    writer: Owner | None
    reading: int
    readers: tuple[Owner, ...]
    fence: int | None
    waiting: int
    waiters: tuple[Owner, ...]
    waits_to_write: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Allowance:
    """The answer of a rate limit. It is truthy if the units are allowed.

    allowed    whether the units are allowed
    wait       seconds until they would be allowed; 0.0 if they are now. Nothing is reserved for a later attempt
    remaining  how many more units would be allowed now
    """

    allowed: bool
    wait: float
    remaining: int

    def __bool__(self) -> bool:
        return self.allowed
