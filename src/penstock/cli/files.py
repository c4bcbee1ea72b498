"""`penstock files …`: files sent to many machines through a window of fixed size, and received."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat

from penstock.cli.exits import Exit
from penstock.cli.sending import sending
from penstock.cli.where import HERE, AsJson, Flag, Where, Yes, agree, within
from penstock.core.ids import may_be_alive
from penstock.errors import (
    BlocksMissed,
    ChannelError,
    ConfigurationError,
    FileDamaged,
    FilesError,
    NoReceiver,
    PenstockError,
)
from penstock.files.batches import Batch
from penstock.files.bindings import ChannelInfo, ReceiverInfo
from penstock.files.channel import Channel
from penstock.files.saving import Saved
from penstock.files.sender import Sent
from penstock.files.source import Source, find_sources
from penstock.files.stream import ReceiverStream
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, many, size
from penstock.settings import MiB
from penstock.terminal.signals import interrupted_by
from penstock.terminal.tables import Kind, note, show, show_facts, show_json, show_table

T = TypeVar("T")

Name = Annotated[str, Parameter(name="--channel")]

# --- send ---


def send(
    *paths: Path,
    channel: Name,
    to: str = "",
    lines: Flag = False,
    close: Flag = False,
    limit_mb: int | None = None,
    patience: NonNegativeFloat | None = None,
    again: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> int:
    """Send files to every receiver of a channel. Broken off and run again, it goes on where it stopped.

    Exit code 1 if a file could not be sent whole; the others were sent then.

    Parameters
    ----------
    paths
        Files, and folders, which stand for the files directly in them, hidden ones too.
    channel
        Its name. It is made if there is none.
    to
        Receivers, as in agg-1,agg-2, beside those the channel has.
    lines
        Send text, plain or gzip, in blocks that end at line ends: for logs that are to be counted.
    close
        Nothing comes any more: who receives is done when it has had all.
    limit_mb
        MiB the channel may hold, 2 or more; as it is unless given, 64 for a new one.
    patience
        Seconds after which a receiver that is not heard of is passed over where it holds up the others; 0 is never.
    again
        Send what was sent before, too.
    as_json
        Print the result as one JSON object.
    """
    within("--limit-mb", limit_mb, 2)
    check_paths(paths)
    names = [name.strip() for name in to.split(",") if name.strip()]
    began = time.monotonic()
    with where.open(patient=True) as inspector, _going_on(), sending(inspector, channel) as watch:
        target = inspector.files(channel)
        carry = target.send_lines if lines else target.send
        try:
            sent = carry(
                paths, receivers=names, close=close, limit=limit_mb and limit_mb * MiB, patience=patience, again=again,
                progress=watch,
            )  # fmt: skip
        except NoReceiver:
            raise PenstockError(f"channel {channel!r} has no receivers: name some, as in --to agg-1,agg-2") from None
    seconds = time.monotonic() - began
    if as_json:
        show_json(Delivered(channel, sent, sum(file.size for file in sent.files), round(seconds, 3)))
    else:
        _show_sent(channel, sent, seconds)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class Delivered:
    """What `send` did, as --json prints it. `bytes`: of text where lines were sent."""

    channel: str
    sent: Sent
    bytes: int
    seconds: float


_OWN = ("/dev/stdin", "/dev/fd/", "/proc/self/")
"""What stands here is another file for each process, also where it is a regular one."""


def check_paths(paths: tuple[Path, ...], done: str = "sent") -> list[Source]:
    """The files that are meant, having told of folders in folders, which are left out. ConfigurationError, in one line,
    for paths that are not there, cannot be read or are no files: nothing was `done`."""
    for path in paths:
        if os.path.abspath(path).startswith(_OWN):
            raise ConfigurationError(f"nothing was {done}: {path} is no regular file: save it first")
    try:
        found = find_sources(paths)
    except FilesError as error:
        first, *faults = map(str.strip, str(error).splitlines())
        why = "; ".join(faults) or first.partition(": ")[2]
        raise ConfigurationError(f"nothing was {done}: {why}") from None
    left = [str(one) for path in paths if path.is_dir() for one in sorted(path.iterdir()) if one.is_dir()]
    if left:
        note(f"{many(len(left), 'subfolder')} left out: {', '.join(left[:3])}{', …' if len(left) > 3 else ''}")
    if not found:
        raise ConfigurationError(f"nothing was {done}: {', '.join(map(str, paths))} holds no file")
    return found


def _show_sent(channel: str, sent: Sent, seconds: float) -> None:
    whole = sum(file.size for file in sent.files)
    text = f"{many(len(sent.files), 'file')} sent to {channel}: {size(whole)} in {age(seconds)}"
    if seconds >= 1:
        text += f", {size(whole / seconds)}/s"
    show(f"{text}.")
    if resumed := sum(file.resumed for file in sent.files):
        show(f"{many(resumed, 'file')} had been begun before.")
    if sent.skipped:
        show(f"{many(len(sent.skipped), 'file')} skipped: sent before, and not changed since (--again sends them).")
    if sent.closed:
        show(f"{channel} is closed: nothing comes any more.")


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """What is to be told of who broke it off."""
    try:
        with interrupted_by(signal.SIGTERM):
            yield
    except KeyboardInterrupt:
        note("the same command goes on where it stopped")
        raise


# --- receive ---


def receive(
    *,
    channel: Name,
    as_: Annotated[str, Parameter(name="--as")],
    into: Path | None = None,
    lines: Flag = False,
    wait: NonNegativeFloat | None = None,
    join: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> int:
    """Save the files of a channel in a folder, or print their lines, until it is closed and all was had.

    Broken off and run again, it goes on where it stopped. A second process with the same name stands by, and takes over
    when the first has ended. Exit code 1 if a file was damaged on its way, or was given up by who sent it.

    Parameters
    ----------
    channel
        Its name.
    as_
        The receiver: one of those that `files send` named.
    into
        The folder; unless given, one called like the channel, in the working directory. A file of the same name in it
        is replaced.
    lines
        Print lines instead, as they are, gzip unpacked, each ended with a newline.
    wait
        Seconds to wait for more, then it ends.
    join
        Become a receiver first, of what is begun from now on.
    as_json
        Print what was saved as one JSON document, at the end.
    """
    if lines and (into or as_json):
        raise ConfigurationError("--lines prints lines: it does not go with --into and --json")
    with where.open(patient=True) as inspector, _going_on():
        target = inspector.files(channel)
        if join:
            target.open([as_])
        _tell_why_it_may_wait(inspector, channel, as_)
        receiver = target.receiver(as_)
        try:
            if lines:
                return _print(receiver.batches(wait=wait))
            with _folder(into, channel) as folder:
                return _save(folder, receiver.save(folder, wait=wait), as_json=as_json)
        except NoReceiver:
            raise PenstockError(
                f"{as_!r} is no receiver of channel {channel!r}: name it in files send --to, or say --join"
            ) from None
        finally:
            if join and wait is not None:
                _tell_that_it_stays(target, as_)


def _tell_why_it_may_wait(inspector: Inspector, channel: str, as_: str) -> None:
    try:
        info = inspector.files(channel).info()
    except ChannelError:
        names = ", ".join(inspector.channel_names()) or "none"
        note(f"no channel {channel!r} yet: waiting for it (channels here: {names})")
        return
    for one in info.receivers:
        if one.name == as_ and one.holder and not _has_ended(one):
            note(f"{as_} is read by {one.holder}: standing by")


def _tell_that_it_stays(target: Channel, as_: str) -> None:
    with contextlib.suppress(PenstockError):  # what went wrong before is told, not that nobody can be asked now
        if any(one.name == as_ and one.state != "done" for one in target.info().receivers):
            note(f"{as_} stays a receiver: `penstock files rm {target.name} {as_}` ends that")


def _has_ended(one: ReceiverInfo) -> bool:
    """The process that received last was of this host, and is gone."""
    host, _, pid = one.holder.rpartition(":")
    token = f"/{host}/{pid}"
    return not may_be_alive(token, [token])


@contextlib.contextmanager
def _folder(into: Path | None, channel: str) -> Iterator[Path]:
    """The folder for what comes; not left behind empty."""
    if into is None and channel != Path(channel).name:
        raise ConfigurationError(f"no folder can be called {channel!r}: name one with --into")
    folder = into or Path(channel)
    was_there = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be a folder for what comes: {error.strerror}") from None
    try:
        yield folder
    finally:
        if not was_there:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _save(folder: Path, stream: ReceiverStream[Saved], *, as_json: bool) -> int:
    faults, saved = list[FilesError](), list[Saved]()
    try:
        with stream:
            for one in _all_of(stream, faults):
                saved.append(one)
                if not as_json:
                    show(f"{one.path}  {size(one.size)}")
    except OSError as error:
        if isinstance(error, PenstockError | BrokenPipeError):
            raise
        raise FilesError(f"{folder} cannot take more: {error.strerror}") from error
    if as_json:
        show_json([{"path": str(one.path), "name": one.name, "bytes": one.size, "digest": one.digest} for one in saved])
    else:
        show(f"{many(len(saved), 'file')} saved in {folder}.")
    return Exit.FAILED if faults else Exit.OK


def _print(stream: ReceiverStream[Batch]) -> int:
    """Who reads no further ends it: what was printed is settled, the rest comes again."""
    faults = list[FilesError]()
    with stream:
        for batch in _all_of(stream, faults):
            _write(b"\n".join([*batch, b""]))
    return Exit.FAILED if faults else Exit.OK


def _write(data: bytes) -> None:
    """All of it: under PYTHONUNBUFFERED a write to a pipe that is closed meanwhile takes a part, and says no more."""
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def _all_of(stream: ReceiverStream[T], faults: list[FilesError]) -> Iterator[T]:
    """What is wrong with one file is told, and the others come all the same."""
    while True:
        try:
            yield from stream
        except (FileDamaged, BlocksMissed) as error:
            note(str(error))
            faults.append(error)
        else:
            return


# --- look, close, delete ---

_CHANNELS: dict[str, Kind] = {
    "channel": "name", "bytes": "number", "limit": "number", "peak": "number", "receivers": "number", "behind": "text",
    "sending": "number", "state": "text",
}  # fmt: skip
_RECEIVERS: dict[str, Kind] = {
    "receiver": "name", "behind": "number", "seen": "number", "state": "text", "held by": "text",
}  # fmt: skip


def ls(channel: str | None = None, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every channel of files, or all about one: bytes and their limit, and how far its receivers are.

    Without a name it reads all the server's keys once, in slices: some seconds on one with many millions.

    Parameters
    ----------
    channel
        A channel.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found = inspector.channels() if channel is None else [inspector.channel(channel)]
        now = inspector.now()
    if as_json:
        return show_json(found if channel is None else found[0])
    if channel is not None:
        return _describe(found[0], now)
    if not found:
        return show("No channel here.")
    return show_table(_CHANNELS, map(_line, found))


def _line(one: ChannelInfo) -> tuple[object, ...]:
    last = max(one.receivers, key=lambda receiver: receiver.behind, default=None)
    behind = f"{last.name}, {last.behind:,}" if last and last.behind else ""
    return (
        one.name, size(one.bytes), size(one.limit), size(one.peak), len(one.receivers), behind, one.sending or "",
        _state(one),
    )  # fmt: skip


def _state(one: ChannelInfo) -> str:
    if not one.closed:
        return "open"
    return "over" if all(receiver.state == "done" for receiver in one.receivers) else "closed"


def _describe(one: ChannelInfo, now: float) -> None:
    meaning = {
        "open": "open",
        "closed": "closed: nothing comes any more",
        "over": "over: closed, and every receiver has had all",
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


def _receiver(one: ReceiverInfo, now: float) -> tuple[object, ...]:
    seen = f"{age(max(0.0, now - one.seen))} ago" if one.seen else ""
    meaning = {"reading": "up to date" if not one.behind else "behind", "gone": "passed over", "done": "has had all"}
    held = f"{one.holder}, ended" if one.holder and _has_ended(one) else one.holder
    return one.name, f"{one.behind:,}", seen, meaning[one.state], held


def close(channel: str, /, *, where: Where = HERE) -> None:
    """Say that nothing comes any more. Receivers get what was sent, then they end.

    Parameters
    ----------
    channel
        The channel.
    """
    with where.open() as inspector:
        inspector.channel(channel)
        was_open = inspector.files(channel).close()
    show(f"{channel} is closed." if was_open else f"{channel} was closed before.")


def rm(channel: str, /, *receivers: str, yes: Yes = False, where: Where = HERE) -> int:
    """Delete a channel, and what aggregates counted in it; or take receivers out of it, for which nothing is kept then.

    Exit code 1 if one was no receiver.

    Parameters
    ----------
    channel
        The channel.
    receivers
        Only these receivers.
    yes
        Do it without asking.
    """
    with where.open() as inspector:
        found, target = inspector.channel(channel), inspector.files(channel)
        if receivers:
            behind = sum(one.behind for one in found.receivers if one.name in receivers)
            names = ", ".join(receivers)
            agree(
                f"This takes {names} out of {channel}, at {inspector.location}: "
                f"{many(behind, 'block')} that did not arrive there yet.", yes=yes,
            )  # fmt: skip
            gone = [name for name in receivers if target.receiver(name).leave()]
            show(f"Took {many(len(gone), 'receiver')} out of {channel}.")
            return Exit.OK if len(gone) == len(set(receivers)) else Exit.FAILED
        lost = f"{size(found.bytes)} that not every receiver has had, and " if found.bytes else ""
        agree(f"This deletes {channel}, at {inspector.location}: {lost}all that was counted in it.", yes=yes)
        target.delete()
    show(f"Deleted {channel}.")
    return Exit.OK
