"""A test that failed runs again, is named, and fails the submission if it recurs."""

import os
import subprocess
import sys
from pathlib import Path

from tests.retries import is_model, recurring

ROOT = Path(__file__).parents[1]


def test_a_test_that_needed_a_second_run_in_three_targets_is_found_whatever_its_parameters():
    retried = {
        "test": ["tests/a.py::test_x[blocking]", "tests/a.py::test_y"],
        "test-pairs": ["tests/a.py::test_x[aio]", "tests/a.py::test_y"],
        "test-servers": ["tests/a.py::test_x[aio]"],
    }
    assert recurring(retried) == ["tests/a.py::test_x (test, test-pairs, test-servers)"]
    assert recurring({"test": retried["test"]}) == []


def test_models_are_known_by_their_files():
    models = {path.name for path in ROOT.glob("tests/**/test_*.py") if is_model(path)}
    assert {"test_queue_model.py", "test_channel_model.py", "test_shards.py"} <= models
    assert "test_retries.py" not in models


def test_a_model_that_failed_is_not_retried():
    """The model is a fast one, which would pass."""
    name = "tests/simulation/test_fairness.py::test_virtual_times_stay_exact_after_a_thousand_million_turns"
    for options, failed in (((), False), (("--retry-of", "probe"), True)):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTEST_ADDOPTS": ""},
            check=False,
        )
        assert (done.returncode != 0, "a model is not retried" in done.stdout) == (failed, failed), done.stdout
