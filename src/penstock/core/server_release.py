"""The families of servers on which Penstock runs, and the oldest supported release of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

MINIMUM = {"valkey": (7, 2), "redis": (7, 0)}
"""The first versions with all the commands and script flags that Penstock uses."""


@dataclass(frozen=True, slots=True)
class ServerRelease:
    """The family of a server, `valkey` or `redis`, and its version."""

    family: str
    version: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> ServerRelease | None:
        """Read `valkey 9.1.2`, or the output of `valkey-server --version`. Returns None for any other text."""
        found = re.match(r"(valkey|redis) (?:server v=)?(\d+(?:\.\d+)*)", text, re.IGNORECASE)
        return cls(found[1].lower(), tuple(map(int, found[2].split(".")))) if found else None

    @property
    def is_supported(self) -> bool:
        return self.version >= MINIMUM[self.family]

    @property
    def text(self) -> str:
        """`valkey 9.1.2`, as `parse` reads it."""
        return f"{self.family} {'.'.join(map(str, self.version))}"

    def reads_data_of(self, writer: ServerRelease) -> bool:
        """Whether it can certainly read data files of `writer`: both are of one family, `writer` of no newer series."""
        return self.family == writer.family and self.version[:2] >= writer.version[:2]

    def __str__(self) -> str:
        return self.text.title()


def supported_releases() -> str:
    """`Valkey 7.2 or Redis 7.0, or newer`."""
    return " or ".join(str(ServerRelease(*oldest)) for oldest in MINIMUM.items()) + ", or newer"
