"""Asks candidates which node serves a position (a slot of a cluster, or 0): the nodes of the cluster, or the Sentinels.

The candidates are asked in groups, and all of a group at the same time. The first answer that names a node for the
position is used, so a candidate that does not answer delays no caller. If the node of the position has fallen silent or
was demoted, some candidates may not know its successor yet. Then an answer that names another node is used at once; an
answer that names the same node again is used only when all candidates have answered, or half a second has passed. The
answer of a Sentinel that has missed a fail-over waits in the same way.

The code is written once for both faces. A face supplies the queue of the answers, and runs the coroutines that ask:
as tasks, or in threads that end with the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.core.slots import Node
from penstock.driver.face import Face, OutcomeQueue
from penstock.driver.retrying import error_code
from penstock.driver.route import Answer, Route
from penstock.errors import ServerRefused

# Wait this many seconds for the answers of a group before the next group is asked, or before an answer that names the
# same node again is used.
_GRACE = 0.5

# While a replica is being promoted, calls are held, and check at this interval, in seconds, whether they may continue.
_HOLD_INTERVAL = 0.01


async def look_up(face: Face, route: Route, position: int) -> None:
    """Find the node for a position, and store the answer in the route. Raises if no candidate names one."""
    while route.is_held:
        await face.sleep(_HOLD_INTERVAL)
    if route.node_at(position) is not None:  # another caller has just found it
        return
    arrived, stops, asked = face.outcome_queue(), list[Callable[[], object]](), 0
    suspect = route.suspect(position)
    same: Answer | None = None  # names the suspect again, or comes from a Sentinel that missed a fail-over
    incomplete: Answer | None = None  # names no node for the position
    failure: Exception | None = None
    groups = route.candidates()
    try:
        for group in groups:
            stops += [face.start(_ask(face, route, node, arrived)) for node in group]
            asked += len(group)
            grace_ends = time.monotonic() + _GRACE
            while asked:
                # For the last group, wait as long as connecting and a reply may take.
                waits = group is groups[-1] and same is None
                outcome = await arrived.get(None if waits else grace_ends - time.monotonic())
                if outcome is None:
                    break
                asked -= 1
                if isinstance(outcome, Exception):
                    failure = outcome
                elif outcome.table[position] is None:
                    incomplete = outcome
                elif route.is_doubtful(outcome, position, suspect):
                    same = outcome if same is None or same.epoch <= outcome.epoch else same
                else:
                    return _use(face, route, outcome, position)
            if same is not None:
                return _use(face, route, same, position)
    finally:
        for stop in stops:
            stop()
    if incomplete is not None:
        route.store(incomplete, position)
        failure = None
    raise failure or ConnectionError(f"no server at {face.address} knows which node serves this key")


def _use(face: Face, route: Route, answer: Answer, position: int) -> None:
    suspect = route.suspect(position)
    route.store(answer, position)
    if suspect is not None and answer.table[position] != suspect:
        face.took_over(suspect)


async def _ask(face: Face, route: Route, node: Node, arrived: OutcomeQueue) -> None:
    try:
        connection = await face.open_connection(node, sentinel=route.uses_sentinels)
        try:
            replies = await connection.exchange(*route.lookup_commands)
        finally:
            connection.close()
        if isinstance(replies[0], Exception):
            raise replies[0]
        arrived.put(route.read(replies, node))
    except Exception as error:
        if route.uses_sentinels and error_code(error) in {"NOAUTH", "WRONGPASS"}:
            error = ServerRefused(
                f"the Sentinel at {node[0]}:{node[1]} wants a password of its own ({error}): add ?sentinel_password=… "
                "to the address, and sentinel_username=… if it has users"
            )
        arrived.put(error)
