"""The output of a job, for its page: the newest chunks, further ones as they come, and earlier ones on demand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.jobs.output import JobOutput, OutputPart
from penstock.ops.inspect import Inspector
from penstock.sealing import Sealed
from penstock.web.answers import Mask, cut_text, masked, said

PAGE = 200
"""Chunks that a page gets at first, and each time that it asks for earlier ones."""

MOST_TEXT = 100_000
"""The most characters of these chunks together. The earliest ones that exceed it are left out, until the page asks for
them."""

FOLLOWED = 5.0
"""Seconds for which an answer waits for further chunks, and after which it fetches no more of them."""

MOST_FETCHES = 8
"""Fetches for one answer. Five return the longest page that is stored."""


async def output_of(
    ask: Inspector,
    job_id: str,
    mask: Mask | None,
    *,
    after: str | None = None,
    before: str | None = None,
    follows: bool = False,
) -> dict[str, Any]:
    """The newest chunks of a job, those `after` a position, or those just `before` one. `follows`: wait for the first.

    Raises JobNotFound, and BadCall for a malformed position. A mask is called for each chunk.
    """
    wait = FOLLOWED if follows else 0.0
    if after is not None:
        stream = ask.jobs.output(job_id, after=after)
        parts = await stream.fetch.aio(wait)
        return {"parts": _shown(parts, mask), "earlier": False, "ended": stream.has_ended}
    if before is not None:
        return await _before(ask, job_id, before, mask)
    stream = ask.jobs.output(job_id, last=PAGE)
    return _page(await _fetched(stream, wait), mask, has_ended=stream.has_ended)


async def _before(ask: Inspector, job_id: str, before: str, mask: Mask | None) -> dict[str, Any]:
    """The chunks just before a position: all up to it, or none and `earlier`, so that the page can ask again."""
    first, began = _numbers(before)
    start = first - 1 - PAGE
    stream = ask.jobs.output(job_id, after=f"{start}-{began}" if start > 0 else None)
    found = await _fetched(stream, 0.0, first - 1)
    # A later job with this id has an output of its own, whose chunks are not those before this position.
    parts = [part for part in found if _numbers(part.id)[1] == began]
    if parts and _numbers(parts[-1].id)[0] < first - 1:
        return {"parts": [], "earlier": True, "ended": False}
    parts = [part for part in parts if _numbers(part.id)[0] < first]
    return _page(parts, mask, has_ended=stream.has_ended)


async def _fetched(stream: JobOutput, wait: float, end: int | None = None) -> list[OutputPart]:
    """A page of parts, or those up to the number `end`, and perhaps some more. `wait`: for the first.

    One deadline and a number of fetches bound it, because a job may emit faster than this fetches.
    """
    deadline, parts = time.monotonic() + FOLLOWED, list[OutputPart]()
    for _ in range(MOST_FETCHES):
        more = await stream.fetch.aio(0.0 if parts else wait)
        parts += more
        if not more or len(parts) >= PAGE or time.monotonic() >= deadline:
            break
        if end is not None and _numbers(parts[-1].id)[0] >= end:
            break
    return parts


def _page(parts: Sequence[OutputPart], mask: Mask | None, *, has_ended: bool) -> dict[str, Any]:
    shown = _shown(parts, mask)
    is_cut = _cut(shown)
    if shown and shown[0]["missed"]:
        shown[0]["missed"] = _numbers(shown[0]["id"])[0] - 1  # all that are gone, not only those of this page
    has_earlier = bool(shown) and _numbers(shown[0]["id"])[0] > 1 and not shown[0]["missed"]
    return {"parts": shown, "earlier": is_cut or has_earlier, "ended": has_ended}


def _numbers(position: str) -> tuple[int, str]:
    number, _, began = JobOutput._position("output", position).partition("-")
    return int(number), began


def _shown(parts: Sequence[OutputPart], mask: Mask | None) -> list[dict[str, Any]]:
    return [
        {"id": part.id, "attempt": part.attempt, "at": part.at, "missed": part.missed, "text": _text(part.chunk, mask)}
        for part in parts
    ]


def _text(chunk: Any, mask: Mask | None) -> str:
    if isinstance(chunk, Sealed):
        return f"({chunk})\n"
    if isinstance(chunk, str):
        return said(chunk, mask)
    return cut_text(msgspec.json.encode(masked(chunk, mask), enc_hook=str).decode()) + "\n"


def _cut(shown: list[dict[str, Any]]) -> bool:
    """Delete the earliest chunks, so that the others have at most MOST_TEXT characters. Returns whether it did."""
    room, kept = MOST_TEXT, len(shown)
    while kept and (room >= len(shown[kept - 1]["text"]) or kept == len(shown)):
        kept -= 1
        room -= len(shown[kept]["text"])
    del shown[:kept]
    return kept > 0
