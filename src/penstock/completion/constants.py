"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# separator, in card.lua
FIELD: Final = b"\x00"
WORD: Final = b"\x01"
OLD: Final = b"\x02"
TEXT: Final = b"\x04"

# change, in directory.lua
LEAVING: Final = b"\x03"
