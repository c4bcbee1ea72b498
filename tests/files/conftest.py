"""These tests run on both faces, and on a server, on a cluster, and with a client handed in."""

from tests.everywhere import face, place  # noqa: F401 - fixtures
