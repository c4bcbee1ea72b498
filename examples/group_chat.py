"""A group chat in a terminal: three talk, one goes offline, and finds everything when it comes back.

python group_chat.py            the three of them, in one program
python group_chat.py ada        yourself, in a terminal of your own; others may do the same. An empty line ends it
"""

import asyncio
import sys

from penstock import Chat, ChatExists, Penstock

app = Penstock(prefix="example")


async def listen(chat: Chat, me: str, upto: int | None = None) -> None:
    """Print what was said; what I am shown is acknowledged, so I never see it twice."""
    async with chat.follow(me) as messages:
        async for message in messages:
            if message.missed:
                print(f"[{me}] {message.missed} messages were let go of before I came")
            print(f"[{me}] {message.id}. {message.sender}: {message.body}")
            if message.id == upto:
                break


async def scene() -> None:
    chat = await app.chats.create.aio(["ada", "bo"], sender="cy", message="Shall we meet at noon?")
    online = [asyncio.create_task(listen(chat, who, upto=4)) for who in ("ada", "cy")]
    await listen(chat, "bo", upto=1)
    print("[bo] goes offline")

    await chat.send.aio("ada", "Noon is fine")
    await chat.send.aio("cy", "At the fountain, then")
    await chat.send.aio("ada", "See you there")
    await asyncio.gather(*online)

    bo = chat.reader("bo")
    print(f"[bo] comes back, {await bo.unread.aio()} unread")
    await listen(chat, "bo", upto=4)

    print(f"kept for anybody: {(await chat.info.aio()).bytes} bytes")
    for member in await chat.members.aio():
        await chat.leave.aio(member.name)


async def talk(me: str) -> None:
    try:
        chat = await app.chats.create.aio([me], id="example")
    except ChatExists:
        chat = app.chats.get("example")
        await chat.join.aio(me, history=20)
    listening = asyncio.create_task(listen(chat, me))
    while text := (await asyncio.to_thread(sys.stdin.readline)).strip():
        await chat.send.aio(me, text)
    listening.cancel()
    await asyncio.wait([listening])


async def main() -> None:
    async with app:
        await (talk(sys.argv[1]) if len(sys.argv) > 1 else scene())


if __name__ == "__main__":
    asyncio.run(main())
