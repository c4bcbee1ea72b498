"""The second run of what failed in a target of make, and the list of the tests that needed it.

    pytest … || pytest --last-failed --retry-of test        what failed runs again, one test after another
    python -m tests.retries                                 after all targets: names them, exit code 1 if one recurs

A test that passes in the second run only has found a race, or depends on the speed of the machine. One that needs it
in three targets does so often, and fails the submission: in two, the machine may have been slow for minutes. A model is
not retried: its second run could draw other histories, and hide the one that failed.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_KEPT = "retried"
_OFTEN = 3  # targets


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--retry-of", metavar="TARGET", default="", help="the target of make in which these tests failed")


def refuse_model(item: pytest.Item) -> None:
    """Fail a model in a second run."""
    if item.config.getoption("--retry-of") and is_model(item.path):
        pytest.fail("this model failed in the first run, see above; a model is not retried", pytrace=False)


def is_model(path: Path) -> bool:
    return path.parent.name == "simulation" or path.stem.endswith("_model")


def report(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tests that pass in the second run, and keep their names."""
    if target := config.getoption("--retry-of"):
        names = [one.nodeid for one in terminalreporter.getreports("passed")]
        if names:
            kept_in(target).parent.mkdir(parents=True, exist_ok=True)
            kept_in(target).write_text(json.dumps(names))
            terminalreporter.section(f"retried in make {target}: a race in the code or in the test")
            for name in names:
                terminalreporter.line(name)


def kept_in(target: str) -> Path:
    return _ROOT / ".pytest_cache" / _KEPT / f"{target}.json"


def recurring(retried: dict[str, list[str]]) -> list[str]:
    """The tests that needed a second run in three targets, whatever their parameters were."""
    targets = defaultdict[str, set[str]](set)
    for target, names in retried.items():
        for name in names:
            targets[name.partition("[")[0]].add(target)
    return [f"{name} ({', '.join(sorted(those))})" for name, those in sorted(targets.items()) if len(those) >= _OFTEN]


def main() -> int:
    files = sorted(kept_in("").parent.glob("*.json"))
    retried: dict[str, list[str]] = {file.stem: json.loads(file.read_text()) for file in files}
    for target, names in retried.items():
        for name in names:
            print(f"retried in make {target}: {name}")
    if found := recurring(retried):
        print("retried in three targets, which is a fault of the code or of the test:", *found, sep="\n  ")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
