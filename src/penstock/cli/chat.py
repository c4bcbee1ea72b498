"""`penstock chat …`: what chats hold, and for whom."""

from __future__ import annotations

from penstock.cli.where import HERE, AsJson, Where
from penstock.ops.answers import ChatView
from penstock.ops.wording import age
from penstock.terminal.tables import Kind, show, show_json, show_table

_COLUMNS: dict[str, Kind] = {
    "chat": "name", "readers": "number", "messages": "number", "kept": "number", "bytes": "number", "behind": "text",
    "unread": "number", "seen": "number",
}  # fmt: skip


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every chat: how many read it, how many messages there were, how many are kept, and for whom.

    Reads all the server's keys once, in slices: some seconds on one with many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        chats, now = inspector.chats(), inspector.now()
    if as_json:
        return show_json(chats)
    if not chats:
        return show("No chat here.")
    return show_table(_COLUMNS, (_line(one, now) for one in chats))


def _line(one: ChatView, now: float) -> tuple[str, ...]:
    chat, last = one.chat, one.last_reader
    known = (chat.id, f"{chat.readers:,}", f"{chat.last:,}", f"{chat.last - chat.first + 1:,}", f"{chat.bytes:,}")
    if last is None or not last.unread:
        return (*known, "", "", "")
    who = f"{last.name} ({last.device})" if last.device else last.name
    seen = "never" if last.seen is None else f"{age(max(0.0, now - last.seen))} ago"
    return (*known, who, f"{last.unread:,}", seen)
