"""`penstock semaphore|ratelimit|election|latch|barrier|rwlock ls|show`: the commands of six nouns, from one table; and
the further verbs of some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from penstock.cli.exits import Exit
from penstock.cli.owners import owner_age, owner_name
from penstock.cli.where import HERE, AsJson, Flag, Where, Yes, confirm
from penstock.errors import ConfigurationError
from penstock.locks.answers import (
    BarrierInfo,
    ElectionInfo,
    LatchInfo,
    Owner,
    RateLimitInfo,
    ReadWriteLockInfo,
    SemaphoreInfo,
)
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, exactly, many
from penstock.terminal.tables import Kind, headings, show, show_facts, show_json, show_list, show_table


@dataclass(frozen=True)
class Noun:
    """Describes what `ls` and `show` ask and print. `row` and `facts` describe one answer."""

    summary_of_ls: str
    summary_of_show: str
    name: str
    """Of the argument, for `show --help`."""
    none: str
    """The answer of `ls` if the list is empty."""
    columns: dict[str, Kind]
    ask_all: Callable[[Inspector], Sequence[Any]]
    ask: Callable[[Inspector, str], Any]
    """One answer, or a list if several things have the name."""
    row: Callable[[Any], tuple[str, ...]]
    facts: Callable[[Any], dict[str, object]]
    more_columns: dict[str, Kind] | None = None
    """Of a second table below the facts."""
    more_rows: Callable[[Any], list[tuple[str, ...]]] = lambda _: []


def commands(noun: Noun) -> tuple[Callable[..., None], Callable[..., None]]:
    """The functions of `ls` and `show`, with the docstrings that `--help` prints."""

    def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
        with where.open() as inspector:
            found = noun.ask_all(inspector)
        show_list(found, noun.columns, map(noun.row, found), none=noun.none, as_json=as_json)

    def show_one(name: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
        with where.open() as inspector:
            found = noun.ask(inspector, name)
        if as_json:
            return show_json(found)
        for index, one in enumerate(found if isinstance(found, list) else [found]):
            show(*[""] * (index > 0))
            show_facts(noun.facts(one))
            if noun.more_columns is not None and (rows := noun.more_rows(one)):
                show("")
                show_table(noun.more_columns, rows)
        return None

    as_json = "as_json\n    Print one JSON document."
    cost = "Reads the names of all keys of the server once, in slices: some seconds for many millions."
    ls.__doc__ = f"{noun.summary_of_ls}\n\n{cost}\n\nParameters\n----------\n{as_json}"
    show_one.__doc__ = f"{noun.summary_of_show}\n\nParameters\n----------\nname\n    {noun.name}\n{as_json}"
    return ls, show_one


# --- semaphores ---


def _limit_of(one: SemaphoreInfo) -> str:
    return "each program's own" if one.limit is None else f"{one.limit:,}"


def _semaphore_row(one: SemaphoreInfo) -> tuple[str, ...]:
    return one.name, f"{one.held:,}", _limit_of(one), f"{one.waiting:,}"


def _semaphore_facts(one: SemaphoreInfo) -> dict[str, object]:
    return {"semaphore": one.name, "held": f"{one.held:,}", "limit": _limit_of(one), "waiting": f"{one.waiting:,}"}


def _users(one: SemaphoreInfo) -> list[tuple[str, ...]]:
    pairs = [("holds", owner) for owner in one.holders] + [("waits for", owner) for owner in one.waiters]
    return [
        (
            owner_name(owner),
            f"{what} {owner.permits:,}",
            owner_age(owner),
            "" if owner.left is None else age(owner.left),
        )
        for what, owner in pairs
    ]


list_semaphores, show_semaphore = commands(
    Noun(
        "List the semaphores that are in use: how many permits are held, of how many, and how many requests wait.",
        "Show one semaphore that is in use: its holders, and its waiters in order.",
        "The semaphore.",
        "No semaphore is in use.",
        headings("semaphore:name", "held", "limit", "waiting"),
        lambda inspector: inspector.coordination.semaphores(),
        lambda inspector, name: inspector.coordination.semaphore(name),
        _semaphore_row,
        _semaphore_facts,
        headings("process:name", "permits:text", "for", "lease"),
        _users,
    )
)


Permits: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=2**31 - 1))]


def limit_semaphore(name: str, limit: Permits | None = None, /, *, own: Flag = False, where: Where = HERE) -> None:
    """Store a limit in the server, which replaces the limit of every program until it is changed again.

    After a lower one, holders keep their permits. After a higher one, the waiters that now fit are served at once.

    Parameters
    ----------
    name
        The semaphore.
    limit
        How many permits there are.
    own
        Instead of a limit: forget the stored one, so that each program's own applies again.
    """
    if own == (limit is not None):
        raise ConfigurationError("semaphore limit: give a number, or --own")
    with where.open() as inspector:
        inspector.coordination.limit_semaphore(name, limit)
    show(f"The limit of {name} is {'that of each program' if limit is None else f'{limit:,}'}.")


# --- rate limits ---


def _rate_of(one: RateLimitInfo) -> str:
    if one.limit is None or one.per is None:
        return ""
    return f"{one.limit:,} in {exactly(one.per)}"


def _allowed(one: RateLimitInfo) -> str:
    return f"in {age(one.next_in)}" if one.next_in else "now"


def _rate_row(one: RateLimitInfo) -> tuple[str, ...]:
    left = "" if one.left is None else f"{one.left:,}"
    return one.name, one.kind, _rate_of(one), left, _allowed(one), f"{one.waiting:,}"


def _rate_facts(one: RateLimitInfo) -> dict[str, object]:
    facts: dict[str, object] = {"rate limit": one.name, "kind": one.kind}
    if one.limit is not None:
        facts |= {"at most": _rate_of(one)}
        facts |= {} if one.burst is None else {"at once": f"{one.burst:,}"}
        facts |= {"left": f"{one.left:,}"}
    waiting = f"{one.waiting:,}" + (f", for {one.units:,} units" if one.waiting else "")
    return facts | {"next": _allowed(one), "waiting": waiting}


list_rate_limits, show_rate_limit = commands(
    Noun(
        "List the rate limits that are in use: the units that are left, and when a new request is allowed one.",
        "Show the bucket, the window or both of this name that are in use, with the requests that wait, in order.",
        "The rate limit.",
        "No rate limit is in use.",
        headings("limit:name", "kind:name", "at most:name", "left", "next:name", "waiting"),
        lambda inspector: inspector.coordination.rate_limits(),
        lambda inspector, name: inspector.coordination.rate_limit(name),
        _rate_row,
        _rate_facts,
        headings("process:name", "units", "waits for"),
        lambda one: [(owner_name(owner), f"{owner.permits:,}", owner_age(owner)) for owner in one.waiters],
    )
)


def reset_rate_limit(name: str, /, *, where: Where = HERE) -> None:
    """Forget the units of a rate limit that were used: all are allowed again, first to the requests that wait.

    Parameters
    ----------
    name
        The rate limit.
    """
    with where.open() as inspector:
        inspector.coordination.reset_rate_limit(name)
    show(f"All units of {name} are allowed again.")


# --- elections ---


def _election_row(one: ElectionInfo) -> tuple[str, ...]:
    leader, waiting = one.leader, f"{one.waiting:,}"
    if leader is None:
        return one.name, "nobody", "", "", waiting, ""
    return one.name, f"{leader.host}:{leader.pid}", age(leader.age), age(leader.left), waiting, leader.value


def _election_facts(one: ElectionInfo) -> dict[str, object]:
    leader = one.leader
    name = "nobody" if leader is None else f"{leader.host}:{leader.pid}"
    facts: dict[str, object] = {"election": one.name, "leader": name, "term": one.term}
    if leader is not None:
        facts |= {"for": age(leader.age), "lease": f"{age(leader.left)} left", "value": leader.value or "(none)"}
    return facts | {"candidates": f"{one.waiting:,}"}


list_elections, show_election = commands(
    Noun(
        "List the elections that had a leader within the last hour, with host, process and age of the leader.",
        "Show one election: its leader, its last term, and the candidates in the order in which they will be elected.",
        "The election.",
        "There are no elections.",
        headings("election:name", "leader:name", "for", "lease", "candidates", "value:text"),
        lambda inspector: inspector.coordination.elections(),
        lambda inspector, name: inspector.coordination.election(name),
        _election_row,
        _election_facts,
        headings("candidate:name", "waits for"),
        lambda one: [(owner_name(candidate), owner_age(candidate)) for candidate in one.candidates],
    )
)

# --- latches ---


def _latch_row(one: LatchInfo) -> tuple[str, ...]:
    return one.name, f"{one.left:,}" if one.left else "open", f"{one.count:,}", f"{one.waiting:,}", age(one.ttl)


def _latch_facts(one: LatchInfo) -> dict[str, object]:
    state = f"closed: {one.left:,} of {one.count:,} left" if one.left else f"open, all {one.count:,} counted"
    forgotten = f"{age(one.ttl)}, unless it is used"
    return {"latch": one.name, "state": state, "waiting": f"{one.waiting:,}", "forgotten in": forgotten}


list_latches, show_latch = commands(
    Noun(
        "List the latches: how much is left to be counted down, and how many event loops and processes wait.",
        "Show one latch.",
        "The latch.",
        "There are no latches.",
        headings("latch:name", "left", "of", "waiting", "forgotten in"),
        lambda inspector: inspector.coordination.latches(),
        lambda inspector, name: inspector.coordination.latch(name),
        _latch_row,
        _latch_facts,
    )
)


def open_latch(name: str, /, *, yes: Yes = False, where: Where = HERE) -> Exit:
    """Count down all that is left of a latch, so that the processes that wait continue. Exit code 1 if it is open.

    For a latch that a process will not count down any more, because it died for good.

    Parameters
    ----------
    name
        The latch.
    yes
        Do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        found = inspector.coordination.latch(name)
        if not found.left:
            show(f"{name} was open already.")
            return Exit.FAILED
        left = f"{found.left:,} of {found.count:,} left"
        waiting = many(found.waiting, "event loop or process", "event loops and processes")
        confirm(f"This opens {name}, with {left} and {waiting} waiting, at {inspector.location}.", yes=yes)
        inspector.coordination.open_latch(name)
    show(f"{name} is open.")
    return Exit.OK


# --- barriers ---


def _barrier_row(one: BarrierInfo) -> tuple[str, ...]:
    return one.name, f"{one.waiting:,}", f"{one.parties:,}", str(one.generation)


def _barrier_facts(one: BarrierInfo) -> dict[str, object]:
    waiting = f"{one.waiting:,} of {one.parties:,} parties"
    return {"barrier": one.name, "waiting": waiting, "meeting": one.generation}


def _silent(left: float | None) -> str:
    return f"in {age(left)}" if left is not None and left > 0 else "now"


list_barriers, show_barrier = commands(
    Noun(
        "List the barriers: how many parties wait, of how many, and the number of the present meeting.",
        "Show one barrier, with the parties that wait.",
        "The barrier.",
        "There are no barriers.",
        headings("barrier:name", "waiting", "of", "meeting"),
        lambda inspector: inspector.coordination.barriers(),
        lambda inspector, name: inspector.coordination.barrier(name),
        _barrier_row,
        _barrier_facts,
        headings("party:name", "counts as silent"),
        lambda one: [(owner_name(party), _silent(party.left)) for party in one.waiters],
    )
)


def break_barrier(name: str, /, *, reason: str = "", yes: Yes = False, where: Where = HERE) -> Exit:
    """Break the meeting of the parties that wait: they get BarrierBroken with the reason. Exit code 1 if none waits.

    Parameters
    ----------
    name
        The barrier.
    reason
        Why, for the log of the parties.
    yes
        Do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        found = inspector.coordination.barrier(name)
        if not found.waiting:
            show(f"No party waits at {name}.")
            return Exit.FAILED
        confirm(
            f"This breaks the meeting of {many(found.waiting, 'party', 'parties')} at {name}, at {inspector.location}.",
            yes=yes,
        )
        inspector.coordination.break_barrier(name, reason)
    show(f"The meeting at {name} is broken.")
    return Exit.OK


# --- read-write locks ---


def _lock_row(one: ReadWriteLockInfo) -> tuple[str, ...]:
    return one.name, owner_name(one.writer), f"{one.reading:,}", f"{one.waiting:,}"


def _lock_facts(one: ReadWriteLockInfo) -> dict[str, object]:
    return {
        "lock": one.name,
        "writer": owner_name(one.writer),
        "readers": f"{one.reading:,}",
        "waiting": f"{one.waiting:,}",
        "last fence": "none within the last hour" if one.fence is None else one.fence,
    }


def _processes(lock: ReadWriteLockInfo) -> list[tuple[str, ...]]:
    writers = [("writes", lock.writer)] if lock.writer is not None else []
    readers = [("reads", one) for one in lock.readers]
    waiters: list[tuple[str, Owner]] = [
        ("waits to write" if writes else "waits to read", one)
        for one, writes in zip(lock.waiters, lock.waits_to_write, strict=True)
    ]
    return [
        (owner_name(one), what, owner_age(one), "" if one.left is None else age(one.left))
        for what, one in (*writers, *readers, *waiters)
    ]


list_locks, show_lock = commands(
    Noun(
        "List the read-write locks that are held: the writer, or how many read, and how many wait.",
        "Show one read-write lock that is held: the writer or the readers, and the waiters in order.",
        "The read-write lock.",
        "No read-write lock is held.",
        headings("lock:name", "writer:name", "readers", "waiting"),
        lambda inspector: inspector.coordination.read_write_locks(),
        lambda inspector, name: inspector.coordination.read_write_lock(name),
        _lock_row,
        _lock_facts,
        headings("process:name", "what:text", "waits for", "lease"),
        _processes,
    )
)
