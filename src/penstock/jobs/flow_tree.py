"""The jobs that a job waits or waited for, as a tree: to show it, and to cancel it whole."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field

from penstock.core.arguments import check_whole
from penstock.core.operations import Operation
from penstock.errors import JobNotFound
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.flow_bindings import ROWS, FlowBindings, Predecessor
from penstock.jobs.keys import QueueKeys
from penstock.jobs.record import StoredJob
from penstock.jobs.shard import Shard
from penstock.jobs.status import Status, status_of
from penstock.jobs.waits import WaitState


@dataclass(slots=True)
class FlowNode:
    """A job of a flow, and the jobs that it waits or waited for.

    task          "" for a bare value, and for a job that is gone
    total         for how many jobs it waits or waited
    left, dead    while it waits: how many of those have not ended, and how many are dead letters
    predecessors  those jobs, in order; fewer than `total` if the tree was cut
    """

    id: str
    status: Status
    task: str = ""
    total: int = 0
    left: int = 0
    dead: int = 0
    predecessors: list[FlowNode] = field(default_factory=list)


def read_tree(shard: Shard, key: str, most: int) -> Operation[FlowNode]:
    """See `Job.tree`."""
    check_whole("tree", "most", most, 1, sys.maxsize, "at least 1")
    stored = yield shard.bindings.show(key)
    root = _node(shard.name, key, stored)
    if root.status is Status.UNKNOWN:
        raise JobNotFound(f"no job {root.id}: never enqueued here, or it ended and its result is gone")
    rest = deque([(root, shard.name, key)])
    left, queues = most - 1, _Queues(shard.name, shard.bindings)
    while rest and left > 0:
        node, queue, at = rest.popleft()
        while left > 0:
            node.total, page = yield from queues.predecessors(queue, at, len(node.predecessors), min(ROWS, left))
            for one in page:
                found = _node(one.queue, one.key, one.stored)
                found.total = one.total
                node.predecessors.append(found)
                if one.total:
                    rest.append((found, one.queue, one.key))
            left -= len(page)
            if not page or len(node.predecessors) >= node.total:
                break
    return root


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

    def predecessors(self, queue: str, key: str, offset: int, limit: int) -> Operation[tuple[int, list[Predecessor]]]:
        """As `FlowBindings.predecessors`; each has the name of its queue, and what that queue knows about it."""
        total, page = yield FlowBindings(self.named(queue)).predecessors(key, offset, limit)
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
    _, page = yield from queues.predecessors(shard.name, key, 0, most)
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
            total, page = yield from queues.predecessors(queue, at, offset, ROWS)
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
