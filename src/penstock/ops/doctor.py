"""`penstock doctor`: checks whether a server is fit for Penstock, and says what to do where it is not.

First `checks/measurements.py` collects facts and times from every server. Then each check, a pure function, judges
them. The checks of `keys` and `queues` are different: they query all servers of the app themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from penstock.app import Penstock
from penstock.core.operations import Operation
from penstock.driver.retrying import error_code
from penstock.errors import ConfigurationError, ServerError, ServerRefused, ServerTooOld
from penstock.ops import probe
from penstock.ops.checks.app import check_keys, check_queues
from penstock.ops.checks.latency import check_latency
from penstock.ops.checks.measurements import Measurements, measure
from penstock.ops.checks.result import CheckResult, Verdict
from penstock.ops.checks.rights import EXAMPLE_QUEUE, check_rights
from penstock.ops.checks.server import check_clock, check_cluster, check_replicas, check_server
from penstock.ops.checks.storage import check_memory, check_persistence
from penstock.ops.proof import prove
from penstock.ops.wording import many

ServerCheck: TypeAlias = Callable[[Measurements], Iterator[Verdict]]
AppCheck: TypeAlias = Callable[[Penstock], Operation[list[Verdict]]]

SERVER_CHECKS: Mapping[str, ServerCheck] = {
    "server": check_server,
    "memory": check_memory,
    "persistence": check_persistence,
    "replicas": check_replicas,
    "latency": check_latency,
    "clock": check_clock,
    "cluster": check_cluster,
    "rights": lambda found: check_rights(found.missing_rights, found.prefix),
}
"""Topic -> the check of each server."""

APP_CHECKS: Mapping[str, AppCheck] = {"keys": check_keys, "queues": check_queues}
"""Topic -> the check of the whole app."""

TOPICS = (*SERVER_CHECKS, *APP_CHECKS)

LOCKS = "locks"
"""A topic that is checked only on request, because it puts load on the server: see `prove_locks`."""

MOST_QUEUES = 100
"""How many queues are included when the rights to keys are checked."""


def diagnose(app: Penstock, topic: str | None = None, without: str | None = None) -> Operation[list[CheckResult]]:
    """The results of all checks, or of those of one topic, or of all but those of one topic.

    Some 500 round trips for each server, some writes of a key that is then deleted, and for `keys` the round trips of
    `take_inventory`. Raises ConfigurationError for an unknown topic, and ServerRefused for a wrong user or password; an
    unreachable server is a result that fails.
    """
    for one in (topic, without):
        if one is not None and one not in TOPICS:
            known = ", ".join((*TOPICS, LOCKS))
            raise ConfigurationError(f"doctor has no topic {one!r}; its topics are {known}")
    topics = [one for one in TOPICS if one != without and topic in {one, None}]
    results = yield from _check_servers(app, [name for name in topics if name in SERVER_CHECKS])
    for name in topics:
        if name in APP_CHECKS:
            results += yield from _check_app(app, name)
    return sorted(results, key=lambda result: TOPICS.index(result.topic))


def _check_servers(app: Penstock, topics: list[str]) -> Operation[list[CheckResult]]:
    results = []
    nodes = yield from probe.primaries()
    queues = (yield from _queue_names(app)) if "rights" in topics else []
    for node in nodes:
        server = f"{node[0]}:{node[1]}" if len(nodes) > 1 else ""
        try:
            found = yield from measure(app, node, topics, queues)
        except ServerRefused as error:
            if error.__cause__ is not None and error_code(error.__cause__) in {"NOAUTH", "WRONGPASS"}:
                raise
            topic = "server" if error.__cause__ is not None and error_code(error.__cause__) == "UNKNOWN" else "rights"
            advice = "do what this says, then run the doctor again"
            results.append(CheckResult(topic, "fail", str(error), advice, server))
            continue
        except ServerTooOld as error:
            results.append(CheckResult("server", "fail", str(error), "move to a newer server", server))
            continue
        except ServerError as error:
            advice = "start it, or repair the connection to it"
            results.append(CheckResult("server", "fail", str(error), advice, server))
            continue
        for name in topics:
            results += [CheckResult(name, *verdict, server=server) for verdict in SERVER_CHECKS[name](found)]
    return results


def _check_app(app: Penstock, topic: str) -> Operation[list[CheckResult]]:
    try:
        verdicts = yield from APP_CHECKS[topic](app)
    except ServerError as error:
        advice = "solve the problems above, then run the doctor again"
        return [CheckResult(topic, "fail", f"not checked: {error}", advice)]
    return [CheckResult(topic, *verdict) for verdict in verdicts]


def _queue_names(app: Penstock) -> Operation[list[str]]:
    """The queues that were ever used and those of the app's tasks; an example if there are no queues."""
    names = set(app.registry.queues())
    with contextlib.suppress(ServerError):  # other checks report an unreachable server and missing rights
        names |= {*(yield from probe.queue_names(app.settings.prefix))}
    return sorted(names)[:MOST_QUEUES] or [EXAMPLE_QUEUE]


def prove_locks(app: Penstock, seconds: float) -> list[CheckResult]:
    """Contend for a lock and a semaphore for this many seconds, and judge the history (see `proof.py`). Blocks."""
    try:
        proof = prove(app, seconds=seconds)
    except ServerError as error:
        return [CheckResult(LOCKS, "fail", f"not completed: {error}", "solve that, then run the doctor again")]
    if proof.violations:
        advice = "if the server did not fail over and nobody set its clock just now, please report this bug"
        return [CheckResult(LOCKS, "fail", violation, advice) for violation in proof.violations]
    if not proof.locks or not proof.permits:
        return [CheckResult(LOCKS, "warn", f"nothing was held within {seconds:g} s", "see `penstock doctor latency`")]
    message = (
        f"locks were held {proof.locks:,} times, by one owner at a time and with rising fences; "
        f"permits {proof.permits:,} times, never more than the limit"
    )
    return [CheckResult(LOCKS, "ok", f"{message}; {many(proof.expired, 'lease')} expired in a pause, as intended")]
