"""`penstock queue limits`, `limit` and `hold-limit`: how many jobs run at a time, or start in a time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from penstock.cli.ages import Age
from penstock.cli.parameter import Parameter
from penstock.cli.where import HERE, AsJson, Where
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.key_template import LONGEST_KEY
from penstock.jobs.limits import Concurrency, KeyUsage, Limit, LimitInfo, Rate
from penstock.ops.wording import age, exactly
from penstock.terminal.tables import headings, show, show_list


def ls(name: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the limits of a queue, and the keys that have parked jobs.

    Parameters
    ----------
    name
        The queue.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        limits = inspector.queues.open(name).limits()
    columns = headings("limit:name", "kind:name", "at most:name", "key:text", "used", "left", "next:name", "parked")
    lines = []
    for limit in limits:
        label, kind = limit.name, limit.kind
        most = f"{limit.most:,}" if limit.per is None else f"{limit.most:,} in {exactly(limit.per)}"
        lines += [
            (label, kind, most, usage.key, _used(limit, usage), f"{usage.left:,}", _next(usage), f"{usage.parked:,}")
            for usage in limit.keys
        ] or [(label, kind, most, "", "", "", "", "0")]
    show_list(limits, columns, lines, none="No job of this queue has used a limit yet.", as_json=as_json)


def _used(limit: LimitInfo, usage: KeyUsage) -> str:
    """Of a rate the server knows what was admitted and did not start yet, and what is left."""
    if limit.per is None:
        return f"{usage.used:,}"
    return f"{usage.used:,} to start" if usage.used else ""


def _next(usage: KeyUsage) -> str:
    if usage.held_for is not None:
        return f"closed for {age(usage.held_for)}"
    return "" if usage.next_in is None else f"in {age(usage.next_in)}"


def change(
    name: str, limit: str, /, *, most: int, per: float | None = None, burst: int | None = None, where: Where = HERE
) -> None:
    """Change the numbers of a limit, for all workers at once, until a newer release of the tasks is used.

    Parameters
    ----------
    name
        The queue.
    limit
        The name of the limit, as `penstock queue limits` shows it.
    most
        How many jobs of one key run at a time; with --per, how many start in that time.
    per
        Seconds: the limit is a rate.
    burst
        Of a rate: how many may start at once after a pause. The default is the number of --most.
    """
    if burst is not None and per is None:
        raise ConfigurationError("--burst belongs to a rate: give --per as well")
    try:
        numbers: Limit = Concurrency(most) if per is None else Rate(most, per, burst=burst)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    with where.open() as inspector:
        inspector.queues.open(name).set_limit(limit, numbers)
    show(f"{limit} of {name}: {_words(numbers)}.")


def hold(
    name: str,
    limit: str,
    key: str = "",
    /,
    *,
    for_: Annotated[Age | None, Parameter(name="--for")] = None,
    until: datetime | None = None,
    open: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    where: Where = HERE,
) -> None:
    """Close one key of a rate for a while: no job of it starts.

    For a service that is down, or that asks its clients to wait.

    Parameters
    ----------
    name
        The queue.
    limit
        The name of the rate, as `penstock queue limits` shows it.
    key
        The key, as `penstock queue limits` shows it. A limit without a key has none.
    for_
        How long: 90s, 15m, 12h, 7d or 2w.
    until
        Until a date: 2026-03-01T07:00:00+01:00. Without a zone it is in local time.
    open
        Open the key at once.
    """
    if sum((for_ is not None, until is not None, open)) != 1:
        raise ConfigurationError("say how long: one of --for, --until and --open")
    moment = for_ if until is None else until.astimezone()
    with where.open() as inspector:
        try:
            inspector.queues.open(name).hold_limit(limit, key, moment)
        except (BadCall, ConfigurationError) as error:
            if len(key.encode()) > LONGEST_KEY:
                raise ConfigurationError(f"key {key[:40]!r}…: at most {LONGEST_KEY} bytes") from None
            if isinstance(error, ConfigurationError) or "=" in limit:
                known = f"`penstock queue limits {name}` lists its limits"
                raise ConfigurationError(
                    f"queue {name} has no rate {limit!r}, and only a rate can be held: {known}"
                ) from None
            option = "--until" if for_ is None else "--for"
            raise ConfigurationError(
                f"{option}: name a time in the future, by the server's clock, and at most a year from now"
            ) from None
    of_key = f" for key {key}" if key else ""
    when = (
        "is open"
        if moment is None
        else f"is closed for {age(for_)}"
        if for_ is not None
        else f"is closed until {until}"
    )
    show(f"{limit} of {name}{of_key} {when}.")


def _words(limit: Limit) -> str:
    if isinstance(limit, Concurrency):
        return f"at most {limit.most:,} at a time"
    return f"at most {limit.most:,} in {exactly(limit.per)}"
