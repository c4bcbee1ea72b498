"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# recorded, in durable.lua
RESULT: Final = b"r"
FAILED: Final = b"f"
WAITS: Final = b"w"
SIGNAL: Final = b"s"
TIMEOUT: Final = b"t"

# flow, in flow.lua
STOP: Final = b"s"
CONTINUE: Final = b"c"
INSTEAD: Final = b"i"
OPEN: Final = 1
WANTS: Final = 2
TOO_LARGE: Final = 4
TICK: Final = b":"

# history, in history.lua
ROWS_OF_10_S: Final = 360
ROWS_OF_A_MINUTE: Final = 1440
ROW_BYTES: Final = 52
WRAP: Final = 16777216

# intake, in intake.lua
MOST_BYTES: Final = 2048

# claim, in lease.lua
NUMBER_BYTES: Final = 6

# notes, in notes.lua
LOG_BYTES: Final = 16384

# outbox, in outbox.lua
FIELDS: Final = 4
EVENT: Final = b"event"

# record, in record.lua
FORMAT: Final = 2

# state, in record.lua
READY: Final = b"r"
DELAYED: Final = b"w"
RUNNING: Final = b"x"
DEAD: Final = b"d"
PARKED: Final = b"p"
WAITING: Final = b"a"

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

# ending, in results.lua
COMPLETED: Final = b"c"
CANCELLED: Final = b"n"
EXPIRED: Final = b"e"
DROPPED: Final = b"o"
NOTED: Final = b"N"

# keeping, in unique.lua
DONE: Final = b"d"
START: Final = b"s"
REPLACE: Final = b"r"
DEBOUNCE: Final = b"b"
THROTTLE: Final = b"t"
