"""The demo: processes a web access log through a queue while one client floods the queue.

The modules of this folder, in reading order:

    log.py                the log that the demo reads
    tasks.py              its tasks, which record each run
    child.py              the app of its worker processes
    ledger.py             whether all counts agree
    run.py                one run of the demo
    view.py               its output
"""
