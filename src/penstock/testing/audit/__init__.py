"""Reads every key of an app, and checks that the keys agree with each other and with the key tables.

`stored_keys.py` reads the keys; `instances.py` passes the keys of each queue, directory and log to its audit class.
An audit only reads. It walks the whole key space and reads every job, and it takes no snapshot: use it in tests and for
diagnosis, while nothing else uses the app.
"""
