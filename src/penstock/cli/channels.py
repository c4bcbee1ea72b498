"""`penstock files ls|close|rm`: the channels of files, for an operator."""

from __future__ import annotations

from penstock.cli.exits import Exit
from penstock.cli.where import HERE, AsJson, Where, Yes, confirm
from penstock.core.ids import may_be_alive
from penstock.files.bindings import ChannelInfo, ReceiverInfo
from penstock.ops.wording import age, ago, many, size
from penstock.terminal.tables import headings, note, show, show_facts, show_json, show_list, show_table

_CHANNELS = headings("channel:name", "bytes", "limit", "peak", "receivers", "behind:text", "sending", "state:text")
_BEGUN = headings("receiver:name", "received", "of", "file:text")
_RECEIVERS = headings("receiver:name", "behind", "seen", "state:text", "held by:text", "dead")


def ls(channel: str | None = None, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every channel with its bytes and their limit, or show one channel with the progress of its receivers.

    Without a name it reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    channel
        The channel to show.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        if channel is None:
            found = inspector.files.channels()
            return show_list(found, _CHANNELS, map(_row, found), none="There are no channels.", as_json=as_json)
        one, now = inspector.files.channel(channel), inspector.now()
    if as_json:
        show_json(one)
    else:
        _describe(one, now)


def _row(one: ChannelInfo) -> tuple[object, ...]:
    last = max(one.receivers, key=lambda receiver: receiver.behind, default=None)
    behind = f"{last.name}, {last.behind:,}" if last and last.behind else ""
    return (
        one.name,
        size(one.bytes),
        size(one.limit),
        size(one.peak),
        len(one.receivers),
        behind,
        one.sending or "",
        _state(one),
    )


def _state(one: ChannelInfo) -> str:
    if not one.closed:
        return "open"
    return "over" if all(receiver.state == "done" for receiver in one.receivers) else "closed"


def _describe(one: ChannelInfo, now: float) -> None:
    meaning = {
        "open": "open",
        "closed": "closed",
        "over": "over: every receiver has everything",
    }
    show_facts(
        {
            "channel": one.name,
            "state": meaning[_state(one)],
            "bytes": f"{size(one.bytes)} of {size(one.limit)}, at most {size(one.peak)} so far",
            "sending": many(one.sending, "file"),
            "patience": "for ever" if one.patience is None else age(one.patience),
        }
    )
    if one.receivers:
        show("")
        show_table(_RECEIVERS, (_receiver(receiver, now) for receiver in one.receivers))
    begun = [(receiver.name, file) for receiver in one.receivers for file in receiver.files]
    if begun:
        show("")
        rows = [(name, size(file.received), size(file.size) if file.size else "", file.name) for name, file in begun]
        show_table(_BEGUN, rows)
    for receiver in one.receivers:
        if receiver.dead_files:
            files = many(receiver.dead_files, "dead file")
            note(f"{receiver.name} has {files}: penstock dead ls files:{one.name}:{receiver.name}")
        if receiver.dead:
            batches = many(receiver.dead, "dead batch", "dead batches")
            note(f"{receiver.name} has {batches}: penstock dead ls counts:{one.name}:{receiver.name}")


def _receiver(one: ReceiverInfo, now: float) -> tuple[object, ...]:
    seen = ago(one.seen, now) if one.seen else ""
    meaning = {"reading": "up to date" if not one.behind else "behind", "gone": "passed over", "done": "has everything"}
    dead = one.dead + one.dead_files
    held = f"{one.holder}, ended" if one.holder and has_ended(one) else one.holder
    return one.name, f"{one.behind:,}", seen, meaning[one.state], held, f"{dead:,}" if dead else ""


def close(channel: str, /, *, where: Where = HERE) -> None:
    """Close a channel. Receivers get the files that were sent, and then they end.

    Parameters
    ----------
    channel
        The channel.
    """
    with where.open() as inspector:
        inspector.files.channel(channel)
        was_open = inspector.files.open(channel).close()
    show(f"{channel} is closed." if was_open else f"{channel} was closed before.")


def rm(channel: str, /, *receivers: str, yes: Yes = False, where: Where = HERE) -> int:
    """Delete a channel with everything counted in it, or remove receivers, for which nothing is kept any longer.

    Exit code 1 if a name is not a receiver.

    Parameters
    ----------
    channel
        The channel.
    receivers
        Remove only these receivers.
    yes
        Do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        found, target = inspector.files.channel(channel), inspector.files.open(channel)
        if receivers:
            behind = sum(one.behind for one in found.receivers if one.name in receivers)
            names = ", ".join(receivers)
            confirm(
                f"This removes {names} from {channel}, at {inspector.location}: "
                f"{many(behind, 'block')} not received yet.",
                yes=yes,
            )
            gone = [name for name in receivers if target.receiver(name).leave()]
            show(f"Removed {many(len(gone), 'receiver')} from {channel}.")
            return Exit.OK if len(gone) == len(set(receivers)) else Exit.FAILED
        lost = f"{size(found.bytes)} not received by everyone, and " if found.bytes else ""
        confirm(f"This deletes {channel}, at {inspector.location}: {lost}everything counted in it.", yes=yes)
        target.delete()
    show(f"Deleted {channel}.")
    return Exit.OK


def has_ended(one: ReceiverInfo) -> bool:
    """Whether the process that received last has ended. False for a process of another host."""
    host, _, pid = one.holder.rpartition(":")
    token = f"/{host}/{pid}"
    return not may_be_alive(token, [token])
