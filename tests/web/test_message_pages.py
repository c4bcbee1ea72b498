"""What the dashboard answers about a chat, contacts, and the file that a receiver has begun."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock import History, Penstock
from penstock.cli import main
from penstock.testing import TemporaryServer
from penstock.web import dashboard
from tests.web.asking import act, acting, ask


def test_a_chat_shows_which_readers_have_read_a_message(app: Penstock):
    chat = app.chats.create(["ada", "bo", "di"], sender="cy", message="hi", id="ops: 1")
    chat.reader("bo", "phone").ack(chat.reader("bo", "phone").pull()[-1])
    chat.send("ada", {"card": "4111"})
    chat.redact("cy", chat.send("cy", "wrong"))
    found = ask(dashboard(app), "/api/chats/ops: 1").json()
    event, wrong, card, hi = found["messages"]
    assert [reader["name"] for reader in found["readers"] if reader["read"] >= hi["number"]] == ["bo"]
    assert (hi["read_by"], card["read_by"], card["sender"], hi["body"]) == (2, 1, "ada", '"hi"')
    assert (wrong["redacted"], event["event"]) == (True, "redact")
    assert chat.reader("di").unread() == 3
    masked = ask(dashboard(app, mask=lambda _: "…"), "/api/chats/ops: 1").text
    assert "4111" not in masked
    unknown = ask(dashboard(app), "/api/chats/oops")
    assert unknown.status_code == 404
    assert "no chat 'oops'" in unknown.json()["error"]
    assert "ops: 1" in unknown.json()["error"]


def test_a_mailbox_shows_which_messages_its_owner_has_read(app: Penstock):
    box = app.mailbox("user: 17")
    box.keep(history=History(10))
    box.post_many(["hi", {"card": "4111"}], sender="cy")
    box.ack(upto=box.pull()[0])
    found = ask(dashboard(app), "/api/mailboxes/user: 17").json()
    card, hi = found["messages"]
    assert (hi["read_by"], card["read_by"], found["read"], card["sender"], hi["body"]) == (1, 0, 1, "cy", '"hi"')
    assert (found["mailbox"]["unread"], box.unread()) == (1, 1)
    assert "4111" not in ask(dashboard(app, mask=lambda _: "…"), "/api/mailboxes/user: 17").text
    unknown = ask(dashboard(app), "/api/mailboxes/oops")
    assert (unknown.status_code, "no mailbox 'oops'" in unknown.json()["error"]) == (404, True)


def test_numbers_are_those_that_the_command_line_prints(
    app: Penstock, server: TemporaryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    app.chats.create(["ada", "bo"], sender="cy", message="hi", id="ops")
    app.mailbox("user:17").post_many("abc")
    app.contacts("user:17").touch("Zoë")
    app.directory("guild").add("Ann")
    (log := tmp_path / "access.log").write_bytes(b"x" * 1000)
    app.files("access").send([log], receivers=["agg"])

    def printed(*words: str) -> Any:
        assert main([*words, "--json", "--url", server.address, "--prefix", app.settings.prefix]) == 0
        return json.loads(capsys.readouterr().out)

    asgi = dashboard(app)
    messages = ask(asgi, "/api/messages").json()
    assert (messages["mailboxes"], messages["chats"]) == (printed("mailbox", "ls"), printed("chat", "ls"))
    assert ask(asgi, "/api/contacts").json()["names"] == printed("contacts", "ls")
    assert ask(asgi, "/api/contacts/user:17").json() == printed("contacts", "show", "user:17")
    assert ask(asgi, "/api/directories").json()["directories"] == printed("directory", "ls")
    assert ask(asgi, "/api/files").json()["channels"] == printed("files", "ls")
    for noun, path in (("chat", "chats/ops"), ("mailbox", "mailboxes/user:17")):
        shown, words = ask(asgi, f"/api/{path}").json(), printed(noun, "show", path.partition("/")[2])
        assert shown[noun] == words[noun]
        assert [one["number"] for one in shown["messages"]] == [one["number"] for one in words["messages"]]


def test_contacts_are_found_shown_and_removed(app: Penstock, caplog: pytest.LogCaptureFixture):
    for name in ("Zoë", "Ann"):
        app.contacts("user:17").touch(name)
    app.contacts("user:4").touch("Bo")
    asgi = acting(app)
    assert ask(asgi, "/api/contacts").json() == {"names": ["user:17", "user:4"], "total": 2}
    assert ask(asgi, "/api/contacts?q=R:1").json()["names"] == ["user:17"]
    assert ask(asgi, "/api/contacts/user:17").json() == {"name": "user:17", "contacts": ["Ann", "Zoë"], "total": 2}
    assert ask(asgi, "/api/contacts/user:17?q=zo").json()["contacts"] == ["Zoë"]
    assert ask(asgi, "/api/contacts/nobody").status_code == 404
    order: dict[str, Any] = {"action": "remove_contact", "names": ["user:17", "Zoë"]}
    assert act(asgi, **order).status_code == 409
    with caplog.at_level(logging.INFO, "penstock.audit"):
        assert act(asgi, **order, confirmed=True).json()["done"] == "1 contact removed"
    assert "remove_contact user:17, Zoë" in caplog.text
    assert app.contacts("user:17").list() == ["Ann"]
    assert act(asgi, action="remove_contact", names=["user:17"], confirmed=True).status_code == 400


def test_a_channel_names_the_file_that_a_receiver_has_begun(app: Penstock, tmp_path: Path):
    log = tmp_path / "access.log"
    log.write_bytes(b"x" * 1_000_000)
    app.files("access").send([log], receivers=["agg"])
    with app.files("access").receiver("agg").blocks() as blocks:
        for _ in range(3):
            next(blocks)
    ((receiver,),) = [one["receivers"] for one in ask(dashboard(app), "/api/files").json()["channels"]]
    (file,) = receiver["files"]
    assert (file["name"], file["size"]) == ("access.log", 1_000_000)
    assert 0 < file["received"] < 1_000_000
