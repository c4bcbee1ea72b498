"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# log, in log.lua
ENTRY_OVERHEAD: Final = 32
