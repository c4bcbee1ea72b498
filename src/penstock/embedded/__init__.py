"""The embedded server: a Valkey or Redis for one project, started where no address is configured.

The modules of this folder, in reading order:

    client.py             the folder's own server, where no address is configured
    program.py            which server program that is, and its release
    writer.py             which server wrote the data, and which may read it
    keeper.py             the process that starts this server and ends it with its last user
"""
