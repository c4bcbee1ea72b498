"""The last release and this one work side by side on one queue, and one can go back to the last.

Until there is a release after `LAST`, the last release is this one, and the test shows that it holds for itself.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.testing import TemporaryServer
from tests.speed import scaled

LAST = "0.2.0"
PROGRAM = Path(__file__).with_name("queue_program.py")


@pytest.fixture(scope="module")
def last_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the last release, installed from its wheel."""
    if penstock.__version__ == LAST:
        return Path(sys.executable)
    folder = tmp_path_factory.mktemp("last")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    wheel = os.environ.get("PENSTOCK_LAST_WHEEL", f"penstock=={LAST}")
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", wheel], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"{wheel} cannot be installed here: {installed.stderr[-300:]}")
    return python


@pytest.fixture
def address() -> Iterator[str]:
    with TemporaryServer() as server:
        yield server.address


def start(python: Path, address: str, *words: str) -> subprocess.Popen[str]:
    environment = {"PENSTOCK_URL": address, "PATH": os.environ["PATH"]}
    if python == Path(sys.executable):
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([python, PROGRAM, *words], env=environment, text=True, **pipes)  # type: ignore[call-overload]


def finish(process: subprocess.Popen[str], given: str = "") -> str:
    out, err = process.communicate(given, timeout=scaled(60))
    assert process.returncode == 0, err
    return out


@pytest.mark.parametrize("number", [30])
def test_two_releases_share_a_queue_and_the_last_one_takes_over_again(last_python: Path, address: str, number: int):
    this_python = Path(sys.executable)
    ids = finish(start(last_python, address, "produce", str(number))).split()

    # up: this release runs what the last one has enqueued, beside its workers
    sides = [start(python, address, "work") for python in (last_python, this_python)]
    for side in sides:
        finish(side)
    first = [finish(start(python, address, "read"), "\n".join(ids)) for python in (last_python, this_python)]
    assert first[0] == first[1]
    assert first[0].count("\tcompleted\t") == len(ids) == 3 * number + 1

    # back: the last release runs what this one has enqueued
    later = finish(start(this_python, address, "produce", str(number))).split()
    finish(start(last_python, address, "work"))
    assert finish(start(last_python, address, "read"), "\n".join(later)).count("\tcompleted\t") == len(later)
