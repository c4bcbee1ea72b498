"""Reads back everything that an app keeps in the server, and compares it with itself and with the key tables.

`stored_keys.py` reads the keys; `instances.py` hands those of each queue, directory and log to the audit of its kind.
An audit only reads. It walks the whole key space and reads every job, and it takes no snapshot: use it in tests and for
diagnosis, while nothing else is at work.
"""
