"""The dead letters of a mailbox: list them, post them again, delete them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Final

from penstock.core.arguments import check_whole
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.messages.bindings import LogBindings
from penstock.messages.log import wake_rest
from penstock.messages.message import DeadMessage, check_position

CHANGED_TOGETHER: Final = 500
"""How many dead letters one round trip requeues or removes. The server moves a mebibyte of them at most."""


class DeadMessages:
    """The dead letters of one mailbox. They are kept until they are requeued or removed, or the mailbox is deleted."""

    def __init__(self, log: LogBindings, driver: Driver) -> None:
        self._log = log
        self._driver = driver

    @verb
    def count(self) -> RoundTrip[int]:
        """How many there are. One round trip, O(1)."""
        return self._log.list_dead_letters(0, 1).then(lambda page: page[0])

    @verb
    def list(self, limit: int = 50, offset: int = 0) -> Operation[list[DeadMessage]]:
        """A page of dead letters, the latest first. One round trip for each MiB."""
        check_whole("list", "limit", limit, 1, 1000, "1 to 1000")
        check_whole("list", "offset", offset, 0, 10**9, "0 or more")
        return self._page(limit, offset)

    def _page(self, limit: int, offset: int) -> Operation[builtins.list[DeadMessage]]:
        letters: builtins.list[DeadMessage] = []
        while len(letters) < limit:
            _, page = yield self._log.list_dead_letters(offset + len(letters), limit - len(letters))
            if not page:
                break
            letters += page
        return letters

    @verb
    def requeue(self, *ids: str) -> Operation[int]:
        """Post these dead letters again, as new messages. Returns how many of the ids were dead letters.

        One round trip for each 500 ids and for each MiB.
        """
        return self._requeue(self._positions("requeue", ids))

    def _requeue(self, ids: Sequence[str]) -> Operation[int]:
        total = 0
        while ids:
            examined, done, wake = yield self._log.requeue_dead_letters(ids[:CHANGED_TOGETHER])
            yield from wake_rest(self._log, wake)
            ids, total = ids[examined:], total + done
        return total

    @verb
    def remove(self, *ids: str) -> Operation[int]:
        """Delete these dead letters. Returns how many of the ids were dead letters. One round trip for each 500."""
        return self._remove(self._positions("remove", ids))

    def _remove(self, ids: Sequence[str]) -> Operation[int]:
        total = 0
        for start in range(0, len(ids), CHANGED_TOGETHER):
            total += yield self._log.remove_dead_letters(ids[start : start + CHANGED_TOGETHER])
        return total

    def _positions(self, verb: str, ids: Sequence[str]) -> Sequence[str]:
        return [check_position(f"dead.{verb}(…)", id, self._log.keys.name) for id in ids]
