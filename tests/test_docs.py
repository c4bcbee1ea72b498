"""Documents can be followed: links work, examples compile and import public names only, and promises name their tests.

Each rule is a function from a document to its faults, so that a test can give it a document with faults.
"""

import ast
import os
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_layers import FLOORS

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", "benchmarks", "src", "tests")
DOCUMENTS = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
EXAMPLES = [path for path in DOCUMENTS if path == ROOT / "README.md" or path.is_relative_to(ROOT / "docs")]
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_site.settings")  # to import its backend
GUARANTEES = [path for path in sorted((ROOT / "docs" / "guarantees").glob("*.md")) if path.name != "index.md"]
TOUR = ROOT / "docs" / "tour.md"
SOURCE = ROOT / "src" / "penstock"
MODULES = {
    path.relative_to(SOURCE).as_posix()
    for pattern in ("*.py", "*.lua")
    for path in SOURCE.rglob(pattern)
    if path.name != "__init__.py"
}

FOLDERS_OF_SOURCE = sorted({Path(path).parent for path in MODULES})

FENCE = re.compile(r"^( *)(```+|~~~+) *(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s+<?([^\s>]+)", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|#|//", re.IGNORECASE)
TEST = re.compile(r"([\w./-]+\.py)::([\w:]+)")
CATALOGUE = re.compile(r"^ {4}((?:\w+\.(?:py|lua)(?:, )?)+)(?= {2,}|$)", re.MULTILINE)
MODULE = re.compile(r"`([\w/]+\.(?:py|lua))`")
# `Signature.encode` (`jobs/signature.py`), or: `Task.enqueue` is in `jobs/task.py`
DEFINED = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`(?:\s+is)?(?:\s+in)?\s+\(?`([\w/]+\.(?:py|lua))`")

# The modules that users import from, besides `penstock` itself.
PUBLIC_MODULES = {
    "penstock",
    "penstock.counting",
    "penstock.errors",
    "penstock.info",
    "penstock.integrations.django",
    "penstock.integrations.django_outbox",
    "penstock.integrations.fastapi",
    "penstock.integrations.flask",
    "penstock.integrations.opentelemetry",
    "penstock.integrations.prometheus",
    "penstock.integrations.starlette",
    "penstock.sql",
    "penstock.testing",
    "penstock.testing.history",
    "penstock.web",
}


def broken_links(path: Path, text: str) -> list[str]:
    """Links that lead nowhere in the repository. A page that `make docs` makes is linked by its address on the site."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    targets = [first or second for first, second in LINK.findall(prose)]
    return [
        f"{path.name} links to {target}"
        for target in targets
        if not ELSEWHERE.match(target) and not (path.parent / target.partition("#")[0]).exists()
    ]


def broken_examples(path: Path, text: str) -> list[str]:
    faults = []
    for source in _python_blocks(text):
        try:
            _parse(source)
        except SyntaxError as error:
            faults.append(f"{path.name}:{error.lineno}: {error.msg}")
    return faults


def private_imports(path: Path, text: str) -> list[str]:
    """Imports from Penstock, in an example or in the examples of a document, that users should not write."""
    sources = [text] if path.suffix == ".py" else list(_python_blocks(text))
    return [
        f"{path.name}:{line} imports {name}"
        for source in sources
        for node in ast.walk(_parse(source))
        for line, name in _private_names(node)
    ]


def _offered(module: ModuleType) -> list[str]:
    """The public names of a module. `penstock.errors` has no list: all its errors are public."""
    errors = [name for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, Exception)]
    return getattr(module, "__all__", errors)


def _private_names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Each name of Penstock that a statement imports although it is not public, and its line."""
    match node:
        case ast.Import():
            for alias in node.names:
                if alias.name.split(".")[0] == "penstock" and alias.name not in PUBLIC_MODULES:
                    yield node.lineno, alias.name
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "penstock":
            public = _offered(import_module(module)) if module in PUBLIC_MODULES else []
            for alias in node.names:
                if alias.name not in public:
                    yield node.lineno, f"{module}.{alias.name}"


def _python_blocks(text: str) -> Iterator[str]:
    """The Python examples of a document, each on the lines that it has there."""
    for fence in FENCE.finditer(text):
        if fence[3] == "python":
            yield "\n" * text.count("\n", 0, fence.start(4)) + textwrap.dedent(fence[4])


def _parse(source: str) -> ast.Module:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    # Compiling finds faults that parsing alone does not, such as a `return` outside of a function.
    compile(source, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    tree: ast.Module = compile(source, "example", "exec", flags=flags, dont_inherit=True)
    return tree


def promises_without_a_test(text: str, root: Path) -> list[str]:
    """Each row of each table below its ruler must name tests of this repository, as `tests/….py::name`."""
    faults = []
    for row in _rows(text):
        tests = TEST.findall(row)
        missing = [f"{path}::{name}" for path, name in tests if not _is_test(root / path, name)]
        if not tests or missing:
            faults.append(f"{row[:60]}… names {', '.join(missing) or 'no test'}")
    return faults


def promises_made_twice(text: str) -> list[str]:
    """Two rows of one promise, as a merge leaves them, drift apart."""
    names = [row.split("|")[1].strip() for row in _rows(text)]
    return sorted({name for name in names if names.count(name) > 1})


def tour_faults(text: str, modules: set[str]) -> list[str]:
    """A tour may name a module by its path or, if any module has it, by its name. Paths of tests are not checked."""
    known = modules | {path.rpartition("/")[2] for path in modules}
    named = {path for path in MODULE.findall(text) if not path.startswith("tests/")}
    return [
        f"the tour names {path}, which does not exist"
        for path in sorted(named - known)
        if path.rpartition("/")[2] != "__init__.py"
    ]


def misplaced_names(text: str, source: Path) -> list[str]:
    """Names that the tour places in a file that does not have them."""
    return [
        f"the tour says that {name} is in {path}"
        for name, path in DEFINED.findall(text)
        if not re.search(rf"\b{name.rpartition('.')[2]}\b", (source / path).read_text("utf-8"))
    ]


def catalogue_faults(text: str, modules: set[str]) -> list[str]:
    """The docstring of a folder must name each of its modules at the start of a line, and no others."""
    named = {name for line in CATALOGUE.findall(text) for name in line.split(", ")}
    return [
        *(f"{name} is not named" for name in sorted(modules - named)),
        *(f"{name} does not exist" for name in sorted(named - modules)),
    ]


def drawn_floors(text: str) -> list[set[str]]:
    """The floors of the first indented block below the heading Layout, top first."""
    layout = text.partition("## Layout")[2]
    block = re.search(r"(?:^ {4}\S.*\n)+", layout, re.MULTILINE)
    return [set(line.strip().split(", ")) for line in block[0].splitlines()] if block else []


def _rows(text: str) -> Iterator[str]:
    in_table = False
    for line in map(str.strip, FENCE.sub("", text).splitlines()):
        if not line.startswith("|"):
            in_table = False
        elif in_table:
            yield line
        else:
            in_table = bool(re.fullmatch(r"[|\s:-]+", line))


def _is_test(path: Path, name: str) -> bool:
    """Whether the file defines `test_x`, `TestX` (also by assignment, as hypothesis wants it) or `TestX::test_y`."""
    if not path.is_file():
        return False
    body: list[ast.stmt] = ast.parse(path.read_text("utf-8")).body
    for part in name.split("::"):
        found = [node for node in body if part in _defines(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def _defines(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case _:
            return []


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- our documents ---


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_link_leads_somewhere(path: Path):
    assert broken_links(path, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=_name)
def test_every_python_example_compiles(path: Path):
    assert broken_examples(path, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", [*EXAMPLES, *PROGRAMS], ids=_name)
def test_every_example_imports_public_names_only(path: Path):
    assert private_imports(path, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", GUARANTEES, ids=_name)
def test_every_promise_names_a_test_that_exists(path: Path):
    assert promises_without_a_test(path.read_text("utf-8"), ROOT) == []


def test_every_promise_is_made_once():
    assert promises_made_twice("\n".join(path.read_text("utf-8") for path in GUARANTEES)) == []


def test_the_tour_names_only_modules_that_exist():
    assert tour_faults(TOUR.read_text("utf-8"), MODULES) == []


def test_the_tour_finds_each_name_where_it_looks():
    text = TOUR.read_text("utf-8")
    assert misplaced_names(text, SOURCE) == []
    assert len(DEFINED.findall(text)) > 10


@pytest.mark.parametrize("folder", FOLDERS_OF_SOURCE, ids=str)
def test_the_docstring_of_a_folder_names_its_modules(folder: Path):
    tree = ast.parse((SOURCE / folder / "__init__.py").read_text("utf-8"))
    modules = {Path(path).name for path in MODULES if Path(path).parent == folder}
    assert catalogue_faults(ast.get_docstring(tree, clean=False) or "", modules) == []


def test_the_floors_are_drawn_as_they_are_held():
    assert drawn_floors((ROOT / "CONTRIBUTING.md").read_text("utf-8")) == FLOORS[-2::-1]


# --- documents with faults ---


def test_a_module_that_a_page_or_a_folder_does_not_name_is_found():
    tour = "`app.py` and `jobs/lane.lua`, `Queue.draft` (`jobs/queue.py`), `jobs/__init__.py` and `tests/test_docs.py`"
    assert tour_faults(tour, {"app.py", "jobs/lane.lua", "jobs/queue.py"}) == []
    assert tour_faults(tour, {"app.py", "jobs/queue.py"}) == ["the tour names jobs/lane.lua, which does not exist"]
    folder = "Jobs.\n\n    lane.lua     order\n    queue.py, job.py\n                 a queue and a job\n"
    assert catalogue_faults(folder, {"lane.lua", "queue.py", "job.py"}) == []
    assert catalogue_faults(folder, {"lane.lua", "queue.py", "row.py"}) == [
        "row.py is not named",
        "job.py does not exist",
    ]


def test_a_name_that_has_moved_is_found(tmp_path: Path):
    (tmp_path / "lane.lua").write_text("function lane.push(entry)")
    assert misplaced_names("`lane.push` (`lane.lua`), `lane.push(…)` is in `lane.lua`", tmp_path) == []
    assert misplaced_names("`lane.take` in `lane.lua`", tmp_path) == ["the tour says that lane.take is in lane.lua"]


def test_floors_are_read_from_the_drawing():
    text = "    not these\n## Layout\n\nProse:\n\n    cli\n    web, bench\n\nMore.\n\n    not this\n"
    assert drawn_floors(text) == [{"cli"}, {"web", "bench"}]


def test_a_broken_link_is_found(tmp_path: Path):
    (tmp_path / "here.md").touch()
    good = "[a](here.md#part) [b](https://valkey.io) [c](#below) `[d](gone.md)`\n```\n[e](gone.md)\n```\n"
    assert broken_links(tmp_path / "x.md", good) == []
    assert broken_links(tmp_path / "x.md", "[f](gone.md#part)\n[g]: lost.md") == [
        "x.md links to gone.md#part",
        "x.md links to lost.md",
    ]


def test_a_broken_example_is_found(tmp_path: Path):
    good = "```python\nawait f()\n```\n```sh\nmake demo\n```\n- item\n\n  ```python\n  x = 1\n  ```\n"
    assert broken_examples(tmp_path / "x.md", good) == []
    assert broken_examples(tmp_path / "x.md", "text\n```python\nx = 1\nf(\n```\n") == ["x.md:4: '(' was never closed"]


def test_a_private_import_is_found(tmp_path: Path):
    good = "import asyncio, penstock\nfrom penstock import Penstock\nfrom penstock.testing.history import read\n"
    bad = "from penstock.app import Penstock\nfrom penstock import nothing\nimport penstock.driver\n"
    faults = ["imports penstock.app.Penstock", "imports penstock.nothing", "imports penstock.driver"]
    assert private_imports(tmp_path / "x.py", good) == []
    assert private_imports(tmp_path / "x.md", f"```python\n{good}```\n") == []
    assert [one.partition(" ")[2] for one in private_imports(tmp_path / "x.py", bad)] == faults
    assert [one.partition(" ")[2] for one in private_imports(tmp_path / "x.md", f"```python\n{bad}```\n")] == faults


def test_a_promise_without_a_test_is_found(tmp_path: Path):
    (tmp_path / "test_a.py").write_text(
        "def test_b(): ...\nTestC = M.TestCase\nclass TestD:\n    def test_e(self): ..."
    )
    table = "| promise | test |\n|---|---|\n| never lost | `{}` |\n\nno row"
    for name in ("test_b", "TestC", "TestD", "TestD::test_e"):
        assert promises_without_a_test(table.format(f"test_a.py::{name}"), tmp_path) == []
    for reference in ("test_a.py", "test_a.py::test_x", "test_b.py::test_b", "test_a.py::TestD::test_b"):
        assert promises_without_a_test(table.format(reference), tmp_path)


def test_a_promise_made_twice_is_found():
    table = "| promise | test |\n|---|---|\n| never lost | `a` |\n| fair | `b` |\n| {} | `c` |\n"
    assert promises_made_twice(table.format("prompt")) == []
    assert promises_made_twice(table.format("never lost")) == ["never lost"]
