"""Each test runs on both faces, and in three places: on a server, on a cluster, and with a client of the user."""

from tests.everywhere import face, place  # noqa: F401 - fixtures
