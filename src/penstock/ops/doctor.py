"""`penstock doctor`: what is well with a server and what is not, each with what to do.

First everything is asked and measured, server by server (`_visit`); then each check, a pure function, says what it
finds. `fail`: it refuses work, or will lose jobs in the ordinary course of things, at a restart or when it is full.
`warn`: it works, but a crash can take the last jobs, or somebody should look.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from penstock.app import Penstock
from penstock.core.operations import Operation
from penstock.core.slots import Node
from penstock.driver.address import ServerAddress
from penstock.errors import ConfigurationError, ServerError
from penstock.jobs.bindings import scripts
from penstock.jobs.keys import QueueKeys
from penstock.ops import probe
from penstock.ops.inventory import inventory
from penstock.ops.probe import Facts, Rights
from penstock.ops.proof import prove
from penstock.ops.wording import age, many, milliseconds, size

Level: TypeAlias = Literal["ok", "warn", "fail"]

MOST_KEYS = 200_000
"""Keys on each server that are looked at for leaks; some seconds."""

FULL, NEARLY_FULL = 0.95, 0.80
"""Shares of the memory allowed."""

MUCH = 100 * 1024 * 1024
"""Below so much memory fragmentation and swapping say nothing."""

UNCACHED = 0.00003
"""Seconds; no disk makes a write safe in less."""

HELD_UP = 0.05
"""Seconds; a script of ours takes a few milliseconds."""

RECENT = 86400.0
"""How far back, in seconds, a server's notes are read."""

STANDING = 300.0
"""Seconds a ready job may wait before somebody should look."""

MOST_QUEUES = 100
"""Queues whose keys are looked at for the rights to them."""

_SAMPLE = "doctor"
"""The name of a queue where there is none yet."""

_OWN = ("PING", "INFO", "EVAL", "EVALSHA", "BLMPOP")

_FOR_ONE_THING = {
    "SCRIPT": "enqueueing inside a pipeline", "WAIT": "durable=True by a replica", "WAITAOF": "durable=True",
}  # fmt: skip
"""Commands without which all else works."""

_CALLED = re.compile(r'(?:redis\.p?call|batch_write)\(\s*"([A-Z]+)"')


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and what to do about it where it is not `ok`. `server`: on a cluster, which."""

    topic: str
    level: Level
    found: str
    advice: str = ""
    server: str = ""


@dataclass(frozen=True, slots=True)
class Visit:
    """All that was asked of one server. Times are seconds, those of round trips in order of length."""

    origin: ServerAddress
    facts: Facts
    pings: list[float]
    scripts: list[float]
    writes: list[float]
    confirmed: list[float] | None
    rights: Rights | None
    prefix: str

    @property
    def is_near(self) -> bool:
        host = self.facts.node[0]
        return self.origin.is_unix or host in {"localhost", "::1"} or host.startswith("127.")

    @property
    def replicas(self) -> list[str]:
        info = self.facts.info or {}
        return [text for name, text in info.items() if re.fullmatch(r"slave\d+", name)]


Check: TypeAlias = Callable[[Visit], Iterator[tuple[Level, str, str]]]


def diagnose(app: Penstock, topic: str | None = None) -> Operation[list[Finding]]:
    """What each check finds; of one topic, or of all.

    Some 500 round trips a server, some writes of a key that is deleted again, and for the keys those of `inventory`.
    ConfigurationError for a topic that is none.
    """
    if topic is not None and topic not in TOPICS:
        raise ConfigurationError(f"doctor knows nothing of {topic!r}; its topics are {', '.join((*TOPICS, LOCKS))}")
    wanted = [topic] if topic else list(TOPICS)
    findings: list[Finding] = []
    nodes = yield from probe.primaries()
    queues = (yield from _queue_names(app)) if "rights" in wanted else []
    for node in nodes:
        server = f"{node[0]}:{node[1]}" if len(nodes) > 1 else ""
        try:
            visit = yield from _visit(app, node, wanted, queues)
        except ServerError as error:
            findings.append(Finding("server", "fail", str(error), "start it, or mend the way to it", server))
            continue
        for name in wanted:
            told = CHECKS[name](visit) if name in CHECKS else iter(())
            findings += [Finding(name, *words, server=server) for words in told]
    for name in wanted:
        if name in SURVEYS:
            try:
                findings += yield from SURVEYS[name](app)
            except ServerError as error:
                findings.append(
                    Finding(name, "fail", f"not looked at: {error}", "mend what is told above, and ask again")
                )
    return sorted(findings, key=lambda finding: list(TOPICS).index(finding.topic))


def _visit(app: Penstock, node: Node, wanted: Iterable[str], queues: Iterable[str]) -> Operation[Visit]:
    prefix, wanted = app.settings.prefix, set(wanted)
    facts = yield from probe.facts(node)
    visit = Visit(app._driver.connector.locate(), facts, [], [], [], None, None, prefix)
    if wanted & {"latency", "persistence"}:
        visit = replace(visit, pings=(yield from probe.pings(node)))
    if "latency" in wanted:
        visit = replace(visit, scripts=(yield from probe.scripts(node)))
    if "persistence" in wanted and _syncs(facts) and _covered(facts):
        key = yield from probe.key_on(node, prefix)
        writes = yield from probe.round_trips(node, ("SET", key, "", "PX", 5000), 20)
        visit = replace(visit, writes=writes, confirmed=(yield from probe.confirmations(node, key)))
        yield from probe.ask(node, ("DEL", key))
    if "rights" in wanted:
        keys = [QueueKeys(prefix, name) for name in queues]
        visit = replace(visit, rights=(yield from probe.may(node, _commands(), keys)))
    return visit


def _queue_names(app: Penstock) -> Operation[list[str]]:
    """Those that were ever used and those of the app's tasks; where there is none, one that could be."""
    names = set(app.registry.queues())
    with contextlib.suppress(ServerError):  # this user may not ask, or a server is away, which is told elsewhere
        names |= {*(yield from probe.queue_names(app.settings.prefix))}
    return sorted(names)[:MOST_QUEUES] or [_SAMPLE]


def _commands() -> list[str]:
    """What producers, workers and their scripts send."""
    called = {name for script in scripts().scripts.values() for name in _CALLED.findall(script.source)}
    return [*_OWN, *sorted(called), *_FOR_ONE_THING]


def _syncs(facts: Facts) -> bool:
    return (facts.config or {}).get("appendfsync") in {"always", "everysec"} and facts.number("aof_enabled") == 1


def _covered(facts: Facts) -> bool:
    return facts.cluster is None or facts.cluster.get("cluster_state") == "ok"


# --- one server ---


def _server(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    facts = visit.facts
    if facts.info is None:
        yield "warn", "this user may not read INFO: most checks are blind", "allow it: ACL SETUSER … +info"
        return
    up = age(facts.number("uptime_in_seconds"))
    yield "ok", f"{facts.name}, {facts.mode}, up for {up}", ""
    if facts.number("loading"):
        yield "fail", "it is still reading its data", "wait; steps are sent again until it is ready"
    if facts.info.get("role") != "master":
        yield "fail", "it is a replica: it refuses every write", "name the master, or its Sentinels"
    clients, most = facts.number("connected_clients"), facts.number("maxclients")
    if most and clients > NEARLY_FULL * most:
        yield "warn", f"{clients:.0f} of {most:.0f} connections are in use", "raise maxclients, or look who holds them"
    if refused := facts.number("rejected_connections"):
        yield "warn", f"{refused:.0f} connections were refused since it started", "raise maxclients"
    if visit.is_near:
        return
    if not visit.origin.tls:
        yield "warn", "the way to it is not encrypted", "use valkeys:// if others can listen on this network"
    if not visit.origin.options.get("password") and not visit.origin.options.get("credential_provider"):
        yield "warn", "it asks for no password", "ACL SETUSER, and valkey://user:password@host"


def _memory(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    facts = visit.facts
    if facts.info is None:
        return
    used, most, machine = (facts.number(n) for n in ("used_memory", "maxmemory", "total_system_memory"))
    yield _eviction(facts.info.get("maxmemory_policy", "unknown"), most)
    if lost := facts.number("evicted_keys"):
        yield "fail", f"{lost:,.0f} keys were evicted since it started: jobs may be among them", "see maxmemory-policy"
    if most:
        share = used / most
        level: Level = "fail" if share > FULL else "warn" if share > NEARLY_FULL else "ok"
        advice = (
            "" if level == "ok" else "raise maxmemory, or let the workers catch up: a full server takes no new jobs"
        )
        yield level, f"{size(used)} of {size(most)} in use, {share:.0%}", advice
    elif machine and used > NEARLY_FULL * machine:
        yield (
            "warn",
            f"{size(used)} in use, the machine has {size(machine)}",
            "set maxmemory before the kernel kills it",
        )
    else:
        yield "ok", f"{size(used)} in use, no maxmemory", ""
    ratio = facts.number("mem_fragmentation_ratio")
    if used > MUCH and ratio > 1.5:
        yield (
            "warn",
            f"fragmentation {ratio:.1f}: memory held and not used",
            "CONFIG SET activedefrag yes, or restart it",
        )
    if used > MUCH and 0 < ratio < 0.9:
        yield "warn", f"only {ratio:.0%} of it is in real memory: the machine swaps", "give the machine more memory"


def _eviction(policy: str, most: float) -> tuple[Level, str, str]:
    advice = "CONFIG SET maxmemory-policy noeviction, and in its configuration file"
    if policy == "noeviction":
        return "ok", "maxmemory-policy noeviction", ""
    if most:
        return "fail", f"maxmemory-policy {policy}: a full server deletes jobs", advice
    return "warn", f"maxmemory-policy {policy}: harmless only as long as there is no maxmemory", advice


def _persistence(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    facts = visit.facts
    if facts.info is None:
        return
    yield _kept(facts)
    for name, what in (
        ("aof_last_write_status", "write to the append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ):
        if facts.info.get(name, "ok") != "ok":
            yield "fail", f"the last {what} failed", "look for a full or broken disk in the server's log"
    if facts.info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield "warn", "the last rewrite of the append-only file failed", "look for a full disk in the server's log"
    yield _durable(visit)


def _kept(facts: Facts) -> tuple[Level, str, str]:
    config = facts.config or {}
    if facts.number("aof_enabled"):
        fsync = config.get("appendfsync", "unknown")
        late = "a power cut, or a kill while the disk is slow, takes the last second or two"
        loses = {"always": "nothing is lost", "everysec": late}
        if fsync in loses:
            return "ok", f"appendonly yes, appendfsync {fsync}: {loses[fsync]}", ""
        return (
            "warn",
            f"appendonly yes, appendfsync {fsync}: a power cut takes some 30 s",
            "CONFIG SET appendfsync everysec",
        )
    advice = "CONFIG SET appendonly yes, and in its configuration file"
    if config.get("save"):
        saved = age(max(0.0, time.time() + facts.ahead - facts.number("rdb_last_save_time")))
        return "warn", f"snapshots only, the last {saved} ago: a crash takes what came since", advice
    if facts.config is None:
        return "warn", "no append-only file; whether there are snapshots it does not tell", advice
    return "fail", "nothing is on disk: a restart of the server loses every job", advice


def _durable(visit: Visit) -> tuple[Level, str, str]:
    confirmed = visit.confirmed or []
    if (visit.facts.config or {}).get("appendfsync") == "always" and confirmed and max(confirmed) < float("inf"):
        write, ping = _middle(visit.writes), _middle(visit.pings)
        if write - ping < UNCACHED:
            found = f"an fsync takes {milliseconds(max(0.0, write - ping))}: no disk is so fast, a cache is"
            return "warn", found, "make sure that this cache outlives a power cut"
        return "ok", f"durable=True waits for the disk, {milliseconds(write)} a write", ""
    if any("state=online" in text for text in visit.replicas):
        return "ok", "durable=True waits for a replica", ""
    why = "it has no append-only file"
    if confirmed and max(confirmed) == float("inf"):
        why = "WAITAOF did not answer within 2 s"
    elif confirmed:
        # `everysec` syncs once a second at most, so two writes in a row cannot both be safe within one.
        took = sum(confirmed[1:])
        why = f"{len(confirmed) - 1} writes in a row were called safe after {milliseconds(took)}"
        why += ", with one fsync a second at most" if took < 1 else ", so it does wait for an fsync"
    return "ok", f"durable=True is refused: {why}", "if you need it: appendfsync always, or a replica"


def _replicas(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    facts = visit.facts
    if facts.info is None:
        return
    wanted = int((facts.config or {}).get("min-replicas-to-write", "0") or 0)
    good = facts.number("min_slaves_good_slaves")
    if wanted and good < wanted:
        yield "fail", f"{good:.0f} of the {wanted} replicas it wants are there: it refuses writes", "start the replicas"
    broken = [text for text in visit.replicas if "state=online" not in text]
    if broken:
        yield "warn", f"{many(len(broken), 'replica')} not in step: {broken[0]}", "see the replica's log"
    if not wanted or good >= wanted:
        behind = [int(offset) for text in visit.replicas for offset in re.findall(r"offset=(\d+)", text)]
        far = max(0.0, facts.number("master_repl_offset") - min(behind)) if behind else 0.0
        there = f"{many(len(behind), 'replica')}, at most {size(far)} behind" if behind else "none"
        yield "ok", there, ""


def _latency(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    usual, slowest = (0.002, 0.02) if visit.is_near else (0.005, 0.05)
    for what, times in (("a ping", visit.pings), ("a script", visit.scripts)):
        if not times:
            yield "warn", f"{what} is refused", "see `penstock doctor rights`"
            continue
        middle, late = _middle(times), times[int(0.99 * len(times))]
        found = f"{what} takes {milliseconds(middle)}, one in a hundred {milliseconds(late)}"
        if middle <= usual and late <= slowest:
            yield "ok", found, ""
        else:
            place = "this machine" if visit.is_near else "the network"
            yield (
                "warn",
                f"{found}; usual are {milliseconds(usual)} and {milliseconds(slowest)}",
                f"look what keeps the server or {place} busy",
            )
    yield from _notes(visit.facts, QueueKeys(visit.prefix, "").base.removesuffix("}:"))


def _notes(facts: Facts, ours: str) -> Iterator[tuple[Level, str, str]]:
    """What the server itself noted as slow."""
    since = time.time() + facts.ahead - RECENT
    own: list[float] = []
    others: dict[str, float] = {}
    for one in sorted(facts.slow or (), key=lambda one: one.seconds):
        if one.at < since:
            continue
        if any(word.startswith(ours) for word in one.words):
            own.append(one.seconds)
        else:
            others[one.words[0].upper()] = one.seconds
    if own and max(own) > HELD_UP:
        found = f"a script of ours took {milliseconds(max(own))}, {many(len(own), 'slow one')} in a day"
        yield "warn", found, "if nothing else kept the machine busy then, it is a bug: tell us"
    strangers = [f"{name} {milliseconds(took)}" for name, took in others.items() if took > HELD_UP]
    if strangers:
        yield "warn", f"slow commands of others in a day: {', '.join(strangers[-3:])}", "see SLOWLOG GET"
    events = {name: longest for name, longest in (facts.latency or {}).items() if longest > HELD_UP}
    if events:
        worst = ", ".join(f"{name} {milliseconds(longest)}" for name, longest in sorted(events.items())[:3])
        yield "warn", f"it was held up by {worst}", "see LATENCY DOCTOR"
    if (facts.config or {}).get("latency-monitor-threshold") == "0":
        yield "ok", "its latency monitor is off", "to know more: CONFIG SET latency-monitor-threshold 25"


def _clock(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    ahead = visit.facts.ahead
    if abs(ahead) < 1:
        yield "ok", "the server and this machine agree to a second", ""
    else:
        which = "ahead of" if ahead > 0 else "behind"
        found = f"the server is {age(abs(ahead))} {which} this machine"
        yield "ok", found, "harmless: only the server's clock counts; dates (`at=`) are compared with it"


def _cluster(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    said = visit.facts.cluster
    if said is None:
        return
    covered, state = int(said.get("cluster_slots_ok", 0)), said.get("cluster_state", "unknown")
    found = f"state {state}, {covered:,} of 16,384 slots served by {said.get('cluster_size', '?')} primaries"
    if state == "ok" and covered == 16384:
        yield "ok", found, ""
    else:
        yield "fail", found, "start the missing nodes, or give their slots to others: CLUSTER NODES, CLUSTER ADDSLOTS"


def _rights(visit: Visit) -> Iterator[tuple[Level, str, str]]:
    if visit.rights is None:
        yield "ok", "which commands this user may send it may not ask", "to know: run doctor as one with +acl +command"
        return
    user, refused = visit.rights.user, set(visit.rights.commands)
    allow = f"ACL SETUSER {user}"
    if denied := sorted(refused - set(_FOR_ONE_THING)):
        yield "fail", f"user {user!r} may not send {', '.join(denied)}", " ".join([allow, *_plus(denied)])
    for name in sorted(refused & set(_FOR_ONE_THING)):
        yield (
            "warn",
            f"user {user!r} may not send {name}: no {_FOR_ONE_THING[name]}",
            " ".join([allow, *_plus([name])]),
        )
    if closed := visit.rights.queues:
        which = f"{', '.join(closed[:3])}{', …' if len(closed) > 3 else ''}"
        whose = f"of a queue, as of one called {which}" if closed == [_SAMPLE] else f"of {which}"
        pattern = QueueKeys(visit.prefix, "*").base
        yield "fail", f"user {user!r} may not use all keys {whose}", f"{allow} ~{pattern}*"
    if not refused and not closed:
        yield "ok", f"user {user!r} may send all that Penstock sends", ""


def _plus(commands: Iterable[str]) -> list[str]:
    return [f"+{command.lower()}" for command in commands]


def _middle(times: list[float]) -> float:
    return times[len(times) // 2] if times else 0.0


# --- the app's keys, on all servers ---


def _keys(app: Penstock) -> Operation[list[Finding]]:
    found = yield from inventory(app.settings.prefix, MOST_KEYS)
    there = f"{many(found.keys, 'key')} of prefix {app.settings.prefix!r}"
    if not found.complete:
        there += f", the first {MOST_KEYS:,} looked at"
    if not found.faults:
        return [Finding("keys", "ok", f"{there}, each as it should be")]
    findings = [
        Finding(
            "keys", "fail", f"{fault.key}: {fault.what}", "a newer Penstock's or another program's? else a bug: tell us"
        )
        for fault in found.faults[:5]
    ]
    if len(found.faults) > len(findings):
        findings.append(Finding("keys", "fail", f"and {len(found.faults) - len(findings):,} more such keys"))
    return findings


def _queues(app: Penstock) -> Operation[list[Finding]]:
    names = yield from probe.queue_names(app.settings.prefix)
    findings = []
    for name in names:
        counts = yield app.queue(name).bindings.counts()
        survey = yield app.queue(name).bindings.overview(200)
        if counts.paused and counts.waiting:
            found = f"{name} is paused, {many(counts.waiting, 'job waits', 'jobs wait')}"
            findings.append(Finding("queues", "warn", found, f"penstock queue resume {name}"))
        elif counts.oldest > STANDING:
            found = f"{name}: its oldest ready job waits for {age(counts.oldest)}"
            findings.append(Finding("queues", "warn", found, f"is there a worker? penstock queue show {name}"))
        lost = [one for one in (yield app.queue(name).bindings.workers(1000)) if one.lease < 0 and one.held]
        if lost:
            found = f"{name}: {many(sum(one.held for one in lost), 'job')} in the hands of workers that died"
            findings.append(Finding("queues", "warn", found, f"start a worker; penstock worker ls --queue {name}"))
        if survey.unknown_tasks:
            found = f"{name}: {many(len(survey.unknown_tasks), 'job')} of tasks that no worker knows"
            findings.append(Finding("queues", "warn", found, f"penstock queue show {name}"))
        if counts.dead:
            found = f"{name} has {many(counts.dead, 'dead letter')}"
            findings.append(Finding("queues", "warn", found, f"penstock dead ls {name}"))
    return findings or [Finding("queues", "ok", f"{many(len(names), 'queue')}, and nothing stands still")]


CHECKS: Mapping[str, Check] = {
    "server": _server,
    "memory": _memory,
    "persistence": _persistence,
    "replicas": _replicas,
    "latency": _latency,
    "clock": _clock,
    "cluster": _cluster,
    "rights": _rights,
}
"""What is asked of each server."""

SURVEYS: Mapping[str, Callable[[Penstock], Operation[list[Finding]]]] = {"keys": _keys, "queues": _queues}
"""What is asked of the app as a whole."""

TOPICS = (*CHECKS, *SURVEYS)

LOCKS = "locks"
"""Only when it is asked for, because it is work for the server: see `prove_locks`."""


def prove_locks(app: Penstock, seconds: float) -> list[Finding]:
    """Contend for a lock and a semaphore here for so long, and judge what happened (see `proof.py`). Blocks."""
    try:
        proof = prove(app, seconds=seconds)
    except ServerError as error:
        return [Finding(LOCKS, "fail", f"not tried to the end: {error}", "mend that, and ask again")]
    if proof.faults:
        advice = "was it failed over, or its clock set, just now? else tell us"
        return [Finding(LOCKS, "fail", fault, advice) for fault in proof.faults]
    if not proof.locks or not proof.permits:
        return [Finding(LOCKS, "warn", f"nothing was held within {seconds:g} s", "see `penstock doctor latency`")]
    found = (
        f"{proof.locks:,} locks, one owner each and fences that rise; {proof.permits:,} times permits, never too many"
    )
    return [Finding(LOCKS, "ok", f"{found}; {many(proof.lost, 'lease')} lost in a pause, as meant")]
