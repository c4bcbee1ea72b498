"""How a script call reaches the server. Only this folder does its I/O and imports a client library.

The modules of this folder, in reading order:

    face.py               one face of a process, as the other modules see it
    engine.py             sends a call until it is answered, and drives an operation; for both faces
    first_attempt.py      the first attempt at a call, which needs no coroutine
    blocking.py           the blocking face, with a pool of connections
    pooled_connection.py  such a connection, which reads and writes its socket without the library
    aio.py                the asyncio face, with one connection per node
    grouping.py           group commit: calls that tasks of one loop make at the same moment travel as one call
    aio_connection.py     such a connection, and the task that reads its replies
    retrying.py           which errors are retried, for how long, and which errors replace the others
    faults.py             explains to people why a connection failed or which data is damaged, and what to do
    interruption.py       exceptions of signal handlers, which pass through the driver
    route.py              which node serves a key, and which nodes are in doubt
    lookup.py             asks all nodes of a cluster, or all Sentinels, side by side
    parallel.py           many script calls, in one pipeline to each node
    durability.py         which nodes can confirm that a write is safe, and how
    listening.py          listeners, through which a waiting operation receives messages
    subscriber.py         the connection on which the messages of one node arrive
    first_connection.py   whether Penstock can work with a server, and what the server may lose
    connector.py          address, version and new connections
    address.py            parses an address into the arguments of a connection
    sentinels.py          checks, behind Sentinel, whether a node is still the primary
    sentinel_watch.py     learns from the Sentinels that a replica takes over
    library.py            the undocumented attributes of valkey-py and redis-py that the driver uses, and how it reads
                          a client
    library_import.py     imports a client library in less memory
    server_driver.py      the driver of one server, which every component holds
"""
