"""These tests run with both faces, on a single server, on a cluster, and with a client that the caller supplies."""

import pytest

from penstock.counting import unsettled
from penstock.files import bindings, gunzip, source_reader
from tests.everywhere import face, place  # noqa: F401 - fixtures


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks, pulls and settlements so small that a few thousand lines take many of each."""
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 1024)
    monkeypatch.setattr(bindings, "PULL_BYTES", 3000)
    monkeypatch.setattr(bindings, "DEFAULT_RECORDS", 1)
    monkeypatch.setattr(unsettled, "MAX_LINES", 100)
    monkeypatch.setattr(gunzip, "_CHUNK", 256)


@pytest.fixture
def in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether counts are settled in parts, as those of many keys are; each part has four of them."""
    if request.param:
        monkeypatch.setattr(unsettled, "CALL_KEYS", 1)
        monkeypatch.setattr(unsettled, "PIECE_KEYS", 4 + unsettled.TABLE_KEYS)
        monkeypatch.setattr(unsettled, "PIECE_TEXTS", 50)
    return bool(request.param)
