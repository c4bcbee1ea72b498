"""Contacts of a user and the directory of a group, completed while a user types."""

import asyncio

from penstock import Penstock

app = Penstock(prefix="example")

PEOPLE = [
    ("Émile Zola", "u1"),
    ("Emil Nolde", "u2"),
    ("Ma Smith", "u3"),
    ("한국", "u4"),
    ("名前", "u5"),
    ("Straße 7", "u6"),
]


async def main() -> None:
    async with app:
        contacts = app.contacts("user:17")
        for name in ("Zoë", "Zora", "Ann", "Zoë"):
            await contacts.touch.aio(name)
        print("contacts:", await contacts.complete.aio("zo"))

        guild = app.directory("guild:9", words=True)
        await guild.add_many.aio(PEOPLE)
        for typed in ("e", "é", "하", "名", "STRASSE", "smi"):
            print(typed, "->", [entry.name for entry in await guild.complete.aio(typed)])
        print("smiht ->", [entry.name for entry in await guild.complete.aio("smiht", typos=True)])

        await guild.rename.aio("u3", "Mara Smith")
        await guild.weigh.aio("u2", 5)
        await guild.bump.aio("u2")  # for example, each time that a user picks the name
        print("heaviest:", [(entry.name, entry.weight) for entry in await guild.complete.aio("e", by="weight")])
        await guild.set_payload.aio("u2", "painter")
        for entry in await guild.complete.aio("nol"):
            print("".join(f"[{piece}]" if matched else piece for piece, matched in entry.pieces()), entry.payload)
        print("of", await guild.count.aio(), "names u3 is", await guild.get.aio("u3"))

        await guild.clear.aio()
        for name in await contacts.list.aio():
            await contacts.remove.aio(name)


asyncio.run(main())
