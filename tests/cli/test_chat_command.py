"""`penstock chat ls`: the messages that chats keep, and the reader furthest behind."""

import json

from penstock import Penstock
from penstock.cli.exits import Exit
from tests.command_line import Command


def test_chats_are_listed_with_who_is_furthest_behind(shop: Penstock, penstock: Command):
    assert penstock("chat", "ls") == (Exit.OK, "There are no chats.\n", "")

    chat = shop.chats.create(["ada", "名前"], sender="bo", message="hi", id="a}b%\x1b[31m")
    for member in ("ada", "bo"):
        chat.reader(member).ack(chat.reader(member).pull()[-1])
    code, out, _ = penstock("chat", "ls", "--json")
    (one,) = json.loads(out)
    assert code == Exit.OK
    assert (one["chat"]["id"], one["chat"]["readers"], one["chat"]["last"]) == (chat.id, 3, 1)
    assert (one["last_reader"]["name"], one["last_reader"]["unread"]) == ("名前", 1)
    code, shown, _ = penstock("chat", "ls")
    assert code == Exit.OK
    assert "名前" in shown
    assert "never" in shown
    assert "\x1b" not in shown
