"""`penstock mailbox …`, and `penstock dead …` for mailboxes."""

import json

from penstock import History, Penstock
from penstock.cli.exits import Exit
from tests.command_line import Command

NAME = "a:b}\x1b[31m"


def test_mailboxes_are_listed_and_shown(shop: Penstock, penstock: Command):
    assert penstock("mailbox", "ls") == (Exit.OK, "There are no mailboxes.\n", "")
    box = shop.mailbox(NAME)
    box.post_many("abc", ids="xyz")
    box.claim(1)
    code, out, _ = penstock("mailbox", "ls", "--json")
    (one,) = json.loads(out)
    assert (code, one["name"], one["last"], one["unread"], one["claimed"], one["dead"]) == (Exit.OK, NAME, 3, 3, 1, 0)
    code, shown, _ = penstock("mailbox", "ls")
    assert code == Exit.OK
    assert shown.splitlines()[-1].split()[-8:-3] == ["3", "3", "1", "0", "105"]
    assert shown.endswith(" s ago\n")
    assert "\x1b" not in shown
    code, shown, _ = penstock("mailbox", "show", NAME)
    assert code == Exit.OK
    assert "3, the oldest given" in shown
    assert shown.splitlines()[-1].split()[0::5] == ["1", '"a"']
    found = json.loads(penstock("mailbox", "show", NAME, "--json")[1])
    assert (found["mailbox"]["ids"], [one["read_by"] for one in found["messages"]]) == (3, [0, 0, 0])
    assert len(json.loads(penstock("mailbox", "show", NAME, "--messages", "1", "--json")[1])["messages"]) == 1
    code, _, complaint = penstock("mailbox", "show", "nothing")
    assert (code, "no mailbox 'nothing'" in complaint) == (Exit.FAILED, True)


def test_messages_are_unread_again(shop: Penstock, penstock: Command):
    box = shop.mailbox("user:18")
    box.keep(history=History(10))
    box.post_many("abc")
    mail = box.pull()
    box.ack(upto=mail[-1])
    assert penstock("mailbox", "unread", "user:18", mail[1].id) == (Exit.OK, "2 messages of user:18 are unread.\n", "")
    assert [message.body for message in box.pull()] == ["b", "c"]
    chat = shop.chats.create(["ada", "bo"], sender="bo", message="one", id="ops", history=History(10))
    chat.send("bo", "two")
    mail = chat.reader("ada").pull()
    chat.reader("ada").ack(upto=mail[-1])
    said = "1 message of ada in ops is unread.\n"
    assert penstock("chat", "unread", "ops", "ada", mail[1].id) == (Exit.OK, said, "")
    assert penstock("chat", "unread", "ops", "cy", mail[1].id)[0] == Exit.FAILED
    for words in (("user:18", "nonsense"), ("nobody", mail[1].id)):
        code, _, complaint = penstock("mailbox", "unread", *words)
        assert (code in {Exit.USAGE, Exit.FAILED}, complaint.count("\n")) == (True, 1)


def test_dead_letters_of_a_mailbox_have_the_verbs_of_a_queues(shop: Penstock, penstock: Command):
    box = shop.mailbox(NAME)
    box.post_many(range(5), sender="ada")
    for item in box.claim(5):
        item.fail(f"no {item.body}")
    where = f"mailbox:{NAME}"
    code, out, _ = penstock("dead", "ls", where, "--limit", "4", "--json")
    page = json.loads(out)
    assert (code, page["total"], len(page["letters"])) == (Exit.OK, 5, 4)
    first, second, *_ = page["letters"]
    assert first["id"].startswith(f"{where}:")
    code, shown, _ = penstock("dead", "ls", where)
    assert (code, "\x1b" in shown) == (Exit.OK, False)
    code, shown, _ = penstock("dead", "show", first["id"])
    assert (code, first["reason"] in shown, "ada" in shown) == (Exit.OK, True, True)
    assert json.loads(penstock("dead", "show", first["id"], "--json")[1]) == first
    code, shown, complaint = penstock("dead", "retry", first["id"], f"{where}:9-9")
    assert (code, "requeued" in shown, "is not a dead letter" in complaint) == (Exit.FAILED, True, True)
    assert penstock("dead", "rm", second["id"], "--yes")[0] == Exit.OK
    assert box.dead.count() == 3
    assert penstock("dead", "show", second["id"])[0] == Exit.FAILED
    assert penstock("dead", "retry", "--all", where)[0] == Exit.USAGE
    code, shown, _ = penstock("dead", "retry", "--all", where, "--yes")
    assert (code, "3 dead letters" in shown, box.info().unread) == (Exit.OK, True, 4)
    assert penstock("dead", "retry", first["id"], "queue:x")[0] == Exit.USAGE
    assert penstock("dead", "rm", "mailbox:x", "--yes")[0] == Exit.USAGE
    assert penstock("dead", "ls", "mailbox:none")[0] == Exit.FAILED
    assert penstock("dead", "ls", where) == (Exit.OK, "No dead letters in mailbox:a:b}\\x1b[31m.\n", "")
