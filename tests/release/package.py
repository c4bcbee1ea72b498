"""Build wheel and sdist into dist, check them, and run an example from each: `python -m tests.release.package`.

Each is installed into an environment of its own, away from the source: a file that only the repository has fails here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from penstock import __version__

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
EXAMPLE = ROOT / "examples" / "jobs.py"


def run(*words: str | Path, folder: Path = ROOT) -> str:
    """Run a program. Raises SystemExit with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> tuple[Path, Path]:
    """The wheel and the sdist of this version."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    assert wheel.name == f"penstock-{__version__}-py3-none-any.whl", wheel.name
    assert sdist.name == f"penstock-{__version__}.tar.gz", sdist.name
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Each file of the source is in both, and nothing that belongs to the repository alone."""
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "penstock").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith(f"penstock-{__version__}.dist-info/")}
    assert packed == source, sorted(packed ^ source)[:10]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in source} <= names
    assert not [name for name in names if name.startswith(("tests/", ".ci", "benchmarks/"))]


def try_in_an_environment(package: Path) -> None:
    """Install it with its server, and run an example and the command line from there."""
    with tempfile.TemporaryDirectory(prefix="penstock-package-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{package}[server,cli]")
        work = folder / "work"
        work.mkdir()
        shutil.copy(EXAMPLE, work)
        where = run(python, "-c", "import penstock; print(penstock.__file__)", folder=work)
        assert where.startswith(str(folder)), where
        assert run(folder / "venv" / "bin" / "penstock", "--version", folder=work).strip() == f"penstock {__version__}"
        print(f"{package.name}: {EXAMPLE.name} prints")
        print(run(python, EXAMPLE.name, folder=work), end="")


if __name__ == "__main__":
    made = build()
    check_contents(*made)
    for package in made:
        try_in_an_environment(package)
