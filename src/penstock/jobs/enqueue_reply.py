"""The reply to an enqueue: which jobs the queue had already, which are doubles, and which a bound has refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.errors import QueueFull

OnDouble: TypeAlias = Callable[[int, str], None]
OnRefusal: TypeAlias = Callable[[int, QueueFull], None]


class EnqueueReplies:
    """Reads the replies of one queue, or shard.

    may_take_in  whether the last of them said that the intake is open, so that the next plain job may go there
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self.may_take_in = False

    def positions(
        self, reply: int | Sequence[Any], on_double: OnDouble | None = None, on_refusal: OnRefusal | None = None
    ) -> list[int]:
        """The positions of ids that the queue has already. See `QueueBindings.enqueue`."""
        if isinstance(reply, int):
            self.may_take_in = bool(reply)
            return []
        for one in reply:
            if isinstance(one, int):
                continue
            if len(one) > 2:
                error = _queue_full(self._queue, *one[2:])
                if on_refusal is None:
                    raise error
                on_refusal(one[0], error)
            elif on_double is not None:
                on_double(one[0], one[1].decode())
        return [one for one in reply if isinstance(one, int)]

    def raise_refusal(self, reply: int | Sequence[Any], job_id: str) -> None:
        """Raise QueueFull if a bound refused this job. The reply may be that to a group of calls."""
        for one in () if isinstance(reply, int) else reply:
            if not isinstance(one, int) and len(one) > 2 and one[1] == job_id.encode():
                raise _queue_full(self._queue, *one[2:])


def _queue_full(queue: str, count: int, bound: int, tenant: bytes | None = None) -> QueueFull:
    of = None if tenant is None else tenant.decode(errors="replace")
    who = f"queue {queue}" if of is None else f"queue {queue}: tenant {of!r}" if of else f"queue {queue}: no tenant"
    text = f"{who} has {count:,} unfinished jobs, and the bound is {bound:,}: enqueue the job later"
    return QueueFull(text, queue=queue, count=count, bound=bound, tenant=of)
