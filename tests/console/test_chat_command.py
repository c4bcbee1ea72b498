"""`penstock chat ls`: what chats hold, and for whom."""

import json

from penstock.console.cli import main
from penstock.console.exits import Exit
from tests.conftest import Apps
from tests.servers import Server


def test_chats_are_listed_with_who_is_furthest_behind(apps: Apps, server: Server, monkeypatch, tmp_path, capsys):
    app = apps.make()
    monkeypatch.setenv("PENSTOCK_URL", server.address)
    monkeypatch.setenv("PENSTOCK_PREFIX", app.settings.prefix)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    assert main(["chat", "ls"]) == Exit.OK
    assert capsys.readouterr().out.strip() == "No chat here."

    chat = app.chats.create(["ada", "名前"], sender="bo", message="hi", id="a}b%\x1b[31m")
    chat.reader("ada").ack(1)
    chat.reader("bo").ack(1)
    assert main(["chat", "ls", "--json"]) == Exit.OK
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["chat"]["id"], one["chat"]["readers"], one["chat"]["last"]) == (chat.id, 3, 1)
    assert (one["last_reader"]["name"], one["last_reader"]["unread"]) == ("名前", 1)
    assert main(["chat", "ls"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "名前" in shown
    assert "never" in shown
    assert "\x1b" not in shown
    app.close()
