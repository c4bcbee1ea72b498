"""These tests run on both faces, against a server, a cluster, and a client of redis-py."""

from tests.everywhere import face, place  # noqa: F401 - fixtures
