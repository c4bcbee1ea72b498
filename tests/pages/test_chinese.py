"""The Chinese pages have the code of the pages that they translate, and nothing else."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
FENCE = re.compile(r"^```.*?^``` *$", re.MULTILINE | re.DOTALL)
TRANSLATED = {
    "index.md": "README.md",
    "quickstart.md": "docs/quickstart.md",
    "recipes-jobs.md": "docs/howto/recipes-jobs.md",
    "recipes.md": "docs/howto/recipes.md",
    "deploy.md": "docs/howto/deploy.md",
}


def code(path: Path) -> list[str]:
    return FENCE.findall(path.read_text("utf-8"))


def compared(path: Path) -> list[list[list[str]]]:
    """The cells of each table that sets other libraries beside this one, without the words that open its rows."""
    tables, end = list[list[list[str]]](), -1
    for number, line in enumerate(FENCE.sub("", path.read_text("utf-8")).splitlines()):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 2:
            if number != end + 1:
                tables.append([])
            tables[-1].append([*DATE.findall(cells[0]), *cells[1:]])
            end = number
    return tables


def test_each_page_is_a_translation():
    assert {path.name for path in (ROOT / "docs" / "zh").glob("*.md")} == set(TRANSLATED)


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translation_has_the_code_of_its_original(name: str):
    translated = ROOT / "docs" / "zh" / name
    assert code(translated) == code(ROOT / TRANSLATED[name])
    assert len(re.findall(r"[\u4e00-\u9fff]", FENCE.sub("", translated.read_text("utf-8")))) > 300


def test_the_chinese_home_page_compares_as_the_readme_does():
    """Whoever measures again, or looks at the others again, changes both."""
    original = compared(ROOT / "README.md")
    assert len(original) == 2
    assert compared(ROOT / "docs" / "zh" / "index.md") == original
