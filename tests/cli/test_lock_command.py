"""`penstock lock ls` shows who holds what, and `lock break` takes locks from their owners."""

import json
import os
import threading

from penstock import Penstock
from tests.command_line import Run
from tests.servers import Server, eventually


def test_locks_and_who_waits_are_listed(run: Run, server: Server):
    with Penstock(server.address) as app:
        assert run("lock", "ls", PENSTOCK_URL=server.address).stdout == "No lock is held.\n"
        held = app.lock("{shop}:\x1b[31mtill", lease=60).acquire()
        server.client.set("theirs", "x")
        with app.lock("invoice:7", lease=60), app.lock("free", lease=60):
            waits = threading.Thread(target=lambda: app.lock("invoice:7", lease=60).acquire().release())
            waits.start()
            eventually(lambda: app.lock("invoice:7", lease=1).info().waiting)
            shown = run("lock", "ls", "--waiters", PENSTOCK_URL=server.address).stdout.splitlines()
            as_json = run("lock", "ls", "--json", "--url", server.address)
        waits.join()
        held.release()
    assert [line.split()[0] for line in shown if line[0] not in " ─"] == [
        "lock",
        "free",
        "invoice:7",
        "{shop}:\\x1b[31mtill",
    ]
    shown.pop(1)  # the ruler
    host = os.uname().nodename
    assert f"{host}:{os.getpid()}" in shown[2]
    assert f"{host}:{os.getpid()} waits" in shown[3]
    locks = json.loads(as_json.stdout)
    assert [(lock["name"], lock["waiting"]) for lock in locks] == [
        ("free", 0),
        ("invoice:7", 1),
        ("{shop}:\x1b[31mtill", 0),
    ]
    assert locks[1]["waiters"][0]["pid"] == locks[1]["holder"]["pid"] == os.getpid()
    server.client.flushall()


def test_locks_are_broken_by_name_by_prefix_and_by_host(run: Run, server: Server):
    host = os.uname().nodename
    with Penstock(server.address) as app:
        held = {name: app.lock(name, lease=60).acquire() for name in ("a:1", "a:2", "b:1", "c")}
        server.client.set("d", "penstock/elsewhere/7/x", px=600_000)
        server.client.set("penstock:{d}:lock:fence", 1, px=600_000)  # so that it is found

        def broken(*words: str, code: int = 0) -> list[str]:
            done = run("lock", "break", *words, PENSTOCK_URL=server.address)
            assert done.returncode == code, done.stderr
            return sorted(line.partition(" taken from ")[0] for line in done.stdout.splitlines())

        assert broken("a:1", code=2) == []
        assert server.client.get("a:1") == held["a:1"].token.encode()
        assert broken("a:1", "nothing", "--reason", "it hangs", "--yes") == ["a:1"]
        assert broken("--name-prefix", "a:", "--yes") == ["a:2"]
        nothing = ["No such lock is held."]
        assert broken("--name-prefix", "b", "--host", "elsewhere", "--yes", code=1) == nothing
        assert broken("c", "--process", f"{host}:1", "--yes", code=1) == nothing
        assert broken("--host", "elsewhere", "--yes") == ["d"]
        assert broken("--process", f"{host}:{os.getpid()}", "--yes") == ["b:1", "c"]
        assert broken("c", "--name-prefix", "c", "--yes", code=2) == broken("--yes", code=2) == []
        eventually(held["a:1"].lost.is_set)
        assert server.client.keys("[abcd]*") == []
    server.client.flushall()
