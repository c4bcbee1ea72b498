"""`penstock job tree` and `penstock job cancel-tree`: a job, the jobs that it waits for, and those that wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.cli.where import HERE, AsJson, Where, Yes, check_bounds, confirm
from penstock.jobs.flow_bindings import Side
from penstock.jobs.flow_tree import FlowNode
from penstock.jobs.status import Status
from penstock.ops.wording import many
from penstock.terminal.tables import show, show_json, show_sentence


def tree(id: str, /, *, limit: int = 100, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show a job and the tree around it: the jobs that it waits or waited for, and those that wait for it.

    Parameters
    ----------
    id
        The id as it was printed: queue:key. A key without its queue is searched for in every queue.
    limit
        At most this many jobs in each direction.
    as_json
        Print one JSON document.
    """
    check_bounds("--limit", limit, 1, 100_000)
    with where.open() as inspector:
        root = inspector.jobs.open(inspector.jobs.full_id(id)).tree(limit)
    if as_json:
        return show_json(root)
    for line in tree_lines(root, "--limit shows them"):
        show_sentence(line)


def tree_lines(root: FlowNode, remedy: str) -> Iterator[str]:
    """The job and what it waits for, then what waits for it. `remedy`: how to see those that are left out."""
    yield from _lines(root, "predecessors", remedy)
    if root.awaited_by:
        yield f"awaited by {many(root.awaited_by, 'job')}:"
        rest = _lines(root, "dependents", remedy)
        next(rest)
        yield from rest


def _lines(root: FlowNode, side: Side, remedy: str) -> Iterator[str]:
    rest: list[tuple[FlowNode | str, int]] = [(root, 0)]
    while rest:
        node, depth = rest.pop()
        indent = "  " * depth
        if isinstance(node, str):
            yield indent + node
            continue
        facts = [str(node.status), node.task, node.id]
        if node.status is Status.UNKNOWN:
            facts.append("(it has ended, and its row is gone)")
        if node.total:
            waits = f"{node.total - node.left} of {node.total} have ended"
            facts.append(f"({waits}, {many(node.dead, 'dead letter')})" if node.dead else f"({waits})")
        yield indent + "  ".join(filter(None, facts))
        near = node.predecessors if side == "predecessors" else node.dependents
        hidden = (node.total if side == "predecessors" else node.awaited_by) - len(near)
        if hidden and (near or node is root):
            rest.append((f"({hidden} more; {remedy})", depth + 1))
        rest += [(one, depth + 1) for one in reversed(near)]


def cancel_tree(id: str, /, *, yes: Yes = False, where: Where = HERE) -> None:
    """Cancel a job, the jobs that it waits for, those that these wait for, and so on. Running ones are asked to end.

    Parameters
    ----------
    id
        The id as it was printed: queue:key.
    yes
        Do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        root = inspector.jobs.open(id).tree(1)
        confirm(
            f"This cancels job {root.id} and the {many(root.total, 'job')} it waits for, at {inspector.location}.",
            yes=yes,
        )
        count = inspector.jobs.open(id).cancel_tree()
    show(f"cancelled {many(count, 'job')}, or asked them to end")
