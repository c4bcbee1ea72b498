"""`penstock chat …`: the messages that chats keep, and for which readers."""

from __future__ import annotations

import json

from penstock.cli.where import HERE, AsJson, Limit, Where
from penstock.messages.chat import Member
from penstock.ops.answers import ChatView, MessageView
from penstock.ops.wording import ago, many
from penstock.terminal.tables import headings, show, show_facts, show_json, show_list, show_table

_READERS = headings("reader:name", "read up to", "unread", "seen")
_MESSAGES = headings("number", "sender:name", "sent", "read by", "message:text")
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
    return (*known, _name(last), f"{last.unread:,}", _seen(last, now))


def _name(reader: Member) -> str:
    return f"{reader.name} ({reader.device})" if reader.device else reader.name


def _seen(reader: Member, now: float) -> str:
    return "never" if reader.seen is None else ago(reader.seen, now)


def show_one(chat: str, /, *, messages: Limit = 20, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one chat: its readers, those furthest behind first, and its latest messages with how many have read them.

    No reader's cursor moves.

    Parameters
    ----------
    chat
        The id of the chat.
    messages
        The most messages to show; fewer if they make up a megabyte.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found, now = inspector.messages.chat(chat, messages=messages), inspector.now()
    if as_json:
        return show_json(found)
    kept = found.chat.last - found.chat.first + 1
    show_facts({"chat": found.chat.id, "messages": f"{found.chat.last:,}, {kept:,} kept", "bytes": found.chat.bytes})
    show("")
    rows = [(_name(one), f"{one.read:,}", f"{one.unread:,}", _seen(one, now)) for one in found.readers]
    show_table(_READERS, rows)
    if found.messages:
        show("")
        of = len(found.readers)
        lines = [
            (f"{m.number:,}", m.sender, ago(m.at, now), f"{m.read_by:,} of {of:,}", message_text(m))
            for m in found.messages
        ]
        show_table(_MESSAGES, lines)
    return None


def message_text(message: MessageView) -> str:
    if message.event or message.redacted:
        return f"({message.event or 'redacted'})"
    return json.dumps(message.body, ensure_ascii=False, default=str)


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
