"""The jobs that a job waits or waited for, and those that wait for it, as a tree: to show it, and to cancel it."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field

from penstock.core.arguments import check_whole
from penstock.core.operations import Operation
from penstock.errors import JobNotFound
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.flow_bindings import ROWS, FlowBindings, Related, Side
from penstock.jobs.keys import QueueKeys
from penstock.jobs.record import StoredJob
from penstock.jobs.shard import Shard
from penstock.jobs.status import Status, status_of
from penstock.jobs.waits import WaitState


@dataclass(slots=True)
class FlowNode:
    """A job of a flow, the jobs that it waits or waited for, and those that wait for it.

    task          "" for a bare value, and for a job that is gone
    total         for how many jobs it waits or waited
    left, dead    while it waits: how many of those have not ended, and how many are dead letters
    predecessors  those jobs, in order; fewer than `total` if the tree was cut. Only of the root and its predecessors
    awaited_by    how many jobs wait for it: 0 once it has ended
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
    stored = yield shard.bindings.show(key)
    root = _node(shard.name, key, stored)
    if root.status is Status.UNKNOWN:
        raise JobNotFound(f"no job {root.id}: never enqueued here, or it ended and its result is gone")
    queues = _Queues(shard.name, shard.bindings)
    yield from _grow(queues, root, shard.name, key, "predecessors", most - 1)
    yield from _grow(queues, root, shard.name, key, "dependents", most - 1)
    return root


def _grow(queues: _Queues, root: FlowNode, queue: str, key: str, side: Side, left: int) -> Operation[None]:
    """Add at most `left` jobs to this side of the root, the nearest first."""
    rest = deque([(root, queue, key)])
    while rest:
        node, queue, key = rest.popleft()
        offset, gone, near = 0, 0, node.predecessors if side == "predecessors" else node.dependents
        while True:
            total, page = yield from queues.related(side, queue, key, offset, min(ROWS, left) or 1)
            offset += len(page)
            for one in page[:left]:
                if side == "dependents" and status_of(one.stored) is Status.UNKNOWN:
                    gone += 1
                    continue
                found = _node(one.queue, one.key, one.stored)
                found.total, found.awaited_by = one.total, one.awaited_by
                near.append(found)
                left -= 1
                if one.total if side == "predecessors" else one.awaited_by:
                    rest.append((found, one.queue, one.key))
            if not page or left <= 0 or offset >= total:
                break
        if side == "predecessors":
            node.total = total
        else:
            node.awaited_by = total - gone
        if left <= 0:
            break


class _Queues:
    """The queues of a flow, by name."""

    def __init__(self, name: str, bindings: QueueBindings) -> None:
        self._first = bindings
        self._all = {name: bindings}

    def named(self, name: str) -> QueueBindings:
        if name not in self._all:
            keys = QueueKeys(self._first.keys.prefix, name)
            self._all[name] = QueueBindings(keys, self._first.clock)
        return self._all[name]

    def related(
        self, side: Side, queue: str, key: str, offset: int, limit: int
    ) -> Operation[tuple[int, list[Related]]]:
        """As `FlowBindings.related`; each has the name of its queue, and what that queue knows about it."""
        total, page = yield FlowBindings(self.named(queue)).related(side, key, offset, limit)
        page = [one._replace(queue=one.queue or queue) for one in page]
        for name in dict.fromkeys(one.queue for one in page if one.queue != queue):
            places = [place for place, one in enumerate(page) if one.queue == name]
            while places:
                found = yield FlowBindings(self.named(name)).jobs([page[place].key for place in places])
                for place, one in zip(places, found, strict=False):
                    page[place] = one._replace(queue=name)
                places = places[len(found) :]
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
                cancelled += _counted((yield queues.named(name).cancel(keys)))
    return cancelled


def _counted(words: list[str]) -> int:
    return sum(word in ("cancelled", "running") for word in words)
