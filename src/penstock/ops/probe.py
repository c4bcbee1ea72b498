"""Questions to a server that are no script: what it says of itself, which keys it holds, how fast it answers.

Each is a generator of steps, so both faces can ask. Only for who looks in: none of these stands on a path that serves
work. All but `confirmations`, which writes one key of its own with a TTL, only read. What the server refuses to tell
is None, not raised.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.keys import pattern
from penstock.core.operations import FindNodes, Operation, SendCommands
from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.errors import ServerError
from penstock.jobs.keys import QueueKeys
from penstock.ops.key_tables import LOCKS, kind_of, parts, probe_key

SLICE = 1000
"""Keys the server looks at in one round trip of a scan: below a millisecond of its time."""

ROUNDS = 200
"""Round trips that are measured."""

_CONFIG = (
    "maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write",
    "latency-monitor-threshold",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slow:
    """What a server noted as slow: the command with its first words, and how long it took, in seconds."""

    words: tuple[str, ...]
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What one node says of itself. None: it does not tell us."""

    node: Node
    info: Mapping[str, str] | None
    config: Mapping[str, str] | None
    slow: Sequence[Slow] | None
    latency: Mapping[str, float] | None
    """Events of its latency monitor -> the longest, in seconds."""
    cluster: Mapping[str, str] | None
    ahead: float
    """Seconds its clock is before ours; known as exactly as half the round trip."""

    @property
    def name(self) -> str:
        """`valkey 9.1.2`."""
        info = self.info or {}
        kind = "valkey" if "valkey_version" in info else "redis"
        return f"{kind} {info.get(f'{kind}_version', 'of unknown version')}"

    @property
    def mode(self) -> str:
        """`standalone` or `cluster`."""
        info = self.info or {}
        return info.get("server_mode") or info.get("redis_mode") or "unknown"

    def number(self, name: str) -> float:
        """A number out of INFO; 0 where there is none."""
        try:
            return float((self.info or {}).get(name, 0))
        except ValueError:
            return 0.0


@dataclass(frozen=True, slots=True)
class Rights:
    """What a user may not do."""

    user: str
    commands: list[str]
    """That it may not send, on whatever key."""

    queues: list[str]
    """Whose keys it may not use."""


def primaries() -> Operation[list[Node]]:
    """The servers that hold keys."""
    nodes: list[Node] = yield FindNodes()
    return nodes


def ask(node: Node, *commands: Command) -> Operation[list[Any]]:
    """Replies, where a refused command's is None."""
    replies = yield SendCommands(node, commands)
    return [None if isinstance(reply, ServerError) else reply for reply in replies]


def now(node: Node) -> Operation[float]:
    """Seconds since 1970 by the server's clock; by ours where it does not tell. One round trip."""
    (said,) = yield from ask(node, ("TIME",))
    return int(said[0]) + int(said[1]) / 1e6 if said else time.time()


def facts(node: Node) -> Operation[Facts]:
    """Two round trips."""
    sent = time.time()
    ahead = (yield from now(node)) - (sent + time.time()) / 2
    info, cluster, slow, latency, *settings = yield from ask(
        node, ("INFO",), ("CLUSTER", "INFO"), ("SLOWLOG", "GET", 128), ("LATENCY", "LATEST"),
        *(("CONFIG", "GET", name) for name in _CONFIG),
    )  # fmt: skip
    pairs = [(_text(pair[0]), _text(pair[1])) for pair in settings if pair]
    return Facts(
        node, info and _table(info), dict(pairs) or None,
        slow if slow is None else [_slow(entry) for entry in slow],
        latency if latency is None else {_text(event[0]): event[3] / 1000 for event in latency},
        cluster and _table(cluster), ahead,
    )  # fmt: skip


def _slow(entry: Sequence[Any]) -> Slow:
    return Slow(tuple(_text(word) for word in entry[3][:4]), entry[2] / 1e6, float(entry[1]))


def _text(data: Any) -> str:
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data)


def _table(said: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _text(said).splitlines() if ":" in line)


def keys_like(node: Node, pattern: str, most: int | None = None) -> Operation[tuple[set[bytes], bool]]:
    """The keys of a node that match, and whether it was all of them: it stops beyond `most`.

    A round trip for each 1000 keys of the server, whoever's they are; others are served in between. A key
    that is there all the time is found, one that comes or goes meanwhile may be.
    """
    found: set[bytes] = set()
    cursor: Any = 0
    while True:
        (reply,) = yield SendCommands(node, (("SCAN", cursor, "MATCH", pattern, "COUNT", SLICE),))
        if isinstance(reply, ServerError):
            raise reply
        cursor = reply[0]
        found.update(reply[1])
        if int(cursor) == 0:
            return found, True
        if most is not None and len(found) > most:
            return found, False


def queue_names(prefix: str) -> Operation[list[str]]:
    """The queues of an app that were ever used, in order. Cost: that of `keys_like` on every server."""
    return instances(prefix, "queue")


def instances(prefix: str, kind: str, rest: str = "meta") -> Operation[list[str]]:
    """The same for any component; `rest`: the key that each of its instances has."""
    names = set()
    for node in (yield from primaries()):
        found, _ = yield from keys_like(node, pattern(prefix, rest))
        tags = [split[1] for key in found if (split := parts(key.decode(errors="replace")))]
        names |= {tag.removeprefix(f"{kind}:") for tag in tags if kind_of(tag) == kind and "/" not in tag.split(":")[0]}
    return sorted(names)


def lock_names() -> Operation[list[str]]:
    """The locks that were held within the hour, of any app, in order. Cost: that of `keys_like` on every server."""
    names = set()
    for node in (yield from primaries()):
        found, _ = yield from keys_like(node, LOCKS)
        for key in found:
            if (split := parts(key.decode(errors="replace"))) and split[1].startswith("lock:"):
                names.add(split[1].removeprefix("lock:"))
    return sorted(names)


def round_trips(node: Node, command: Command, times: int = ROUNDS) -> Operation[list[float]]:
    """Seconds that each took, in order of length; [] where the server refuses. The first, which may connect, is not
    counted."""
    taken = []
    for _ in range(times + 1):
        began = time.perf_counter()
        (reply,) = yield SendCommands(node, (command,))
        taken.append(time.perf_counter() - began)
        if isinstance(reply, ServerError):
            return []
    return sorted(taken[1:])


def pings(node: Node) -> Operation[list[float]]:
    """200 round trips of PING."""
    return round_trips(node, ("PING",))


def scripts(node: Node) -> Operation[list[float]]:
    """200 round trips of a script that does nothing."""
    return round_trips(node, ("EVAL", "return 1", 0))


def key_on(node: Node, prefix: str) -> Operation[str]:
    """A key for a write of ours that this node holds. No round trip once the slots are known."""
    number = 0
    while node not in (yield FindNodes(probe_key(prefix, number))):
        number += 1
    return probe_key(prefix, number)


def confirmations(node: Node, key: str, times: int = 3) -> Operation[list[float] | None]:
    """Seconds until `WAITAOF` called a write safe on the disk, for writes one after the other; inf: not within 2 s.

    None where the server has no append-only file, or no such command.
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


def may(node: Node, commands: Sequence[str], queues: Sequence[QueueKeys]) -> Operation[Rights | None]:
    """What this user may not do on these queues; None where that may not be asked. A round trip for each, and one."""
    who, *described = yield from ask(node, ("ACL", "WHOAMI"), *(("COMMAND", "INFO", name) for name in commands))
    if who is None or None in described:
        return None
    known = [(name, one[0]) for name, one in zip(commands, described, strict=True) if one[0]]
    unsent: dict[str, None] = {}
    closed = []
    for keys in queues:
        examples = (_example(name, said, keys) for name, said in known)
        answers = yield from ask(node, *(("ACL", "DRYRUN", who, *example) for example in examples))
        if None in answers:
            return None
        refused = {name: answer for (name, _), answer in zip(known, answers, strict=True) if answer != b"OK"}
        unsent |= {name: None for name, answer in refused.items() if not answer.endswith(b" key")}
        if any(answer.endswith(b" key") for answer in refused.values()):
            closed.append(keys.queue)
    return Rights(_text(who), list(unsent), closed)


def _example(name: str, described: Sequence[Any], keys: QueueKeys) -> tuple[str, ...]:
    """A call of the right length with keys of this queue where keys stand."""
    odd = {
        "EVAL": ("", "2", *keys.declared), "EVALSHA": ("", "2", *keys.declared),
        "BLMPOP": ("0.001", "1", keys.inbox, "LEFT"), "OBJECT": ("ENCODING", keys.declared[1]),
        "SCRIPT": ("LOAD", "return 1"),
    }  # fmt: skip
    if name in odd:
        return (name, *odd[name])
    words = ["1"] * (abs(described[1]) - 1)
    if described[3] > 0:
        words[described[3] - 1] = keys.declared[1]
    return (name, *words)
