"""Django's migrations of the tables of the outbox and the inbox.

In reading order:

    m0001_tables.py       version 1 of the tables
"""
