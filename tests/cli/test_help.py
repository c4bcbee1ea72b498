"""Every `--help` prints what `help.txt` holds: a change of the command line shows in a diff.

A change that is meant: `PENSTOCK_WRITE_HELP=1 .venv/bin/pytest tests/cli/test_help.py` writes the file anew.
"""

import os
import re
from pathlib import Path

import pytest

from penstock.cli import COMMANDS
from penstock.cli.exits import Exit
from tests.command_line import Command

FILE = Path(__file__).with_name("help.txt")


def test_every_help_is_as_it_was(penstock: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    found = []
    for command in COMMANDS:
        code, out, err = penstock(*command.name.split(), "--help")
        assert (code, err) == (Exit.OK, "")
        assert out.startswith(f"Usage: penstock {command.name}")
        found.append(re.sub(r" +$", "", out, flags=re.MULTILINE))
    text = "\n".join(found)
    assert not re.search("[╭│╰]", text), "the help of a command has no boxes, like that of `penstock`"
    if "PENSTOCK_WRITE_HELP" in os.environ:
        FILE.write_text(text, "utf-8")
    assert text == FILE.read_text("utf-8")


def test_help_fits_a_narrow_terminal(penstock: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    for words in (("job", "show"), ("files", "send"), ("job",)):
        _, out, _ = penstock(*words, "--help")
        assert [line for line in out.splitlines() if len(line) > 40] == []
