"""Every example runs as it stands, on a server of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Server
from tests.tracebacks import unexplained

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example: Path, server: Server, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={"PENSTOCK_URL": server.address, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert unexplained(done.stderr) == []
    assert not done.stdout.isspace()
