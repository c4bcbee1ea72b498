"""Locks, semaphores, rate limits and transactions.

In the server:

    lock.lua              one owner at a time, and its fence
    semaphore.lua         a limited number of permits; a read-write lock is a semaphore, too
    rate.lua              rate limits, by bucket or window
    election.lua          one leader at a time, its term, and the observers
    latch.lua             a latch, which opens when it was counted down
    barrier.lua           a barrier, whose parties continue together
    transaction.lua       conditions, then writes, in one script
    breaking.lua          what an operator took from its holders
    server_time.lua       the clock that leases run on

In Python:

    keys.py               the keys of all these
    constants.py          the constants that the Lua files define
    bindings.py           the scripts as round trips
    rate_bindings.py, election_bindings.py, meeting_bindings.py
                          the scripts of rate limits, of elections, and of latches and barriers, as round trips
    answers.py            owners, waiters and allowances, as users read them
    wait_times.py         measures how long requests for locks wait
    leased.py             acquiring, waiting and releasing, for locks and semaphores
    decorating.py         locks, permits and rate limits as decorators
    last_tries.py         when a waiter tries again, and when a process checks without having been notified
    with_block.py         ends a lease with its `with` block, even if `__exit__` is interrupted
    lease.py              the lease that `acquire` returns, renewed until it is released or lost
    breaking.py           an operator takes from processes what they hold
    lock.py               the lock
    semaphore.py          the semaphore
    rwlock.py             the read-write lock
    rate_limit.py         the rate limit
    watching.py           waiting for a state in the server
    election.py           the election, the leadership, and the observation of leaders
    latch.py              the latch
    barrier.py            the barrier
    transaction.py        the transaction
    factory.py            the methods of the app that make all of these
"""
