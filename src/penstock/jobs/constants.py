"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# request, in cancelling.lua
GONE: Final = 0
STORED: Final = 1
NOTIFIED: Final = 2

# failure, in children.lua
EXCEEDS: Final = b"L"

# recorded, in durable.lua
RESULT: Final = b"r"
FAILED: Final = b"f"
WAITS: Final = b"w"
SIGNAL: Final = b"s"
TIMEOUT: Final = b"t"
CHILD: Final = b"c"
ANSWER: Final = b"a"
FAILURE: Final = b"e"
PATCH: Final = b"p"

# failure, in failures.lua
LONGEST: Final = 12288
ARGUMENTS: Final = 4096

# outcome, in failures.lua
POSTPONED: Final = b"p"
UNREAD: Final = b"u"
LOST: Final = b"l"
EDITED: Final = b"e"

# finished, in finished.lua
TURN: Final = b"t"
ROW: Final = b"r"
PURGE: Final = b"p"
FAILED_ATTEMPTS: Final = b"f"
LINKS: Final = b"l"
SEGMENT: Final = 10
BLOCKS: Final = 64
KEPT_RECORD: Final = 4096

# flow, in flow.lua
STOP: Final = b"s"
CONTINUE: Final = b"c"
INSTEAD: Final = b"i"
OPEN: Final = 1
WANTS: Final = 2
TOO_LARGE: Final = 4
OVERDUE: Final = b"overdue:"

# history, in history.lua
ROWS_OF_10_S: Final = 360
ROWS_OF_A_MINUTE: Final = 1440
ROW_BYTES: Final = 52
WRAP: Final = 16777216

# hold, in holds.lua
LONGEST_HOLD: Final = 31622400000
UNKNOWN_RATE: Final = -1
OUT_OF_RANGE: Final = -2

# intake, in intake.lua
MOST_BYTES: Final = 2048

# claim, in lease.lua
NUMBER_BYTES: Final = 6

# claim, in lease.lua
CLAIM: Final = {
    "number": (0, 6),
    "at": (6, 6),
    "flags": (12, 1),
    "ttl": (13, 5),
    "tenant": (18, 0),
}

# token, in lease.lua
TOKEN: Final = {
    "number": (0, 6),
    "id": (6, 0),
}

# notes, in notes.lua
LOG_BYTES: Final = 16384

# outbox, in outbox.lua
FIELDS: Final = 4
EVENT: Final = b"event"
OFFER: Final = b"outbox:"

# output, in output.lua
KEPT_BYTES: Final = 1048576
KEPT_CHUNKS: Final = 100000

# block, in output.lua
BLOCK: Final = {
    "at": (0, 8),
    "count": (8, 4),
    "missed": (12, 4),
    "attempt": (16, 2),
    "claim": (18, 8),
    "last": (26, 8),
    "ended": (34, 8),
    "freed": (42, 8),
    "begun": (50, 8),
}

# pause, in pauses.lua
PAUSED: Final = b"1"
RESUMED: Final = b"2"

# pause, in pauses.lua
PAUSE: Final = {
    "status": (0, 1),
    "at": (1, 6),
    "by": (7, 0),
}

# position, in queue.lua
BURIED: Final = 32768

# receipt, in receipts.lua
ACCEPTED: Final = b"a"
KNOWN: Final = b"k"
TOO_OLD: Final = b"o"
KEPT: Final = 604800000

# record, in record.lua
FORMAT: Final = 3
TAILED: Final = 128
TAIL_BYTES: Final = 19

# state, in record.lua
READY: Final = b"r"
DELAYED: Final = b"w"
RUNNING: Final = b"x"
DEAD: Final = b"d"
PARKED: Final = b"p"
WAITING: Final = b"a"
SLEEPING: Final = b"s"

# draft, in record.lua
DUE_IS_DATE: Final = 1
EXPIRES_IS_DATE: Final = 2
OWN_ID: Final = 4

# flag, in record.lua
CALL: Final = 1
SUSPECT: Final = 2
REASON: Final = 4
NOTES: Final = 8
LIMITED: Final = 16
UNIQUE: Final = 128

# power, in record.lua
UNIQUE_KEY: Final = 1
LIMITS: Final = 2
AFTER_OTHERS: Final = 4
TAGS: Final = 8
SEALED: Final = 16
IN_SHARDS: Final = 128
OPAQUE: Final = 24
READABLE: Final = 159

# record, in record.lua
RECORD: Final = {
    "format": (0, 1),
    "state": (1, 1),
    "generation": (2, 6),
    "since": (8, 6),
    "flags": (14, 1),
    "priority": (15, 1),
    "powers": (16, 1),
    "ttl": (17, 5),
    "tenant": (22, 0),
}

# tail, in record.lua
TAIL: Final = {
    "enqueued": (0, 6),
    "expires": (6, 6),
    "attempts": (12, 2),
    "deliveries": (14, 2),
    "losses": (16, 1),
    "crashes": (17, 1),
    "host_deaths": (18, 1),
}

# draft, in record.lua
DRAFT: Final = {
    "format": (0, 1),
    "how": (1, 1),
    "due": (2, 6),
    "expires": (8, 6),
}

# entry, in record.lua
ENTRY: Final = {
    "generation": (0, 6),
    "class": (6, 1),
    "id": (7, 0),
}

# ending, in results.lua
COMPLETED: Final = b"c"
CANCELLED: Final = b"n"
EXPIRED: Final = b"e"
DROPPED: Final = b"o"
NOTED: Final = b"N"

# scheduled, in schedule.lua
SCHEDULED: Final = {
    "ended": (0, 6),
    "started": (6, 6),
    "letter": (12, 1),
    "tick": (13, 0),
}

# keeping, in unique.lua
DONE: Final = b"d"
LATEST: Final = b"l"
START: Final = b"s"
REPLACE: Final = b"r"
DEBOUNCE: Final = b"b"
THROTTLE: Final = b"t"
