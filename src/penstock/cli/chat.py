"""`penstock chat …`: the messages that chats keep, and for which readers."""

from __future__ import annotations

from penstock.cli.where import HERE, AsJson, Where
from penstock.ops.answers import ChatView
from penstock.ops.wording import ago, many
from penstock.terminal.tables import headings, show, show_list

_COLUMNS = headings("chat:name", "readers", "messages", "kept", "bytes", "behind:text", "unread", "seen")


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every chat with its readers, its messages so far, the messages kept, and the reader furthest behind.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        chats, now = inspector.messages.chats(), inspector.now()
    show_list(chats, _COLUMNS, (_row(one, now) for one in chats), none="There are no chats.", as_json=as_json)


def _row(one: ChatView, now: float) -> tuple[str, ...]:
    chat, last = one.chat, one.last_reader
    known = (chat.id, f"{chat.readers:,}", f"{chat.last:,}", f"{chat.last - chat.first + 1:,}", f"{chat.bytes:,}")
    if last is None or not last.unread:
        return (*known, "", "", "")
    reader = f"{last.name} ({last.device})" if last.device else last.name
    seen = "never" if last.seen is None else ago(last.seen, now)
    return (*known, reader, f"{last.unread:,}", seen)


def unread(chat: str, member: str, message: str, /, *, device: str = "", where: Where = HERE) -> None:
    """Mark a message of a chat, and all after it, as unread for one member, who pulls them again.

    A message that the member had not acknowledged changes nothing. Exit code 1 for a message that is not stored any
    more, and for a name that is not a member.

    Parameters
    ----------
    chat
        The id of the chat.
    member
        The name of the member.
    message
        The id of the first message, as the member got it.
    device
        The member's device.
    """
    with where.open() as inspector:
        count = inspector.messages.mark_unread_in_chat(chat, member, message, device=device)
    show(f"{many(count, 'message')} of {member} in {chat} {'is' if count == 1 else 'are'} unread.")
