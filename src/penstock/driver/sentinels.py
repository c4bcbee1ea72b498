"""Checks, behind Sentinel, whether a node is still the primary.

    the Sentinels promote a replica ──▶ they announce it, which `sentinel_watch.py` receives
         │
         └── some 10 s later they demote the old primary. The writes that it accepts until then are lost

So a durable write counts as safe only if no Sentinel knows of a fail-over after the write was confirmed.
"""

from __future__ import annotations

import contextlib
import math
import time
from functools import partial

from penstock.core.slots import Node
from penstock.driver.connector import Connector
from penstock.driver.face import Face
from penstock.driver.route import Route

# A Sentinel that did not answer is not asked again for this many seconds, unless no other one answers.
_SILENT_FOR = 5.0

SENTINEL_TIMEOUT = 0.5
"""A Sentinel that is asked after a durable write has to answer within this many seconds."""


async def check_primary(face: Face, connector: Connector, node: Node) -> None:
    """Look up the primary again, and close the connections to `node` if it is another one.

    A primary that was frozen answers again after its thaw, until a Sentinel demotes it some 10 s later.
    """
    if connector.route is None:
        return
    connector.route.forget(node)
    with contextlib.suppress(Exception):  # no Sentinel answers: the next check asks again
        if await face.find_node("") != node:
            connector.hang_up(node)


class PrimaryChecks:
    """Asks the Sentinels whether a node is still the primary.

    Callers that arrive while the Sentinels are being asked share the next question: for them, the answer to the present
    one may be too old.
    """

    def __init__(self, face: Face) -> None:
        self._face = face
        self._begun = self._ended = 0
        self._is_primary = False
        self._silent_at: dict[Node, float] = {}

    async def confirm(self, route: Route, node: Node) -> bool:
        """Whether at least one Sentinel answers, and all that answer name this node as the primary."""
        wanted = self._begun + 1
        while self._ended < wanted:
            await self._face.share(("primary", node), partial(self._ask_all, route, node))
        return self._is_primary

    async def _ask_all(self, route: Route, node: Node) -> None:
        self._begun += 1
        at = time.monotonic()
        asked = [one for one in route.sentinels if at - self._silent_at.get(one, -math.inf) > _SILENT_FOR]
        replies = await self._face.exchange_each(asked or route.sentinels, route.state_command)
        answers = set[bool]()
        for sentinel, reply in replies.items():
            if isinstance(reply, Exception):
                self._silent_at[sentinel] = at
            elif (answer := route.has_primary(reply, node)) is not None:
                answers.add(answer)
        self._is_primary, self._ended = answers == {True}, self._begun
