"""Loading an app from `module:name`, and the errors if that is not possible."""

import sys
from pathlib import Path

import pytest

from penstock import ConfigurationError
from penstock.cli.loading import load_app

APP = "from penstock import Penstock\napp = Penstock('unix:///nowhere', prefix='{}')\nother = 3\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The working directory; modules and paths of a test are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_module_of_the_working_directory_is_found(folder):
    write(folder / "shop_a.py", APP.format("a") + "class inner:\n    deep = app\n")
    assert load_app("shop_a:app").settings.prefix == "a"
    assert load_app("shop_a") is load_app("shop_a:app") is load_app("shop_a:inner.deep")


def test_a_file_is_found_by_its_path(folder):
    path = write(folder / "jobs" / "shop_b.py", "import near_b\n" + APP.format("b"))
    write(folder / "jobs" / "near_b.py", "")
    assert load_app(str(path)).settings.prefix == "b"
    assert load_app("jobs/shop_b.py:app").settings.prefix == "b"


def test_a_file_of_a_package_may_import_its_siblings(folder):
    write(folder / "house_c" / "__init__.py", "")
    write(folder / "house_c" / "part.py", "prefix = 'c'\n")
    text = "from .part import prefix\nfrom penstock import Penstock\napp = Penstock('unix:///nowhere', prefix=prefix)\n"
    path = write(folder / "house_c" / "tasks.py", text)
    assert load_app(f"{path}:app").settings.prefix == "c"
    assert load_app("house_c.tasks:app") is load_app(f"{path}:app")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("nowhere_d:app", "no module 'nowhere_d'"),
        ("shop_d.part:app", "no module 'shop_d.part'"),
        ("missing_d.py:app", "no file "),
        ("shop_d:ap", "shop_d has no 'ap'; its Penstock apps are: app; write shop_d:app"),
        ("shop_d:other", "shop_d:other is not a Penstock app but a int; its Penstock apps are: app"),
        ("empty_d:app", "its Penstock apps are: none; create one there: app = Penstock()"),
        ("broken_d:app", "broken_d cannot be imported: ZeroDivisionError: division by zero"),
        ("wants_d:app", "wants_d cannot be imported: ModuleNotFoundError: No module named 'gone_d'"),
        ("leaves_d:app", "leaves_d cannot be imported: SystemExit: 3"),
        ("torn_d:app", "torn_d cannot be imported: SyntaxError"),
        ("json.py:app", "hidden by another module 'json'"),
    ],
)
def test_a_wrong_name_is_reported_with_the_fix(folder, spec, expected):
    write(folder / "shop_d.py", APP.format("d"))
    write(folder / "empty_d.py", "")
    write(folder / "broken_d.py", "x = 1\nx / 0\n")
    write(folder / "wants_d.py", "import gone_d\n")
    write(folder / "leaves_d.py", "import sys\nsys.exit(3)\n")
    write(folder / "torn_d.py", "app = (\n")
    write(folder / "json.py", APP.format("json"))
    with pytest.raises(ConfigurationError) as caught:
        load_app(spec)
    assert expected in str(caught.value)


def test_the_place_of_an_error_in_the_module_is_reported(folder):
    write(folder / "broken_e.py", "x = 1\nx / 0\n")
    with pytest.raises(ConfigurationError, match=r"broken_e\.py:2\)$"):
        load_app("broken_e")
