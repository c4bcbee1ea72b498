"""The files of the pages on deployment can be read by those who get them, and agree with the worker's command line."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.worker import worker
from tests.cli.test_reference import options
from tests.pages.tables import metrics

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORKER = options(f"{worker.__module__}:{worker.__name__}")


def files(page: str, kind: str) -> list[str]:
    return [text for found, text in FENCE.findall((HOWTO / page).read_text("utf-8")) if found == kind]


def is_understood(words: list[str]) -> bool:
    """Whether `penstock worker` has each of these options."""
    return all(word in WORKER for word in words if word.startswith("-"))


@pytest.mark.parametrize("page", ["deploy.md", "embedded.md"])
def test_a_unit_of_systemd_starts_a_command_that_exists(page: str):
    (text,) = files(page, "ini")
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    assert unit["Install"]["WantedBy"] == "multi-user.target"  # else `systemctl enable` does nothing
    assert "KillMode" not in unit["Service"], "the default is right, and systemd warns of none"
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[0].endswith("/bin/penstock")
    assert words[1] in {"worker", "server"}
    assert words[1] == "server" or is_understood(words[2:])


def test_an_image_runs_the_worker_as_process_1():
    (text,) = files("containers.md", "dockerfile")
    lines = dict(line.split(" ", 1) for line in text.splitlines())
    assert {"FROM", "ENTRYPOINT", "CMD", "USER"} <= set(lines)
    assert lines["ENTRYPOINT"].startswith('["penstock", "worker", ')
    assert "PENSTOCK_EMBEDDED=0" in lines["ENV"]
    (extras,) = re.findall(r"penstock\[([\w,]+)\]", text)
    assert "--metrics-port" not in "".join(files("containers.md", "yaml")) or "prometheus" in extras.split(",")


def yaml_files() -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return [yaml.safe_load(text) for text in files("containers.md", "yaml")]


def test_compose_and_kubernetes_give_the_worker_time_to_end():
    compose, deployment, _ = yaml_files()
    service = compose["services"]["worker"]
    assert service["stop_grace_period"] == "40s"
    assert is_understood(service["command"])
    assert is_understood(service["healthcheck"]["test"])
    assert all(one["restart"] == "always" for one in compose["services"].values())
    assert "noeviction" in compose["services"]["valkey"]["command"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] == 40
    assert is_understood(container["args"])
    assert is_understood(container["livenessProbe"]["exec"]["command"])
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_the_trigger_asks_for_a_metric_that_exists():
    *_, scaled = yaml_files()
    (trigger,) = scaled["spec"]["triggers"]
    named = set(re.findall(r"penstock_\w+", trigger["metadata"]["query"]))
    assert named
    assert named <= {name for name, _, _ in metrics()}
