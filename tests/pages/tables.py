"""The pages of tables: settings, errors, metrics and the help of each command. Each is made from its one source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from penstock import Settings, WorkerSettings, config, errors
from penstock.integrations.prometheus import JobMetrics, OutboxMetrics, QueueMetrics
from tests.pages.api import field_docs
from tests.pages.docstrings import markdown

ROOT = Path(__file__).parents[2]
HELP = ROOT / "tests" / "cli" / "help.txt"


def pages() -> dict[str, str]:
    """The text of each page by its path below `reference`."""
    return {
        "settings.md": settings_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "help.md": help_page(),
    }


def settings_page() -> str:
    """Names of users, of programs and of workers."""
    text = [
        "# Settings",
        "A value is taken from the first of these that has one: an argument in the program, the command line, the "
        "variable in the environment, `[tool.penstock]` in the nearest `pyproject.toml` upward, the default.",
        "## What a user of a program sets",
        _table(
            ("`[tool.penstock]`", "variable", "meaning"),
            (
                *((f"`{name}`", f"`PENSTOCK_{name.upper()}`", meaning) for name, meaning in config.KNOWN.items()),
                *(("", f"`{name}`", meaning) for name, meaning in config.ENVIRONMENT.items()),
            ),
        ),
        "## What a program sets: `Settings`",
        "`Penstock(settings=Settings(result_ttl=3600))`. Durations are seconds, sizes are bytes.",
        _table(("setting", "default", "meaning"), _settings(Settings)),
        "## What a worker is given: `WorkerSettings`",
        "`Worker(app, WorkerSettings(concurrency=50))`, or options of [`penstock worker`](cli-queues.md#workers).",
        _table(("setting", "default", "meaning"), _settings(WorkerSettings)),
    ]
    return "\n\n".join(text) + "\n"


def _settings(kind: Any) -> Iterator[tuple[str, str, str]]:
    documented = field_docs(kind)
    for one in fields(kind):
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        yield f"`{one.name}`", f"`{default!r}`", " ".join(documented[one.name].split())


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def error_classes() -> list[type[Exception]]:
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]


def errors_page() -> str:
    tree = re.search(r"(?:^ {4}.*\n)+", errors.__doc__ or "", re.MULTILINE)
    text = [
        "# Errors",
        "Every error that Penstock raises is a `PenstockError` and is imported from `penstock.errors`. Its text says "
        "what happened, why, and what to do.",
        "```text\n" + inspect.cleandoc("\n" + (tree[0] if tree else "")) + "\n```",
    ]
    for one in error_classes():
        above = ", ".join(f"`{base.__name__}`" for base in one.__bases__)
        text += [f"## `{one.__name__}` {{ #{one.__name__.lower()} }}", f"*A kind of {above}.*", markdown(one.__doc__)]
    return "\n\n".join(text) + "\n"


METRIC = re.compile(r"^\s*(penstock_\w+) +(.*)$")


def metrics() -> Iterator[tuple[str, str, str]]:
    """Name, labels and meaning of each metric."""
    for kind in (JobMetrics, QueueMetrics, OutboxMetrics):
        rows: list[list[str]] = []
        for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
            if found := METRIC.match(line):
                labels, _, meaning = re.sub(r" {2,}", "\0", found[2]).rpartition("\0")
                rows.append([found[1], labels, meaning])
            elif rows and line.startswith(" " * 8):
                rows[-1][2] += " " + line.strip()
            elif rows:
                break
        for name, labels, meaning in rows:
            yield name, labels, meaning


def metrics_page() -> str:
    text = [
        "# Metrics",
        "What `penstock worker --metrics-port` and `penstock.integrations.prometheus` offer to Prometheus; "
        "[how to set it up](../howto/metrics.md). Units are seconds and jobs.",
        _table(
            ("metric", "labels", "meaning"), ((f"`{name}`", labels, meaning) for name, labels, meaning in metrics())
        ),
    ]
    return "\n\n".join(text) + "\n"


def help_page() -> str:
    """What each command prints for `--help`, as a test keeps it."""
    text = [
        "# Help of every command",
        "What `penstock COMMAND --help` prints. [The command line](cli.md) describes what the commands do.",
    ]
    for part in re.split(r"^(?=Usage: penstock )", HELP.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        name = re.sub(r" (?:\[|[A-Z]|--).*", "", part.partition("\n")[0].removeprefix("Usage: "))
        text += [f"## `{name}`", f"```text\n{part.rstrip()}\n```"]
    return "\n\n".join(text) + "\n"


def variables_in_the_source() -> set[str]:
    """Each name of a variable that a string in the source has."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"PENSTOCK_[A-Z_]*[A-Z]", node.value))
    return found


def write(folder: Path) -> None:
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")
