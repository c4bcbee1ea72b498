"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# ending, in job.lua
COMPLETED: Final = b"c"
CANCELLED: Final = b"n"
EXPIRED: Final = b"e"
DROPPED: Final = b"o"

# claim, in lease.lua
CLAIM_DIGITS: Final = 12

# record, in record.lua
FORMAT: Final = 1

# state, in record.lua
READY: Final = b"r"
DELAYED: Final = b"w"
RUNNING: Final = b"x"
DEAD: Final = b"d"

# flag, in record.lua
CALL: Final = 1
DUE_IS_DATE: Final = 2
EXPIRES_IS_DATE: Final = 4
OWN_ID: Final = 8
SUSPECT: Final = 16
REASON: Final = 32

# size, in record.lua
GENERATION_DIGITS: Final = 10

# recovery, in recovery.lua
CRASH: Final = 64
