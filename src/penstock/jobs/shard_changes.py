"""Changing the shards of a queue: adding some while programs use it, and spreading a tenant over several of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from penstock.core.operations import Operation, Parallel
from penstock.errors import ConfigurationError
from penstock.jobs.bounds import parts_of, shrink_parts
from penstock.jobs.bounds import store as store_bound
from penstock.jobs.keys import MOST_SHARDS
from penstock.jobs.pauses import scope_name
from penstock.jobs.record import Record
from penstock.jobs.retention import Retention
from penstock.jobs.schedule_bindings import ScheduleBindings
from penstock.jobs.shard import Shard
from penstock.jobs.shard_bindings import ShardBindings
from penstock.jobs.shard_table import Table, shard_number
from penstock.jobs.shards import ShardMap

_TENANTS_PER_PAGE: Final = 1000

MOST_SPREAD: Final = 50
"""Tenants that are spread over several shards."""


def add_shards(shards: ShardMap, number: int) -> Operation[bool]:
    """See `Queue.add_shards`."""
    name = shards.first.name
    if shards.named is None:
        raise ConfigurationError(
            f"queue {name}: name its shards first, as in app.queue({name!r}, shards=2), in all programs"
        )
    yield from shards.refresh()
    table = shards.current.table
    if number not in range(table.number, MOST_SHARDS + 1):
        raise ConfigurationError(
            f"queue {name} has {table.number} shards: add_shards({number!r}) takes {table.number} to {MOST_SHARDS}"
        )
    if number > table.number:
        if table.before:
            raise ConfigurationError(
                f"queue {name} grows from {table.before} to {table.number} shards already: add more when no old "
                "shard has jobs of tenants that move; `penstock queue show` says so"
            )
        yield from _refuse_moving_schedules(shards.current.known, number)
        yield from _divide_bound(shards, number)
        yield from _replace(shards, table, Table(table.version + 1, number, table.number, table.spread))
        yield from _copy_settings(shards, table.number)
    return (yield from finish_change(shards))


def spread_tenant(shards: ShardMap, tenant: str, number: int) -> Operation[None]:
    """See `Tenant.spread`."""
    name = shards.first.name
    if shards.named is None:
        raise ConfigurationError(f"queue {name} has no shards over which a tenant could be spread")
    yield from shards.refresh()
    table = shards.current.table
    if isinstance(number, bool) or number not in range(1, table.number + 1):
        raise ConfigurationError(
            f"queue {name} has {table.number} shards: spread({number!r}) takes 1 to {table.number}"
        )
    if table.before:
        raise ConfigurationError(
            f"queue {name} grows from {table.before} to {table.number} shards: spread tenants when no old shard "
            "has jobs of tenants that move; `penstock queue show` says so"
        )
    spread = dict(table.spread)
    if spread.get(tenant, 1) == number:
        return
    if number > 1 and (yield shards.first.bindings.counts()).tenant_bound:
        raise ConfigurationError(
            f"queue {name} has a bound for each tenant, and no shard would know how many jobs {tenant!r} has in the "
            "others: remove that bound first, with bound(jobs=…) alone"
        )
    if len(spread) >= MOST_SPREAD and tenant not in spread:
        raise ConfigurationError(
            f"queue {name} has {MOST_SPREAD} tenants that are or were spread over several shards, and each enqueue "
            "carries their names: add shards instead"
        )
    changed = tuple(sorted((spread | {tenant: number}).items()))
    yield from _replace(shards, table, Table(table.version + 1, table.number, 0, changed))


def finish_change(shards: ShardMap) -> Operation[bool]:
    """Close the change of shards if no old shard has jobs of a tenant that moves. Returns whether none is open.

    The number of such tenants only falls, so a later call continues where this one found the first of them. One round
    trip for each 1000 tenants that it passes, and a few more.
    """
    table, is_spread = shards.current.table, shards.current.is_spread
    if not table.before:
        return True
    number, cursor = shards.searched
    if (number, cursor) == (0, "0"):
        yield from _publish(shards)
    while number < table.before:
        following, page = yield shards.current.known[number].bindings.scan_tenants(cursor, _TENANTS_PER_PAGE)
        shards.searched = (number, cursor)
        if any(shard_number(tenant, table.number) != number for tenant, _ in page if not is_spread(tenant)):
            return False
        number, cursor = (number + 1, "0") if following == "0" else (number, following)
    for number in range(table.before):
        cursor = "0"
        while True:
            cursor, tenants = yield ShardBindings(shards.current.known[number].bindings).scan_windows(cursor)
            if any(shard_number(tenant, table.number) != number for tenant in tenants):
                return False
            if cursor == "0":
                break
    closed = Table(table.version + 1, table.number, 0, table.spread)
    shards.adopt((yield ShardBindings(shards.first.bindings).change(table.text, closed.text)))
    yield from _publish(shards)
    return True


def _replace(shards: ShardMap, table: Table, changed: Table) -> Operation[None]:
    """Replace the table in the server. Raises ConfigurationError if another program has replaced it meanwhile."""
    stored = yield ShardBindings(shards.first.bindings).change(table.text, changed.text)
    if stored != changed.text:
        raise ConfigurationError(f"queue {shards.first.name}: another program changed its shards meanwhile: try again")
    shards.adopt(changed.text)
    yield from _publish(shards)


def _publish(shards: ShardMap) -> Operation[None]:
    """Store the table in all shards."""
    text, (_, *further) = shards.current.table.text, shards.current.known
    yield Parallel(tuple(ShardBindings(one.bindings).adopt(text) for one in further))


def _divide_bound(shards: ShardMap, number: int) -> Operation[None]:
    """Give all of `number` shards their part of the bound, before the table has that number."""
    its = yield from shrink_parts(shards, number)
    if its is not None:
        jobs, per_tenant = its
        parts = parts_of(jobs, number)
        for at in range(shards.current.table.number, number):
            yield store_bound(shards.numbered(at), parts[at], per_tenant)


def _copy_settings(shards: ShardMap, before: int) -> Operation[None]:
    """Give new shards the switches, the retention, the pauses and the weights of the first one."""
    first, added = shards.first, shards.current.known[before:]
    counts = yield first.bindings.counts()
    names: tuple[Literal["due_first", "by_time"], ...] = ("due_first", "by_time")
    for name in names:
        if getattr(counts, name):
            yield Parallel(tuple(one.bindings.set_switch(name, True) for one in added))
    kept = yield Retention.of(first.bindings)
    if kept:
        yield Parallel(tuple(kept.store(one.bindings) for one in added))
    for pause in (yield first.bindings.pauses()):
        scope = scope_name(first.name, pause.task, pause.tenant)
        if scope is None:
            yield Parallel(tuple(one.bindings.set_switch("paused", True, pause.by) for one in added))
        elif pause.paused:
            yield Parallel(tuple(one.bindings.pause_scope(scope, True, pause.by) for one in added))
    cursor = "0"
    while True:
        cursor, weights = yield ShardBindings(first.bindings).scan_weights(cursor)
        for tenant, weight in weights:
            yield Parallel(tuple(one.bindings.set_weight(tenant, weight) for one in added))
        if cursor == "0":
            return


def _refuse_moving_schedules(shards: Iterable[Shard], number: int) -> Operation[None]:
    """Raise ConfigurationError if `number` shards would move a tenant with a schedule to another shard."""
    for position, shard in enumerate(shards):
        cursor, bindings = "0", ScheduleBindings(shard.bindings)
        while True:
            _, cursor, page = yield bindings.scan(cursor)
            for one in page:
                if shard_number(Record(one.draft).tenant, number) != position:
                    raise ConfigurationError(
                        f"schedule {shard.name}:{one.name} belongs to a tenant that would move to another shard: "
                        "remove it, and add it again afterwards"
                    )
            if cursor == "0":
                break
