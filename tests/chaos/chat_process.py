"""A process that sends to or reads from a chat, for a test that kills it.

python chat_process.py ADDRESS PREFIX FOLDER send|read NAME… MESSAGES
"""

from __future__ import annotations

import asyncio
import sys

from penstock import Penstock
from penstock.messages.message import number_of
from penstock.testing import History
from penstock.testing.history import Acknowledged, MessageRead, MessageSent, ReaderOpened, read


def send(app: Penstock, history: History, folder: str, name: str, messages: int) -> None:
    """Send the messages that the history lacks.

    If the process was killed between a send and its record, it sends that message once more under the same id.
    """
    sent = [event for event in read(folder) if isinstance(event, MessageSent) and event.key.startswith(f"{name} ")]
    chat = app.chats.get("ops")
    for n in range(len(sent), messages):
        key = f"{name} {n}"
        history.note(MessageSent(log="ops", number=number_of(chat.send(name, key, id=key)), key=key))


async def follow(app: Penstock, history: History, name: str, until: int) -> None:
    reader = app.chats.get("ops").reader(name)
    history.note(ReaderOpened(log="ops", reader=name))
    newest = (await app.chats.get("ops").info.aio()).last
    last = newest - await reader.unread.aio()  # everything, if it was killed after its last acknowledgement
    while last < until:
        mail = await reader.pull.aio(50, wait=None)
        for message in mail:
            history.note(
                MessageRead(log="ops", reader=name, number=message.number, key=message.body, missed=message.missed)
            )
        last = mail[-1].number
        await reader.ack.aio(mail[-1])
        history.note(Acknowledged(log="ops", reader=name, number=last))


async def follow_all(app: Penstock, history: History, names: list[str], until: int) -> None:
    async with app:
        await asyncio.gather(*(follow(app, history, name, until) for name in names))


if __name__ == "__main__":
    address, prefix, folder, role, *names, count = sys.argv[1:]
    app, history = Penstock(address, prefix=prefix), History(folder)
    if role == "send":
        send(app, history, folder, names[0], int(count))
    else:
        asyncio.run(follow_all(app, history, names, int(count)))
