"""Queries a server without scripts: what it reports about itself, which keys it holds, how fast it replies.

These functions are for operators; no path that serves work calls them. They only read, except `time_confirmations`,
which writes one key with a TTL. Unless stated otherwise, a command that the server refuses yields None or an empty
result, and no error.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.keys import key_pattern
from penstock.core.operations import FindNodes, Operation, SendCommands
from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.errors import ServerError
from penstock.ops.key_tables import HELD_LOCKS, kind_of, probe_key, split_key

KEYS_PER_SCAN = 1000
"""Keys that the server examines in one round trip of a scan: less than a millisecond of its time."""

SAMPLES = 200
"""Round trips in one measurement."""

_MOST_PROBE_KEYS = 20_000
"""The most keys that are tried to find one in a given server's slots. Nearly every slot has one of them."""

_SETTINGS = (
    "maxmemory",
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "latency-monitor-threshold",
)


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """An entry of the server's slow log: the first words of a command, its duration, and its time, both in seconds."""

    words: tuple[str, ...]
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The facts that one server reports about itself. None: the server refuses to report them."""

    node: Node
    info: Mapping[str, str] | None
    config: Mapping[str, str] | None
    slow: Sequence[SlowCommand] | None
    latency: Mapping[str, float] | None
    """Event of its latency monitor -> the longest latency, in seconds."""
    cluster: Mapping[str, str] | None
    ahead: float
    """Seconds by which its clock is ahead of ours, exact to half a round trip."""

    @property
    def name(self) -> str:
        """Which server it is, and its version, such as `valkey 9.1.2`."""
        info = self.info or {}
        kind = "valkey" if "valkey_version" in info else "redis"
        return f"{kind} {info.get(f'{kind}_version', 'of unknown version')}"

    @property
    def mode(self) -> str:
        """`standalone` or `cluster`."""
        info = self.info or {}
        return info.get("server_mode") or info.get("redis_mode") or "unknown"

    def number(self, name: str) -> float:
        """A number from INFO; 0 if INFO has no such number."""
        try:
            return float((self.info or {}).get(name, 0))
        except ValueError:
            return 0.0


def primaries() -> Operation[list[Node]]:
    """The servers that hold keys."""
    nodes: list[Node] = yield FindNodes()
    return nodes


def ask(node: Node, *commands: Command) -> Operation[list[Any]]:
    """The reply to each command; None for a command that the server refused."""
    replies = yield SendCommands(node, commands)
    return [None if isinstance(reply, ServerError) else reply for reply in replies]


def server_time(node: Node) -> Operation[float]:
    """Seconds since 1970 by the server's clock, or by ours if the server refuses. One round trip."""
    (reply,) = yield from ask(node, ("TIME",))
    return int(reply[0]) + int(reply[1]) / 1e6 if reply else time.time()


def read_facts(node: Node) -> Operation[ServerFacts]:
    """The facts that this server reports about itself. Two round trips."""
    sent = time.time()
    ahead = (yield from server_time(node)) - (sent + time.time()) / 2
    info, cluster, slow, latency, *settings = yield from ask(
        node,
        ("INFO",),
        ("CLUSTER", "INFO"),
        ("SLOWLOG", "GET", 128),
        ("LATENCY", "LATEST"),
        *(("CONFIG", "GET", name) for name in _SETTINGS),
    )
    pairs = [(_text(pair[0]), _text(pair[1])) for pair in settings if pair]
    return ServerFacts(
        node,
        info and _table(info),
        dict(pairs) or None,
        slow if slow is None else [_slow_command(entry) for entry in slow],
        latency if latency is None else {_text(event[0]): event[3] / 1000 for event in latency},
        cluster and _table(cluster),
        ahead,
    )


def _slow_command(entry: Sequence[Any]) -> SlowCommand:
    return SlowCommand(tuple(_text(word) for word in entry[3][:4]), entry[2] / 1e6, float(entry[1]))


def _text(data: Any) -> str:
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data)


def _table(reply: bytes) -> dict[str, str]:
    """The table in a reply that consists of lines `name:value`, such as that of INFO."""
    return dict(line.split(":", 1) for line in _text(reply).splitlines() if ":" in line)


# --- keys ---


def scan_keys(node: Node, pattern: str, most: int | None = None) -> Operation[tuple[set[bytes], bool]]:
    """The keys of one server that match, and whether they are complete: the scan stops once it has more than `most`.

    A key that exists during the whole scan is found; a key that is created or deleted meanwhile may be found. One round
    trip for each 1000 keys of the server, whichever app they belong to; the server serves other clients in between.
    Raises ServerError.
    """
    found: set[bytes] = set()
    cursor: Any = 0
    while True:
        (reply,) = yield SendCommands(node, (("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN),))
        if isinstance(reply, ServerError):
            raise reply
        cursor = reply[0]
        found.update(reply[1])
        if int(cursor) == 0:
            return found, True
        if most is not None and len(found) > most:
            return found, False


def queue_names(prefix: str) -> Operation[list[str]]:
    """The queues of an app that were ever used, and their shards, sorted. Costs a `scan_keys` of every server."""
    return instance_names(prefix, "queue")


def instance_names(prefix: str, kind: str, rest: str = "meta") -> Operation[list[str]]:
    """The names of an app's components of one kind, sorted; `rest` is the key that every such component has.

    Costs a `scan_keys` of every server.
    """
    names = set()
    for node in (yield from primaries()):
        found, _ = yield from scan_keys(node, key_pattern(prefix, rest))
        instances = [name.instance for key in found if (name := split_key(key.decode(errors="replace")))]
        names |= {
            instance.removeprefix(f"{kind}:")
            for instance in instances
            if kind_of(instance) == kind and "/" not in instance.split(":")[0]
        }
    return sorted(names)


def lock_names() -> Operation[list[str]]:
    """The locks of any app that were held within the last hour, sorted. Costs a `scan_keys` of every server."""
    names = set()
    for node in (yield from primaries()):
        found, _ = yield from scan_keys(node, HELD_LOCKS)
        for key in found:
            if (name := split_key(key.decode(errors="replace"))) and name.instance.startswith("lock:"):
                names.add(name.instance.removeprefix("lock:"))
    return sorted(names)


# --- times ---


def time_round_trips(node: Node, command: Command, times: int = SAMPLES) -> Operation[list[float]]:
    """Seconds that each of `times` round trips took, shortest first; [] if the server refuses the command.

    An additional round trip beforehand is not counted, because it may open the connection.
    """
    taken = []
    for _ in range(times + 1):
        began = time.perf_counter()
        (reply,) = yield SendCommands(node, (command,))
        taken.append(time.perf_counter() - began)
        if isinstance(reply, ServerError):
            return []
    return sorted(taken[1:])


def time_pings(node: Node) -> Operation[list[float]]:
    """Seconds that each of 200 PINGs took, shortest first."""
    return time_round_trips(node, ("PING",))


def time_scripts(node: Node) -> Operation[list[float]]:
    """Seconds that each of 200 calls of an empty script took, shortest first."""
    return time_round_trips(node, ("EVAL", "return 1", 0))


def find_probe_key(node: Node, prefix: str) -> Operation[str]:
    """A key for trial writes, in a slot of this server. No round trip once the slots are known.

    Raises ServerError if the server has no slots, for instance because a replica has taken over meanwhile.
    """
    for number in range(_MOST_PROBE_KEYS):
        if node in (yield FindNodes(probe_key(prefix, number))):
            return probe_key(prefix, number)
    raise ServerError(f"{node[0]}:{node[1]} serves no keys (any more): was there a failover? Run the command again")


def time_confirmations(node: Node, key: str, times: int = 3) -> Operation[list[float] | None]:
    """Seconds until `WAITAOF` reported each of several writes in a row as safe on disk; infinity after more than 2 s.

    None if the server has no append-only file, or no such command.
    """
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        write, safe = yield SendCommands(
            node, (("SET", key, "", "PX", 5000), ("WAITAOF", 1, 0, 2000)), own_connection=True
        )
        if isinstance(write, ServerError) or isinstance(safe, ServerError):
            return None
        taken.append(time.perf_counter() - began if safe[0] else float("inf"))
    return taken
