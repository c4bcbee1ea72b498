"""`penstock bench`: measures the cost of each operation, compared with bare round trips.

The modules of this folder, in reading order:

    topic.py              a topic is a list of scenarios
    rig.py                the server, the app and the yardsticks of a scenario
    run.py                one run of the bench
    placement.py          the CPU of each part
    usage.py              wall time and CPU seconds
    figures.py            figures, ratios, targets and statistics
    view.py               its output
    tasks.py              tasks that do nothing
    child.py              the app of its worker processes
    workers.py            worker processes, as a user starts them
    competitors.py        processes that do something at the same time, such as competing for a lock
    transfers.py          processes that transfer files, and for comparison bare SET and GET
"""
