"""What the package says of itself on an index is what is tested."""

import tomllib
from pathlib import Path

from tests.matrix import PYTHONS

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
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
    assert (Path(__file__).parents[2] / "src" / "penstock" / "py.typed").exists()
