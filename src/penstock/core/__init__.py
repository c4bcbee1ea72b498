"""The base of every noun (queue, lock, channel, …): operations, scripts, keys, ids, slots and the renewal of leases.

In the server:

    batch.lua             commands with many values, in pieces that Lua can pass
    notify.lua            wake-ups, short messages to a waiting process
    waiting.lua           processes that wait for the next event of one thing; all of them are woken
    deputy.lua            a second process looks a little later whether the one that was woken acted
    sleepers.lua          idle workers, of which one is woken
    bucket.lua            a token bucket, in one number

In Python:

    scripts.py            cuts the `.lua` files into scripts
    sections.py           reads the functions, scripts, constants and layouts of the `.lua` files, and links them
    layouts.py            names the fields of packed values, and writes where they are
    operations.py         round trips, and operations written once for the blocking and the asyncio face
    clock.lua, clock.py   the server's clock, and durations in its unit
    idempotency.lua, idempotency.py
                          a repeated call is recognised and answered again
    writes.lua, writes.py
                          writes to keys of users, checked whole before the first is executed
    arguments.py          checks of numbers and durations that users pass
    keys.py               the grammar of keys
    cached.py             a property that is computed once for each object, without a lock
    slots.py              cluster slots
    server_release.py     families and releases of servers, and the oldest of each that Penstock runs on
    ids.py                ids of jobs and messages, and tokens that name a process
    renewal.py            one thread per app that renews all leases
    notices.py            notices to the holder of a lease, such as that an operator broke its lock
"""
