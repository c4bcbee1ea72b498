"""`penstock dead …` for the batches that an aggregate could not count."""

import json
from pathlib import Path

from penstock import Penstock
from penstock.cli.exits import Exit
from penstock.files.batches import LineBatch
from tests.command_line import Command


def test_dead_batches_are_listed_shown_retried_and_removed(shop: Penstock, penstock: Command, tmp_path: Path):
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(b"line \x1b %d\n" % n for n in range(20)))
    mended = False

    @shop.aggregate("eu:logs", receiver="hits", max_attempts=1)
    def hits(lines: LineBatch) -> dict[str, dict[str, int]]:
        if not mended:
            raise ValueError("a bad \x1b batch")
        return {"hits": {"all": len(lines)}}

    shop.files("eu:logs").send_lines(log, receivers=["hits"], source="web-1")
    hits.run(wait=0.1)
    where = "counts:eu:logs:hits"
    code, shown, hint = penstock("files", "ls", "eu:logs")
    assert (code, "dead" in shown, f"1 dead batch: penstock dead ls {where}" in hint) == (Exit.OK, True, True)
    page = json.loads(penstock("dead", "ls", where, "--json")[1])
    assert (page["total"], page["batches"][0]["lines"], page["batches"][0]["error"]) == (
        1,
        20,
        "ValueError: a bad \x1b batch",
    )
    code, shown, _ = penstock("dead", "ls", where)
    assert (code, f"{where}:1" in shown, "1 to 20" in shown, "\x1b" in shown) == (Exit.OK, True, True, False)
    code, shown, _ = penstock("dead", "show", f"{where}:1")
    assert (code, "web-1" in shown, "line \\x1b 9" in shown, "10 more lines" in shown) == (Exit.OK, True, True, True)
    assert len(json.loads(penstock("dead", "show", f"{where}:1", "--json")[1])["lines"]) == 20

    code, shown, complaint = penstock("dead", "retry", f"{where}:1", f"{where}:9")
    assert (code, "1 will be retried" in shown, "9 is not a dead batch" in complaint) == (Exit.FAILED, True, True)
    assert "retried by the next run" in penstock("dead", "ls", where)[1]
    mended = True
    assert hits.run(wait=0.1).lines == 20
    assert penstock("dead", "ls", where) == (Exit.OK, f"No dead batches in {where}.\n", "")

    mended = False
    log.write_bytes(log.read_bytes() + b"more\n")
    shop.files("eu:logs").send_lines(log, source="web-1")
    hits.run(wait=0.1)
    assert penstock("dead", "rm", "--all", where)[0] == Exit.USAGE
    code, shown, _ = penstock("dead", "rm", "--all", where, "--yes")
    assert (code, shown) == (Exit.OK, f"1 dead batch of {where} removed.\n")
    assert hits.totals().dead == 0
    assert penstock("dead", "show", f"{where}:2")[0] == Exit.FAILED
    assert penstock("dead", "rm", f"{where}:2", "--yes")[0] == Exit.FAILED
    assert penstock("dead", "ls", "counts:nothing")[0] == Exit.USAGE
    assert penstock("dead", "ls", "counts:nothing:x")[0] == Exit.FAILED
    assert penstock("dead", "retry", f"{where}:x")[0] == Exit.USAGE
