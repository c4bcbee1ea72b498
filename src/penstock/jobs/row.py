"""The row of a queue as Python reads it, for audits. `row.lua` explains it; scripts are the only ones that write it."""

from __future__ import annotations

import msgspec


class Wake(msgspec.Struct, array_like=True, frozen=True):
    """The idle workers in the row, in the order of `_wake` in wake.lua; a value that is not known is False."""

    woken: float | bool
    woken_deputy: str | bool
    woken_deputy_at: float | bool
    timekeeper: str | bool
    timekeeper_until: float | bool
    deputy: str | bool
    deputy_until: float | bool
    alarm: float | bool
    checked: float | bool
    alone: str | bool
    alone_until: float | bool
    listed: bool


class Row(msgspec.Struct, array_like=True, frozen=True):
    """The numbers of the row, in the order of `_row`."""

    idle_until: float
    paused: int
    due_first: int
    sequence: int
    ready: int
    delayed: int
    running: int
    dead: int
    completed: int
    retried: int
    failed: int
    dropped: int
    cancelled: int
    expired: int
    lost: int
    front: int
    suspects: int
    next_due: float
    next_lease: float
    next_result: float
    result_classes: float
    second: float
    second_ready: int
    listened: int
    unnotified: int
    weighted: int
    levels: list[float] | dict[str, int]
    """Level, entries and virtual time for each level. An empty array of Lua arrives as an empty map."""
    next_tick: float = 0
    wake: Wake | bool = False
    # If a later field exists, because the queue has batches or flows, say, a field before it may be False.
    parked: int | bool = 0
    next_admission: float | bool = 0
    limited: int | bool = 0
    pauses: int | bool = 0
    batch: list[float] | bool = False
    flows: int | bool = 0
    dependent: int | bool = 0
    sleeping: int | bool = 0
    next_expiry: float | bool = 0
    bound: list[int] | bool = False

    @property
    def alone(self) -> str:
        """The address of the only idle worker; empty if none or several are idle."""
        return (isinstance(self.wake, Wake) and str(self.wake.alone or "")) or ""

    def entries(self) -> dict[int, int]:
        """Level -> entries in all of its lists."""
        levels = self.levels
        if isinstance(levels, dict):
            return {}
        return {int(level): int(n) for level, n in zip(levels[::3], levels[1::3], strict=True)}


class _Packed(msgspec.Struct, array_like=True):
    format: int
    is_open: int
    row: Row
    next_history: float
    entered: int
    has_ttl: int


_SIX_VALUES = msgspec.msgpack.Decoder(_Packed)


def read_row(packed: bytes) -> Row:
    """Reads what `row.store` writes: six values that follow each other."""
    return _SIX_VALUES.decode(b"\x96" + packed).row
