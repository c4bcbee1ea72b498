"""Values that the verbs return: owners and waiters of locks, leaders, the state of latches and barriers, allowances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


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

    writer          the writer that holds it; None if no writer does
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
class Leader:
    """The process that leads.

    host, pid  where it runs
    token      unique for each leadership
    term       a number that is higher for each leader
    value      what it announced when it campaigned, such as its address
    age        seconds since it was elected
    left       seconds until its lease ends, if it is not renewed
    """

    host: str
    pid: int
    token: str
    term: int
    value: str
    age: float
    left: float

    @classmethod
    def elected(cls, token: str, term: int, value: str, *, age: float, left: float) -> Leader:
        owner = Owner.from_token(token, age, left)
        return cls(owner.host, owner.pid, token, term, value, age, left)

    def as_owner(self) -> Owner:
        """The leader as the other answers name an owner, for example for a table of all owners."""
        return Owner(self.host, self.pid, self.token, self.age, self.left)


@dataclass(frozen=True, slots=True)
class ElectionInfo:
    """The state of an election in the server.

    leader      None if no process leads
    term        the last term; None if the server has forgotten it
    waiting     how many candidates wait
    candidates  in the order in which they will be elected, at most a hundred
    """

    name: str
    leader: Leader | None
    term: int | None
    waiting: int
    candidates: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class LatchInfo:
    """The state of a latch in the server.

    count    the count with which it was created
    left     how much is still to be counted down; 0: it is open
    waiting  how many faces of processes wait; all waits of a thread pool or of an event loop are one face
    ttl      seconds until it is forgotten, unless it is used again; 0.0 if it was not used yet
    """

    name: str
    count: int
    left: int
    waiting: int
    ttl: float


@dataclass(frozen=True, slots=True)
class BarrierInfo:
    """The state of a barrier in the server.

    parties     how many it needs
    generation  the number of the present generation; 0 if it was not used yet
    waiting     how many parties wait
    waiters     at most a hundred of them, the one that was silent for longest first; `left` is the time until it counts
                as silent
    """

    name: str
    parties: int
    generation: int
    waiting: int
    waiters: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class BarrierPass:
    """A party has passed a barrier.

    generation  the number of this meeting; the same for all its parties, and higher for the next one
    index       the order of arrival, from 0. Exactly one party has the index 0: it may do the work that is due once
    """

    generation: int
    index: int


LimitKind: TypeAlias = Literal["bucket", "window"]


@dataclass(frozen=True, slots=True)
class RateLimitInfo:
    """The state of a rate limit in the server. It keeps nothing of a limit whose units are all allowed again.

    limit    units in `per` seconds, as the last request that was granted named them; None if nothing is kept
    burst    of a bucket: how many units may be used at once after a pause
    left     how many units are allowed now to a new request: 0 while others wait
    next_in  seconds until a new request is allowed one unit, after all that wait; 0.0: it is allowed now
    waiting  how many requests wait
    units    how many units they want together
    waiters  in the order in which they will be served, at most a hundred; `permits` are the units of each
    """

    name: str
    kind: LimitKind
    limit: int | None
    per: float | None
    burst: int | None
    left: int | None
    next_in: float
    waiting: int
    units: int
    waiters: tuple[Owner, ...]


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
