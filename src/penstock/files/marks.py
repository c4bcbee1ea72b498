"""The ends of earlier uploads of a log. They identify a copy that was made before the last lines were sent.

Such a copy ends somewhere between two uploads. A program may send a log many times while it is copied, so a log keeps
the marks of many uploads: up to 16, spaced more closely towards the end of the log. If the log has grown
by N bytes since the copy was made, one of the marks is some 2 N bytes before its end, whatever its size.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.files.records import chain_digest

MOST_MARKS: Final = 16

_DIGEST_BYTES: Final = 16


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The end of an upload. `digest`: of everything before `offset`, the first half of a `chain_digest`."""

    offset: int
    digest: bytes


def mark_at(offset: int, chain: bytes, window_digest: bytes) -> Mark:
    """`chain`: digest of everything before the window that ends at the mark; `window_digest`: SHA-256 of the window."""
    return Mark(offset, chain_digest(chain, window_digest)[:_DIGEST_BYTES])


def with_mark(marks: tuple[Mark, ...], mark: Mark) -> tuple[Mark, ...]:
    """The marks and a later one. If there are too many, drops one whose neighbours are close to each other."""
    if marks and marks[-1].offset >= mark.offset:
        return marks
    kept = [*marks, mark]
    if len(kept) > MOST_MARKS:

        def gap(at: int) -> float:
            """The distance between the neighbours, as a fraction of the distance to the end."""
            before, after = kept[at - 1].offset, kept[at + 1].offset
            return (after - before) / (mark.offset - before)

        del kept[min(range(1, len(kept) - 1), key=gap)]
    return tuple(kept)
