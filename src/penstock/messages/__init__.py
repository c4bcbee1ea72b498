"""Mailboxes and chats, and the log that both are built on.

In the server:

    log.lua               a log (core/log.lua) with readers; mailboxes, chats and file channels are built on it
    state.lua             its numbers and limits, packed into one row
    post.lua              posting, and the ids by which a message that is posted again is recognised
    dead_letters.lua      messages that their workers gave up
    history.lua           messages that are kept after all readers have acknowledged them, and pages of them;
                          redacted and edited messages
    own.lua               messages that do not count as unread: a member's own messages, and events
    waking.lua            wakes the readers and senders that wait for a log
    readers.lua           its readers and their devices, each with a cursor
    shared_reader.lua     several workers that share one reader
    chats.lua             a user's index of chats, and hints that a chat has new messages

In Python:

    keys.py               their keys
    constants.py          constants of their Lua
    bindings.py, replies.py
                          their scripts as round trips, and their replies
    message.py            messages, gaps and limits, as users read them
    log.py                operations on a log that take several round trips
    reader.py             a reader pulls, acknowledges and follows
    mailbox.py            the mailbox
    dead_messages.py      the dead letters of a mailbox
    chat.py               the group chat
    chats.py              creating chats, and all chats of a user
"""
