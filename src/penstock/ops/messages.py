"""Questions about mailboxes and chats."""

from __future__ import annotations

import contextlib

from penstock.core.operations import Operation, Parallel, verb
from penstock.errors import BadCall, ChatGone, SealError
from penstock.messages.bindings import default_on
from penstock.messages.chat import MAX_MEMBERS, ChatInfo, Member
from penstock.messages.dead_messages import DeadMessages
from penstock.messages.keys import LogKeys
from penstock.messages.mailbox import NO_LOG, MailboxInfo
from penstock.messages.message import Message
from penstock.ops.answers import ChatDetail, ChatView, MailboxDetail, MessageView
from penstock.ops.probe import instance_names
from penstock.ops.questioner import Questioner

_READERS_COMPARED = 100
"""How many readers of a chat, those that have read least, are compared to find the one with the most unread messages.
The first of them may have none, because a member's own messages do not count as unread."""


class MessageQuestioner(Questioner):
    """Asks about all mailboxes and chats, and about one of them by its name."""

    @verb
    def mailboxes(self) -> Operation[list[MailboxInfo]]:
        """Every mailbox, sorted by name. One round trip for each 1000 keys of the server, and one for each mailbox."""
        infos: list[MailboxInfo] = []
        for name in (yield from self._mailbox_names()):
            infos.append((yield self._app.mailbox(name).read_info()))
        return infos

    def _mailbox_names(self) -> Operation[list[str]]:
        found = yield from instance_names(self._prefix, "mailbox", "state")
        return [LogKeys.read(f"mailbox:{name}")[1] for name in found]

    @verb
    def mailbox(self, name: str, *, messages: int = 50) -> Operation[MailboxDetail]:
        """One mailbox and its latest messages, up to a megabyte of them. Three round trips.

        No cursor moves, and it does not count as a pull. Raises PenstockError for a mailbox that does not exist.
        """
        yield from self._check_mailbox(name)
        box = self._app.mailbox(name)
        info, status = yield Parallel((box.read_info(), default_on(b"GONE", box._log.status(""), NO_LOG)))
        found = yield from box.history.within(messages)
        return MailboxDetail(
            info, status.cursor, [_view(one, int(one.number <= status.cursor)) for one in reversed(found)]
        )

    @verb
    def mark_unread(self, name: str, first: str) -> Operation[int]:
        """Mark a message of a mailbox, and all after it, as unread; see `Mailbox.mark_unread`.

        Returns how many are unread now. Three round trips. Raises PenstockError for a mailbox that does not exist.
        """
        yield from self._check_mailbox(name)
        box = self._app.mailbox(name)
        yield from box.mark_unread.within(first)
        info: MailboxInfo = yield box.read_info()
        return info.unread

    @verb
    def mark_unread_in_chat(self, chat: str, member: str, first: str, *, device: str = "") -> Operation[int]:
        """Mark a message of a chat, and all after it, as unread for a member; see `Reader.mark_unread`.

        Returns how many are unread for it now. Two round trips. Raises ChatGone and NotAMember.
        """
        reader = self._app.chats.get(chat).reader(member, device)
        yield from reader.mark_unread.within(first)
        return (yield from reader.unread.within())

    def _check_mailbox(self, name: str) -> Operation[None]:
        status = yield default_on(b"GONE", self._app.mailbox(name)._log.status(""), None)
        if status is None:
            raise self._not_found("mailbox", name, (yield from self._mailbox_names()))

    @verb
    def dead_messages(self, name: str) -> Operation[DeadMessages]:
        """The dead letters of a mailbox, as an object with verbs. Raises PenstockError for a mailbox that does not
        exist. One round trip."""
        yield from self._check_mailbox(name)
        return self._app.mailbox(name).dead

    @verb
    def chats(self) -> Operation[list[ChatView]]:
        """Every chat, sorted by id. One round trip for each 1000 keys of the server, and two for each chat.

        The reader with the most unread messages is one of the hundred that have read the least.
        """
        views = []
        for name in (yield from instance_names(self._prefix, "chat", "state")):
            chat = self._app.chats.get(LogKeys.read(f"chat:{name}")[1])
            with contextlib.suppress(ChatGone):
                info = yield chat.read_info()
                readers = yield chat.read_members(_READERS_COMPARED)
                views.append(ChatView(info, max(readers, key=lambda one: one.unread, default=None)))
        return views

    @verb
    def chat(self, id: str, *, messages: int = 50) -> Operation[ChatDetail]:
        """One chat with its readers and its latest messages, up to a megabyte of them. Two round trips.

        No cursor moves, and it does not count as a pull. Raises PenstockError for a chat that does not exist.
        """
        chat = self._app.chats.get(id)
        try:
            info, readers = yield Parallel((chat.read_info(), chat.read_members(MAX_MEMBERS)))
            found = yield from chat.reader(readers[0].name).history.within(messages)
        except ChatGone:
            names = yield from instance_names(self._prefix, "chat", "state")
            raise self._not_found("chat", id, [LogKeys.read(f"chat:{name}")[1] for name in names]) from None
        return _chat_detail(info, readers, found)


def _chat_detail(info: ChatInfo, readers: list[Member], messages: list[Message]) -> ChatDetail:
    views = [
        _view(one, sum(reader.read >= one.number or reader.name == one.sender for reader in readers))
        for one in reversed(messages)
    ]
    return ChatDetail(info, readers, views)


def _view(one: Message, read_by: int) -> MessageView:
    about = (one.event or "", one.edited, one.redacted)
    return MessageView(one.id, one.number, one.sender, one.at, _body(one), *about, read_by)


def _body(message: Message) -> object:
    try:
        return message.body
    except (BadCall, SealError) as error:
        return f"({error})"
