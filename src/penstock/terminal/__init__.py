"""The parts that the command line, the bench and the demo share: tables, progress, signals, and input files.

The modules of this folder, in reading order:

    tables.py             answers as tables or JSON
    progress.py           progress on stderr
    signals.py            Ctrl-C and SIGTERM
    names_file.py         reads a file of names
    made_up_log.py        generates an access log
"""
