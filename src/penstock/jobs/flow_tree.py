"""The jobs that a job waits or waited for, and those that wait for it, as a tree: to show it, and to cancel it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.core.arguments import check_whole
from penstock.core.operations import Operation
from penstock.errors import JobNotFound
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.finished_list import EndedJobs
from penstock.jobs.flow_bindings import ROWS, FlowBindings, Related, Side
from penstock.jobs.keys import QueueKeys
from penstock.jobs.record import StoredJob
from penstock.jobs.shard import Shard
from penstock.jobs.status import OVER, Status, status_of
from penstock.jobs.waits import WaitState


@dataclass(slots=True)
class FlowNode:
    """A job of a flow, the jobs that it waits or waited for, and those that wait for it.

    status        unknown: the job has ended, and its queue has dropped its row
    task          "" for a bare value, and for a job whose row is gone
    total         for how many jobs it waits or waited
    left, dead    while it waits: how many of those have not ended, and how many are dead letters
    predecessors  those jobs, in order; fewer than `total` if the tree was cut. Only of the root and its predecessors
    awaited_by    how many jobs wait for it; or waited, as far as its queue keeps rows, which name them
    dependents    those jobs; fewer than `awaited_by` if the tree was cut. Only of the root and its dependents
    """

    id: str
    status: Status
    task: str = ""
    total: int = 0
    left: int = 0
    dead: int = 0
    predecessors: list[FlowNode] = field(default_factory=list)
    awaited_by: int = 0
    dependents: list[FlowNode] = field(default_factory=list)


def read_tree(shard: Shard, key: str, most: int) -> Operation[FlowNode]:
    """See `Job.tree`."""
    check_whole("tree", "most", most, 1, sys.maxsize, "at least 1")
    queues = _Queues(shard.name, shard.bindings)
    stored = yield shard.bindings.show(key)
    root = _node(shard.name, key, stored)
    if root.status is Status.UNKNOWN:
        yield from queues.name_ended([(root, shard.name, key)])
    if root.status is Status.UNKNOWN:
        raise JobNotFound(f"no job {root.id}: never enqueued here, or it ended and its row is gone")
    found = [(root, shard.name, key)]
    found += yield from _grow(queues, root, shard.name, key, "predecessors", most - 1)
    found += yield from _grow(queues, root, shard.name, key, "dependents", most - 1)
    yield from queues.name_ended(found)
    return root


_Found: TypeAlias = tuple[FlowNode, str, str]
"""A job with the name of its queue, and its key."""


_LINKED = OVER | {Status.DEAD}
"""The states of jobs whose rows may have links: of those that waited for it, and do so no longer."""


def _grow(queues: _Queues, root: FlowNode, queue: str, key: str, side: Side, left: int) -> Operation[list[_Found]]:
    """Add at most `left` jobs to this side of the root, the nearest first. Returns them."""
    rest, added = deque([(root, queue, key)]), list[_Found]()

    def add(near: list[FlowNode], one: Related) -> None:
        node = _node(one.queue, one.key, one.stored)
        node.total, node.awaited_by = one.total, one.awaited_by
        near.append(node)
        added.append((node, one.queue, one.key))
        if one.total if side == "predecessors" else one.awaited_by or node.status in _LINKED:
            rest.append(added[-1])

    while rest:
        node, queue, key = rest.popleft()
        offset, gone, near = 0, 0, node.predecessors if side == "predecessors" else node.dependents
        while True:
            total, page = yield from queues.related(side, queue, key, offset, min(ROWS, left - len(added)) or 1)
            offset += len(page)
            for one in page[: left - len(added)]:
                if side == "dependents" and status_of(one.stored) is Status.UNKNOWN:
                    gone += 1
                else:
                    add(near, one)
            if not page or len(added) >= left or offset >= total:
                break
        if side == "predecessors":
            node.total = total
        else:
            node.awaited_by = total - gone
            if node.status in _LINKED:
                links = yield from queues.links(queue, key)
                node.awaited_by += len(links)
                for one in (yield from queues.described(links[: left - len(added)])):
                    add(near, one)
        if len(added) >= left:
            break
    return added


class _Queues:
    """The queues of a flow, by name."""

    def __init__(self, name: str, bindings: QueueBindings) -> None:
        self._first = bindings
        self._all = {name: bindings}
        self._ended: dict[str, EndedJobs] = {}

    def named(self, name: str) -> QueueBindings:
        if name not in self._all:
            keys = QueueKeys(self._first.keys.prefix, name)
            self._all[name] = QueueBindings(keys, self._first.clock)
        return self._all[name]

    def ended(self, queue: str) -> EndedJobs:
        if queue not in self._ended:
            self._ended[queue] = EndedJobs(self.named(queue), queue)
        return self._ended[queue]

    def name_ended(self, found: Sequence[_Found]) -> Operation[None]:
        """Give jobs that have ended the tasks and the states of their rows, as far as these are kept."""
        unnamed = [one for one in found if not one[0].task and one[0].status in OVER]
        for queue in dict.fromkeys(queue for _, queue, _ in unnamed):
            of_queue = [(node, key) for node, name, key in unnamed if name == queue]
            rows = yield from self.ended(queue).rows([key for _, key in of_queue])
            for node, key in of_queue:
                if (row := rows.get(key)) is not None:
                    node.task = row.task
                    node.status = row.status if node.status is Status.UNKNOWN else node.status

    def links(self, queue: str, key: str) -> Operation[list[tuple[str, str]]]:
        """The jobs that have waited for one that has ended: queue and key of each."""
        ended = self.ended(queue)
        yield from ended.rows([key])
        return [(name or queue, dependent) for name, dependent in ended.links.get(key, ())]

    def described(self, jobs: Sequence[tuple[str, str]]) -> Operation[list[Related]]:
        """What is known about these jobs, each by its queue and its key, in this order."""
        known: dict[tuple[str, str], Related] = {}
        for name in dict.fromkeys(queue for queue, _ in jobs):
            keys = [key for queue, key in jobs if queue == name]
            while keys:
                page = yield FlowBindings(self.named(name)).jobs(keys[:ROWS])
                known |= {(name, one.key): one._replace(queue=name) for one in page}
                keys = keys[len(page) or len(keys) :]
        return [known[job] for job in jobs if job in known]

    def related(
        self, side: Side, queue: str, key: str, offset: int, limit: int
    ) -> Operation[tuple[int, list[Related]]]:
        """As `FlowBindings.related`; each has the name of its queue, and what that queue knows about it."""
        total, page = yield FlowBindings(self.named(queue)).related(side, key, offset, limit)
        page = [one._replace(queue=one.queue or queue) for one in page]
        for name in dict.fromkeys(one.queue for one in page if one.queue != queue):
            positions = [at for at, one in enumerate(page) if one.queue == name]
            while positions:
                found = yield FlowBindings(self.named(name)).jobs([page[at].key for at in positions])
                for at, one in zip(positions, found, strict=False):
                    page[at] = one._replace(queue=name)
                positions = positions[len(found) :]
        return total, page


def first_predecessors(shard: Shard, key: str, most: int) -> Operation[list[FlowNode]]:
    """The first jobs that a job waits or waited for, without theirs. One round trip, and one for each other queue."""
    queues = _Queues(shard.name, shard.bindings)
    _, page = yield from queues.related("predecessors", shard.name, key, 0, most)
    return [_node(one.queue, one.key, one.stored) for one in page]


def _node(queue: str, key: str, stored: StoredJob) -> FlowNode:
    node = FlowNode(f"{queue}:{key}", status_of(stored), stored.record.task if stored.record is not None else "")
    if stored.waits:
        wait = WaitState.read(stored.waits)
        node.total, node.left, node.dead = wait.total, wait.left, wait.dead
    return node


def cancel_tree(shard: Shard, key: str) -> Operation[int]:
    """See `Job.cancel_tree`."""
    queues = _Queues(shard.name, shard.bindings)
    cancelled = _counted((yield shard.bindings.cancel([key])))
    rest = [(shard.name, key)]
    seen = {*rest}
    while rest:
        (queue, at), offset, total = rest.pop(), 0, 1
        while offset < total:
            total, page = yield from queues.related("predecessors", queue, at, offset, ROWS)
            if not page:
                break
            offset += len(page)
            new = [one for one in page if (one.queue, one.key) not in seen]
            seen.update((one.queue, one.key) for one in new)
            rest += [(one.queue, one.key) for one in new if one.total]
            by_queue: dict[str, list[str]] = {}
            for one in new:
                if one.stored.record is not None:
                    by_queue.setdefault(one.queue, []).append(one.key)
            for name, keys in by_queue.items():
                cancelled += _counted((yield from queues.named(name).cancel_all(keys)))
    return cancelled


def _counted(words: list[str]) -> int:
    return sum(word in ("cancelled", "running") for word in words)
