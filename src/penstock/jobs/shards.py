"""The shards of one queue: which queue of its own, under a hash tag of its own, holds the jobs of which tenant.

    queue "mail" with 3 shards      {penstock:mail}      shard 0; the table: version, shards, shards before
                                    {penstock:mail~1.9}  shard 1; the last number makes its slot fit (`shard_tag`)
                                    {penstock:mail~2.4}  shard 2

Each shard is a queue as any other, with all its keys in one slot, and so has a slot, a node and a CPU of its own. While
shards are added, a tenant that is to move stays in its old shard until that has nothing of it (see shards.lua).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from penstock.core.operations import Operation, Parallel, RoundTrip
from penstock.errors import ConfigurationError
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.keys import MOST_SHARDS
from penstock.jobs.record import Record
from penstock.jobs.shard_bindings import Elsewhere, ShardBindings
from penstock.jobs.shard_table import Table, TenantMap, shard_name, shard_number

if TYPE_CHECKING:
    from penstock.jobs.job import Job
    from penstock.jobs.unique import Unique

log = logging.getLogger("penstock.queue")

_SENT_TOGETHER: Final = 250
"""Jobs that one round trip to a shard brings while a change of shards is open."""

_PIPELINED: Final = 500
_PIPELINED_TENANTS: Final = 250
"""Jobs, and tenants of them, in one pipeline to a node."""

_TENANTS_PER_PAGE: Final = 1000

MOST_SPREAD: Final = 50
"""Tenants that are spread over several shards."""


class Shard(Protocol):
    """The parts of a queue that this module uses."""

    name: str
    bindings: QueueBindings

    @property
    def shards(self) -> Shards[Self] | None: ...


S = TypeVar("S", bound=Shard)


class ShardPart(NamedTuple, Generic[S]):
    """Jobs that one call brings to a shard. `moving`: all of their tenants are to move, which may have happened."""

    home: S
    moving: bool
    drafts: Sequence[tuple[str, bytes]]
    jobs: Sequence[Job[Any]] | None

    def call(self, table: str, *, durable: bool = False) -> RoundTrip[list[int] | Elsewhere]:
        return ShardBindings(self.home.bindings).enqueue(
            [part for draft in self.drafts for part in draft], table, moving=self.moving, durable=durable,
            on_double=None if self.jobs is None else renamed(self.jobs),
        )  # fmt: skip


Chunk: TypeAlias = tuple[S, Sequence[tuple[str, bytes]], "Sequence[Job[Any]]"]
"""A shard, and the drafts that are for it with their jobs."""


class Shards(Generic[S]):
    """The shards of one queue, as this program knows them. All of its shards share this object."""

    def __init__(self, first: S, named: int, queue_named: Callable[[str], S]) -> None:
        self.all: tuple[S, ...] = (first, *(queue_named(shard_name(first.name, n)) for n in range(1, MOST_SHARDS)))
        """As many as a queue may have. `queues` are those that it has."""
        self.named = named
        self.tenants = TenantMap(self.all, Table(0, named, 0))
        """Version 0: the server was not asked yet."""
        self._next_first = 0
        self._searched: tuple[int, str] = (0, "0")

    @property
    def table(self) -> Table:
        return self.tenants.table

    @property
    def queues(self) -> tuple[S, ...]:
        return self.all[: self.table.number]

    @property
    def is_checked(self) -> bool:
        """Whether the server was asked for the table."""
        return self.table.version > 0

    def rotated(self) -> tuple[S, ...]:
        """All shards, each time with another one first."""
        first = self._next_first % self.table.number
        self._next_first = first + 1
        return self.queues[first:] + self.queues[:first]

    def named_in(self, job_id: str) -> S:
        """The shard of a job. Raises ConfigurationError for an id without its queue."""
        name, colon, _ = job_id.partition(":")
        for queue in self.all if colon else ():
            if queue.name == name:
                return queue
        raise ConfigurationError(
            f"job id {job_id!r}: queue {self.all[0].name} has shards, so write the whole id, as in job.id"
        )

    # --- the table ---

    def adopt(self, text: str) -> None:
        """Use a table of the server from now on, unless it is older than the present one."""
        table = Table.read(text)
        if table.version > self.table.version:
            self.tenants = TenantMap(self.all, table)
            self._searched = (0, "0")

    def check(self) -> Operation[None]:
        """Ask the server for the table, once. The first program of all stores its number. One round trip."""
        if not self.is_checked:
            yield from self.refresh()
            if self.table.number < self.named:
                log.warning(
                    "queue %s has %d shards in the server, and this program names %d: add them with "
                    "`penstock queue split %s --shards %d`",
                    self.all[0].name, self.table.number, self.named, self.all[0].name, self.named,
                )  # fmt: skip

    def refresh(self) -> Operation[tuple[S, ...]]:
        """Ask the server for the table. Returns the shards. One round trip."""
        self.adopt((yield ShardBindings(self.all[0].bindings).table(self.named)))
        return self.queues

    # --- enqueue ---

    def enqueue(
        self, drafts: Sequence[tuple[str, bytes]], *, durable: bool, jobs: Sequence[Job[Any]] | None = None
    ) -> Operation[None]:
        """Enqueue each draft in the shard of its tenant. Each of `jobs` gets its shard and, if it is a double, its id.

        One round trip to each node for all of its shards and 250 jobs of each; after a change of the shards, one or two
        more. With `durable`, one for each shard and 250 jobs.
        """
        yield from self.check()
        names = [Record(record).tenant for _, record in drafts]
        left: Sequence[int] = range(len(drafts))
        while left:
            known, groups = self.tenants, dict[tuple[S, bool], list[int]]()
            for position in left:
                groups.setdefault(known.home(names[position], *drafts[position]), []).append(position)
            refused: list[int] = []
            while groups:
                # One part of each group: two parts on their way could change places when one has to be repeated.
                parts = []
                for (home, moving), members in groups.items():
                    some = members[:_SENT_TOGETHER]
                    handles = None if jobs is None else [jobs[position] for position in some]
                    parts.append(ShardPart(home, moving, [drafts[position] for position in some], handles))
                accepted = yield from self._send_parts(parts, known, durable=durable)
                for (key, members), is_accepted in zip(list(groups.items()), accepted, strict=True):
                    if not is_accepted:  # nothing more is sent there now: a tenant's jobs keep their order
                        refused += groups.pop(key)
                    elif len(members) > _SENT_TOGETHER:
                        groups[key] = members[_SENT_TOGETHER:]
                    else:
                        del groups[key]
            left = sorted(refused)

    def enqueue_chunks(self, chunks: Iterable[Chunk[S]], known: TenantMap[S]) -> Operation[None]:
        """Enqueue drafts, with their jobs, in each of several shards, by the table that chose them.

        One round trip to each node for 500 jobs of 250 tenants. A node executes a pipeline as if it were one script, so
        a pipeline is bounded as one call is.
        """
        group, jobs, tenants = list[ShardPart[S]](), 0, 0
        groups = [group]
        for home, drafts, handles in chunks:
            distinct = len({Record(record).tenant for _, record in drafts})
            jobs, tenants = jobs + len(drafts), tenants + distinct
            if group and (jobs > _PIPELINED or tenants > _PIPELINED_TENANTS):
                group, jobs, tenants = [], len(drafts), distinct
                groups.append(group)
            group.append(ShardPart(home, False, drafts, handles))
        for group in groups:
            accepted = yield from self._send_parts(group, known, durable=False)
            for part, is_accepted in zip(group, accepted, strict=True):
                if not is_accepted:
                    yield from self.enqueue(part.drafts, durable=False, jobs=part.jobs)

    def _send_parts(
        self, parts: Sequence[ShardPart[S]], known: TenantMap[S], *, durable: bool
    ) -> Operation[list[bool]]:
        """Send each part to its shard. Returns which were accepted; the others belong elsewhere."""
        calls = tuple(part.call(known.table.text, durable=durable) for part in parts)
        answers = []
        if durable or len(calls) == 1:
            for call in calls:
                answers.append((yield call))
        else:
            answers = yield Parallel(calls)
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, Elsewhere):
                self.learn(answer, known)
                continue
            for job in part.jobs or ():
                job._queue = part.home  # type: ignore[assignment]
        return [not isinstance(answer, Elsewhere) for answer in answers]

    def enqueue_one(
        self, key: str, record: bytes, job: Job[Any], tenant: str, *, durable: bool, plain: bool
    ) -> Operation[None]:
        """Enqueue one job in the shard of its tenant, in one round trip unless the shards have changed."""
        known = self.tenants
        if not known.is_settled:
            return (yield from self.enqueue([(key, record)], durable=durable, jobs=[job]))
        home, _ = known.home(tenant, key, record)
        job._queue = home  # type: ignore[assignment]
        answer = yield ShardBindings(home.bindings).enqueue(
            (key, record), known.table.text, plain=plain, durable=durable, on_double=renamed([job])
        )
        if isinstance(answer, Elsewhere):
            self.learn(answer, known)
            yield from self.enqueue([(key, record)], durable=durable, jobs=[job])

    def learn(self, refusal: Elsewhere, known: TenantMap[S]) -> None:
        """`known`: what was known when the call was sent that was refused."""
        if refusal.table:
            self.adopt(refusal.table)
        known.note_moved(refusal.tenants)

    # --- adding shards ---

    def add(self, number: int) -> Operation[None]:
        """See `Queue.add_shards`."""
        yield from self.refresh()
        table, first = self.table, self.all[0]
        if number not in range(table.number, MOST_SHARDS + 1):
            raise ConfigurationError(
                f"queue {first.name} has {table.number} shards: add_shards({number!r}) takes {table.number} to "
                f"{MOST_SHARDS}"
            )
        if number == table.number:
            return
        if table.before:
            raise ConfigurationError(
                f"queue {first.name} grows from {table.before} to {table.number} shards already: add more when no old "
                "shard has jobs of tenants that move; `penstock queue show` says so"
            )
        yield from refuse_moving_schedules(self.queues, number)
        opened = Table(table.version + 1, number, table.number, table.spread)
        stored = yield ShardBindings(first.bindings).change(table.text, opened.text)
        if stored != opened.text:
            raise ConfigurationError(f"queue {first.name}: another program changed its shards meanwhile: try again")
        self.adopt(opened.text)
        yield from self._publish()
        yield from self._copy_settings(table.number)

    def spread(self, tenant: str, number: int) -> Operation[None]:
        """See `Tenant.spread`."""
        yield from self.refresh()
        table, name = self.table, self.all[0].name
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
        if len(spread) >= MOST_SPREAD and tenant not in spread:
            raise ConfigurationError(
                f"queue {name} has {MOST_SPREAD} tenants that are or were spread over several shards, and each enqueue "
                "carries their names: add shards instead"
            )
        changed = Table(table.version + 1, table.number, 0, tuple(sorted((spread | {tenant: number}).items())))
        stored = yield ShardBindings(self.all[0].bindings).change(table.text, changed.text)
        if stored != changed.text:
            raise ConfigurationError(f"queue {name}: another program changed its shards meanwhile: try again")
        self.adopt(changed.text)
        yield from self._publish()

    def _publish(self) -> Operation[None]:
        """Have all shards know the table."""
        yield Parallel(tuple(ShardBindings(one.bindings).adopt(self.table.text) for one in self.queues[1:]))

    def _copy_settings(self, before: int) -> Operation[None]:
        """Give new shards the switches, the retention, the pauses and the weights of the first one."""
        from penstock.jobs.pauses import part_name
        from penstock.jobs.retention import Retention

        first, added = self.all[0], self.queues[before:]
        counts = yield first.bindings.counts()
        names: tuple[Literal["paused", "due_first", "by_time"], ...] = ("paused", "due_first", "by_time")
        for name in names:
            if getattr(counts, name):
                yield Parallel(tuple(one.bindings.set_switch(name, True) for one in added))
        kept = yield Retention.of(first.bindings)
        if kept:
            yield Parallel(tuple(kept.store(one.bindings) for one in added))
        if counts.paused_parts:
            for pause in (yield first.bindings.pauses()):
                part = part_name(first.name, pause.task, pause.tenant)
                if pause.paused and part is not None:
                    yield Parallel(tuple(one.bindings.pause_part(part, True) for one in added))
        cursor = "0"
        while True:
            cursor, weights = yield ShardBindings(first.bindings).scan_weights(cursor)
            for tenant, weight in weights:
                yield Parallel(tuple(one.bindings.set_weight(tenant, weight) for one in added))
            if cursor == "0":
                return

    def finish_change(self) -> Operation[bool]:
        """Close the change of shards if no old shard has jobs of a tenant that moves. Returns whether none is open.

        Such tenants become fewer only, so a later call continues where this one found the first. One round trip for
        each 1000 tenants that it passes, and a few more.
        """
        table, is_spread = self.table, self.tenants.is_spread
        if not table.before:
            return True
        number, cursor = self._searched
        if (number, cursor) == (0, "0"):
            yield from self._publish()
        while number < table.before:
            following, page = yield self.all[number].bindings.scan_tenants(cursor, _TENANTS_PER_PAGE)
            self._searched = (number, cursor)
            if any(shard_number(tenant, table.number) != number for tenant, _ in page if not is_spread(tenant)):
                return False
            number, cursor = (number + 1, "0") if following == "0" else (number, following)
        for number in range(table.before):
            cursor = "0"
            while True:
                cursor, tenants = yield ShardBindings(self.all[number].bindings).scan_windows(cursor)
                if any(shard_number(tenant, table.number) != number for tenant in tenants):
                    return False
                if cursor == "0":
                    break
        closed = Table(table.version + 1, table.number, 0, table.spread)
        self.adopt((yield ShardBindings(self.all[0].bindings).change(table.text, closed.text)))
        yield from self._publish()
        return True


def renamed(jobs: Sequence[Job[Any]]) -> Callable[[int, str], None]:
    """Makes each of these handles that is a double a handle on the job that holds its unique key."""

    def change(position: int, key: str) -> None:
        jobs[position].key = key

    return change


def made_shards(queue: S, number: int, queue_named: Callable[[str], S]) -> Shards[S] | None:
    """The shards of a queue that begins with so many; None if the program has named that number before."""
    if isinstance(number, bool) or number not in range(1, MOST_SHARDS + 1):
        raise ConfigurationError(f"shards={number!r} of queue {queue.name}: use 1 to {MOST_SHARDS}")
    if "~" in queue.name:
        raise ConfigurationError(f"queue {queue.name} is a shard, and cannot be split again")
    present = queue.shards
    if present is not None and present.named != number:
        raise ConfigurationError(
            f"shards={number} of queue {queue.name}: this program has named {present.named} before; name it once"
        )
    return Shards(queue, number, queue_named) if present is None else None


def refuse_moving_schedules(parts: Iterable[Shard], number: int) -> Operation[None]:
    """Raise ConfigurationError if a tenant with a schedule would move to another of so many shards."""
    from penstock.jobs.schedule_bindings import ScheduleBindings

    for position, queue in enumerate(parts):
        cursor, bindings = "0", ScheduleBindings(queue.bindings)
        while True:
            _, cursor, page = yield bindings.scan(cursor)
            for one in page:
                if shard_number(Record(one.draft).tenant, number) != position:
                    raise ConfigurationError(
                        f"schedule {queue.name}:{one.name} belongs to a tenant that would move to another shard: "
                        "remove it, and add it again afterwards"
                    )
            if cursor == "0":
                break


def check_unsplit(queue: Shard) -> Operation[None]:
    """Raise ConfigurationError if the queue, whose shards this program does not name, has some. One round trip."""
    text = yield ShardBindings(queue.bindings).table(0)
    if text and (number := Table.read(text).number) > 1:
        raise ConfigurationError(
            f"queue {queue.name} has {number} shards in the server, and this program names none: write "
            f"app.queue({queue.name!r}, shards={number}) where the app is defined, or use another name"
        )


def check_unique_key(what: str, unique: Unique, tenant: str, *, uses_tenant: bool) -> None:
    """Raise ConfigurationError unless the key of a unique job in a queue with shards contains the tenant.

    Each shard knows only its own keys, so other keys would be unique within a shard and not within the queue.
    """
    if unique.exact is not None and tenant not in unique.exact:
        raise ConfigurationError(
            f"{what}: Unique(exact={unique.exact!r}): its queue has shards, which know only the keys of their own "
            f"tenants: write the tenant, here {tenant!r}, into the key"
        )
    if unique.exact is None and not uses_tenant:
        raise ConfigurationError(
            f"{what}: unique: its queue has shards, which know only the keys of their own tenants: write the tenant "
            f"into the key, as in Unique({'{tenant}:' + (unique.key or '{order}')!r})"
        )


def check_limit_key(what: str, key: str, *, uses_tenant: bool) -> None:
    """Raise ConfigurationError unless the key of a limit in a queue with shards contains the tenant."""
    if not uses_tenant:
        raise ConfigurationError(
            f"{what}: its queue has shards, which count only the jobs of their own tenants: write the tenant into the "
            f"key, as in key={'{tenant}' + (':' + key if key else '')!r}"
        )
