"""The keys of a channel of files: those of its log, and what senders, receivers and aggregates keep beside it."""

from __future__ import annotations

from penstock.messages.keys import LOG

FILES = {
    **LOG,
    "ends": ("LIST", "bytes up to the end of each message that is there", "the last reader of a message"),
    "owners": ("HASH", "receiver -> the process that receives, and until when", "the receiver, or TTL"),
    "marks": ("HASH", "receiver -> where it is in the files it has begun", "the receiver, or TTL"),
    "sources": ("HASH", "what is sent -> how far, and by whom", "TTL, or who deletes the channel"),
    "sent_at": ("ZSET", "what is sent whole -> when; the last 10,000", "TTL, or who deletes the channel"),
    "vanished": ("ZSET", "receiver that was passed over -> its cursor", "the receiver"),
    "finished": ("ZSET", "receiver that has had all -> when", "TTL, or who deletes the channel"),
    "totals:": ("HASH", "lines, rejected, tables; one key a receiver", "who deletes the channel, or the counts"),
    "counts:": ("ZSET", "key -> count; one key a receiver and table", "who deletes the channel, or the counts"),
    "rejected:": ("LIST", "lines that were no good; one key a receiver", "who deletes the channel, or the counts"),
}
"""A channel of files: a log, and what sender, receivers and aggregates note beside it."""
