"""Which node serves a key: pure bookkeeping, for one server, behind Sentinel and on a cluster. No I/O here.

One server serves all keys. Behind Sentinel and on a cluster the node is asked for: `question` goes to one of
`whom()` after the other until `learn` has understood a reply, and after an error that means "not here, or not any
more" `forget` makes the next step ask again. The client libraries' own cluster clients are not used: a step, its
confirmation and a blocked read need a connection to a known node, and one text for both faces and libraries.
"""

from __future__ import annotations

import random
from typing import Any

from penstock.core.slots import SLOTS, Node, slot
from penstock.driver.address import ServerAddress


class Route:
    """The way to one origin, as far as it is known. Threads may share it: what they overwrite is equally true."""

    def __init__(self, origin: ServerAddress) -> None:
        self._origin = origin
        self._known: Node | None = origin.nodes[0] if origin.shape == "server" else None
        self._slots: list[Node | None] = []
        self._met = dict.fromkeys(origin.nodes)

    @property
    def asks_sentinels(self) -> bool:
        return self._origin.shape == "sentinel"

    @property
    def question(self) -> tuple[str, ...]:
        if self.asks_sentinels:
            return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._origin.service)
        return ("CLUSTER", "SLOTS")

    def node(self, key: str) -> Node | None:
        """The node of a key; None means: ask."""
        if self._slots:
            return self._slots[slot(key)]
        return self._known

    def primaries(self) -> list[Node]:
        """All nodes that hold keys, as far as they are known."""
        return [self._known] if self._known else list(dict.fromkeys(filter(None, self._slots)))

    def whom(self) -> list[Node]:
        """Who may be asked; in any order, so that one that is cut off from the rest is not always believed."""
        return random.sample(list(self._met), len(self._met))

    def learn(self, reply: Any, asked: Node) -> None:
        """Understand an answer to the question; a Sentinel that does not know the service teaches nothing."""
        if self.asks_sentinels:
            self._known = (reply[0].decode(), int(reply[1])) if reply else None
            return
        slots: list[Node | None] = [None] * SLOTS
        for first, last, primary, *_ in reply:
            slots[first : last + 1] = [self._reached(primary[0], int(primary[1]), asked)] * (last + 1 - first)
        self._slots = slots
        self._met = dict.fromkeys((*self._origin.nodes, *filter(None, slots)))

    def redirected(self, text: str, asked: Node, *, for_good: bool) -> Node:
        """The node that a `MOVED slot host:port` (for good) or an `ASK slot host:port` (this once) names."""
        number, place = text.split()[-2:]
        host, _, port = place.rpartition(":")
        node = self._reached(host.encode(), int(port), asked)
        if for_good and self._slots:
            self._slots[int(number)] = node
        return node

    def forget(self) -> None:
        """The way may have changed: ask before the next step. One server has only one way."""
        if self.asks_sentinels:
            self._known = None
        elif self._origin.shape == "cluster":
            self._slots = []

    def _reached(self, host: bytes | None, port: int, asked: Node) -> Node:
        # A node that knows no name for itself means: the host you asked.
        node = (host.decode() if host and host != b"?" else asked[0]), port
        return self._origin.remap(node) if self._origin.remap else node
