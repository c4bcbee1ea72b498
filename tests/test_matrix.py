"""Which Pythons and servers `make test-pythons` and `make test-servers` find, and when they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import matrix
from tests.matrix import Place, run


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyenv with no versions yet, and nothing on PATH."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(matrix, "_environment", lambda version, interpreter: interpreter)
    return tmp_path


def interpreter(folder: Path, name: str, code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    return program


def test_pythons_are_found_in_pyenv_and_the_others_are_named(pyenv: Path):
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    other = next(version for version in matrix.PYTHONS if version != here)
    found = interpreter(pyenv / "versions" / f"{other}.1" / "bin", f"python{other}")
    places, missing = matrix.find_pythons()
    assert [(place.name, place.python) for place in places[1:]] == [(f"Python {other}", str(found))]
    assert places[0].environment == {"PYTHONDEVMODE": "1"}
    assert {f"Python {version}" for version in matrix.PYTHONS} - {f"Python {here}"} == {*missing, f"Python {other}"} - {
        name for name in missing if name.endswith("t")
    }


def test_a_shim_of_a_version_that_is_not_enabled_is_passed_over(pyenv: Path, monkeypatch: pytest.MonkeyPatch):
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    other = next(version for version in matrix.PYTHONS if version != here)
    interpreter(pyenv / "shims", f"python{other}", code=127)
    monkeypatch.setenv("PATH", str(pyenv / "shims"))
    _, missing = matrix.find_pythons()
    assert f"Python {other}" in missing


def test_too_few_pythons_fail(pyenv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["matrix", "pythons", "--at-least", "2", "--only", "no such place"])
    assert matrix.main() == 1
    assert "only 0 of at least 2 places were found" in capsys.readouterr().out


def test_a_place_reports_what_passed_failed_and_was_skipped(tmp_path: Path):
    (tmp_path / "test_some.py").write_text(
        "import os, pytest\n"
        "def test_one(): assert os.environ['HERE'] == 'yes'\n"
        "def test_two(): assert False\n"
        "@pytest.mark.skip\ndef test_three(): pass\n"
    )
    place = Place("a place", environment={"HERE": "yes"})
    result = run("pythons", place, ["-n", "0", str(tmp_path)])
    assert (result.passed, result.failed, result.skipped, result.ok) == (1, 1, 1, False)
