"""Checks whether a server answers fast, and reports what kept it busy during the last day."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.jobs.keys import QueueKeys
from penstock.ops.checks.measurements import Measurements, median
from penstock.ops.checks.result import Verdict
from penstock.ops.probe import ServerFacts
from penstock.ops.wording import many, milliseconds

TOO_LONG = 0.05
"""Seconds that one command may occupy the server; a script of Penstock takes a few milliseconds."""

DAY = 86400.0
"""How far back, in seconds, the server's own records are read."""


def check_latency(found: Measurements) -> Iterator[Verdict]:
    """Compare the round-trip times of a ping and of an empty script with usual values."""
    usual, slowest = (0.002, 0.02) if found.is_near else (0.005, 0.05)
    for request, times in (("a ping", found.pings), ("a script", found.scripts)):
        if not times:
            yield "warn", f"{request} is refused", "see `penstock doctor rights`"
            continue
        middle, late = median(times), times[int(0.99 * len(times))]
        message = f"{request} takes {milliseconds(middle)}, one in a hundred {milliseconds(late)}"
        if middle <= usual and late <= slowest:
            yield "ok", message, ""
        else:
            other = "this machine" if found.is_near else "the network"
            message += f"; {milliseconds(usual)} and {milliseconds(slowest)} are usual"
            yield "warn", message, f"find out what keeps the server or {other} busy"
    yield from _recorded_delays(found.facts, QueueKeys(found.prefix, "").base.removesuffix("}:"))


def _recorded_delays(facts: ServerFacts, our_keys: str) -> Iterator[Verdict]:
    """Reports from the server's slow log and latency monitor. Every key of this app begins with `our_keys`."""
    since = time.time() + facts.ahead - DAY
    ours: list[float] = []
    others: dict[str, float] = {}
    for command in sorted(facts.slow or (), key=lambda command: command.seconds):
        if command.at < since:
            continue
        if any(word.startswith(our_keys) for word in command.words):
            ours.append(command.seconds)
        else:
            others[command.words[0].upper()] = command.seconds
    if ours and max(ours) > TOO_LONG:
        message = f"a script of Penstock took {milliseconds(max(ours))}, with {many(len(ours), 'slow call')} in a day"
        yield "warn", message, "if nothing else kept the machine busy then, please report this bug"
    slow = [f"{name} {milliseconds(seconds)}" for name, seconds in others.items() if seconds > TOO_LONG]
    if slow:
        yield "warn", f"slow commands of others in a day: {', '.join(slow[-3:])}", "see SLOWLOG GET"
    events = {name: longest for name, longest in (facts.latency or {}).items() if longest > TOO_LONG}
    if events:
        worst = ", ".join(f"{name} {milliseconds(longest)}" for name, longest in sorted(events.items())[:3])
        yield "warn", f"it was held up by {worst}", "see LATENCY DOCTOR"
    if (facts.config or {}).get("latency-monitor-threshold") == "0":
        yield "ok", "its latency monitor is off", "to learn more: CONFIG SET latency-monitor-threshold 25"
