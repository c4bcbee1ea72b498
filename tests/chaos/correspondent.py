"""A process in a chat, to be killed: `correspondent.py ADDRESS PREFIX FOLDER send|read NAME… MESSAGES`."""

from __future__ import annotations

import asyncio
import sys

from penstock import Penstock
from penstock.testing import History
from penstock.testing.history import Acked, Opened, Read, Sent, read


def send(app: Penstock, history: History, folder: str, who: str, messages: int) -> None:
    """Goes on where it was killed, or one before: the id of the message tells."""
    sent = [event for event in read(folder) if isinstance(event, Sent) and event.key.startswith(f"{who} ")]
    chat = app.chats.get("ops")
    for n in range(len(sent), messages):
        key = f"{who} {n}"
        history.note(Sent(log="ops", number=chat.send(who, key, id=key), key=key))


async def follow(app: Penstock, history: History, who: str, until: int) -> None:
    reader = app.chats.get("ops").reader(who)
    history.note(Opened(log="ops", reader=who))
    there = (await app.chats.get("ops").info.aio()).last
    last = there - await reader.unread.aio()  # all of it, if it was killed after its last acknowledgement
    while last < until:
        mail = await reader.pull.aio(50, wait=None)
        for message in mail:
            history.note(
                Read(log="ops", reader=who, number=message.id, key=message.body, missed=message.missed)
            )  # fmt: skip
        last = mail[-1].id
        await reader.ack.aio(last)
        history.note(Acked(log="ops", reader=who, number=last))


async def everyone(app: Penstock, history: History, names: list[str], until: int) -> None:
    async with app:
        await asyncio.gather(*(follow(app, history, name, until) for name in names))


if __name__ == "__main__":
    address, prefix, folder, role, *names, count = sys.argv[1:]
    app, history = Penstock(address, prefix=prefix), History(folder)
    if role == "send":
        send(app, history, folder, names[0], int(count))
    else:
        asyncio.run(everyone(app, history, names, int(count)))
