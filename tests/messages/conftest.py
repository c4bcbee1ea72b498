"""These tests run with both faces, on a single server, on a cluster, and with a client that the caller supplies."""

from tests.everywhere import face, place  # noqa: F401 - fixtures
