"""The base of every noun (queue, lock, channel, …): operations, scripts, keys, ids, slots and the renewal of leases.

In the server:

    batch.lua             sends a command with many values in pieces that are small enough for Lua
    notify.lua            wake-ups, short messages to a waiting process
    waiting.lua           processes that wait for the next event of one thing; an event wakes all of them
    deputy.lua            a second process checks a little later whether the one that was woken acted
    sleepers.lua          idle workers; new work wakes one of them
    waiters.lua           requests that wait for one thing, such as a lock, and are served in order of arrival
    log.lua               entries with numbers without gaps, in a stream
    bucket.lua            a token bucket, stored as one number

In Python:

    scripts.py            cuts the `.lua` files into scripts
    sections.py           reads the functions, scripts, constants and layouts of the `.lua` files, and links them
    layouts.py            names the fields of packed values, and locates their bytes
    operations.py         round trips, and operations written once for the blocking and the asyncio face
    shown_signature.py    the signature of a verb as `help()` and `inspect` show it
    clock.lua, clock.py   the server's clock, and durations in its unit
    idempotency.lua, idempotency.py
                          recognises a repeated call and returns its first answer again
    writes.lua, writes.py
                          writes to the keys of users; all are checked before the first is executed
    constants.py          the constants that the Lua files define
    arguments.py          checks of numbers and durations that users pass
    other_words.py        names from other libraries, which errors translate
    cost.py               what a call costs in a rate
    wording.py            durations and numbers for people
    cursors.py            where a list continues, as text
    keys.py               the grammar of keys
    cached.py             a property that is computed once for each object, without a lock
    slots.py              cluster slots
    server_release.py     the families of servers, and the oldest release of each on which Penstock runs
    ids.py                ids of jobs and messages, and tokens that name a process
    renewal.py            one thread per app that renews all leases
    notices.py            notifies the holder of a lease, for example when an operator broke its lock
"""
