"""The topics of the bench, one module each, with its `TOPIC`.

The modules of this folder, in reading order:

    jobs.py               the scenarios of jobs
    powers.py             what limits, unique keys, flows, children, output and seals cost, compared with plain jobs
    completion.py, locks.py, messages.py, files.py
                          the scenarios of the other components
"""
