"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# barrier, in barrier.lua
WAIT: Final = 0
PASSED: Final = 1
BROKEN: Final = 2
MISMATCH: Final = 3
LATER: Final = 4
DIED: Final = b"d"
LEFT: Final = b"l"
TIMED_OUT: Final = b"t"
ABORTED: Final = b"a"
FORGOTTEN: Final = b"f"

# rate, in rate.lua
MOST_WAITERS: Final = 10000

# permit, in semaphore.lua
ALL: Final = 0
UNLIMITED: Final = 0
MOST_PERMITS: Final = 1000
