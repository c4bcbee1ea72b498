"""An import of many names: the operation, with replies that the test gives."""

from typing import Any

import pytest

from penstock.completion.bindings import DirectoryRules
from penstock.completion.entry import NewName
from penstock.completion.storage import CHUNK, DirectoryStorage
from penstock.core.operations import Receive, RoundTrip, Send


def test_an_import_prepares_names_while_the_server_stores_those_before(monkeypatch: pytest.MonkeyPatch):
    prepared = 0
    card = DirectoryRules.card

    def counted(rules: DirectoryRules, name: str) -> bytes:
        nonlocal prepared
        prepared += 1
        return card(rules, name)

    monkeypatch.setattr(DirectoryRules, "card", counted)
    names = [NewName.of(f"Ann {n}", f"Ann {n}") for n in range(3 * CHUNK)]
    operation: Any = DirectoryStorage("p", "g", DirectoryRules()).save(names, existing_only=False)
    effect = next(operation)
    for n in range(1, 4):
        assert isinstance(effect, Send)
        effect = operation.send("sent")
        assert isinstance(effect, Receive)
        assert prepared >= min(n + 1, 3) * CHUNK
        reply = (CHUNK, CHUNK)
        if n == 2:  # the server has left one of them
            effect = operation.send((CHUNK - 1, CHUNK - 1))
            assert isinstance(effect, RoundTrip)
            reply = (1, 1)
        if n == 3:
            with pytest.raises(StopIteration) as done:
                operation.send(reply)
            assert done.value.value == 3 * CHUNK
        else:
            effect = operation.send(reply)
