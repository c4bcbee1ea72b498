"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""

from typing import Final

# kind, in channel.lua
BEGIN: Final = b"B"
DATA: Final = b"D"
END: Final = b"E"
ABORT: Final = b"A"
CLOSE: Final = b"C"
