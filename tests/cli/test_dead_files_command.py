"""`penstock dead …` for the files that a receiver could not save."""

import json
from pathlib import Path

from penstock import Penstock
from penstock.cli.exits import Exit
from tests.command_line import Command


def test_dead_files_are_listed_shown_retried_and_removed(shop: Penstock, penstock: Command, tmp_path: Path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    (tmp_path / "in" / "a" / "x").mkdir(parents=True)
    (tmp_path / "in" / "b" / "x").mkdir(parents=True)
    shop.files("eu:logs").send([tmp_path / name for name in "abc"], receivers=["r"], close=True, source="web-1")
    receive = ("files", "receive", "--channel", "eu:logs", "--as", "r", "--into", f"{tmp_path / 'in'}")
    code, shown, notes = penstock(*receive)
    assert (code, "1 file saved" in shown, "a cannot be saved as" in notes) == (Exit.FAILED, True, True)
    where = "files:eu:logs:r"
    assert f"2 dead files: penstock dead ls {where}" in penstock("files", "ls", "eu:logs")[2]
    page = json.loads(penstock("dead", "ls", where, "--json")[1])
    assert [(one["name"], one["source"]) for one in page["files"]] == [("b", "web-1"), ("a", "web-1")]
    b, a = (f"{where}:{one['id']}" for one in page["files"])
    shown = penstock("dead", "ls", where)[1]
    assert a in shown
    assert "Is a directory" in shown
    assert "a of web-1" in penstock("dead", "show", a)[1]
    assert json.loads(penstock("dead", "show", a, "--json")[1])["name"] == "a"

    code, shown, complaint = penstock("dead", "retry", a, f"{where}:9")
    assert (code, "will be retried" in shown, "not a dead file" in complaint) == (Exit.FAILED, True, True)
    (tmp_path / "in" / "a" / "x").rmdir()
    (tmp_path / "in" / "a").rmdir()
    code, shown, _ = penstock(*receive)
    assert (code, "1 file saved" in shown, (tmp_path / "in" / "a").read_text()) == (Exit.OK, True, "a")

    assert penstock("dead", "rm", b)[0] == Exit.USAGE
    assert penstock("dead", "rm", b, "--yes")[0] == Exit.OK
    assert penstock("dead", "ls", where) == (Exit.OK, f"No dead files in {where}.\n", "")
    assert penstock("dead", "rm", "--all", where, "--yes")[0] == Exit.OK
    assert penstock("dead", "show", b)[0] == Exit.FAILED
    assert penstock("dead", "ls", "files:nothing")[0] == Exit.USAGE
    assert penstock("dead", "retry", "files:nothing")[0] == Exit.USAGE
