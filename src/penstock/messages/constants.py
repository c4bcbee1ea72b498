"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# log, in log.lua
FORMAT: Final = 1
MESSAGE_OVERHEAD: Final = 32
MAX_DEVICES: Final = 100
