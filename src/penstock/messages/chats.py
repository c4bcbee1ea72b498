"""All chats: created, opened by id, and those of one user, read as one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.core.clock import Clock
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import ChatExists
from penstock.messages.chat import AT_ONCE, Chat, in_lots, tell
from penstock.messages.chat_index import Index
from penstock.messages.keys import LogKeys, check_reader
from penstock.messages.log import REMIND, ROOM, Keep, Log, Look, Mail, Message, Pulled, check_wait, unless, until_found
from penstock.settings import Settings

NOT_IN_IT = b"GONE STRANGER"

QUIET = 60.0
"""After so many seconds without a hint a few chats are looked at all the same, in turn: a hint may have been lost."""

IN_TURN = 2

_NOTHING = object()


class Chats:
    """`app.chats`."""

    def __init__(self, driver: Driver, settings: Settings, clock: Clock) -> None:
        self._driver = driver
        self.settings = settings
        self.clock = clock

    def get(self, id: str) -> Chat:
        """The chat of this id. No round trip: its verbs raise ChatGone where there is none."""
        return Chat(id, self._driver, self.settings, self.clock, self.index_of)

    def index_of(self, user: str) -> Index:
        return Index(self.settings.prefix, user, self.clock)

    def of(self, user: str, device: str = "") -> UserChats:
        """All chats of a user, read as one. No round trip."""
        return UserChats(self, check_reader("member", user), device and check_reader("device", device))

    @verb
    def create(
        self,
        members: Iterable[str],
        *,
        sender: str | None = None,
        message: Any = _NOTHING,
        id: str | None = None,
        keep: Keep | None = None,
    ) -> Operation[Chat]:
        """Make a chat with these members, and the sender, and its first message, in one step: all or nothing.

        members  who reads it, from its start
        sender   one more member; needed where there is a message
        id       of your own; None mints one
        keep     what to keep of what is not read; None: all of it

        Raises ChatExists. Two round trips, and two for each hundred members or so.
        """
        invited = [members] if isinstance(members, str) else list(members)
        everyone: list[str] = list(dict.fromkeys(invited if sender is None else [*invited, sender]))
        if not everyone:
            raise ValueError("create([]): a chat has at least one member; the last one out frees it")
        if message is not _NOTHING and sender is None:
            raise ValueError("create(message=…): say who sends it, sender='…'")
        for member in everyone:
            check_reader("member", member)
        chat = self.get(mint_id() if id is None else id)
        body = None if message is _NOTHING else chat._log.encode(message)
        return self._created(chat, everyone, keep or Keep(), sender or "", body, is_own_id=id is not None)

    def _created(
        self, chat: Chat, members: Sequence[str], keep: Keep, sender: str, body: bytes | None, *, is_own_id: bool
    ) -> Operation[Chat]:
        log = chat._log
        if is_own_id and (yield unless(b"GONE", log.look(""), None)) is not None:
            raise ChatExists(f"{log.what} is there already: open it with get(), or give another id")
        indexes = [self.index_of(member) for member in members]
        yield from in_lots(index.enlist(chat.id, pending=True) for index in indexes)
        yield log.create(members, keep, sender, body)
        yield from in_lots(index.enlist(chat.id, pending=False) for index in indexes)
        return chat


class UserChats:
    """The chats of one user, on one device if one is named. Found by one index; news is hinted at in one place.

    Keep it for as long as the user is there: it remembers which chats were looked at. One pull at a time.
    """

    def __init__(self, chats: Chats, user: str, device: str) -> None:
        self._chats = chats
        self._index = chats.index_of(user)
        self.user = user
        self.device = device
        self._since = b""
        self._open: dict[str, None] = {}
        self._turn = b"-inf"

    @property
    def _driver(self) -> Driver:
        return self._chats._driver

    def __repr__(self) -> str:
        return f"<UserChats {self.user}>"

    def _log(self, chat: str) -> Log:
        return Log(LogKeys(self._chats.settings.prefix, "chat", chat), self._chats.settings, self._chats.clock)

    @verb
    def unread(self) -> Operation[dict[str, int]]:
        """How many messages wait, by chat; with those where none does. Two round trips for each hundred chats."""
        found: dict[str, int] = {}
        after = b"-inf"
        while page := (yield self._index.page(after, AT_ONCE)):
            after = page[-1][1]
            found |= yield from self._look(page, watch=False)
        return found

    def _look(self, page: Sequence[tuple[str, bytes]], *, watch: bool) -> Operation[dict[str, int]]:
        """Unread by chat, and the index mended where it was wrong."""
        looks: list[Look | None] = yield from in_lots(
            unless(NOT_IN_IT, self._log(chat).look(self.user, self.device, watch=watch), None) for chat, _ in page
        )
        found, mended = {}, list[RoundTrip[Any]]()
        for (chat, entry), look in zip(page, looks, strict=True):
            if look is None or look.cursor < 0:
                mended.append(self._index.strike(chat, entry))
            else:
                found[chat] = look.unread
                if entry.startswith(b"-"):
                    mended.append(self._index.enlist(chat, pending=False))
        yield from in_lots(mended)
        return found

    @verb
    def pull(self, limit: int = 100, *, wait: float | None = 0.0) -> Operation[Mail]:
        """Up to `limit` messages of all chats, of each in order, again and again the same until they are acknowledged.

        `m.place` is the chat's id. `wait`: seconds to wait for the first one; 0 answers at once, None waits for ever.
        The first pull looks at every chat, a round trip for each hundred; from then on a pull takes two, and asks
        only chats with news.
        """
        check_wait("pull", wait, limit)
        return self._pulled(limit, wait)

    def _pulled(self, limit: int, wait: float | None) -> Operation[Mail]:
        deadline = None if wait is None else time.monotonic() + wait
        if not self._since:
            yield from self._look_around()
        else:
            yield from self._hear(0.0)
        while True:
            mail = yield from self._gather(limit)
            left = None if deadline is None else deadline - time.monotonic()
            if mail or (left is not None and left <= 0):
                return mail
            yield from self._hear(QUIET if left is None else min(QUIET, left))

    def _look_around(self) -> Operation[None]:
        """At all chats. What comes while we look is hinted at, for the hints are read from before."""
        since, _ = yield self._index.news(b"-inf")
        after = b"-inf"
        while page := (yield self._index.page(after, AT_ONCE)):
            after = page[-1][1]
            unread = yield from self._look(page, watch=True)
            self._open |= {chat: None for chat, n in unread.items() if n}
        self._since = since

    def _hear(self, wait: float) -> Operation[None]:
        """Hints; and after a quiet minute a look at the next chats in turn."""
        self._since, hinted = yield from until_found(
            self._index.keys.inbox, REMIND, self._index.stay, wait,
            lambda address, stay: self._index.news(self._since, address, stay), lambda answer: answer[1],
        )  # fmt: skip
        if not hinted and wait >= QUIET:
            page = yield self._index.page(self._turn, IN_TURN)
            self._turn = page[-1][1] if page else b"-inf"
            found = yield from self._look(page, watch=True)
            hinted = [chat for chat, n in found.items() if n]
        self._open |= dict.fromkeys(hinted)

    def _gather(self, limit: int) -> Operation[Mail]:
        """From the chats with news, as much of each; those with nothing left are watched from then on."""
        while self._open:
            some = list(self._open)[: min(limit, AT_ONCE)]
            share, room = limit // len(some), max(ROOM // len(some), 64 * 1024)
            answers: list[Pulled | None] = yield from in_lots(
                unless(
                    NOT_IN_IT, self._log(chat).pull(self.user, self.device, limit=share, room=room, watch=True), None
                )
                for chat in some
            )
            found = Mail()
            for chat, answer in zip(some, answers, strict=True):
                if answer is None or not answer.mail:
                    del self._open[chat]
                if answer is None:
                    continue
                found += answer.mail
                found.unread += answer.mail.unread
                yield from self._log(chat).trim_rest(answer.more)
                told = [reader for reader in answer.told if reader.partition("\0")[0] != self.user]
                yield from tell(self._chats.index_of, chat, told)
            if found:
                return found
        return Mail()

    @verb
    def ack(self, messages: Iterable[Message]) -> Operation[None]:
        """These messages, and in their chats all before them, are done with. One round trip for each hundred chats.

        A chat that is gone, or that the user has left, is passed over. Raises BadCall for a number never given.
        """
        upto: dict[str, int] = {}
        for message in messages:
            upto[message.place] = max(message.id, upto.get(message.place, 0))
        return self._acked(upto)

    def _acked(self, upto: dict[str, int]) -> Operation[None]:
        answers = yield from in_lots(
            unless(NOT_IN_IT, self._log(chat).pull(self.user, self.device, limit=0, acked=number), None)
            for chat, number in upto.items()
        )
        for chat, answer in zip(upto, answers, strict=True):
            if answer is not None:
                yield from self._log(chat).trim_rest(answer.more)
