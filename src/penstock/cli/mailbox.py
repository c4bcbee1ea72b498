"""`penstock mailbox …`: what mailboxes keep. Their dead letters are those of `penstock dead … mailbox:NAME`."""

from __future__ import annotations

from penstock.cli.chat import message_text
from penstock.cli.where import HERE, AsJson, Limit, Where
from penstock.messages.mailbox import MailboxInfo
from penstock.ops.wording import ago, many
from penstock.terminal.tables import headings, show, show_facts, show_json, show_list, show_table

_MESSAGES = headings("number", "sender:name", "sent", "read:name", "message:text")
_COLUMNS = headings("mailbox:name", "messages", "unread", "claimed", "dead", "bytes", "pulled")


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every mailbox with its messages so far, those that are unread, claimed and dead, and its last pull.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        boxes, now = inspector.messages.mailboxes(), inspector.now()
    show_list(boxes, _COLUMNS, (_row(one, now) for one in boxes), none="There are no mailboxes.", as_json=as_json)


def _row(one: MailboxInfo, now: float) -> tuple[str, ...]:
    numbers = (one.last, one.unread, one.claimed, one.dead, one.bytes)
    return (one.name, *(f"{number:,}" for number in numbers), _ago(one.pulled, now))


def _ago(time: float | None, now: float) -> str:
    return "never" if time is None else ago(time, now)


def show_one(name: str, /, *, messages: Limit = 20, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one mailbox and its latest messages, with those that its owner has read. Exit code 1 if it does not exist.

    The owner's cursor does not move.

    Parameters
    ----------
    name
        The name of the mailbox.
    messages
        The most messages to show; fewer if they make up a megabyte.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found, now = inspector.messages.mailbox(name, messages=messages), inspector.now()
    if as_json:
        return show_json(found)
    one = found.mailbox
    ids = f"{one.ids:,}" + (f", the oldest given {_ago(one.ids_since, now)}" if one.ids else "")
    show_facts(
        {
            "mailbox": one.name,
            "messages": f"{one.last:,} so far",
            "unread": f"{one.unread:,}",
            "claimed": f"{one.claimed:,}",
            "dead": f"{one.dead:,}" + (f" (penstock dead ls mailbox:{one.name})" if one.dead else ""),
            "bytes": f"{one.bytes:,}",
            "pulled": _ago(one.pulled, now),
            "message ids": ids,
        }
    )
    if found.messages:
        show("")
        lines = [
            (f"{m.number:,}", m.sender, ago(m.at, now), "yes" if m.read_by else "no", message_text(m))
            for m in found.messages
        ]
        show_table(_MESSAGES, lines)
    return None


def unread(name: str, message: str, /, *, where: Where = HERE) -> None:
    """Mark a message of a mailbox, and all after it, as unread: its owner pulls them again.

    A message that the owner had not acknowledged changes nothing. Exit code 1 for a message that is not stored any
    more, and for a mailbox whose messages workers claim.

    Parameters
    ----------
    name
        The name of the mailbox.
    message
        The id of the first message, as the owner got it.
    """
    with where.open() as inspector:
        count = inspector.messages.mark_unread(name, message)
    show(f"{many(count, 'message')} of {name} {'is' if count == 1 else 'are'} unread.")
