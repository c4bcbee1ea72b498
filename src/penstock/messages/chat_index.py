"""The scripts of `chats.lua` as round trips: which chats a user is in, as far as it is known, and which have news.

The chat alone knows its members. An entry is made before a join and taken away after a leave, so what dies in
between leaves one too many, never one too few; whoever reads it asks the chat and strikes it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from penstock.core.clock import Clock
from penstock.core.operations import Arg, RoundTrip
from penstock.core.scripts import Library
from penstock.messages.keys import LogKeys
from penstock.messages.log import names


@cache
def scripts() -> Library:
    return Library("core/wake.lua", "messages/chats.lua")


class Index:
    """Builds the steps of one user's index of chats."""

    def __init__(self, prefix: str, user: str, clock: Clock) -> None:
        self.keys = LogKeys(prefix, "chats", user)
        self.clock = clock
        self._scripts = scripts().scripts

    def _step(self, name: str, args: Iterable[Arg], read: Any) -> RoundTrip[Any]:
        return RoundTrip(self._scripts[name], self.keys.declared, tuple(args), read)

    def enlist(self, chat: str, *, pending: bool) -> RoundTrip[bytes]:
        """Answers with the entry, to strike it out if nothing came of it."""
        return self._step("enlist", (self.clock.now_ms, chat, int(pending)), bytes)

    def strike(self, chat: str, entry: bytes, *, sure: bool = False) -> RoundTrip[bool]:
        """Only if it is as it was read, and, unless `sure`, not about to be joined."""
        return self._step("strike", (self.clock.now_ms, chat, entry, int(sure)), bool)

    def find(self, chat: str) -> RoundTrip[bytes | None]:
        return self._step("find", (chat,), lambda reply: reply)

    def page(self, after: bytes, n: int) -> RoundTrip[list[tuple[str, bytes]]]:
        """Chats and entries, from behind the entry `after`; b"-inf" for the first page."""

        def read(reply: Sequence[bytes]) -> list[tuple[str, bytes]]:
            return list(zip(names(reply[0::2]), reply[1::2], strict=True))

        return self._step("page_of_chats", (b"-inf" if after == b"-inf" else b"(" + after, n), read)

    def hint(self, chats: Iterable[str]) -> RoundTrip[None]:
        """There is news in these."""
        return self._step("hint", (self.clock.now_ms, *chats), lambda _: None)

    def news(self, since: bytes, address: str = "", stay: float = 0.0) -> RoundTrip[tuple[bytes, list[str]]]:
        """The chats that were hinted at since, and what to ask with next time."""
        return self._step("news", (since, address, int(stay * 1000)), lambda reply: (reply[0], names(reply[1:])))

    def stay(self, address: str) -> RoundTrip[int]:
        """Who was at this address waits no more."""
        return self._step("news", (b"+inf", address, 0), lambda _: 0)
