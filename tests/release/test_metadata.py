"""What the package says of itself on an index is what is tested."""

import re
import tomllib
from pathlib import Path

from tests.matrix import PYTHONS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CLASSIFIERS = PROJECT["classifiers"]


def test_each_classified_python_is_tested_and_the_first_is_the_oldest_that_may_install():
    versions = [
        name.rpartition(" ")[2] for name in CLASSIFIERS if name.startswith("Programming Language :: Python :: 3.")
    ]
    assert tuple(versions) == PYTHONS[: len(versions)]
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_only_systems_that_are_tested_are_named():
    assert [name for name in CLASSIFIERS if name.startswith("Operating System")] == [
        "Operating System :: POSIX :: Linux"
    ]


def test_the_package_is_typed_and_says_so():
    assert "Typing :: Typed" in CLASSIFIERS
    assert (ROOT / "src" / "penstock" / "py.typed").exists()


def test_the_addresses_of_the_project_are_those_of_its_metadata():
    urls = PROJECT["urls"]
    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    assert (site["site_url"], site["repo_url"]) == (urls["Documentation"], urls["Source"])
    assert site["repo_url"].endswith("/" + site["repo_name"])
    assert {urls[name].startswith(urls["Source"] + "/") for name in ("Changelog", "Issues")} == {True}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        for address in re.findall(
            r"https?://[\w.-]*(?:github|readthedocs)\.\w+/penstock[\w./-]*", page.read_text("utf-8")
        ):
            assert address.startswith((urls["Documentation"], urls["Source"])), f"{page.name} has {address}"
