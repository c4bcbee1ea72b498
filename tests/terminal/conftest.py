"""Fixtures that run the command line."""

from tests.command_line import begun, penstock, run, shop, start  # noqa: F401 - fixtures
