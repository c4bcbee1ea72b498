"""The pages of the command line describe every command and every option, and no others."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from cyclopts import App

from penstock.cli import COMMANDS
from penstock.cli.exits import Exit
from penstock.ops.doctor import TOPICS

PAGES = sorted((Path(__file__).parents[2] / "docs/reference").glob("cli*.md"))
TEXT = "\n## \n".join(page.read_text("utf-8") for page in PAGES)
SHARED = {"--url", "--prefix", "--app"}


def section(name: str) -> str:
    """From the heading that names this command to the next."""
    for part in re.split(r"^#{2,3} ", TEXT, flags=re.MULTILINE):
        heading = part.partition("\n")[0]
        if re.search(rf"`penstock {name}[` ]", heading):
            return part
    return ""


def options(target: str) -> set[str]:
    module, _, name = target.partition(":")
    app = App()
    app.default(getattr(import_module(module), name))
    found = {name for argument in app.assemble_argument_collection() for name in argument.names}
    return {name for name in found if name.startswith("-")}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_is_described_with_each_of_its_options(command):
    text = section(command.name)
    assert text, f"no heading names `penstock {command.name}`"
    described = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    wanted = {name for name in options(command.target) if name != "-y"}
    assert wanted - SHARED <= described
    assert described - wanted - SHARED <= {"--no-live"}


def test_every_described_command_exists():
    described = re.findall(r"^### .*?`penstock ([a-z-]+(?: [a-z][a-z-]*)?)", TEXT, re.MULTILINE)
    assert set(described) <= {command.name for command in COMMANDS}


def test_every_exit_code_and_every_topic_is_described():
    assert all(f"| {code.value} |" in TEXT for code in Exit)
    assert all(f"`{topic}`" in section("doctor") for topic in TOPICS)
