"""The checks of `penstock doctor`, one module per subject; `doctor.py` runs them.

The modules of this folder, in reading order:

    result.py             the result of a check
    measurements.py       everything that the doctor measures at a server, before the checks judge it
    server.py             writes, connections, clock, replicas, cluster
    storage.py            memory, eviction, durability
    latency.py            round trips and slow commands
    rights.py             rights to commands, keys and channels
    app.py                keys and queues of the app
"""
