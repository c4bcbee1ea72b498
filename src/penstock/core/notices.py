"""Notices about leases that this process holds: an operator broke a lock.

A script sends a notice to the address that the last renewal of the lease contained. All leases whose keys share a
channel share one listener. A notice that is lost costs time only: the next renewal finds the loss too.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from weakref import WeakValueDictionary

from penstock.core.operations import AioFace, AsyncListener
from penstock.errors import PenstockError

_SWEEP_INTERVAL = 60.0
"""Seconds without a notice after which a listener is closed, if no lease uses it any longer."""


class Noticed(Protocol):
    """A lease to which notices can be sent."""

    token: str
    notice_key: str
    """A key of the lease. Its slot is the slot of the channel."""
    notice_address: str

    def receive_notice(self, text: str) -> None:
        """Called in the loop that receives the notices."""
        ...


class Notices:
    """Receives the notices for the leases of one app, in the event loop that renews them."""

    def __init__(self, face: AioFace) -> None:
        self._face = face
        self._listeners: dict[str, AsyncListener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._leases: WeakValueDictionary[str, Noticed] = WeakValueDictionary()

    def add(self, lease: Noticed) -> None:
        """Give the lease an address, which its next renewal stores in the server."""
        self._leases[lease.token] = lease
        listener = self._face.listen(lease.notice_key)
        channel = listener.address.rpartition("/")[0]
        if channel in self._listeners:
            listener.close()
        else:
            self._listeners[channel] = listener
            task = asyncio.create_task(self._receive(channel, listener))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        lease.notice_address = self._listeners[channel].address

    async def _receive(self, channel: str, listener: AsyncListener) -> None:
        try:
            while (messages := await listener.wait(_SWEEP_INTERVAL)) or self._uses(listener):
                for message in messages:
                    token, _, text = message.partition(" ")
                    if (lease := self._leases.get(token)) is not None:
                        lease.receive_notice(text)
        except PenstockError:  # the server is away: the next renewal opens another listener
            pass
        finally:
            del self._listeners[channel]
            listener.close()

    def _uses(self, listener: AsyncListener) -> bool:
        """Whether some lease uses a listener."""
        return any(lease.notice_address == listener.address for lease in self._leases.values())

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
