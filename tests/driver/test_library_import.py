"""A worker imports its client library without `importlib.metadata`, and others still get the real one."""

import subprocess
import sys
from importlib import metadata

import pytest

from penstock.driver import library_import


def printed(code: str) -> str:
    """What a new process prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("library", ["valkey", "redis"])
def test_the_library_knows_its_version_without_the_modules_that_read_it(library: str):
    code = f"""
import sys
from penstock.driver.library_import import import_library
import_library({library!r})
import {library}.utils
light = not {{"importlib.metadata", "email.message"}} & sys.modules.keys()
from importlib.metadata import version
print(light, {library}.utils.get_lib_version(), version({library!r}), "{library}.asyncio" in sys.modules)
"""
    assert printed(code) == f"True {metadata.version(library)} {metadata.version(library)} True"


def test_all_else_is_passed_on_to_the_real_module():
    code = """
import sys
from penstock.driver import library_import
sys.modules["importlib.metadata"] = stand_in = library_import._StandIn("importlib.metadata")
from importlib.metadata import PackageNotFoundError, entry_points
try:
    stand_in.version("no-such-package")
except PackageNotFoundError:
    print(sys.modules["importlib.metadata"] is not stand_in)
"""
    assert printed(code) == "True"


def test_a_library_that_is_not_installed_leaves_nothing_behind():
    code = """
import sys
from penstock.driver.library_import import import_library
try:
    import_library("no_such_library")
except ImportError:
    print("importlib.metadata" in sys.modules)
"""
    assert printed(code) == "False"


def test_what_is_imported_already_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library_import, "import_module", None)  # nothing is imported
    library_import.import_library("valkey")
