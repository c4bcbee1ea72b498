"""The topics of the bench, one module each, with its `TOPIC`.

The modules of this folder, in reading order:

    jobs.py, completion.py, locks.py, messages.py, files.py
                          the scenarios of jobs
"""
