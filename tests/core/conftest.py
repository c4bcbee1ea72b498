"""These tests run on both faces, on one server and on a cluster, with an address and with a client."""

from tests.everywhere import face, place  # noqa: F401 - fixtures
