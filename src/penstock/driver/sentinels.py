"""Behind Sentinel: whether a node is still the primary."""

from __future__ import annotations

import contextlib
from typing import Protocol

from penstock.core.slots import Node
from penstock.driver.connector import Connector


class RoutingFace(Protocol):
    """What a check needs from the engine of its face."""

    async def find_node(self, key: str) -> Node: ...


async def check_primary(face: RoutingFace, connector: Connector, node: Node) -> None:
    """Look the primary up again, and hang up on the node if another one is it.

    A primary that was frozen answers again after its thaw, until a Sentinel demotes it some 10 s later.
    """
    if connector.route is None:
        return
    connector.route.forget(node)
    with contextlib.suppress(Exception):  # no Sentinel answers: the next check asks again
        if await face.find_node("") != node:
            connector.hang_up(node)
