"""Reads every key of an app, and checks that the keys agree with each other and with the key tables.

`stored_keys.py` reads the keys; `instances.py` passes the keys of each queue, directory and log to its audit class.
An audit only reads. It walks the whole key space and reads every job, and it takes no snapshot: use it in tests and for
diagnosis, while nothing else uses the app.

The modules of this folder, in reading order:

    instances.py          recounts everything that an app at rest has in the server
    stored_keys.py        compares every key with the key tables
    queues.py, limits.py, flows.py, directories.py, messages.py
                          compare the keys of one component with each other
"""
