"""Servers of which another takes over when one fails: a cluster with replicas, and a primary behind Sentinels.

with ReplicatedCluster() as servers:          three primaries that share the slots, and a replica of each
with SentinelServers() as servers:            one primary, its replicas, and three Sentinels
    name = servers.name(key_of)               a name whose key is on the primary that is to fail
    servers.victim.freeze()
    eventually(servers.has_failed_over)
    servers.recover()                         the old primary is a replica now, and the new one is the victim

Both have the same methods. One primary, the `victim`, is there to be frozen or killed; the servers that clients need to
find the others are never that one.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Self

import valkey

from penstock.core.slots import SLOTS, slot
from tests.servers import PROGRAM, Server, eventually, free_port

NODE_TIMEOUT = 2.0
"""Seconds without an answer after which a primary counts as failed. The defaults are 15 (cluster) and 30 (Sentinel)."""

_REPLICATION: tuple[str, ...] = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


class FailoverServers(ABC):
    """Servers on the loopback; `victim` is the primary that a test freezes or kills."""

    address: str
    victim: Server

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            self._start(opened)
            self._stack = opened.pop_all()

    @abstractmethod
    def _start(self, opened: contextlib.ExitStack) -> None:
        """Start everything, and wait until a fail-over would succeed."""

    def freeze_machine(self) -> None:
        """Freeze the victim, and what else might run on its machine."""
        self.victim.freeze()

    @abstractmethod
    def has_failed_over(self) -> bool:
        """Whether another server has become the primary, and clients can find it. Asks the other servers only."""

    @abstractmethod
    def is_on_victim(self, key: str) -> bool: ...

    def name(self, key_of: Callable[[str], str], stem: str = "n") -> str:
        """A name for which the key `key_of(name)` is stored on the victim. `stem`: the first part of the name.

        Names of different stems differ: with `n1` and `n14`, a number alone could make two of them equal.
        """
        names = (f"{stem}-{number}" for number in itertools.count())
        return next(name for name in names if self.is_on_victim(key_of(name)))

    @abstractmethod
    def plan_fail_over(self) -> None:
        """Begin a planned fail-over: nothing has failed."""

    @property
    @abstractmethod
    def survivors(self) -> list[Server]:
        """The replicas of the victim."""

    def replicate(self) -> None:
        """Wait until the replicas of the victim have everything that was written to it so far.

        A fail-over may lose writes that were not replicated.
        """
        offset = self.victim.replication()["master_repl_offset"]
        eventually(lambda: all(one.replication().get("slave_repl_offset", -1) >= offset for one in self.survivors))

    def recover(self) -> None:
        """After a fail-over, let the old primary become a replica. The new primary is the next victim."""
        old = self.victim
        if old.is_running:
            old.thaw()
        else:
            old.start()
        eventually(lambda: old.role() == "slave" and _is_in_sync(old), within=60)
        self._swap()

    @abstractmethod
    def _swap(self) -> None:
        """Make the new primary the victim, and wait until the next fail-over would succeed."""

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReplicatedCluster(FailoverServers):
    """Three primaries, and a replica of each."""

    def _start(self, opened: contextlib.ExitStack) -> None:
        options = [
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(int(NODE_TIMEOUT * 1000))),
            *("--cluster-replica-validity-factor", "0", *_REPLICATION),
        ]
        self.nodes = [opened.enter_context(Server(*options, port=free_port())) for _ in range(6)]
        self.primaries, self.replicas = self.nodes[:3], self.nodes[3:]
        self.victim = self.primaries[-1]
        self.address = "valkey+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in self.primaries[:-1])
        for i, node in enumerate(self.primaries):
            first, after = SLOTS * i // 3, SLOTS * (i + 1) // 3
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        for i, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for one, other in itertools.combinations(self.nodes, 2):
            one.ask("CLUSTER", "MEET", "127.0.0.1", other.port)
        ids = [one.ask("CLUSTER", "MYID") for one in self.nodes]
        eventually(lambda: all(id in one.ask("CLUSTER", "NODES") for one in self.nodes for id in ids))
        for primary, replica in zip(self.primaries, self.replicas, strict=True):
            replica.ask("CLUSTER", "REPLICATE", ids[self.nodes.index(primary)])
        eventually(lambda: all(_is_in_sync(one) for one in self.replicas))
        eventually(lambda: all(self._is_ready(one) for one in self.nodes))

    def _is_ready(self, node: Server) -> bool:
        replicas = node.ask("CLUSTER", "NODES").count("slave ")
        return replicas == 3 and "cluster_state:ok" in node.ask("CLUSTER", "INFO")

    @property
    def survivors(self) -> list[Server]:
        return [self.replicas[-1]]

    def _swap(self) -> None:
        self.primaries[-1], self.replicas[-1] = self.replicas[-1], self.primaries[-1]
        self.victim = self.primaries[-1]
        eventually(lambda: all(self._is_ready(one) for one in self.nodes))

    def is_on_victim(self, key: str) -> bool:
        return slot(key) >= SLOTS * 2 // 3

    def plan_fail_over(self) -> None:
        self.replicas[-1].ask("CLUSTER", "FAILOVER")

    def has_failed_over(self) -> bool:
        heir = self.replicas[-1].port
        others = [*self.primaries[:-1], self.replicas[-1]]
        return all(self._owner(one, SLOTS - 1) == heir for one in others) and all(
            "cluster_state:ok" in one.ask("CLUSTER", "INFO") for one in others
        )

    @staticmethod
    def _owner(asked: Server, number: int) -> int:
        """The port of the node that serves a slot, as `asked` knows it."""
        shares = asked.client.execute_command("CLUSTER SLOTS")
        owners = [primary[1] for (first, last), primary in _ranges(shares) if first <= number <= last]
        return int(owners[0]) if owners else 0


def _ranges(shares: Any) -> Iterator[tuple[tuple[int, int], Any]]:
    """Each range of slots with the host and port of its primary. The client library may have parsed the reply."""
    if isinstance(shares, dict):
        for bounds, found in shares.items():
            yield bounds, found["primary"]
    else:
        for first, last, primary, *_ in shares:
            yield (first, last), primary


class SentinelServers(FailoverServers):
    """A primary with two replicas, and three Sentinels that watch it under the name `main`.

    `host`: the address at which the servers and the Sentinels know the servers.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        super().__init__()

    def _start(self, opened: contextlib.ExitStack) -> None:
        options = _REPLICATION
        if self.host != "127.0.0.1":
            options = (*options, "--replica-announce-ip", self.host, "--bind", "127.0.0.1", self.host)
        self.victim = opened.enter_context(Server(*options, port=free_port()))
        follow = ("--replicaof", self.host, str(self.victim.port))
        self.replicas = [opened.enter_context(Server(*options, *follow, port=free_port())) for _ in range(2)]
        eventually(lambda: all(_is_in_sync(one) for one in self.replicas))
        self.sentinels = [opened.enter_context(Sentinel(self.victim, 2, self.host)) for _ in range(3)]
        self.address = "valkey+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels) + "/main"
        eventually(lambda: all(one.is_ready(replicas=2, others=2) for one in self.sentinels))

    @property
    def survivors(self) -> list[Server]:
        return self.replicas

    def _swap(self) -> None:
        servers = [self.victim, *self.replicas]
        self.victim = next(one for one in servers if one.role() == "master")
        self.replicas = [one for one in servers if one is not self.victim]
        self.sentinels[0].thaw()
        eventually(lambda: all(one.is_ready(replicas=2, others=2) for one in self.sentinels))

    def is_on_victim(self, key: str) -> bool:
        return True

    def freeze_machine(self) -> None:
        super().freeze_machine()
        self.sentinels[0].freeze()

    def plan_fail_over(self) -> None:
        eventually(self.sentinels[0].fail_over)

    def has_failed_over(self) -> bool:
        ports = {one.primary_port() for one in self.sentinels if not one.is_frozen}
        return any({one.port} == ports and one.role() == "master" for one in self.replicas)


class Sentinel:
    """A Sentinel that watches a server under the name `main`."""

    def __init__(self, primary: Server, quorum: int = 1, host: str = "127.0.0.1") -> None:
        self.port, self.is_frozen = free_port(), False
        config = primary.folder / f"sentinel-{self.port}.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\nsentinel monitor main {host} {primary.port} {quorum}\n"
            f"sentinel down-after-milliseconds main {int(NODE_TIMEOUT * 1000)}\n"
            "sentinel failover-timeout main 6000\nsentinel parallel-syncs main 2\n"
        )
        with (primary.folder / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, str(config), "--sentinel"], stdout=log, start_new_session=True)
        self.client: Any = valkey.Valkey(port=self.port)
        eventually(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(valkey.ConnectionError):
            return bool(self.client.ping())
        return False

    def is_ready(self, replicas: int, others: int) -> bool:
        """Whether it knows the replicas of the primary and the other Sentinels."""
        found = self.client.execute_command("SENTINEL", "REPLICAS", "main")
        known = [one for one in found if dict(zip(one[::2], one[1::2], strict=True))[b"master-link-status"] == b"ok"]
        return len(known) == replicas and len(self.client.execute_command("SENTINEL", "SENTINELS", "main")) == others

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def primary_port(self) -> int:
        return int(self.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1])

    def fail_over(self) -> bool:
        """Begin a fail-over. False if it does not know a replica yet."""
        with contextlib.suppress(valkey.ResponseError):
            return bool(self.client.execute_command("SENTINEL", "FAILOVER", "main"))
        return False

    def close(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_in_sync(replica: Server) -> bool:
    return bool(replica.replication().get("master_link_status") == "up")


# --- slots ---


def names_in_slot(number: int, count: int, tag: Callable[[str], str]) -> list[str]:
    """Different names for which the key `tag(name)` is in this slot. Its hash tag has to end in the name.

    The CRC16 of two texts, one after the other, is the exclusive or of what each of them adds to it.
    """
    endings, names = _endings(), list[str]()
    for stem in itertools.count():
        ending = endings.get(number ^ slot(tag(f"n{stem}-000")) ^ slot("000"))
        if ending is not None:
            names.append(f"n{stem}-{ending}")
            assert slot(tag(names[-1])) == number
            if len(names) == count:
                break
    return names


@cache
def _endings() -> dict[int, str]:
    """A text of three characters in each slot, if there is one."""
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return {slot("".join(text)): "".join(text) for text in itertools.product(letters, repeat=3)}
