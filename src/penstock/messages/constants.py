"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# log, in log.lua
FORMAT: Final = 4
MAX_DEVICES: Final = 100
OVERDUE: Final = b"overdue"

# own, in own.lua
CHUNK: Final = 256
BYTES: Final = 6

# events, in own.lua
MOST_EVENTS: Final = 10000

# ids, in post.lua
KEPT_MS: Final = 600000
PER_SENDER: Final = 10000
PER_LOG: Final = 100000
