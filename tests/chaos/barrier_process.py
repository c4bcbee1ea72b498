"""A process that takes part in the meetings of a barrier, and reports how each of them ends.

    python barrier_process.py FACE ADDRESS PARTIES LEASE ROUNDS

It writes a line for each meeting: "passed INDEX" or "broken REASON".
"""

import asyncio
import sys

from penstock import Penstock
from penstock.errors import BarrierBroken
from penstock.info import BarrierPass

face, address = sys.argv[1:3]
app = Penstock(address)
barrier = app.barrier("chaos", parties=int(sys.argv[3]), lease=float(sys.argv[4]))
rounds = int(sys.argv[5])


def report(ended: BarrierPass | BarrierBroken) -> None:
    print(f"broken {ended}" if isinstance(ended, BarrierBroken) else f"passed {ended.index}", flush=True)


def meet() -> None:
    for _ in range(rounds):
        try:
            report(barrier.wait())
        except BarrierBroken as error:
            report(error)
    app.close()


async def meet_aio() -> None:
    for _ in range(rounds):
        try:
            report(await barrier.wait.aio())
        except BarrierBroken as error:
            report(error)
    await app.aclose()


if face == "aio":
    asyncio.run(meet_aio())
else:
    meet()
