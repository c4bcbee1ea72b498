"""Streams of a receiver, by either face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio.to_thread


async def gather(face: str, stream: Any) -> list[Any]:
    if face == "aio":
        return [item async for item in stream]
    return await anyio.to_thread.run_sync(lambda: list(stream))


async def next_item(face: str, stream: Any) -> Any:
    return await (stream.__anext__() if face == "aio" else anyio.to_thread.run_sync(stream.__next__))


class Entered:
    """Enters a stream by either face: `with` or `async with`."""

    def __init__(self, face: str, stream: Any) -> None:
        self._face, self._stream = face, stream

    async def __aenter__(self) -> None:
        await (self._stream.__aenter__() if self._face == "aio" else anyio.to_thread.run_sync(self._stream.__enter__))

    async def __aexit__(self, *why: object) -> None:
        if self._face == "aio":
            await self._stream.__aexit__(*why)
        else:
            await anyio.to_thread.run_sync(self._stream.__exit__, *why)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")] if folder.exists() else []
