"""Each Python block of the documents runs as it is pasted, and prints what the page shows below it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import TemporaryServer
from tests.pages.blocks import Block, blocks_of, is_as_shown, run
from tests.speed import scaled

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Their blocks are run by tests of their own: tests/test_recipes.py and tests/test_coming_from.py.
ELSEWHERE = ("recipes", "from-")

BLOCKS = [
    block
    for page in PAGES
    if page.parent.name != "decisions" and not page.name.startswith(ELSEWHERE)
    for block in blocks_of(page)
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TemporaryServer() as server:
        yield server.address


@pytest.mark.parametrize(
    ("number", "block"),
    [
        pytest.param(*one, id=f"{one[1].page.relative_to(ROOT)}:{one[1].line}")
        for one in enumerate(BLOCKS)
        if not one[1].title
    ],
)
def test_a_pasted_block_prints_what_its_page_shows(number: int, block: Block, address: str, tmp_path: Path):
    done = run(block, tmp_path, address, f"block-{number}", scaled(60))
    assert done.returncode == 0, done.stderr
    assert is_as_shown(done.stdout, block.output), f"it prints\n{done.stdout}"


@pytest.mark.parametrize("page", ["chats.md", "messages.md", "files.md"])
def test_a_block_that_is_run_again_does_not_fail(page: str, address: str, tmp_path: Path):
    for number, block in enumerate(one for one in BLOCKS if one.page.name == page and not one.title):
        for _ in range(2):
            done = run(block, tmp_path, address, f"again-{page}-{number}", scaled(60))
            assert done.returncode == 0, done.stderr


def test_titled_blocks_are_few():
    """A block that only compiles can be wrong."""
    assert len([block for block in BLOCKS if block.title]) <= 26


def test_a_difference_to_what_is_shown_is_found():
    assert is_as_shown("mail:01M7 done\n", "mail:… done\n")
    assert not is_as_shown("mail:01M7\ndone\n", "mail:… done\n")
    assert not is_as_shown("a\n", "")


def test_a_block_and_its_output_are_read(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        'x\n```python\nprint(1)\n```\n\n```output\n1\n```\n\n- y\n\n  ```python title="a.py"\n  z = 1\n  ```\n'
    )
    first, second = blocks_of(page)
    assert first == Block(page, 2, "", "print(1)\n", "1\n")
    assert second == Block(page, 12, 'title="a.py"', "z = 1\n", "")
