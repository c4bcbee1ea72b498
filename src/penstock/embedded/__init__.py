"""The embedded server: a Valkey or Redis for one project, started where no address is configured.

The modules of this folder, in reading order:

    client.py             attaches a process to the server of its project, and starts the server if necessary
    program.py            finds the server program, and its release
    writer.py             records which server wrote the data, and refuses a server that may be unable to read it
    keeper.py             the process that starts the server, and ends it when its last user is gone
"""
