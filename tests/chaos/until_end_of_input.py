"""How a process of the chaos tests ends: when its standard input is closed."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock import Penstock


def run(
    app: Penstock,
    over: threading.Event,
    *,
    on_loop: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    in_threads: Sequence[Callable[[], None]] = (),
) -> None:
    """Work on an event loop, or in threads, until `over` is set because the standard input was closed."""

    async def work_on_loop() -> None:
        await asyncio.gather(*(work() for work in on_loop))
        await app.aclose()

    def wait_for_end_of_input() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    if on_loop:
        asyncio.run(work_on_loop())
        return
    threads = [threading.Thread(target=work) for work in in_threads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.close()
