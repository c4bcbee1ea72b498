"""Files of any size, sent to many receivers through a fixed amount of memory in the server.

In the server:

    channel.lua           a channel: a log of records, and further keys
    upload.lua            the scripts of a sender
    download.lua          the scripts of a receiver
    counts.lua            the counts of aggregates
    uncounted.lua         batches that an aggregate could not count
    deposits.lua, settlement.py
                          counts of many keys, which are committed at once and added piece by piece
    dead_files.lua, dead_files.py
                          files that a receiver could not save

In Python:

    keys.py               their keys
    constants.py          constants of their Lua
    records.py            the contents of the records of a channel
    bindings.py, count_bindings.py, replies.py
                          their scripts as round trips, and their replies
    channel.py            the channel, as users see it
    source.py             paths become files to send
    regular_file.py       opens a file safely, and recognises it after a rename
    source_reader.py      an open file becomes blocks
    gunzip.py, unpack.py  inflate gzip, Zstandard, bzip2 and xz in bounded pieces
    rotation.py           the names of rotated logs
    recognition.py        which files were sent before, whatever they are called now
    marks.py              the ends of earlier uploads of a log
    following.py          logs that are sent while they are written
    upload.py             one file on its way into the channel
    sender.py             the files that are left to send, one after the other
    receiver.py           a receiver, and the streams that it offers
    stream.py             the items of a receiver, whichever of the next two delivers them
    record_hooks.py       what a stream makes of the records
    exclusive_stream.py   a process that receives alone
    shared_stream.py      several processes that share a receiver
    download.py           the progress of a receiver, also inside a file
    partial_files.py      files on the local disk that are not complete yet
    leases.py             the leases that receiving processes renew
    earlier_text.py       text that a saved log must not replace
    saving.py             saves files in a folder
    lines.py              cuts bytes into lines
    batches.py            lines in batches, one block each
"""
