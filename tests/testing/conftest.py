"""Tests of what Penstock offers to tests."""

from tests.command_line import run, start  # noqa: F401 - fixtures
