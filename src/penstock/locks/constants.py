"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# permit, in semaphore.lua
ALL: Final = 0
UNLIMITED: Final = 0
