"""A group chat in a terminal: three members talk, one goes offline and finds everything when it returns.

python group_chat.py            all three members, in one program
python group_chat.py ada        one member, in a terminal of its own; start as many as you like. An empty line ends it
"""

import asyncio
import sys

from penstock import Chat, Penstock
from penstock.errors import ChatExists

app = Penstock(prefix="example")


async def listen(chat: Chat, member: str, upto: int | None = None) -> None:
    """Print messages. Each printed message is acknowledged, so it is never printed twice."""
    async with chat.follow(member) as messages:
        async for message in messages:
            if message.missed:
                print(f"[{member}] {message.missed} messages before this one were dropped")
            print(f"[{member}] {message.number}. {message.sender}: {message.body}")
            if message.number == upto:
                break


async def three_members() -> None:
    chat = await app.chats.create.aio(["ada", "bo"], sender="cy", message="Shall we meet at noon?")
    online = [asyncio.create_task(listen(chat, name, upto=4)) for name in ("ada", "cy")]
    await listen(chat, "bo", upto=1)
    print("[bo] goes offline")

    await chat.send.aio("ada", "Noon is fine")
    await chat.send.aio("cy", "At the fountain, then")
    await chat.send.aio("ada", "See you there")
    await asyncio.gather(*online)

    bo = chat.reader("bo")
    print(f"[bo] comes back, {await bo.unread.aio()} unread")
    await listen(chat, "bo", upto=4)

    print(f"still stored: {(await chat.info.aio()).bytes} bytes")
    for member in await chat.members.aio():
        await chat.leave.aio(member.name)


async def talk(name: str) -> None:
    try:
        chat = await app.chats.create.aio([name], id="example")
    except ChatExists:
        chat = app.chats.get("example")
        await chat.join.aio(name, history=20)
    listening = asyncio.create_task(listen(chat, name))
    while text := (await asyncio.to_thread(sys.stdin.readline)).strip():
        await chat.send.aio(name, text)
    listening.cancel()
    await asyncio.wait([listening])


async def main() -> None:
    async with app:
        await (talk(sys.argv[1]) if len(sys.argv) > 1 else three_members())


if __name__ == "__main__":
    asyncio.run(main())
