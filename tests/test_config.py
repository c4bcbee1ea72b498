"""Where a setting comes from: the command line wins over the environment, and that over the project file."""

from pathlib import Path

import pytest

from penstock import ConfigurationError
from penstock.config import KNOWN, Configuration


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch):
    for name in KNOWN:
        monkeypatch.delenv(f"PENSTOCK_{name.upper()}", raising=False)


def project(folder: Path, table: str) -> Configuration:
    (folder / "pyproject.toml").write_text(f"[tool.penstock]\n{table}\n")
    below = folder / "a" / "b"
    below.mkdir(parents=True, exist_ok=True)
    return Configuration(below)


def test_the_nearest_value_wins(tmp_path, monkeypatch):
    configuration = project(tmp_path, "concurrency = 3")
    assert configuration.number("concurrency") == 3
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "4")
    assert configuration.number("concurrency") == 4
    assert configuration.number("concurrency", 5) == 5


def test_a_setting_without_a_value_is_empty(tmp_path):
    configuration = Configuration(tmp_path)
    assert configuration.text("url") is None
    assert configuration.number("concurrency") is None
    assert configuration.names("queues") == ()


def test_the_nearest_project_file_is_used(tmp_path):
    configuration = project(tmp_path, "prefix = 'outer'")
    assert configuration.text("prefix") == "outer"
    (tmp_path / "a" / "pyproject.toml").write_text("")
    assert Configuration(tmp_path / "a" / "b").text("prefix") is None


def test_names_are_a_list_or_separated_by_commas(tmp_path, monkeypatch):
    configuration = project(tmp_path, "queues = ['mail', 'raw']")
    assert configuration.names("queues") == ("mail", "raw")
    monkeypatch.setenv("PENSTOCK_QUEUES", "b, a,")
    assert configuration.names("queues") == ("b", "a")


def test_a_setting_may_be_written_with_a_hyphen(tmp_path):
    assert project(tmp_path, "log-format = 'json'").text("log_format", among=("plain", "json")) == "json"


def read_all(configuration: Configuration) -> None:
    configuration.number("concurrency")
    configuration.names("queues")
    configuration.text("url")
    configuration.text("log_format", among=("plain", "json"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("concurrency = 'many'", "concurrency in [tool.penstock]: 'many' is not a whole number"),
        ("concurrency = 2.5", "2.5 is not a whole number"),
        ("queues = 3", "queues in [tool.penstock]: 3 is not a list of names"),
        ("log_format = 'xml'", "'xml' is not plain or json"),
        ("url = 3", "3 is not a string"),
        ("colour = 'red'", "'colour' is not one of url, prefix"),
        ("url = ", "cannot be read"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(tmp_path, table, message):
    configuration = project(tmp_path, table)
    with pytest.raises(ConfigurationError) as caught:
        read_all(configuration)
    assert message in str(caught.value)


def test_a_bad_value_in_the_environment_is_named_with_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "x")
    with pytest.raises(ConfigurationError, match="PENSTOCK_CONCURRENCY: 'x'"):
        Configuration(tmp_path).number("concurrency")
