"""The command line where stdout encodes little, is narrow or is no terminal, and where the extra `cli` is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Penstock
from tests.command_line import SOURCE
from tests.speed import scaled

WITHOUT_CLI = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"cyclopts", "rich"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from penstock.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "cp1252"},
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "utf-8", "COLUMNS": "40"},
    ],
    ids=["cp1252", "C", "narrow"],
)
def test_a_table_and_a_document_are_printed_in_any_encoding(shop, run, environment):
    name = "名前 😀"
    shop.queue("mail").put(1, tenant=name)
    address = str(shop._driver.connector.address)
    server = {"PENSTOCK_URL": address, "PENSTOCK_PREFIX": shop.settings.prefix, **environment}
    shown = run("queue", "show", "mail", **server)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert len(shown.stdout.splitlines()) >= 10
    found = run("queue", "show", "mail", "--json", **server)
    (tenant,) = json.loads(found.stdout)["largest"]
    assert tenant["name"] == name
    assert tenant["counts"]["oldest"] > 0


def test_a_worker_runs_without_the_packages_of_the_command_line(shop: Penstock, tmp_path: Path):
    program = tmp_path / "without_cli.py"
    program.write_text(WITHOUT_CLI)
    (tmp_path / "tasks.py").write_text(
        "from penstock import Penstock\napp = Penstock()\n\n@app.task\ndef answer() -> int:\n    return 42\n"
    )
    environment = {
        **os.environ,
        "PENSTOCK_URL": str(shop._driver.connector.address),
        "PENSTOCK_PREFIX": shop.settings.prefix,
        "PYTHONPATH": str(SOURCE),
    }

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(program), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=scaled(60),
            check=False,
        )

    @shop.task
    def answer() -> int:
        return 0

    job = answer.enqueue()
    done = start("worker", "tasks:app", "-c", "2", "--burst", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    assert job.result(0) == 42
    assert start("worker", "tasks:app", "--nonsense").returncode == 2
    assert "--stop-timeout" in start("worker", "--help").stdout
    refused = start("queue", "ls")
    assert (refused.returncode, "penstock[cli]" in refused.stderr) == (2, True)
