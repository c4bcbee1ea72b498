"""Who is heard first: the command line, the environment, the project's file."""

from pathlib import Path

import pytest

from penstock import ConfigurationError
from penstock.config import KNOWN, Outside


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch):
    for name in KNOWN:
        monkeypatch.delenv(f"PENSTOCK_{name.upper()}", raising=False)


def project(folder: Path, table: str) -> Outside:
    (folder / "pyproject.toml").write_text(f"[tool.penstock]\n{table}\n")
    below = folder / "a" / "b"
    below.mkdir(parents=True, exist_ok=True)
    return Outside(below)


def test_the_nearest_word_counts(tmp_path, monkeypatch):
    outside = project(tmp_path, "concurrency = 3")
    assert outside.number("concurrency") == 3
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "4")
    assert outside.number("concurrency") == 4
    assert outside.number("concurrency", 5) == 5


def test_what_nobody_said_is_none(tmp_path):
    outside = Outside(tmp_path)
    assert outside.text("url") is None
    assert outside.number("concurrency") is None
    assert outside.names("queues") == ()


def test_the_nearest_project_counts(tmp_path):
    outside = project(tmp_path, "prefix = 'outer'")
    assert outside.text("prefix") == "outer"
    (tmp_path / "a" / "pyproject.toml").write_text("")
    assert Outside(tmp_path / "a" / "b").text("prefix") is None


def test_names_may_be_a_list_or_have_commas_between(tmp_path, monkeypatch):
    outside = project(tmp_path, "queues = ['mail', 'raw']")
    assert outside.names("queues") == ("mail", "raw")
    monkeypatch.setenv("PENSTOCK_QUEUES", "b, a,")
    assert outside.names("queues") == ("b", "a")


def test_a_setting_may_be_written_with_a_hyphen(tmp_path):
    assert project(tmp_path, "log-format = 'json'").text("log_format", among=("plain", "json")) == "json"


def ask_all(outside: Outside) -> None:
    outside.number("concurrency")
    outside.names("queues")
    outside.text("url")
    outside.text("log_format", among=("plain", "json"))


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("concurrency = 'many'", "concurrency in [tool.penstock]: 'many' is not a whole number"),
        ("concurrency = 2.5", "2.5 is not a whole number"),
        ("queues = 3", "queues in [tool.penstock]: 3 is not a list of names"),
        ("log_format = 'xml'", "'xml' is not plain or json"),
        ("url = 3", "3 is not a text"),
        ("colour = 'red'", "'colour' is none of url, prefix"),
        ("url = ", "cannot be read"),
    ],
)
def test_a_word_that_does_not_fit_is_told_with_its_place(tmp_path, table, told):
    outside = project(tmp_path, table)
    with pytest.raises(ConfigurationError) as caught:
        ask_all(outside)
    assert told in str(caught.value)


def test_a_bad_word_in_the_environment_names_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "x")
    with pytest.raises(ConfigurationError, match="PENSTOCK_CONCURRENCY: 'x'"):
        Outside(tmp_path).number("concurrency")
