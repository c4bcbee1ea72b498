"""`break_`: an operator takes from processes what they hold, whatever they are doing.

Its first round trip finds the holders, and the others end their holdings by their tokens. So a call that is sent twice
never takes anything from the next owner.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from penstock.core.arguments import shown
from penstock.core.operations import Driver, Operation, verb
from penstock.locks.answers import Owner
from penstock.locks.bindings import LeaseBindings
from penstock.locks.lease import hand_over

MAX_REASON = 500
"""The most characters of the reason for breaking something."""


def check_reason(reason: object) -> None:
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        raise ValueError(f"break_(reason={shown(reason)}): a text of at most {MAX_REASON} characters")


class Breakable:
    """The verb `break_` of a lock, a read-write lock, a semaphore or an election."""

    _driver: Driver

    def breakable_parts(self) -> Sequence[LeaseBindings]:
        """What is broken: the bindings of each lock."""
        raise NotImplementedError

    @verb
    def break_(self, reason: str = "", *, token: str | None = None) -> Operation[list[Owner]]:
        """Take what is held from its holders, whatever they are doing. Returns the holders whose holdings ended.

        reason  reaches the former holders; at most 500 characters
        token   end only the holding with this token, which `info()` shows; None: end every holding

        For an operator who knows that a holder hangs. The first waiters are served. The fence of the next owner, writer
        or leader is higher, so a storage that checks it refuses what the former one still writes;
        `held.transaction()` refuses it too. The former holder is notified at once if it has held on for a second, else
        after that second: `lost` is set, `on_loss` is called, and its verbs raise LeaseLost with the reason. An owner
        from another library is not notified. One round trip for each name or each 1000 permits, and one for each
        holder.
        """
        check_reason(reason)
        if token is not None and not isinstance(token, str):
            raise ValueError(f"break_(token={shown(token)}): the token of a holder, as info() shows it, or None")
        return self._break(reason, None if token is None else {token})

    def _break(self, reason: str, tokens: Set[str] | None) -> Operation[list[Owner]]:
        reason = reason.encode(errors="replace").decode()
        ended: list[Owner] = []
        for part in self.breakable_parts():
            for holder in (yield from part.holders()):
                if tokens is None or holder.token in tokens:
                    reply = yield part.end_holding(holder.token, reason)
                    if reply.ended:
                        ended.append(holder)
                    if reply.more:
                        yield from hand_over(part, part.request.pack(holder.token))
        return ended
