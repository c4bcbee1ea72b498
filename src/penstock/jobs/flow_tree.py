"""The jobs that a job waits or waited for, as a tree: to show it, and to cancel it whole."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.operations import Operation
from penstock.errors import JobNotFound
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.flow_bindings import ROWS, FlowBindings
from penstock.jobs.record import StoredJob
from penstock.jobs.status import Status, status_of
from penstock.jobs.waits import WaitState


class HomeQueue(Protocol):
    """The queue that holds a flow."""

    name: str
    bindings: QueueBindings


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


def read_tree(queue: HomeQueue, key: str, most: int) -> Operation[FlowNode]:
    """See `Job.tree`."""
    if most < 1:
        raise ValueError(f"tree(most={most}): at least 1")
    bindings = FlowBindings(queue.bindings)
    stored = yield queue.bindings.show(key)
    root = _node(queue, key, stored)
    if root.status is Status.UNKNOWN:
        raise JobNotFound(f"no job {root.id}: never enqueued here, or it ended and its result is gone")
    rest = deque([(root, key)])
    left = most - 1
    while rest and left > 0:
        node, at = rest.popleft()
        while left > 0:
            node.total, page = yield bindings.predecessors(at, len(node.predecessors), min(ROWS, left))
            for one in page:
                found = _node(queue, one.key, one.stored)
                found.total = one.total
                node.predecessors.append(found)
                if one.total:
                    rest.append((found, one.key))
            left -= len(page)
            if not page or len(node.predecessors) >= node.total:
                break
    return root


def _node(queue: HomeQueue, key: str, stored: StoredJob) -> FlowNode:
    node = FlowNode(f"{queue.name}:{key}", status_of(stored), stored.record.task if stored.record is not None else "")
    if stored.waits:
        wait = WaitState.read(stored.waits)
        node.total, node.left, node.dead = wait.total, wait.left, wait.dead
    return node


def cancel_tree(bindings: QueueBindings, key: str) -> Operation[int]:
    """See `Job.cancel_tree`."""
    flows = FlowBindings(bindings)
    cancelled = _counted((yield bindings.cancel([key])))
    rest, seen = [key], {key}
    while rest:
        at, offset, total = rest.pop(), 0, 1
        while offset < total:
            total, page = yield flows.predecessors(at, offset, ROWS)
            if not page:
                break
            offset += len(page)
            new = [one for one in page if one.key not in seen]
            seen.update(one.key for one in new)
            rest += [one.key for one in new if one.total]
            if keys := [one.key for one in new if one.stored.record is not None]:
                cancelled += _counted((yield bindings.cancel(keys)))
    return cancelled


def _counted(words: list[str]) -> int:
    return sum(word in ("cancelled", "running") for word in words)
