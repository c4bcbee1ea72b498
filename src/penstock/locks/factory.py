"""The part of the app that makes locks, semaphores, rate limits, transactions, elections, latches and barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import names_options
from penstock.core.keys import key_with_tag
from penstock.settings import Settings

if TYPE_CHECKING:  # each is imported when it is first used, so that a program does not wait for the others
    from weakref import WeakValueDictionary

    from penstock.core.cost import Cost
    from penstock.core.renewal import Renewer
    from penstock.driver.server_driver import ServerDriver
    from penstock.locks.barrier import Barrier
    from penstock.locks.election import Election, Leadership
    from penstock.locks.latch import Latch
    from penstock.locks.lock import Held, Lock
    from penstock.locks.rate_limit import RateLimit
    from penstock.locks.rwlock import ReadWriteLock
    from penstock.locks.semaphore import Permit, Semaphore
    from penstock.locks.transaction import Transaction


class LockFactory:
    """Makes what several processes hold or wait for. The app derives from it."""

    settings: Settings

    if TYPE_CHECKING:
        _driver: ServerDriver
        _reentrant: WeakValueDictionary[object, Held]

        @property
        def _renewer(self) -> Renewer: ...

    @names_options
    def lock(
        self,
        name: str | Sequence[str],
        *,
        lease: float | EllipsisType = ...,
        wait: float | None = None,
        max_hold: float | None = None,
        renew: bool = True,
        on_loss: Callable[[Held], object] | None = None,
        cancel_on_loss: bool = False,
        reentrant: bool = False,
    ) -> Lock:
        """A lock: `with app.lock("invoice:7", lease=10, wait=5) as held:`.

        name            one name, or several, which are locked together or not at all; on a cluster they must share a
                        hash tag. The lock is the key of that name in the server, without the app's prefix, so that it
                        excludes the locks of other apps and libraries (redis-py, redsync) on the same name
        lease           seconds until the lock is free after its owner died. A living owner renews it. If it is left
                        out, the app's settings decide
        wait            seconds to wait for the lock, in order of arrival; None: no limit, 0: do not wait
        max_hold        seconds after which the lock is lost even if its owner lives, for instance because the owner
                        hangs; None: no limit
        renew           False: hold it for exactly one lease, or longer by `held.extend(seconds)`
        on_loss         called with the held lock when it is lost: on the event loop that acquired it, else in a thread
        cancel_on_loss  cancel the asyncio task that acquired it when it is lost; `async with` then raises LeaseLost
        reentrant       let the thread or asyncio task that holds the lock acquire it again, through any reentrant lock
                        of this app on this name. It gets the same `Held`; only the last release frees the lock

        Acquiring takes one round trip if the lock is free, and waits for a message while it is not. It raises
        LockTimeout after `wait` seconds, and SelfDeadlock if the calling thread or task holds the lock already. This
        method sends nothing; it raises ConfigurationError or ValueError for bad arguments.
        """
        from penstock.locks.leased import HoldOptions
        from penstock.locks.lock import Lock

        seconds = self.settings.lease if lease is ... else lease
        options = HoldOptions(seconds, wait, max_hold, renew, on_loss, cancel_on_loss)
        return Lock(name, self._driver, self._renewer, options, self._reentrant if reentrant else None)

    @names_options
    def read_write_lock(
        self,
        name: str,
        *,
        lease: float,
        wait: float | None = None,
        max_hold: float | None = None,
        renew: bool = True,
        on_loss: Callable[[Any], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> ReadWriteLock:
        """A lock for many readers or one writer: `with app.read_write_lock("catalog", lease=10).read():` or `.write()`.

        Readers and writers are served in order of arrival, so neither side starves. Its keys have the app's prefix, so
        locks of other libraries do not exclude it. The arguments, round trips and errors are those of `lock`.
        """
        from penstock.locks.leased import HoldOptions
        from penstock.locks.rwlock import ReadWriteLock

        options = HoldOptions(lease, wait, max_hold, renew, on_loss, cancel_on_loss)
        return ReadWriteLock(name, self.settings.prefix, self._driver, self._renewer, options)

    @names_options
    def semaphore(
        self,
        name: str,
        *,
        limit: int,
        permits: int = 1,
        lease: float | None = None,
        wait: float | None = None,
        max_hold: float | None = None,
        renew: bool = True,
        on_loss: Callable[[Permit], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> Semaphore:
        """A semaphore: `with app.semaphore("market:17", limit=5) as permit:`.

        limit    how many permits exist; a limit that `set_limit` stored in the server overrides it
        permits  how many permits to acquire, all together
        lease    seconds until the permits of a holder that died are free; None: the app's settings decide
        wait, max_hold, renew, on_loss, cancel_on_loss  as for `lock`

        Acquiring takes one round trip if the permits are free, and waits for a message while they are not. It raises
        PermitTimeout after `wait` seconds. This method sends nothing; it raises ConfigurationError or ValueError for
        bad arguments.
        """
        from penstock.locks.leased import HoldOptions
        from penstock.locks.semaphore import Semaphore

        seconds = self.settings.lease if lease is None else lease
        options = HoldOptions(seconds, wait, max_hold, renew, on_loss, cancel_on_loss)
        prefix = self.settings.prefix
        return Semaphore(name, prefix, self._driver, self._renewer, options, limit=limit, permits=permits)

    @names_options
    def rate_limit(
        self,
        name: str,
        *,
        limit: int,
        per: float,
        burst: int | None = None,
        kind: Literal["bucket", "window"] = "bucket",
        wait: float | None = None,
        cost: Cost = 1,
    ) -> RateLimit:
        """A rate limit: `with app.rate_limit("api", limit=100, per=60):`, also a decorator.

        limit  how many units are allowed in `per` seconds
        burst  of a bucket: how many units may be used at once after a pause; None: as many as `limit`
        kind   "bucket" allows one unit every `per / limit` seconds and a burst, so at most limit + burst in any `per`
               seconds; the server stores one number. "window" allows at most `limit` in any `per` seconds; the server
               stores each use
        wait   seconds that `acquire`, `with` and the decorator wait for a unit; None: no limit
        cost   units that `with` and each call of a decorated function use: a number; or, of a decorated function, the
               name of a parameter in braces, `"{tokens}"`, or a function of some of its parameters. At least 1

        All programs that use one name should pass the same arguments. Each use takes one round trip if its units are
        allowed, and raises RateLimited if they will not be within `wait` seconds. This method sends nothing; it raises
        ConfigurationError or ValueError for bad arguments.
        """
        from penstock.locks.rate_limit import RateLimit

        return RateLimit(
            name, self.settings.prefix, self._driver, limit=limit, per=per, burst=burst, kind=kind, wait=wait, cost=cost
        )

    @names_options
    def transaction(self, tag: str | None = None) -> Transaction:
        """Conditions and writes on keys of one hash tag. `commit()` writes everything or nothing, in one round trip.

        tag: the hash tag of the keys, without braces; None: that of the first key named. Raises ConfigurationError for
        a bad tag. `held.transaction()` makes one that only the owner of a lock can commit.
        """
        from penstock.locks.transaction import Transaction

        return Transaction(self._driver, slot_key=None if tag is None else key_with_tag(tag))

    @names_options
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

        lease    seconds after which another process is elected if the leader died; None: the app's settings decide
        notice   seconds before the end of the lease at which a leader that could not renew it loses its leadership by
                 its own clock, so that its work can end before the next leader begins; None: a third of the lease
        value    what the others learn about this process while it leads, such as its address: up to 1024 bytes
        wait     seconds to wait for the leadership, in order of arrival; None: no limit, 0: do not wait
        on_loss, cancel_on_loss  as for `lock`

        A campaign takes one round trip if no process leads, and waits for a message while another one does. It raises
        ElectionTimeout after `wait` seconds. This method sends nothing; it raises ConfigurationError or ValueError for
        bad arguments.
        """
        from penstock.locks.election import Election
        from penstock.locks.leased import HoldOptions

        seconds = self.settings.lease if lease is None else lease
        options = HoldOptions(seconds, wait, on_loss=on_loss, cancel_on_loss=cancel_on_loss)
        prefix = self.settings.prefix
        return Election(name, prefix, self._driver, self._renewer, options, notice=notice, value=value)

    @names_options
    def latch(self, name: str, *, count: int, ttl: float = 86400) -> Latch:
        """A latch, which opens when it was counted down `count` times: `app.latch("import:7", count=3).wait()`.

        count  the same for all that use it, up to a million
        ttl    seconds after the last call for which the server remembers it, open or not

        A latch opens once and stays open, so give each run a name of its own. This method sends nothing; it raises
        ConfigurationError or ValueError for bad arguments.
        """
        from penstock.locks.latch import Latch

        return Latch(name, self.settings.prefix, self._driver, count=count, ttl=ttl)

    @names_options
    def barrier(self, name: str, *, parties: int, lease: float | None = None, ttl: float = 86400) -> Barrier:
        """A barrier, at which a number of parties wait for each other: `app.barrier("step", parties=4).wait()`.

        parties  how many must arrive, from 2 to 1000
        lease    seconds for which a party may be silent, for instance while the server fails over. The others notice
                 within one and a half leases and some seconds that it died; None: the app's settings decide
        ttl      seconds after the last call for which the server remembers it

        When all have arrived, they continue, and the barrier can be used again. If a party dies while it waits, the
        others get BarrierBroken. This method sends nothing; it raises ConfigurationError or ValueError for bad
        arguments.
        """
        from penstock.locks.barrier import Barrier

        return Barrier(
            name,
            self.settings.prefix,
            self._driver,
            parties=parties,
            lease=self.settings.lease if lease is None else lease,
            ttl=ttl,
        )
