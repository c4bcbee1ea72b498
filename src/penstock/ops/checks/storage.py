"""Checks whether a server keeps the jobs that it accepted: its memory, its eviction policy, its append-only file."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from penstock.ops.checks.measurements import Measurements, median, syncs_to_disk
from penstock.ops.checks.result import Level, Verdict
from penstock.ops.probe import ServerFacts
from penstock.ops.wording import age, milliseconds, size

FULL, NEARLY_FULL = 0.95, 0.80
"""Shares of the memory that the server may use."""

SIGNIFICANT_BYTES = 100 * 1024 * 1024
"""Bytes. Fragmentation and swapping do not matter for a server that uses less memory than this."""

FASTEST_FSYNC = 0.00003
"""Seconds. No disk writes faster than this, so a shorter fsync only reached a cache."""


def check_memory(found: Measurements) -> Iterator[Verdict]:
    """Check that the server has memory to spare, and evicts no keys."""
    facts = found.facts
    if facts.info is None:
        return
    used, most, machine = (facts.number(n) for n in ("used_memory", "maxmemory", "total_system_memory"))
    yield _eviction(facts.info.get("maxmemory_policy", "unknown"), most)
    if evicted := facts.number("evicted_keys"):
        message = f"{evicted:,.0f} keys were evicted since it started: jobs may be among them"
        yield "fail", message, "see maxmemory-policy"
    yield _usage(used, most, machine)
    ratio = facts.number("mem_fragmentation_ratio")
    if used > SIGNIFICANT_BYTES and ratio > 1.5:
        message = f"fragmentation {ratio:.1f}: it holds memory that it does not use"
        yield "warn", message, "CONFIG SET activedefrag yes, or restart it"
    if used > SIGNIFICANT_BYTES and 0 < ratio < 0.9:
        message = f"only {ratio:.0%} of its data is in physical memory: the machine swaps"
        yield "warn", message, "give the machine more memory"


def _eviction(policy: str, most: float) -> Verdict:
    advice = "CONFIG SET maxmemory-policy noeviction, and in its configuration file"
    if policy == "noeviction":
        return "ok", "maxmemory-policy noeviction", ""
    if most:
        return "fail", f"maxmemory-policy {policy}: a full server deletes jobs", advice
    return "warn", f"maxmemory-policy {policy}: harmless only as long as there is no maxmemory", advice


def _usage(used: float, most: float, machine: float) -> Verdict:
    if most:
        share = used / most
        level: Level = "fail" if share > FULL else "warn" if share > NEARLY_FULL else "ok"
        advice = "raise maxmemory, or let the workers catch up: a full server accepts no new jobs"
        return level, f"{size(used)} of {size(most)} in use, {share:.0%}", "" if level == "ok" else advice
    if machine and used > NEARLY_FULL * machine:
        message = f"{size(used)} in use, the machine has {size(machine)}"
        return "warn", message, "set maxmemory before the kernel kills the server"
    return "ok", f"{size(used)} in use, no maxmemory", ""


def check_persistence(found: Measurements) -> Iterator[Verdict]:
    """Check that the data survives a restart of the server, and whether jobs can be durable."""
    facts = found.facts
    if facts.info is None:
        return
    yield _data_on_disk(facts)
    for name, action in (
        ("aof_last_write_status", "write to the append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ):
        if facts.info.get(name, "ok") != "ok":
            yield "fail", f"the last {action} failed", "look for a full or broken disk in the server's log"
    if facts.info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield "warn", "the last rewrite of the append-only file failed", "look for a full disk in the server's log"
    yield _durable_jobs(found)


def _data_on_disk(facts: ServerFacts) -> Verdict:
    """How much a crash of the server would lose."""
    config = facts.config or {}
    if facts.number("aof_enabled"):
        fsync = config.get("appendfsync", "unknown")
        losses = {
            "always": "nothing is lost",
            "everysec": "a power cut, or a kill while the disk is slow, takes the last second or two",
        }
        if fsync in losses:
            return "ok", f"appendonly yes, appendfsync {fsync}: {losses[fsync]}", ""
        message = f"appendonly yes, appendfsync {fsync}: a power cut takes some 30 s"
        return "warn", message, "CONFIG SET appendfsync everysec"
    advice = "CONFIG SET appendonly yes, and in its configuration file"
    if config.get("save"):
        saved = age(max(0.0, time.time() + facts.ahead - facts.number("rdb_last_save_time")))
        return "warn", f"snapshots only, the last {saved} ago: a crash takes everything after it", advice
    if facts.config is None:
        return "warn", "no append-only file; this user may not ask whether there are snapshots", advice
    return "fail", "nothing is on disk: a restart of the server loses every job", advice


def _durable_jobs(found: Measurements) -> Verdict:
    """Whether `durable=True` works here, and why not."""
    confirmations = found.confirmations
    always = (found.facts.config or {}).get("appendfsync") == "always"
    if always and confirmations and max(confirmations) < math.inf:
        write, ping = median(found.writes), median(found.pings)
        if write - ping < FASTEST_FSYNC:
            message = (
                f"an fsync takes {milliseconds(max(0.0, write - ping))}: no disk is so fast, so it only reached a cache"
            )
            return "warn", message, "make sure that this cache survives a power cut"
        return "ok", f"durable=True waits for the disk, {milliseconds(write)} a write", ""
    if any("state=online" in text for text in found.replicas):
        return "ok", "durable=True waits for a replica", ""
    why = "it has no append-only file"
    if syncs_to_disk(found.facts) and not confirmations:
        why = "it has no WAITAOF, which came with Valkey 7.2 and Redis 7.2"
    elif confirmations and max(confirmations) == math.inf:
        why = "WAITAOF did not answer within 2 s"
    elif confirmations:
        # With `everysec` there is one fsync a second at most, so two writes in a row cannot both be safe in less.
        took = sum(confirmations[1:])
        why = f"{len(confirmations) - 1} writes in a row were reported safe after {milliseconds(took)}"
        why += ", with one fsync a second at most" if took < 1 else ", so it does wait for an fsync"
    return "ok", f"durable=True is refused: {why}", "if you need it: appendfsync always, or a replica"
