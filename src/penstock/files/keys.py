"""The keys of a channel of files: those of its log, and further ones for senders, receivers and aggregates."""

from __future__ import annotations

from penstock.core.keys import TABLES
from penstock.messages.keys import LOG

FILES = {
    **LOG,
    "ends": ("LIST", "bytes up to the end of each record that is stored", "the last reader of a record"),
    "owners": ("HASH", "receiver -> the process that receives, and when its lease ends", "the receiver, or TTL"),
    "marks": ("HASH", "receiver -> its progress in the files that have begun", "the receiver, or TTL"),
    "entries": ("HASH", "id -> a file, the progress of its upload, and its sender", "TTL, or the channel's deletion"),
    "sources": ("HASH", "inode, path or first bytes of a file -> its entries", "TTL, or the deletion of the channel"),
    "sent_at": ("ZSET", "entry of a file that was sent -> when; the last 100,000", "TTL, or the channel's deletion"),
    "vanished": ("ZSET", "receiver that was passed over -> its cursor", "the receiver"),
    "finished": ("ZSET", "receiver that has received everything -> when", "TTL, or the deletion of the channel"),
    "dead_files": ("HASH", "receiver and id -> a file that could not be saved", "its removal, or the receiver"),
    "totals:": ("HASH", "lines, rejected, tables; one key a receiver", "the deletion of the channel or counts"),
    "counts:": ("ZSET", "key -> count; one key a receiver and table", "the deletion of the channel or counts"),
    "values:": ("HASH", "key -> exact sum, first or last value; one key a table", "the deletion of counts, or TTL"),
    "uniques:": ("STRING", "different texts (HyperLogLog); one key a table and key", "the deletion of counts"),
    "deposited:": ("LIST", "counts that are added piece by piece; one key a receiver", "TTL, or their addition"),
    "deposited_sums:": (
        "HASH",
        "what deposited pieces will add; one key a receiver",
        "TTL, or the commit of the deposit",
    ),
    "windows:": ("ZSET", "table of a window -> when it expires; one key a receiver", "the deletion of counts"),
    "rejected:": ("LIST", "rejected lines; one key a receiver", "the deletion of the channel or counts"),
    "uncounted:": ("HASH", "id -> a dead batch; one key a receiver", "its removal, or the deletion of counts"),
    "uncounted_lines:": ("HASH", "id -> its lines; one key a receiver", "its removal, or the deletion of counts"),
    "retries:": ("SET", "dead batches that the next run tries again", "that run, or the deletion of counts"),
}
"""A channel of files: a log, and further keys for its senders, receivers and aggregates."""

TABLES["files"] = FILES
