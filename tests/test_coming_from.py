"""The pages for those who come from another library: each program of ours runs and prints what the page shows."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.testing import TemporaryServer

HOWTO = Path(__file__).parents[1] / "docs" / "howto"
PAGES = sorted(HOWTO.glob("from-*.md"))
MOST_WORDS = 1600

# A program, and directly behind it the block with its output.
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Program(NamedTuple):
    page: str
    source: str
    output: str


def programs(page: Path) -> Iterator[Program]:
    for found in PROGRAM.finditer(page.read_text("utf-8")):
        yield Program(page.name, found[1], found[2])


PROGRAMS = [program for page in PAGES for program in programs(page)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TemporaryServer() as server:
        yield server.address


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.page)
def test_a_program_prints_what_its_page_shows(program: Program, address: str, tmp_path: Path):
    file = tmp_path / "program.py"
    file.write_text(program.source, "utf-8")
    done = subprocess.run(
        [sys.executable, file.name],
        cwd=tmp_path,
        env={"PENSTOCK_URL": address, "PENSTOCK_PREFIX": tmp_path.name, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == program.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_of_a_page_is_run(page: Path):
    blocks = re.findall(r"^```python$", page.read_text("utf-8"), re.MULTILINE)
    assert blocks
    assert len(blocks) == len(list(programs(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_short(page: Path):
    assert len(page.read_text("utf-8").split()) <= MOST_WORDS
