"""Which node serves a key: on one server, behind Sentinel and on a cluster. Pure bookkeeping, without I/O.

One server serves all keys. Behind Sentinel and on a cluster the node has to be looked up: the engine sends
`lookup_command` to one of the `candidates()` after another, and passes the reply to `update`, until the node is known.
After MOVED or ASK, `redirect` returns the node that the error names. After a lost connection or an error such as
READONLY, `invalidate` makes the next call look the node up again.

The cluster clients of the libraries are not used. A script call, the WAIT that confirms it, and a blocked read need a
connection to a known node, and one implementation has to serve both faces and both libraries.
"""

from __future__ import annotations

import random
from typing import Any

from penstock.core.slots import SLOTS, Node, slot
from penstock.driver.address import ServerAddress


class Route:
    """What is known about the nodes behind one address.

    Threads may share it. If two threads update it at once, one correct answer overwrites another.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        # The node of all keys, except on a cluster.
        self._single_node: Node | None = address.nodes[0] if address.topology == "server" else None
        # The node of each slot, on a cluster. Empty: look it up.
        self._slots: list[Node | None] = []
        # The nodes that a lookup may ask, in a dict for its order.
        self._candidates = dict.fromkeys(address.nodes)

    @property
    def uses_sentinels(self) -> bool:
        """Whether the candidates are Sentinels, which hold no keys."""
        return self._address.topology == "sentinel"

    @property
    def lookup_command(self) -> tuple[str, ...]:
        """What to send to a candidate."""
        if self.uses_sentinels:
            return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)
        return ("CLUSTER", "SLOTS")

    def node(self, key: str) -> Node | None:
        """The node that serves the key; None if it has to be looked up."""
        if self._slots:
            return self._slots[slot(key)]
        return self._single_node

    def primaries(self) -> list[Node]:
        """The known nodes that hold keys; [] if they have to be looked up."""
        return [self._single_node] if self._single_node else list(dict.fromkeys(filter(None, self._slots)))

    def candidates(self) -> list[Node]:
        """The nodes that a lookup may ask, in random order, so that an isolated node is not always the first."""
        return random.sample(list(self._candidates), len(self._candidates))

    def update(self, reply: Any, asked: Node) -> None:
        """Store the lookup reply of `asked`. A Sentinel that does not know the service sends a nil reply."""
        if self.uses_sentinels:
            self._single_node = (reply[0].decode(), int(reply[1])) if reply else None
            return
        slots: list[Node | None] = [None] * SLOTS
        for first, last, primary, *_ in reply:
            slots[first : last + 1] = [self._reachable(primary[0], int(primary[1]), asked)] * (last + 1 - first)
        self._slots = slots
        self._candidates = dict.fromkeys((*self._address.nodes, *filter(None, slots)))

    def redirect(self, message: str, asked: Node, *, permanent: bool) -> Node:
        """The node that an error `MOVED slot host:port` (permanent) or `ASK slot host:port` (for one call) names."""
        number, place = message.split()[-2:]
        host, _, port = place.rpartition(":")
        node = self._reachable(host.encode(), int(port), asked)
        if permanent and self._slots:
            self._slots[int(number)] = node
        return node

    def invalidate(self) -> None:
        """Look the nodes up before the next call. The node of a single server never changes."""
        if self.uses_sentinels:
            self._single_node = None
        elif self._address.topology == "cluster":
            self._slots = []

    def forget_slot(self, key: str) -> None:
        """Look up the node of this key's slot before the next call: the slot has moved."""
        if self._slots:
            self._slots[slot(key)] = None

    def _reachable(self, host: bytes | None, port: int, asked: Node) -> Node:
        # A node that does not know its own name sends none, or "?". It means the host that was asked.
        node = (host.decode() if host and host != b"?" else asked[0]), port
        return self._address.remap(node) if self._address.remap else node
