"""`penstock logs count`: counts access logs, in this process or in several.

The modules of this folder, in reading order:

    command.py            `penstock logs count`
    log_files.py          the logs that its arguments select, and the format of each
    file_counter.py       counts the lines of a log in its format
    local.py              one run of it in this process
    run.py                one run of it in several: a server, a channel, a sender and counters
    processes.py, child.py
                          these processes, and the program of each
    report.py, view.py    its result, and the progress and tables that it prints
    html_report.py        its report as one HTML page
"""
