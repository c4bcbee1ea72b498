"""`penstock directory …`: names imported from a file, looked up and changed by hand."""

import io
import json
import os
import signal
from pathlib import Path

import pytest

from penstock import Entry, Penstock
from penstock.cli.exits import Exit
from penstock.terminal.names_file import LONGEST_LINE, RejectedLine, read_names
from tests.servers import Server, eventually

# --- a file of names ---


def test_each_line_is_a_name_or_says_why_it_is_none():
    lines = [
        b"\xef\xbb\xbfAnn",
        b"Bob\r",
        b"",
        b"Ma Smith\tu1",
        "名前\tu2\t2.5".encode(),
        b"\xff\xfe",
        b"a\x00b",
        b" ",
        b"Cy\tu3\tmuch",
        b"Cy\tu3\tnan",
        b"a\tb\t1\td\te",
        b"Cy\t",
        b"x" * 10_240,
        b"x" * 3 * LONGEST_LINE,
        b"Last",
    ]
    found = list(read_names(io.BytesIO(b"\n".join(lines))))
    assert [one for one in found if not isinstance(one, RejectedLine)] == [
        "Ann",
        "Bob",
        ("Ma Smith", "u1"),
        ("名前", "u2", 2.5),
        "Last",
    ]
    rejects = {one.number: one for one in found if isinstance(one, RejectedLine)}
    assert {number: one.reason for number, one in rejects.items()} == {
        6: "invalid UTF-8 at byte 1",
        7: r"name 'a\x00b' has a control character at 1: '\x00'; take it out",
        8: "name ' ' is empty: it needs a character that can be seen",
        9: "weight 'much': a number from 0 up",
        10: "weight 'nan': a number from 0 up",
        11: "5 columns: write a name, an id, a weight and a payload at most",
        12: "id '' is empty: it needs a character that can be seen",
        13: "name 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…' has 5,120 bytes, the limit is 1,024",
        14: "name 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…' has 5,120 bytes, the limit is 1,024",
    }
    assert rejects[6].line == b"\xff\xfe"
    assert len(rejects[14].line) == LONGEST_LINE


def test_a_line_may_have_a_weight_and_a_payload():
    lines = ["Ann\tu1\t\tdata", "Bo\tu2\t3\t{}", "Cy\tu3\t1\t", f"Di\tu4\t\t{'x' * 1025}", "Ed\tu5\t1e30"]
    *found, large, heavy = read_names(io.BytesIO("\n".join(lines).encode()))
    assert found == [("Ann", "u1", None, b"data"), ("Bo", "u2", 3, b"{}"), ("Cy", "u3", 1, "")]
    assert isinstance(large, RejectedLine)
    assert large.reason.startswith("payload of 1,025 bytes, the limit is 1,024")
    assert isinstance(heavy, RejectedLine)
    assert "weight" in heavy.reason


def test_an_empty_file_has_no_names():
    assert list(read_names(io.BytesIO(b""))) == list(read_names(io.BytesIO(b"\n\r\n\n"))) == []


# --- the commands ---


def test_a_file_is_imported_and_again(shop: Penstock, penstock, tmp_path: Path):
    (tmp_path / "names.txt").write_text("Ann\nMa Smith\tu1\n名前\tu2\t5\n", "utf-8")
    code, out, err = penstock("directory", "import", "guild:9", "names.txt")
    assert (code, out, err) == (Exit.OK, "3 names read, 3 new; guild:9 has 3 names.\n", "")
    code, out, err = penstock("directory", "import", "guild:9", "names.txt", "--json")
    report = json.loads(out)
    assert report.pop("seconds") >= 0
    assert report == {"directory": "guild:9", "read": 3, "new": 0, "names": 3, "rejected": 0, "rejects": None}
    assert shop.directory("guild:9").get("u1") == Entry("Ma Smith", "u1")
    assert [path.name for path in tmp_path.iterdir()] == ["names.txt"]


def test_lines_that_are_no_names_are_kept_with_number_and_reason(shop: Penstock, penstock, tmp_path: Path):
    bad = [b"\xff%d" % n for n in range(12)]
    (tmp_path / "names.txt").write_bytes(b"\n".join([b"Ann", *bad, b"a\tb\t1\td\te", b"Bo"]))
    code, out, err = penstock("directory", "import", "g", "names.txt")
    assert (code, out) == (Exit.FAILED, "2 names read, 2 new; g has 2 names.\n")
    assert err.splitlines()[0] == "penstock: line 2: invalid UTF-8 at byte 1"
    assert err.splitlines()[-1] == "penstock: 13 lines rejected, written to names.txt.rejects"
    assert len(err.splitlines()) == 11
    kept = (tmp_path / "names.txt.rejects").read_bytes().splitlines()
    assert kept[0] == b"2\tinvalid UTF-8 at byte 1\t\xff0"
    assert kept[-1].startswith(b"14\t5 columns")
    assert kept[-1].endswith(b"\ta\tb\t1\td\te")
    code, _, err = penstock("directory", "import", "g", "names.txt", "--rejects", "no/such/folder")
    assert code == Exit.USAGE
    assert "--rejects no/such/folder: cannot be written" in err


def test_settings_of_a_new_directory(shop: Penstock, penstock, tmp_path: Path):
    (tmp_path / "names.txt").write_text("Éric Smith\n", "utf-8")
    words = ("directory", "import", "g", "names.txt", "--words", "--ignore-accents", "--shards", "3")
    assert penstock(*words)[0] == Exit.OK
    assert [entry.name for entry in shop.directory("g").complete("smi eri")] == ["Éric Smith"]
    code, _, err = penstock("directory", "import", "g", "names.txt", "--shards", "2")
    assert code == Exit.USAGE
    assert "directory g was created with shards=3, and this program passes 2" in err
    shop.directory("g").clear()


def test_names_are_looked_up_and_changed_by_hand(shop: Penstock, server: Server, penstock):
    assert penstock("directory", "add", "g", "Ma Smith", "--id", "u1", "--weight", "5") == (
        Exit.OK,
        "Ma Smith is in g.\n",
        "",
    )
    penstock("directory", "add", "g", "Émile")
    penstock("directory", "add", "g", "Emil")
    assert penstock("directory", "count", "g")[1] == "3\n"
    assert penstock("directory", "count", "g", "e")[1] == "2\n"
    assert json.loads(penstock("directory", "count", "g", "--json")[1])["count"] == 3
    code, out, _ = penstock("directory", "complete", "g", "e")
    assert (code, out.splitlines()[2:]) == (Exit.OK, ["Emil   Emil", "Émile  Émile"])
    report = json.loads(penstock("directory", "complete", "g", "--limit", "1", "--json")[1])
    assert report[0]["name"] == "Emil"
    rest = json.loads(penstock("directory", "complete", "g", "--after", report[0]["cursor"], "--json")[1])
    assert [one["name"] for one in rest] == ["Émile", "Ma Smith"]
    assert json.loads(penstock("directory", "complete", "g", "emli", "--typos", "--json")[1])[0]["name"] == "Emil"
    assert json.loads(penstock("directory", "top", "g", "--json")[1])[0] | {"cursor": ""} == {
        "name": "Ma Smith",
        "id": "u1",
        "weight": 5.0,
        "payload": None,
        "cursor": "",
    }
    assert penstock("directory", "complete", "g", "x")[1] == "No name has this prefix.\n"
    assert penstock("directory", "bump", "g", "Emil", "2") == (Exit.OK, "Emil has the weight 2.\n", "")
    assert penstock("directory", "bump", "g", "u9") == (Exit.FAILED, "", "penstock: no id u9 in g\n")
    penstock("directory", "add", "g", "Émile", "--payload", "data")
    report = json.loads(penstock("directory", "complete", "g", "e", "--by", "weight", "--json")[1])
    assert [(one["name"], one["weight"], one["payload"]) for one in report] == [
        ("Emil", 2.0, None),
        ("Émile", 0.0, "data"),
    ]
    assert penstock("directory", "complete", "g", "e", "--by", "weight")[1].splitlines()[-1].split() == [
        "Émile",
        "Émile",
        "0",
    ]
    assert penstock("directory", "rename", "g", "u1", "Mo") == (Exit.OK, "u1 is now Mo.\n", "")
    assert penstock("directory", "rename", "g", "u9", "Mo") == (Exit.FAILED, "", "penstock: no id u9 in g\n")
    assert penstock("directory", "get", "g", "u1") == (Exit.OK, "Mo\n", "")
    assert penstock("directory", "get", "g", "u9", "--json") == (Exit.FAILED, "null\n", "")
    assert penstock("directory", "rm", "g", "u1", "u9") == (Exit.FAILED, "Removed 1 name from g.\n", "")
    code, _, err = penstock("directory", "rm", "g", "--all")
    assert code == Exit.USAGE
    assert f"removes all 2 names from g, at {server.address}, prefix {shop.settings.prefix!r}.\n" in err
    assert "add --yes" in err
    assert penstock("directory", "rm", "g")[0] == Exit.USAGE
    assert penstock("directory", "rm", "g", "--all", "--yes")[:2] == (Exit.OK, "Removed 2 names from g.\n")
    assert penstock("directory", "count", "g")[1] == "0\n"


def test_directories_are_listed(shop: Penstock, penstock):
    assert penstock("directory", "ls")[1] == "There are no directories.\n"
    shop.directory("guild:9").add("Ann")
    shop.directory("guild:10", shards=3, words=True).add_many(["Bo Lee", "Cy"])
    shop.contacts("user:1").touch("Ann")
    shop.queue("mail").put(1)
    report = json.loads(penstock("directory", "ls", "--json")[1])
    assert report == [{"name": "guild:10", "names": 2}, {"name": "guild:9", "names": 1}]
    assert penstock("directory", "ls")[1].splitlines()[2:] == ["guild:10       2", "guild:9        1"]
    assert "guild" not in penstock("queue", "ls")[1]
    shop.directory("guild:10").clear()
    shop.queue("mail").purge()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "g", ""), "is empty"),
        (("add", "g", "Ann", "--weight", "-1"), "a number from 0 up"),
        (("complete", "g", "a", "--limit", "-1"), "limit"),
        (("complete", "g", "a", "--after", "nothing"), "cursor"),
        (("count", "a b"), "directory name 'a b'"),
        (("import", "g", "no-such-file"), "no-such-file"),
    ],
)
def test_an_impossible_command_is_reported_in_one_line(shop: Penstock, penstock, words: tuple[str, ...], said: str):
    code, out, err = penstock("directory", *words)
    assert (code, out) == (Exit.USAGE, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("import", "g", "names.txt"), ("add", "g", "Ann")])
def test_in_a_fresh_folder_new_names_start_a_server_and_a_change_names_how(run, tmp_path: Path, words: tuple[str, ...]):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "names.txt").write_text("Ann\n")
    for change in (("bump", "g", "Ann"), ("rename", "g", "Ann", "Anna"), ("rm", "g", "Ann"), ("count", "g")):
        refused = run("directory", *change)
        assert (refused.returncode, refused.stdout) == (Exit.USAGE, "")
        assert "start one here: penstock server start" in refused.stderr
    assert not (tmp_path / ".penstock").exists()
    try:
        done = run("directory", *words)
        assert done.returncode == Exit.OK
        assert done.stderr.startswith("penstock: no --url and no PENSTOCK_URL: using this folder's own server")
        assert run("directory", "count", "g").stdout == "1\n"
    finally:
        run("server", "stop")


def test_an_import_that_was_killed_is_whole_and_run_again(server: Server, start, run, tmp_path: Path):
    """Of the process, in the middle of its work."""
    names = [f"Name {n}\tu{n}" for n in range(100_000)]
    (tmp_path / "names.txt").write_text("\n".join(names), "utf-8")
    where = {"PENSTOCK_URL": server.address, "PENSTOCK_PREFIX": "killed"}
    with Penstock(server.address, prefix="killed") as app:
        guild = app.directory("g")
        process = start("directory", "import", "g", "names.txt", **where)
        eventually(lambda: guild.count() >= 2_000, within=60)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        count = guild.count()
        assert 2_000 <= count < 100_000
        assert all(guild.get(f"u{n}") == Entry(f"Name {n}", f"u{n}") for n in (0, 1_000, count - 1))
        assert guild.get(f"u{count}") is None
        done = run("directory", "import", "g", "names.txt", **where)
        assert done.stdout == f"100,000 names read, {100_000 - count:,} new; g has 100,000 names.\n"
        guild.clear()
    for key in server.client.scan_iter("{killed:*"):
        server.client.delete(key)
