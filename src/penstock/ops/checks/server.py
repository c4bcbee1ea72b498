"""Checks whether a server accepts writes and connections, and whether its clock, replicas and cluster are in order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.ops.checks.measurements import Measurements
from penstock.ops.checks.result import Verdict
from penstock.ops.checks.rights import check_commands
from penstock.ops.wording import age, many, size

TOO_MANY_CONNECTIONS = 0.8
"""Share of `maxclients`."""


def check_server(found: Measurements) -> Iterator[Verdict]:
    """Check that the server is ready, is a primary, has connections to spare, and is protected."""
    facts = found.facts
    if facts.info is None:
        yield "warn", "this user may not read INFO: most checks cannot be made", "allow it: ACL SETUSER … +info"
        return
    yield "ok", f"{facts.name}, {facts.mode}, up for {age(facts.number('uptime_in_seconds'))}", ""
    yield from check_commands(found.lacking_commands, found.runs_scripts)
    if facts.number("loading"):
        yield "fail", "it is still loading its data", "wait: requests are repeated until it is ready"
    if facts.info.get("role") != "master":
        yield "fail", "it is a replica: it refuses every write", "name the primary, or its Sentinels"
    clients, most = facts.number("connected_clients"), facts.number("maxclients")
    if most and clients > TOO_MANY_CONNECTIONS * most:
        advice = "raise maxclients, or find their owners with CLIENT LIST"
        yield "warn", f"{clients:.0f} of {most:.0f} connections are in use", advice
    if refused := facts.number("rejected_connections"):
        yield "warn", f"{refused:.0f} connections were refused since it started", "raise maxclients"
    if not found.is_near:
        yield from _check_remote(found)


def _check_remote(found: Measurements) -> Iterator[Verdict]:
    if not found.server_address.tls:
        yield "warn", "the connection to it is not encrypted", "use valkeys:// if others can listen on this network"
    if not found.server_address.options.get("password") and not found.server_address.options.get("credential_provider"):
        yield "warn", "it asks for no password", "ACL SETUSER, and valkey://user:password@host"


def check_replicas(found: Measurements) -> Iterator[Verdict]:
    """Check that the replicas that the server requires are connected and in sync."""
    facts = found.facts
    if facts.info is None:
        return
    required = int((facts.config or {}).get("min-replicas-to-write", "0") or 0)
    good = facts.number("min_slaves_good_slaves")
    if required and good < required:
        message = f"{good:.0f} of the {required} replicas that it requires are connected: it refuses writes"
        yield "fail", message, "start the replicas"
    broken = [text for text in found.replicas if "state=online" not in text]
    if broken:
        yield "warn", f"{many(len(broken), 'replica')} not in sync: {broken[0]}", "see the replica's log"
    if not required or good >= required:
        offsets = [int(offset) for text in found.replicas for offset in re.findall(r"offset=(\d+)", text)]
        behind = max(0.0, facts.number("master_repl_offset") - min(offsets)) if offsets else 0.0
        yield "ok", f"{many(len(offsets), 'replica')}, at most {size(behind)} behind" if offsets else "none", ""


def check_clock(found: Measurements) -> Iterator[Verdict]:
    """Report the difference between the clocks of the server and of this machine. A difference is harmless."""
    ahead = found.facts.ahead
    if abs(ahead) < 1:
        yield "ok", "its clock and that of this machine agree to within a second", ""
        return
    direction = "ahead of" if ahead > 0 else "behind"
    advice = "harmless: only the server's clock counts; dates (`at=`) are compared with it"
    yield "ok", f"the server is {age(abs(ahead))} {direction} this machine", advice


def check_cluster(found: Measurements) -> Iterator[Verdict]:
    """Check that every slot of the cluster has a server."""
    cluster = found.facts.cluster
    if cluster is None:
        return
    served, state = int(cluster.get("cluster_slots_ok", 0)), cluster.get("cluster_state", "unknown")
    message = f"state {state}, {served:,} of 16,384 slots served by {cluster.get('cluster_size', '?')} primaries"
    if state == "ok" and served == 16384:
        yield "ok", message, ""
    else:
        yield "fail", message, "start the missing nodes, or give their slots to others: CLUSTER NODES, CLUSTER ADDSLOTS"
