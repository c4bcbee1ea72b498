"""`app.chats`: create chats, open them by id, and read all chats of one user together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.core.arguments import check_many, check_wait, names_options, shown
from penstock.core.clock import Clock
from penstock.core.ids import mint_id
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import BadCall, ChatExists
from penstock.messages.bindings import PULL_BYTES, ChatIndexBindings, LogBindings, default_on, new_beginning
from penstock.messages.chat import BATCH, Chat, member_of, notify_members, run_in_batches
from penstock.messages.keys import LogKeys, check_device, check_reader
from penstock.messages.log import ask_until, check_limit, trim_rest
from penstock.messages.message import History, Keep, Mail, Message
from penstock.messages.replies import LogStatus, PullReply
from penstock.settings import Settings

NOT_A_READER = b"GONE NOT_A_MEMBER"
"""Refusals that mean that the user is not in the chat."""

QUIET_INTERVAL = 60.0
"""Seconds without a hint after which a waiting `pull` checks QUIET_CHATS chats anyway: a hint may have been lost."""

QUIET_CHATS = 2
"""Each check continues where the last one ended, so it reaches every chat in turn."""

FIRST_PAGE = b"-inf"
"""The `after` with which a page of the index begins at its first entry."""

_NO_MESSAGE = object()


class Chats:
    """All chats of an app."""

    def __init__(self, driver: Driver, settings: Settings, clock: Clock) -> None:
        self._driver = driver
        self.settings = settings
        self.clock = clock

    def get(self, id: str) -> Chat:
        """The chat with this id. No round trip; if there is no such chat, its verbs raise ChatGone."""
        return Chat(id, self._driver, self.settings, self.clock, self.index_of)

    def index_of(self, user: str) -> ChatIndexBindings:
        return ChatIndexBindings(self.settings.prefix, user, self.clock)

    def of(self, user: str, device: str = "") -> UserChats:
        """All chats of a user, read together. No round trip."""
        return UserChats(self, check_reader("member", user), device and check_reader("device", device))

    @verb
    @names_options
    def create(
        self,
        members: Iterable[str],
        *,
        sender: str | None = None,
        message: Any = _NO_MESSAGE,
        id: str | None = None,
        keep: Keep | None = None,
        history: History | None = None,
    ) -> Operation[Chat]:
        """Make a chat with these members and its first message atomically: all of it or nothing.

        members  the members, which read the chat from its start
        sender   one more member; needed if there is a message
        id       your own id for the chat; None mints one
        keep     limits on the messages that are kept until all members have read them; None: no limits
        history  how many messages are kept after all members have read them; None: none

        Raises ChatExists. Two round trips, and about two more for each hundred members.
        """
        if not isinstance(members, str):
            check_many("create", "members", members)
        invited = [members] if isinstance(members, str) else list(members)
        for member in invited if sender is None else [*invited, sender]:
            check_reader("member", member)
        everyone: list[str] = list(dict.fromkeys(invited if sender is None else [*invited, sender]))
        if not everyone:
            raise ValueError("create([]): name at least one member; a chat without members is deleted")
        if message is not _NO_MESSAGE and sender is None:
            raise ValueError("create(message=…): say who sends it, sender='…'")
        chat = self.get(mint_id() if id is None else id)
        body = None if message is _NO_MESSAGE else chat._log.encode(message)
        make = chat._log.create(everyone, Keep() if keep is None else keep, sender or "", body, history)
        return self._create(chat, everyone, make, is_own_id=id is not None)

    def _create(self, chat: Chat, members: Sequence[str], make: RoundTrip[None], *, is_own_id: bool) -> Operation[Chat]:
        log = chat._log
        if is_own_id and (yield default_on(b"GONE", log.status(""), None)) is not None:
            raise ChatExists(f"{log.label} exists already: open it with get(), or give another id")
        indexes = [self.index_of(member) for member in members]
        yield from run_in_batches(index.add(chat.id, pending=True) for index in indexes)
        yield make
        yield from run_in_batches(index.add(chat.id, pending=False) for index in indexes)
        return chat


class UserChats:
    """All chats of one user, read together, on one device if a device is named.

    Keep this object for as long as the user is connected: its first pull checks every chat, and later ones only chats
    with new messages. Run one pull at a time.

    How it works: a reader that has read everything is watched by its chat, and the next sender of the chat adds a hint
    to the user's index of chats. So a pull waits for hints in this one index, and then pulls from the chats that they
    name.
    """

    def __init__(self, chats: Chats, user: str, device: str) -> None:
        self._chats = chats
        self._index = chats.index_of(user)
        self.user = user
        self.device = check_device(device)
        self._hints_since = b""
        """The last hint that was read; empty until all chats were checked for the first time."""
        self._with_news: dict[str, None] = {}
        """Chats that may have unread messages, in the order of their hints."""
        self._quietly_checked_to = FIRST_PAGE
        """Entry of the last chat that was checked without a hint."""

    @property
    def _driver(self) -> Driver:
        return self._chats._driver

    def __repr__(self) -> str:
        return f"<UserChats {self.user}>"

    def _log(self, chat: str) -> LogBindings:
        return LogBindings(LogKeys(self._chats.settings.prefix, "chat", chat), self._chats.settings, self._chats.clock)

    @verb
    def unread(self) -> Operation[dict[str, int]]:
        """The number of unread messages of each chat, by its id; 0 for a chat without any. Two round trips for each
        hundred chats."""
        unread: dict[str, int] = {}
        after = FIRST_PAGE
        while page := (yield self._index.page(after, BATCH)):
            after = page[-1][1]
            statuses = yield from self._check(page, watch=False)
            unread |= {chat: status.unread for chat, status in statuses.items()}
        return unread

    def _check(self, page: Sequence[tuple[str, bytes]], *, watch: bool) -> Operation[dict[str, LogStatus]]:
        """Returns the status of each chat of a page, and repairs the index where it is wrong. `watch`: a chat
        whose messages the reader has all read watches the reader from then on."""
        statuses: list[LogStatus | None] = yield from run_in_batches(
            default_on(NOT_A_READER, self._log(chat).status(self.user, self.device, watch=watch), None)
            for chat, _ in page
        )
        found, repairs = {}, list[RoundTrip[Any]]()
        for (chat, entry), status in zip(page, statuses, strict=True):
            if status is None or status.cursor < 0:
                repairs.append(self._index.remove(chat, entry))
            else:
                found[chat] = status
                if entry.startswith(b"-"):
                    repairs.append(self._index.add(chat, pending=False))
        yield from run_in_batches(repairs)
        return found

    @verb
    @names_options
    def pull(self, limit: int = 100, *, wait: float | None = 0.0) -> Operation[Mail]:
        """Return up to `limit` messages of all chats; those of one chat are in order. Until they are acknowledged, each
        pull returns the same messages again. `m.place` is the chat's id.

        wait  seconds to wait for the first message; 0 answers at once, None waits for ever

        The first pull checks every chat: one round trip for each hundred. Later ones take two round trips, and ask only
        chats with news.
        """
        check_wait("pull", wait)
        check_limit("pull", limit)
        return self._pull(limit, wait)

    def _pull(self, limit: int, wait: float | None) -> Operation[Mail]:
        deadline = None if wait is None else time.monotonic() + wait
        if not self._hints_since:
            yield from self._check_all()
        else:
            yield from self._wait_for_hints(0.0)
        while True:
            mail = yield from self._pull_news(limit)
            left = None if deadline is None else deadline - time.monotonic()
            if mail or (left is not None and left <= 0):
                return mail
            yield from self._wait_for_hints(QUIET_INTERVAL if left is None else min(QUIET_INTERVAL, left))

    def _check_all(self) -> Operation[None]:
        """Check every chat. A message that arrives during the check is not missed: the next call reads all hints that
        came after its beginning."""
        since, _ = yield self._index.news(b"-inf")
        after = FIRST_PAGE
        while page := (yield self._index.page(after, BATCH)):
            after = page[-1][1]
            statuses = yield from self._check(page, watch=True)
            self._with_news |= {chat: None for chat, status in statuses.items() if status.behind}
        self._hints_since = since

    def _wait_for_hints(self, wait: float) -> Operation[None]:
        """Wait up to `wait` seconds for hints, and add their chats to `_with_news`. If a whole minute passes without
        one, check the next few chats."""
        self._hints_since, hinted = yield from ask_until(
            lambda answer: answer[1],
            lambda address, ttl: self._index.news(self._hints_since, address, ttl),
            self._index,
            wait,
        )
        if not hinted and wait >= QUIET_INTERVAL:
            page = yield self._index.page(self._quietly_checked_to, QUIET_CHATS)
            self._quietly_checked_to = page[-1][1] if page else FIRST_PAGE
            statuses = yield from self._check(page, watch=True)
            hinted = [chat for chat, status in statuses.items() if status.behind]
        self._with_news |= dict.fromkeys(hinted)

    def _pull_news(self, limit: int) -> Operation[Mail]:
        """Pull an equal share of `limit` from each chat with news. A chat that has no more messages watches this reader
        from then on."""
        while self._with_news:
            chats = list(self._with_news)[: min(limit, BATCH)]
            share, max_bytes = limit // len(chats), max(PULL_BYTES // len(chats), 64 * 1024)
            replies: list[PullReply | None] = yield from run_in_batches(
                default_on(
                    NOT_A_READER,
                    self._log(chat).pull(self.user, self.device, limit=share, max_bytes=max_bytes, watch=True),
                    None,
                )
                for chat in chats
            )
            found = Mail()
            for chat, reply in zip(chats, replies, strict=True):
                if reply is None or not reply.mail:
                    del self._with_news[chat]
                if reply is None:
                    continue
                found += reply.mail
                found.unread += reply.mail.unread
                yield from trim_rest(self._log(chat), reply.more_to_trim)
                others = [reader for reader in reply.to_notify if member_of(reader) != self.user]
                yield from notify_members(self._chats.index_of, chat, others)
            if found:
                return found
        return Mail()

    @verb
    def ack(self, messages: Iterable[Message]) -> Operation[None]:
        """Acknowledge these messages, and all messages before them in their chats.

        Ignores a chat that is gone or that the user has left. Raises NewBeginning for a chat that began again since its
        message was read; those of other chats are acknowledged. One round trip for each hundred chats.
        """
        check_many("ack", "messages", messages)
        upto: dict[str, Message] = {}
        for message in messages:
            if not isinstance(message, Message):
                raise BadCall(f"ack({shown(message)}): give messages, as `pull` returned them")
            latest = upto.setdefault(message.place, message)
            if (message.at, message.number) > (latest.at, latest.number):
                upto[message.place] = message
        return self._ack({chat: message.id for chat, message in upto.items()})

    def _ack(self, upto: dict[str, str]) -> Operation[None]:
        replies = yield from run_in_batches(
            default_on(NOT_A_READER, self._log(chat).pull(self.user, self.device, limit=0, acked=position), None)
            for chat, position in upto.items()
        )
        refused = []
        for chat, reply in zip(upto, replies, strict=True):
            if reply is not None:
                yield from trim_rest(self._log(chat), reply.more_to_trim)
                if reply.new_beginning:
                    refused.append(chat)
        if refused:
            raise new_beginning(self._log(refused[0]), upto[refused[0]], "acknowledged there")
