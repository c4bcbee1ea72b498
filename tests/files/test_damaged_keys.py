"""A key that holds what Penstock did not write gives an error that names it, in words of its reader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel
from penstock.errors import PenstockError
from tests.files import test_recognition

channel, place = test_recognition.channel, test_recognition.place  # fixtures

WRONG: dict[str, Callable[[Any, str], Any]] = {
    "string": lambda raw, key: raw.set(key, "x"),
    "list": lambda raw, key: raw.rpush(key, "x", "y"),
    "hash": lambda raw, key: raw.hset(key, "x", "y"),
    "zset": lambda raw, key: raw.zadd(key, {"x": 1}),
    "stream": lambda raw, key: raw.xadd(key, {"x": "y"}),
}

KEYS = ["log", "ends", "readers", "owners", "marks", "entries", "sources", "sent_at", "dead_files", "seen", "state"]


@pytest.mark.damages
@pytest.mark.parametrize("suffix", KEYS)
def test_no_error_has_a_text_of_a_script(channel: Channel, tmp_path: Path, raw: Any, suffix: str):
    base = channel.bindings.keys.base
    (tmp_path / "a").write_bytes(b"a\n")
    (tmp_path / "b").write_bytes(b"b\n")
    calls: list[Callable[[], Any]] = [
        lambda: channel.send_lines(tmp_path / "b"),
        lambda: list(channel.receiver("r").blocks(wait=0)),
        lambda: list(channel.receiver("s").blocks(wait=0, share=True)),
        channel.info,
        channel.close,
    ]
    for write in WRONG.values():
        for call in calls:
            for key in raw.keys(base + "*"):
                raw.delete(key)
            channel.open(["r", "s"])
            channel.send_lines(tmp_path / "a")
            raw.delete(base + suffix)
            write(raw, base + suffix)
            with contextlib.suppress(PenstockError):
                call()
                continue
            with pytest.raises(PenstockError) as caught:
                call()
            assert not any(text in str(caught.value) for text in ("attempt to", "nil", "bad argument", "user_script"))
    for key in raw.keys(base + "*"):
        raw.delete(key)
