"""The plan of a flow: its jobs, what each of them waits for, and the rows that bring them into their queues."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from penstock.core.arguments import shown
from penstock.core.ids import mint_id
from penstock.core.operations import Operation
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs import effort
from penstock.jobs.awaited import RESULT, AwaitedResult
from penstock.jobs.constants import AFTER_OTHERS, CONTINUE, INSTEAD, STOP
from penstock.jobs.editing import EncodedCall
from penstock.jobs.flow_bindings import ROWS, FirstRows, FlowBindings, FlowRow, far_edge, known_job
from penstock.jobs.job import Job
from penstock.jobs.middleware import EnqueueContext, JobDraft
from penstock.jobs.record import POWERS_AT, Record, pack_sections, read_sections, with_power
from penstock.jobs.sealed import new_record
from penstock.jobs.shard import Shard
from penstock.jobs.shard_bindings import Elsewhere
from penstock.jobs.shards import ShardMap

R_co = TypeVar("R_co", covariant=True)

MOST_EDGES: Final = 100_000
"""The most pairs of a job and a job that it waits for, in one flow."""

_LARGEST_SECTION: Final = 60_000

_ATTEMPTS: Final = 10
"""The most attempts to enqueue a flow while the shards of its queue change."""


class FlowCall(EncodedCall, Protocol[R_co]):
    """A call, some of whose arguments may be results of other jobs."""

    @property
    def wanted(self) -> tuple[tuple[str, Any], ...]: ...
    def job(self, key: str) -> Job[R_co]: ...


def with_empty_result(call: FlowCall[Any]) -> FlowCall[Any]:
    """The call with the empty list in place of `RESULT`."""
    names = [name for name, value in call.wanted if value is RESULT]
    if not names:
        return call
    arguments = msgspec.json.decode(call.payload, type=dict[str, msgspec.Raw])
    arguments |= dict.fromkeys(names, msgspec.Raw(b"[]"))
    rest = tuple(pair for pair in call.wanted if pair[0] not in names)
    filled: Any = msgspec.structs.replace(call, payload=msgspec.json.encode(arguments), wanted=rest)  # type: ignore[type-var]
    return filled  # type: ignore[no-any-return]


OnFailure: TypeAlias = Literal["stop", "continue"] | FlowCall[Any]


def is_call(value: Any) -> bool:
    return isinstance(getattr(value, "powers", None), bytes) and hasattr(value, "task")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The jobs to wait for, and the policy if one of them fails, as `using(after=…, on_failure=…)` sets them."""

    after: tuple[Job[Any], ...] = ()
    is_list: bool = True
    on_failure: OnFailure = "stop"
    is_without_after: bool = False
    """Whether only `on_failure` was given: then the call needs a place behind others in a flow."""

    @classmethod
    def of(cls, after: Job[Any] | Iterable[Job[Any]] | None, on_failure: OnFailure) -> Waiting:
        """Raises BadCall for anything but jobs, and for a job whose result is not kept."""
        if on_failure not in ("stop", "continue") and not is_call(on_failure):
            raise ValueError(f"on_failure={on_failure!r}: 'stop', 'continue', or a call, as in task.call(…)")
        if after is not None and not isinstance(after, Job | Iterable):
            raise BadCall(f"after={shown(after)}: a job, or several in a list, as `enqueue` returns them")
        jobs = () if after is None else (after,) if isinstance(after, Job) else tuple(after)
        for job in jobs:
            if not isinstance(job, Job):
                raise BadCall(f"after= takes jobs, as `enqueue` returns them, not {type(job).__name__}")
            if job.keeps_no_result:
                raise BadCall(
                    f"after=: job {job.id} was enqueued with result_ttl=0, so that nothing shows later whether it has "
                    "ended: give it a result_ttl, or put both into a chain"
                )
        return cls(tuple(dict.fromkeys(jobs)), not isinstance(after, Job), on_failure, after is None)

    def check_unused(self, task: str) -> None:
        """Raise BadCall if a call of the task has a policy for failures, and waits for no job that may fail."""
        if self.is_without_after and self.on_failure != "stop":
            raise BadCall(
                f"{task}(): on_failure says what to do if a job fails that this one waits for, and it waits for none: "
                "name one with using(after=job, on_failure=…), or put the call behind it in a chain"
            )


# --- the plan ---


@dataclass(eq=False, slots=True)
class FlowJob:
    """One job of a flow, and the jobs of the flow that it waits for.

    shard   its shard, as far as the program knows
    number  of its wait, if it waits for jobs of other queues
    indexes id of a job that it waits for -> its index among them
    """

    key: str
    call: FlowCall[Any]
    predecessors: Sequence[FlowJob] = ()
    is_list: bool = False
    dependents: list[FlowJob] = field(default_factory=list)
    shard: Shard = field(init=False)
    number: int = 0
    indexes: dict[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.shard.name}:{self.key}"

    @property
    def waiting(self) -> Waiting:
        return self.call.task.waiting or Waiting()

    @property
    def waits(self) -> bool:
        return bool(self.predecessors or self.waiting.after)

    def give_index(self, job_id: str) -> None:
        """Note the index of a job that this one waits for. Call it in the order of the rows."""
        self.indexes[job_id] = len(self.indexes)

    def far_edge(self, job_id: str) -> bytes:
        """The edge to this job from a job of another queue, which has an index already."""
        policy, wants = policy_of(self.waiting), bool(self.call.wanted)
        return far_edge(
            self.number, self.indexes[job_id], policy=policy, wants=wants, queue=self.shard.name, dependent=self.key
        )


def policy_of(waiting: Waiting) -> bytes:
    """What the dependent does if a job that it waits for fails."""
    how = waiting.on_failure
    return INSTEAD if not isinstance(how, str) else CONTINUE if how == "continue" else STOP


class _Refusal(NamedTuple):
    """A shard refused a piece of the flow, because some jobs belong to other shards by now."""

    shard: Shard
    why: Elsewhere


_Rows: TypeAlias = list[tuple[Shard, FlowRow]]


class Plan:
    """The jobs of one flow, in the order in which they are to run."""

    def __init__(self) -> None:
        self.nodes: list[FlowJob] = []
        self._pairs = 0
        self._maps: dict[str, ShardMap] = {}
        """Name of a shard -> all shards of its queue, where the program splits it."""

    def add(self, call: FlowCall[Any], predecessors: Sequence[FlowJob], *, is_list: bool) -> FlowJob:
        """Add a job that waits for `predecessors`. Raises BadCall for too many pairs."""
        node = FlowJob(call.task.options.id or mint_id(), call, predecessors, is_list)
        for one in predecessors:
            one.dependents.append(node)
        self.nodes.append(node)
        self._pairs += len(predecessors)
        if self._pairs > MOST_EDGES:
            raise BadCall(
                f"the flow has more than {MOST_EDGES:,} pairs of a job and one that waits for it: put a call "
                "between two large groups, so that each waits for one job"
            )
        return node

    def enqueue(self) -> Operation[bool]:
        """Returns False if its only job, whose id the user chose, is in the queue already."""
        self._check()
        for _ in range(_ATTEMPTS):
            yield from self._choose_shards()
            answer = yield from self._send_all()
            if not isinstance(answer, _Refusal):
                return answer
            shards = self._maps[answer.shard.name]
            shards.learn(answer.why, shards.current)
            for node in self.nodes:
                node.key = node.call.task.options.id or mint_id()
        raise ConfigurationError(
            f"queue {self.nodes[0].shard.name}: its shards change again and again: try again later"
        )

    def _check(self) -> None:
        ids = set[tuple[str, str]]()
        for node in self.nodes:
            task = node.call.task
            if (task.queue.name, node.key) in ids:
                raise BadCall(f"two calls of this flow have the id {task.queue.name}:{node.key}: give each its own")
            ids.add((task.queue.name, node.key))
            if task.unique is not None:
                raise ConfigurationError(
                    f"task {task.name} is unique: a double would have nothing to wait for. Enqueue it first, and "
                    "pass its job as after="
                )
            if node.waits and not task.options.is_due_now:
                raise ConfigurationError(
                    f"task {task.name}: delay and at: a job that waits for others starts when they have ended; delay "
                    "the first job of the flow"
                )

    def _choose_shards(self) -> Operation[None]:
        """Decide in which shard each job is. One round trip for each queue with shards, the first time."""
        split = {shards for node in self.nodes if (shards := node.call.task.queue.shards).named is not None}
        for shards in split:
            yield from shards.check()
        self._maps = {shard.name: shards for shards in split for shard in shards.current.known}
        for node in self.nodes:
            node.shard, node.number, node.indexes = node.call.task.shard, 0, {}

    def _send_all(self) -> Operation[bool | _Refusal]:
        """Send all rows. If a shard refuses a slice, cancel the jobs that were sent; then raise, or return that."""
        durable = any(node.call.task.options.durable for node in self.nodes)
        sent: list[tuple[Shard, list[str]]] = []
        try:
            for rows in self._phases():
                slices = deque(_slices(rows))
                while slices:
                    shard, some = slices.popleft()
                    answer = yield from self._send(shard, some, durable=durable)
                    if isinstance(answer, Elsewhere):
                        yield from _cancel(sent)
                        return _Refusal(shard, answer)
                    if isinstance(answer, FirstRows):
                        slices.extendleft([(shard, some[answer.rows :]), (shard, some[: answer.rows])])
                        continue
                    if not answer and len(self.nodes) == 1:
                        return False
                    if not answer:
                        raise known_job(f"{shard.name}:{some[0].key}")
                    sent.append((shard, [row.key for row in some if row.is_new]))
        except Exception:
            yield from _cancel(sent)
            raise
        return True

    def _send(self, shard: Shard, rows: list[FlowRow], *, durable: bool) -> Operation[bool | Elsewhere | FirstRows]:
        bindings, table, moving = FlowBindings(shard.bindings), "", list[str]()
        if (shards := self._maps.get(shard.name)) is not None:
            table = shards.current.table.text
            tenants = {Record(row.draft).tenant for row in rows if row.is_new}
            moving = sorted(filter(shards.current.is_moving, tenants))
        if not shard.middleware.enqueue_hooks:
            answer: bool | Elsewhere | FirstRows = yield bindings.enqueue(
                rows, durable=durable, table=table, moving=moving
            )
            return answer
        drafts = {
            at: JobDraft(shard.name, row.key, row.draft, shard.settings.seal)
            for at, row in enumerate(rows)
            if row.is_new
        }
        with shard.middleware.around_enqueue(EnqueueContext(shard.name, [*drafts.values()])):
            changed = [row._replace(draft=drafts[at].record) if at in drafts else row for at, row in enumerate(rows)]
            answer = yield bindings.enqueue(changed, durable=durable, table=table, moving=moving)
        return answer

    def _phases(self) -> list[_Rows]:
        """The rows, in the order in which they are to be sent; those of one queue all together.

        With several queues, a job that waits must be in its queue, and count the jobs that it waits for, before any of
        those gets an edge to it. So no queue reports an end before that.
        """
        opens, counted, edges, jobs = self._opens(), self._counted(), self._edges(), self._jobs()
        closes: _Rows = [(node.shard, FlowRow("close", node.key)) for node in reversed(self.nodes) if node.waits]
        opened: _Rows = [(node.shard, _open(node, to)) for node, to in opens]
        if len({shard.name for shard, _ in (*opened, *edges, *jobs)}) == 1:
            return [opened + edges + jobs + closes]
        return [opened + counted, edges + jobs, closes]

    # The four methods that follow assign indexes in the same order as the server: that of the rows of one queue.

    def _opens(self) -> list[tuple[FlowJob, str]]:
        """Each job that waits, the last ones first, and the job that waits for it if that is the only one."""
        found = []
        for node in reversed(self.nodes):
            if node.waits:
                (one,) = node.dependents if len(node.dependents) == 1 else (node,)
                is_near = one is not node and one.shard.name == node.shard.name
                if is_near:
                    one.give_index(node.id)
                found.append((node, one.key if is_near else ""))
        return found

    def _counted(self) -> _Rows:
        rows: _Rows = []
        for node in self.nodes:
            before: list[Any] = [*node.predecessors, *node.waiting.after]
            for one in before:
                if one.shard.name != node.shard.name:
                    node.number = node.number or 1 + secrets.randbits(47)
                    node.give_index(one.id)
                    rows.append((node.shard, FlowRow("far", one.key, one.shard.name.encode(), node.key)))
        return rows

    def _edges(self) -> _Rows:
        rows: _Rows = []
        for node in self.nodes:
            verb = "after" if node.waits else "edge"  # a job that waits is enqueued, and may have been cancelled
            for one in node.dependents:
                if one.shard.name != node.shard.name:
                    if node.waits or len(node.dependents) > 1:
                        rows.append((node.shard, FlowRow(verb + ">", node.key, b"", one.far_edge(node.id))))
                elif len(node.dependents) > 1:
                    one.give_index(node.id)
                    rows.append((node.shard, FlowRow(verb, node.key, b"", one.key)))
            for job in node.waiting.after:
                if job.id == node.id:
                    raise BadCall(f"job {job.id} would wait for itself: a cycle never ends")
                if job.shard.name != node.shard.name:
                    rows.append((job.shard, FlowRow("after>", job.key, b"", node.far_edge(job.id))))
                else:
                    node.give_index(job.id)
                    rows.append((job.shard, FlowRow("after", job.key, b"", node.key)))
        return rows

    def _jobs(self) -> _Rows:
        rows: _Rows = []
        for node in self.nodes:
            if not node.waits:
                only = node.dependents[0] if len(node.dependents) == 1 else None
                row = FlowRow("job", node.key, node.call.draft()[1])
                if only is not None and only.shard.name != node.shard.name:
                    row = row._replace(verb="job>", dependent=only.far_edge(node.id))
                elif only is not None:
                    only.give_index(node.id)
                    row = row._replace(dependent=only.key)
                rows.append((node.shard, row))
        return rows


def _cancel(sent: Sequence[tuple[Shard, list[str]]]) -> Operation[None]:
    for shard, keys in sent:
        if keys:
            yield from shard.bindings.cancel_all(keys)


def _open(node: FlowJob, dependent: str) -> FlowRow:
    """The row of a job that waits."""
    call, waiting = node.call, node.waiting
    start, fields = call.task.record_start, dict[str, Any]()
    if not isinstance(waiting.on_failure, str):
        other = waiting.on_failure
        if other.task.shard.name != node.shard.name:
            raise ConfigurationError(
                f"on_failure: task {other.task.name} is of queue {other.task.shard.name}: the call takes the place of "
                f"a job in queue {node.shard.name}, so its task needs that queue"
            )
        if other.task.unique is not None:
            raise ConfigurationError(
                f"on_failure: task {other.task.name} is unique, and so cannot take another's place"
            )
        draft = other.draft()[1]
        fields["f"] = msgspec.Raw(
            b"\xda" + min(len(draft), 0xFFFF).to_bytes(2) + draft
        )  # Lua reads no other type of bytes
    if call.wanted:
        fields["i"] = {name: _input(call, node, value) for name, value in call.wanted}
    packed = msgspec.msgpack.encode(fields)
    if len(packed) > _LARGEST_SECTION:
        raise BadCall(
            f"{call.task.name}(): the call of on_failure and the indexes of results have {len(packed):,} bytes, at "
            f"most {_LARGEST_SECTION:,} fit: pass less to that call, or put a call between"
        )
    sections = read_sections(start[POWERS_AT], call.powers)[0] | {AFTER_OTHERS: packed}
    verb = f"open{policy_of(waiting).decode()}{'w' if call.wanted else '-'}{node.number or ''}"
    settings, what = call.task.queue.settings, f"{call.task.name}()"
    record = new_record(with_power(start, AFTER_OTHERS), pack_sections(sections), call.payload, settings, what)
    return FlowRow(verb, node.key, record, dependent)


def _input(call: FlowCall[Any], node: FlowJob, value: Any) -> int | list[int]:
    """The index of the result that an argument stands for; for several results, their indexes, or [first, -number]."""
    what = f"{call.task.name}()"
    for one in node.predecessors:
        task = one.call.task
        if (task.result_ttl if task.result_ttl is not None else task.queue.settings.result_ttl) == 0:
            raise BadCall(
                f"{what} wants the result of {task.name}, which is enqueued with result_ttl=0, so that its result is "
                "not kept: give it a result_ttl"
            )
    if isinstance(value, AwaitedResult) and not value.key:
        before = [one.id for one in node.predecessors] or [job.id for job in node.waiting.after]
        found = [node.indexes[id] for id in before]
        if not (node.is_list if node.predecessors else node.waiting.is_list):
            return found[0]
    else:
        found, awaited = [], [value] if isinstance(value, AwaitedResult) else value
        for one_result in awaited:
            found.append(node.indexes.get(one_result.job_id, -1))
            if found[-1] < 0:
                job = f"job {one_result.job_id}" if one_result.key else "RESULT in a list"
                raise BadCall(f"{what} wants the result of {job}, and does not wait for it: name the job in after=[…]")
        if isinstance(value, AwaitedResult):
            return found[0]
    if found == list(range(found[0], found[0] + len(found))):
        return [found[0], -len(found)]
    return found


def _slices(rows: _Rows) -> Iterator[tuple[Shard, list[FlowRow]]]:
    by_shard: dict[str, tuple[Shard, list[FlowRow]]] = {}
    for shard, row in rows:
        by_shard.setdefault(shard.name, (shard, []))[1].append(row)
    for shard, some in by_shard.values():
        for part in effort.slices(some, _effort, ROWS, lambda row: len(row.draft)):
            yield shard, part


def _effort(row: FlowRow) -> int:
    return effort.of_draft(row.draft) if row.is_new else 1
