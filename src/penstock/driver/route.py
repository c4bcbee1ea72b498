"""Which node serves a key: on one server, behind Sentinel and on a cluster. Pure bookkeeping, without I/O.

One server serves all keys. Behind Sentinel and on a cluster the node has to be looked up (see `lookup.py`). The table
that a look-up found is used until a call fails. Then only the node that was called is in doubt:

                 a call fails: `forget`
    trusted ───────────────────────────────▶ in doubt: its keys are looked up again before the next call
       ▲                                        │
       └── a look-up or MOVED names it again ───┘

Meanwhile the table still serves the keys of all other nodes.

The cluster clients of the libraries are not used. A script call, the WAIT that confirms it, and a blocked read need a
connection to a known node, and one implementation has to serve both faces and both libraries.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from penstock.core.slots import SLOTS, Node, slot
from penstock.driver.address import ServerAddress

Table: TypeAlias = list[Node | None]
"""The node of each slot, or None. Behind Sentinel, and on one server, a single node that serves all keys."""

# A look-up asks this many nodes at once. Only if they do not know, it asks the next ones, because a large cluster has
# many clients, and all of them look for a node that failed.
_ASKED_AT_ONCE = 8

# For this many seconds after a look-up has named a node, a failure there starts no new look-up. Many callers fail at
# the same time, and the look-up of the first one has answered all of them.
_TRUST_FOR = 0.2

# The connections to a node are hung up at most once in this many seconds. A failure within that time is
# taken for that of an old connection, and a later one for that of a new connection.
_HANG_UP_INTERVAL = 1.0


class Answer(NamedTuple):
    """The content of a reply to a look-up."""

    table: Table
    replicas: list[Node]
    epoch: int = 0
    """Of a Sentinel: the number of the fail-over that made this node the primary. A later one has a higher number."""


class Route:
    """The known nodes behind one address, and which of them are in doubt.

    Threads may share it. If two threads update it at once, one correct answer overwrites another.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._is_cluster = address.topology == "cluster"
        # Empty: look the node up.
        self._table: Table = [address.nodes[0]] if address.topology == "server" else []
        # The nodes in doubt, and whether a look-up should wait a little for an answer that names another one.
        self._in_doubt: dict[Node, bool] = {}
        self._confirmed_at: dict[Node, float] = {}
        self._hung_up_at: dict[Node, float] = {}
        # The nodes that a look-up may ask: first those that are given or serve slots, then their replicas.
        self._candidates = list(address.nodes)
        self._replicas: list[Node] = []
        self._epoch = 0
        self._held_until = 0.0

    @property
    def uses_sentinels(self) -> bool:
        """Whether the candidates are Sentinels, which hold no keys."""
        return self._address.topology == "sentinel"

    def is_service(self, name: str) -> bool:
        return name == self._address.service

    @property
    def sentinels(self) -> tuple[Node, ...]:
        """The Sentinels that the address names; () if it names none."""
        return self._address.nodes if self.uses_sentinels else ()

    @property
    def lookup_commands(self) -> tuple[tuple[str, ...], ...]:
        """The commands for a candidate. While a Sentinel leads a fail-over, only its first reply has the successor."""
        if self.uses_sentinels:
            return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service), self.state_command
        return (("CLUSTER", "SLOTS"),)

    @property
    def state_command(self) -> tuple[str, ...]:
        """Asks a Sentinel for the state of the primary."""
        return ("SENTINEL", "MASTER", self._address.service)

    def position(self, key: str) -> int:
        """The position of the key in a table: its slot on a cluster, else 0."""
        return slot(key) if self._is_cluster else 0

    def node(self, key: str) -> Node | None:
        """The node that serves the key; None if it has to be looked up."""
        if not self._table:
            return None
        node = self._table[slot(key) if self._is_cluster else 0]
        return None if self._in_doubt and node in self._in_doubt else node

    def node_at(self, position: int) -> Node | None:
        """The node that serves this position; None if it has to be looked up."""
        node = self._table[position] if self._table else None
        return None if node in self._in_doubt else node

    def suspect(self, position: int) -> Node | None:
        """The node that served this position before it came into doubt."""
        node = self._table[position] if self._table else None
        return node if node in self._in_doubt else None

    def is_patient(self, suspect: Node | None) -> bool:
        """Whether a look-up should wait a little for an answer that names another node than this one."""
        return suspect is not None and self._in_doubt.get(suspect, False)

    def primaries(self) -> list[Node]:
        """The known nodes that hold keys, including those in doubt; [] if they have to be looked up."""
        return _distinct(self._table)

    def positions_to_look_up(self) -> list[int]:
        """A position of each primary in doubt. If no node is known, the position of the key ""."""
        if not self.primaries():
            return [self.position("")]
        return [self._table.index(node) for node in list(self._in_doubt) if node in self._table]

    def candidates(self) -> list[list[Node]]:
        """The nodes that a look-up may ask, in the groups in which to ask them.

        Each group is in random order, so that not every client asks the same node. Nodes in doubt come last.
        """
        order = [*_shuffled(self._candidates), *_shuffled(self._replicas)]
        trusted = [node for node in order if node not in self._in_doubt]
        groups = [trusted[at : at + _ASKED_AT_ONCE] for at in range(0, len(trusted), _ASKED_AT_ONCE)]
        in_doubt = [node for node in order if node in self._in_doubt]
        return [*groups, in_doubt] if in_doubt else groups

    def read(self, replies: list[Any], asked: Node) -> Answer:
        """Read the replies of `asked` to a look-up. A Sentinel that does not know the service sends a nil reply."""
        reply = replies[0]
        if self.uses_sentinels:
            epoch = int(_fields(replies[1]).get(b"config-epoch", 0))
            return Answer([self.reachable(reply, asked) if reply else None], [], epoch)
        table: Table = [None] * SLOTS
        replicas: list[Node] = []
        for first, last, primary, *others in reply:
            table[first : last + 1] = [self.reachable(primary, asked)] * (last + 1 - first)
            replicas += (self.reachable(one, asked) for one in others)
        return Answer(table, replicas)

    def hold(self, seconds: float) -> None:
        """Behind Sentinel: call no node until `take_over`, but for at most `seconds`."""
        self._held_until = time.monotonic() + seconds
        for node in self._table:
            if node is not None:
                self._in_doubt[node] = True

    @property
    def is_held(self) -> bool:
        return time.monotonic() < self._held_until

    def take_over(self, answer: Answer) -> Node | None:
        """Behind Sentinel: use the primary that the answer names. Returns the one that it replaces, if there is one."""
        left = next(iter(self._table), None)
        self.store(answer, 0)
        self._held_until = 0.0
        return left if left != answer.table[0] else None

    def promoted(self, node: Node) -> Answer:
        """The answer for a replica that was promoted, which the Sentinels announce up to a second later."""
        return Answer([node], [], self._epoch + 1)

    def is_outdated(self, answer: Answer) -> bool:
        """Whether the answer is from a Sentinel that has missed a fail-over which another Sentinel knows."""
        return answer.epoch < self._epoch

    def is_doubtful(self, answer: Answer, position: int, suspect: Node | None) -> bool:
        """Whether to wait a little for another answer: this one names the node that failed again, or is outdated."""
        return self.is_outdated(answer) or (self.is_patient(suspect) and answer.table[position] == suspect)

    def has_primary(self, reply: Any, node: Node) -> bool | None:
        """Whether a Sentinel's reply to `state_command` says that no fail-over away from this node is under way.

        None if the Sentinel does not know. A Sentinel that leads a fail-over still names the old primary after the
        promotion, but already with the epoch of the new one.
        """
        state = _fields(reply)
        epoch = int(state.get(b"config-epoch", -1))
        if epoch < self._epoch:
            return None
        is_named = self.reachable((state[b"ip"], state[b"port"]), node) == node
        return epoch == self._epoch and is_named != (b"failover_in_progress" in state[b"flags"])

    def store(self, answer: Answer, position: int) -> None:
        """Use this answer of a look-up for `position` from now on, and trust the node that it names there."""
        self._table, self._epoch = answer.table, answer.epoch
        if self._is_cluster:
            self._candidates = _distinct((*self._address.nodes, *answer.table))
            self._replicas = [node for node in _distinct(answer.replicas) if node not in self._candidates]
        known = {*self._table, *self._candidates, *self._replicas}
        for kept in (self._in_doubt, self._confirmed_at, self._hung_up_at):
            for node in [node for node in list(kept) if node not in known]:
                kept.pop(node, None)
        if (named := answer.table[position]) is not None:
            self._trust(named)

    def redirect(self, message: str, asked: Node, *, permanent: bool) -> Node:
        """The node that an error `MOVED slot host:port` (permanent) or `ASK slot host:port` (for one call) names."""
        number, named = message.split()[-2:]
        host, _, port = named.rpartition(":")
        node = self.reachable((host.encode(), int(port)), asked)
        if permanent and self._table:
            self._table[int(number)] = node
            if node in self._in_doubt:
                self._trust(node)
        return node

    def forget(self, node: Node, *, patient: bool = False) -> None:
        """Look the keys of this node up before the next call. A single server always serves all keys.

        `patient`: prefer an answer that names another node, and wait a little for it.
        """
        if self._address.topology == "server":
            return
        if time.monotonic() - self._confirmed_at.get(node, float("-inf")) >= _TRUST_FOR:
            self._in_doubt[node] = patient or self._in_doubt.get(node, False)

    def forget_slot(self, key: str) -> None:
        """Look the node of this key up before the next call: its slot has moved."""
        if self._is_cluster and self._table:
            self._table[slot(key)] = None

    def hung_up_at(self, node: Node) -> float:
        """When all connections to the node were hung up last; minus infinity if they never were."""
        return self._hung_up_at.get(node, float("-inf"))

    def note_hang_up(self, node: Node) -> bool:
        """Note that all connections to the node are hung up now. False if that was done a moment ago."""
        now = time.monotonic()
        if now - self.hung_up_at(node) < _HANG_UP_INTERVAL:
            return False
        self._hung_up_at[node] = now
        return True

    def _trust(self, node: Node) -> None:
        self._confirmed_at[node] = time.monotonic()
        self._in_doubt.pop(node, None)

    def reachable(self, named: Any, asked: Node) -> Node:
        """The address of a node as seen from here. `named`: its host and port, as the node `asked` reported them."""
        # A node that does not know its own name sends none, or "?". It means the host that was asked.
        host, port = named[0], int(named[1])
        node = (host.decode() if host and host != b"?" else asked[0]), port
        return self._address.remap(node) if self._address.remap else node


def _fields(state: Any) -> dict[bytes, bytes]:
    """The fields of a Sentinel's reply to `state_command`; {} for an error."""
    return {} if isinstance(state, Exception) else dict(zip(state[::2], state[1::2], strict=True))


def _distinct(nodes: Iterable[Node | None]) -> list[Node]:
    return list(dict.fromkeys(node for node in nodes if node is not None))


def _shuffled(nodes: list[Node]) -> list[Node]:
    return random.sample(nodes, len(nodes))
