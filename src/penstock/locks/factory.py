"""The part of the app that makes elections, latches and barriers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.settings import Settings

if TYPE_CHECKING:  # each is imported when it is first used, so that a program does not wait for the others
    from penstock.core.renewal import Renewer
    from penstock.driver.server_driver import ServerDriver
    from penstock.locks.barrier import Barrier
    from penstock.locks.election import Election, Leadership
    from penstock.locks.latch import Latch


class CoordinationFactory:
    """Makes what processes wait for together. The app derives from it."""

    settings: Settings

    if TYPE_CHECKING:
        _driver: ServerDriver

        @property
        def _renewer(self) -> Renewer: ...

    def election(
        self,
        name: str,
        *,
        lease: float | None = None,
        notice: float | None = None,
        value: str = "",
        wait: float | None = None,
        on_loss: Callable[[Leadership], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> Election:
        """An election, in which one of several processes leads: `with app.election("importer") as leader:`.

        lease    seconds after which another process is elected if the leader died; None: as the app's settings say
        notice   seconds before the end of the lease at which a leader that could not renew it loses its leadership by
                 its own clock, so that its work can end before the next leader begins; None: a third of the lease
        value    what the others learn about this process while it leads, such as its address: up to 1024 bytes
        wait     seconds to wait for the leadership, in order of arrival; None: no limit, 0: do not wait
        on_loss, cancel_on_loss  as for `lock`

        A campaign takes one round trip if nobody leads, and waits for a message while somebody does. It raises
        ElectionTimeout after `wait` seconds. This method sends nothing; it raises ConfigurationError or ValueError for
        bad arguments.
        """
        from penstock.locks.election import Election

        return Election(
            name, self.settings.prefix, self._driver, self._renewer,
            lease=self.settings.lease if lease is None else lease, notice=notice, value=value, wait=wait,
            on_loss=on_loss, cancel_on_loss=cancel_on_loss,
        )  # fmt: skip

    def latch(self, name: str, *, count: int, ttl: float = 86400) -> Latch:
        """A latch, which opens when it was counted down `count` times: `app.latch("import:7", count=3).wait()`.

        count  the same for all that use it, up to a million
        ttl    seconds after the last call for which the server remembers it, open or not

        A latch opens once and stays open, so give each run a name of its own. This method sends nothing; it raises
        ConfigurationError or ValueError for bad arguments.
        """
        from penstock.locks.latch import Latch

        return Latch(name, self.settings.prefix, self._driver, count=count, ttl=ttl)

    def barrier(self, name: str, *, parties: int, lease: float | None = None, ttl: float = 86400) -> Barrier:
        """A barrier, at which a number of parties wait for each other: `app.barrier("step", parties=4).wait()`.

        parties  how many must arrive, from 2 to 1000
        lease    seconds for which a party may be silent, for instance while the server fails over. The others notice
                 within one and a half leases and some seconds that it died; None: as the app's settings say
        ttl      seconds after the last call for which the server remembers it

        When all have arrived, they continue, and the barrier can be used again. If a party dies while it waits, the
        others get BarrierBroken. This method sends nothing; it raises ConfigurationError or ValueError for bad
        arguments.
        """
        from penstock.locks.barrier import Barrier

        return Barrier(
            name, self.settings.prefix, self._driver, parties=parties,
            lease=self.settings.lease if lease is None else lease, ttl=ttl,
        )  # fmt: skip
