"""The limits of a queue for an operator: their numbers, and keys that are closed for a while."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.core.arguments import check_whole, is_number, is_text, shown
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.constants import LONGEST_HOLD, OUT_OF_RANGE, UNKNOWN_RATE
from penstock.jobs.key_template import LONGEST_KEY
from penstock.jobs.limit_bindings import LimitBindings
from penstock.jobs.retry import is_date
from penstock.jobs.shards import ShardMap, ask_all, set_all

if TYPE_CHECKING:
    from penstock.jobs.limits import Limit, LimitInfo


class QueueLimits:
    """The verbs of a queue about its limits."""

    name: str
    shards: ShardMap
    _driver: Driver

    @verb
    def limits(self, keys: int = 100) -> RoundTrip[list[LimitInfo]] | Operation[list[LimitInfo]]:
        """The limits that jobs of this queue have used, each with up to `keys` keys that have parked jobs, and up to
        `keys` that are closed. All limits together show at most 150 of either kind, and each an equal part of them.

        One round trip; with shards, one to each node, and up to `keys` keys of each shard.
        """
        from penstock.jobs.limits import joined_limits

        check_whole("limits", "keys", keys, 0, 1000, "from 0 to 1000")
        return ask_all(self.shards, lambda shard: LimitBindings(shard.bindings).limits(keys), joined_limits)

    @verb
    def set_limit(self, name: str, limit: Limit) -> Operation[None]:
        """Change the numbers of a limit: `queue.set_limit("mail", Rate(200, per=60))`. Its key stays as it is.

        Applies at once to all hosts, until a newer release of the tasks is used. Jobs that run are not stopped; if
        there is more room, parked jobs are admitted, some fifty at once. Raises ConfigurationError if no job of this
        queue has used a limit of this name and kind. One round trip; with shards, for each, and a shard where no job
        has used the limit yet keeps the numbers of the tasks.
        """
        from penstock.jobs.limits import numbers, stored_name

        stored = stored_name(limit, name), *numbers(limit)
        if not any((yield from set_all(self.shards, lambda shard: LimitBindings(shard.bindings).set_limit(*stored)))):
            kind = type(limit).__name__
            raise ConfigurationError(
                f"queue {self.name}: no job has used a {kind} limit named {name!r}; `limits()` lists them"
            )

    @verb
    def hold_limit(self, name: str, key: str, until: float | datetime | None) -> Operation[None]:
        """Close one key of a rate for all its jobs: `queue.hold_limit("crm", "acme", 30)`.

        until  seconds from now; a date with a time zone, which the server's clock reaches; None opens the key at once.
               It replaces an earlier hold

        No job of the key starts until then; running ones continue. `key` is "" for a limit without a key. Raises
        ConfigurationError if no job of this queue has used a rate of this name (a limit of concurrency cannot be held:
        pause its task), and BadCall for a time that is past or longer than a year. One round trip; with shards, for
        each.
        """
        what = f"queue {self.name}: hold_limit({shown(name)})"
        if not isinstance(name, str) or "=" in name or not is_text(key, 0, LONGEST_KEY):
            raise BadCall(f"{what}: key={shown(key)}: the name of a rate, and one of its keys as a text")
        at, dated = _moment(what, until)
        stored = f"r:{name}={key}"

        def hold(must_exist: bool) -> Operation[list[int]]:
            return set_all(
                self.shards,
                lambda shard: LimitBindings(shard.bindings).hold_limit(
                    stored, at, is_date=dated, must_exist=must_exist
                ),
            )

        found = yield from hold(True)
        if OUT_OF_RANGE in found:
            raise BadCall(
                f"{what}: until={until!r} is past, or more than a year away, by the server's clock: to open the key, "
                "give None"
            )
        if set(found) == {UNKNOWN_RATE}:
            raise ConfigurationError(
                f"{what}: no job has used a rate of this name; only a Rate can be held. `limits()` lists them"
            )
        if UNKNOWN_RATE in found:
            yield from hold(False)


def _moment(what: str, until: float | datetime | None) -> tuple[int, bool]:
    """Milliseconds from now, or since 1970 if the second value is True."""
    if until is None:
        return 0, False
    if is_date(until):
        assert isinstance(until, datetime)
        return max(1, round(until.timestamp() * 1000)), True
    if not is_number(until, 0.001, LONGEST_HOLD / 1000):
        raise BadCall(
            f"{what}: until={shown(until)}: seconds from now, up to a year; a date with a time zone; or None, which "
            "opens the key"
        )
    assert isinstance(until, int | float)
    return round(until * 1000), False
