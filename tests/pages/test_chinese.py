"""The Chinese pages have the code of the pages that they translate, and nothing else."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def test_each_page_is_a_translation():
    assert {path.name for path in (ROOT / "docs" / "zh").glob("*.md")} == set(TRANSLATED)


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translation_has_the_code_of_its_original(name: str):
    translated = ROOT / "docs" / "zh" / name
    assert code(translated) == code(ROOT / TRANSLATED[name])
    assert len(re.findall(r"[\u4e00-\u9fff]", FENCE.sub("", translated.read_text("utf-8")))) > 300
