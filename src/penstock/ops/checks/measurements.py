"""Asks one server for facts and measures its reply times; the checks of the doctor judge the results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.app import Penstock
from penstock.core.operations import Operation
from penstock.core.slots import Node
from penstock.driver.address import ServerAddress
from penstock.jobs.keys import QueueKeys
from penstock.ops import probe
from penstock.ops.checks.rights import MissingRights, lacking_commands, missing_rights, needed_commands
from penstock.ops.probe import ServerFacts


@dataclass(frozen=True, slots=True)
class Measurements:
    """The facts that one server reported, and its reply times in seconds, shortest first. Empty: not measured."""

    server_address: ServerAddress
    """The address with which the app was configured."""

    facts: ServerFacts
    prefix: str
    pings: tuple[float, ...] = ()
    scripts: tuple[float, ...] = ()
    writes: tuple[float, ...] = ()
    confirmations: tuple[float, ...] = ()
    """Seconds until each write was confirmed as safe on disk, in the order of the writes; infinity: unconfirmed."""

    missing_rights: MissingRights | None = None
    lacking_commands: tuple[str, ...] = ()
    """Commands that Penstock sends and the server does not have."""

    runs_scripts: bool = True

    @property
    def is_near(self) -> bool:
        """Whether the server runs on this machine."""
        host = self.facts.node[0]
        return self.server_address.is_unix or host in {"localhost", "::1"} or host.startswith("127.")

    @property
    def replicas(self) -> list[str]:
        """A line for each replica of the server, as INFO reports it."""
        info = self.facts.info or {}
        return [text for name, text in info.items() if re.fullmatch(r"slave\d+", name)]


def measure(app: Penstock, node: Node, topics: Iterable[str], queues: Iterable[str]) -> Operation[Measurements]:
    """Collect what the checks of these topics need. Some 500 round trips for all topics.

    Writes one key some twenty times, and deletes it.
    """
    prefix, topics = app.settings.prefix, set(topics)
    facts = yield from probe.read_facts(node)
    found = Measurements(app._driver.connector.locate(), facts, prefix)
    if topics & {"latency", "persistence"}:
        found = replace(found, pings=tuple((yield from probe.time_pings(node))))
    if "latency" in topics:
        found = replace(found, scripts=tuple((yield from probe.time_scripts(node))))
    if "persistence" in topics and syncs_to_disk(facts) and _serves_writes(facts):
        key = yield from probe.find_probe_key(node, prefix)
        writes = yield from probe.time_round_trips(node, ("SET", key, "", "PX", 5000), 20)
        confirmations = yield from probe.time_confirmations(node, key)
        found = replace(found, writes=tuple(writes), confirmations=tuple(confirmations or ()))
        yield from probe.ask(node, ("DEL", key))
    if "server" in topics:
        lacking = yield from lacking_commands(node, needed_commands())
        (answer,) = yield from probe.ask(node, ("EVAL", "return 1", 0))
        found = replace(found, lacking_commands=tuple(lacking or ()), runs_scripts=answer == 1)
    if "rights" in topics:
        keys = [QueueKeys(prefix, name) for name in queues]
        found = replace(found, missing_rights=(yield from missing_rights(node, needed_commands(), keys)))
    return found


def syncs_to_disk(facts: ServerFacts) -> bool:
    return (facts.config or {}).get("appendfsync") in {"always", "everysec"} and facts.number("aof_enabled") == 1


def _serves_writes(facts: ServerFacts) -> bool:
    return facts.cluster is None or facts.cluster.get("cluster_state") == "ok"


def median(times: tuple[float, ...]) -> float:
    """The median of sorted times; 0 for an empty list."""
    return times[len(times) // 2] if times else 0.0
