"""A process in which many readers wait. It prints a line for each message that one of them gets.

python waiting_process.py ADDRESS PREFIX chat|chats|claim NAME COUNT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from penstock import Penstock


async def main(address: str, prefix: str, kind: str, name: str, count: int) -> None:
    async with Penstock(address, prefix=prefix) as app:

        async def wait(n: int) -> None:
            waits: dict[str, Any] = {
                "chat": lambda: app.chats.get(name).reader(f"m{n}").pull.aio(wait=None),
                "chats": lambda: app.chats.of(f"m{n}").pull.aio(wait=None),
                "claim": lambda: app.mailbox(name).claim.aio(wait=None),
            }
            for message in await waits[kind]():
                print(message.body, flush=True)

        await asyncio.gather(*map(wait, range(count)))


if __name__ == "__main__":
    address, prefix, kind, name, count = sys.argv[1:]
    asyncio.run(main(address, prefix, kind, name, int(count)))
