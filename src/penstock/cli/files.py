"""`penstock files …`: send files to many machines through a fixed amount of server memory, and receive them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat

from penstock.cli.channels import has_ended
from penstock.cli.download_view import showing_download
from penstock.cli.exits import Exit
from penstock.cli.upload_view import show_sent, showing_upload
from penstock.cli.where import HERE, AsJson, Flag, Where, check_bounds
from penstock.errors import (
    BlocksMissed,
    ChannelError,
    ConfigurationError,
    FileDamaged,
    FileNotSaved,
    FilesError,
    NoReceiver,
    PenstockError,
)
from penstock.files.batches import LineBatch
from penstock.files.channel import Channel
from penstock.files.saving import Saved, check_layout
from penstock.files.sender import Sent
from penstock.files.source import Source, find_sources
from penstock.files.stream import ReceiverStream
from penstock.ops.inspect import Inspector
from penstock.ops.wording import many, size
from penstock.settings import MiB
from penstock.terminal.signals import interrupted_by, until_stopped
from penstock.terminal.tables import note, show, show_json

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
    source: str | None = None,
    identity: Literal["content", "path"] = "content",
    settle: NonNegativeFloat = 60.0,
    final: Flag = False,
    follow: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> int:
    """Send files to every receiver of a channel. After an interruption the same command resumes where it stopped.

    Exit code 1 if a file could not be sent whole; the others were sent.

    Parameters
    ----------
    paths
        Files and folders. A folder means the files directly in it, including hidden ones.
    channel
        The channel. It is created if it does not exist.
    to
        Receivers to add to those of the channel, for example agg-1,agg-2.
    lines
        Send text, plain or packed, in blocks that end at line ends, so that several processes can count it. An
        unfinished line at the end of a log is held back until its line end comes.
    close
        Close the channel: receivers end when they have everything.
    limit_mb
        MiB that the channel may hold, 2 or more. By default a new channel gets 64, and an existing one keeps its limit.
    patience
        Seconds after which the channel no longer waits for a silent receiver that holds up the others. That receiver
        then misses records. 0: it waits for ever.
    again
        Also send files that were sent before.
    source
        The name of this host, which receivers get with each file. By default $PENSTOCK_SOURCE or the host's own name.
    identity
        How to recognise a file that was sent before: by its content, whatever its name is now, or by its path alone.
    settle
        With --lines: seconds without a write after which a renamed log counts as finished.
    final
        With --lines: the logs are finished, so send the last line of each even if it has no line end.
    follow
        With --lines: continue to send what is written from now on, through rotations and truncations, until the first
        Ctrl-C or SIGTERM. Also waits for paths that do not exist yet.
    as_json
        Print the result as one JSON object.
    """
    check_bounds("--limit-mb", limit_mb, 2)
    if (final or follow) and not lines:
        raise ConfigurationError("--final and --follow are about lines: add --lines")
    check_paths(paths, skip_missing=follow)
    names = [name.strip() for name in to.split(",") if name.strip()]
    began = time.monotonic()
    with (
        where.open(creates=True, patient=True) as inspector,
        _resumable(),
        until_stopped(follow) as go_on,
        showing_upload(inspector, channel) as watch,
    ):
        target = inspector.files.open(channel)
        send_lines = partial(target.send_lines, settle=settle, final=final or close, follow=go_on if follow else False)
        send_verb = send_lines if lines else target.send
        try:
            sent = send_verb(
                paths,
                receivers=names,
                close=close,
                limit=limit_mb and limit_mb * MiB,
                patience=patience,
                again=again,
                source=source,
                identity=identity,
                progress=watch,
            )
        except NoReceiver:
            raise PenstockError(
                f"channel {channel!r} has no receivers: name some, for example --to agg-1,agg-2"
            ) from None
    seconds = time.monotonic() - began
    if as_json:
        show_json(SendResult(channel, sent, sum(file.size for file in sent.files), round(seconds, 3)))
    else:
        show_sent(channel, sent, seconds)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of `send`, as --json prints it. `bytes`: of the text, if lines were sent."""

    channel: str
    sent: Sent
    bytes: int
    seconds: float


_PER_PROCESS = ("/dev/stdin", "/dev/fd/", "/proc/self/")
"""A path that begins with one of these means a different file in each process, even if it is a regular file."""


def check_paths(paths: tuple[Path, ...], action: str = "sent", *, skip_missing: bool = False) -> list[Source]:
    """The files that the paths select. Prints a note about skipped subfolders, and with `skip_missing` about paths that
    do not exist yet.

    Raises ConfigurationError, in one line, for paths that do not exist, cannot be read or are not regular files.
    `action` completes its message "nothing was …".
    """
    for path in paths:
        if os.path.abspath(path).startswith(_PER_PROCESS):
            raise ConfigurationError(f"nothing was {action}: {path} is not a regular file: save it first")
    try:
        found = find_sources(paths, skip_missing=skip_missing)
    except FilesError as error:
        first, *faults = map(str.strip, str(error).splitlines())
        why = "; ".join(faults) or first.partition(": ")[2]
        raise ConfigurationError(f"nothing was {action}: {why}") from None
    left = [str(one) for path in paths if path.is_dir() for one in sorted(path.iterdir()) if one.is_dir()]
    if left:
        note(f"{many(len(left), 'subfolder')} skipped: {', '.join(left[:3])}{', …' if len(left) > 3 else ''}")
    if skip_missing and (missing := [str(path) for path in paths if not os.path.exists(path)]):
        note(f"waiting for {', '.join(missing)}")
    elif not found and not skip_missing:
        raise ConfigurationError(f"nothing was {action}: {', '.join(map(str, paths))} contains no file")
    return found


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    """Prints after an interruption that the command can be resumed."""
    try:
        with interrupted_by(signal.SIGTERM):
            yield
    except KeyboardInterrupt:
        note("run the same command to resume")
        raise


# --- receive ---


def receive(
    *,
    channel: Name,
    as_: Annotated[str, Parameter(name="--as")],
    into: Path | None = None,
    layout: str = "{name}",
    lines: Flag = False,
    wait: NonNegativeFloat | None = None,
    join: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> int:
    """Save the files of a channel in a folder, or print their lines. Ends when the channel is closed and received.

    After an interruption the same command resumes where it stopped. A second process with the same receiver name waits,
    and takes over when the first has ended. Exit code 1 if a file was damaged, given up by its sender, or could not be
    saved: `penstock dead ls files:CHANNEL:RECEIVER` lists it, and the next files are received.

    Parameters
    ----------
    channel
        The channel.
    as_
        The receiver: one of those named by `files send`.
    into
        The folder. The default is named after the channel, in the working directory. An existing file of the same
        name is replaced.
    layout
        The path of a file in the folder, made of {name} and {source}, the host that sent it. {source}/{name} keeps
        files of the same name from several hosts apart.
    lines
        Print the lines of the files instead, with packed files decompressed.
    wait
        End after this many seconds without a file.
    join
        Add the receiver to the channel first. It gets every file whose sending begins after that.
    as_json
        Print the saved files as one JSON document at the end.
    """
    if lines and (into or as_json):
        raise ConfigurationError("--lines prints lines: leave out --into and --json")
    with where.open(creates=True, patient=True) as inspector, _resumable():
        target = inspector.files.open(channel)
        if join:
            target.open([as_])
        _explain_waiting(inspector, channel, as_)
        receiver = target.receiver(as_)
        try:
            if lines:
                return _print(receiver.batches(wait=wait))
            with _folder(into, channel) as folder, showing_download() as watch:
                stream = receiver.save(folder, wait=wait, layout=_checked_layout(layout), progress=watch)
                return _save(folder, stream, as_json=as_json)
        except NoReceiver:
            raise PenstockError(
                f"{as_!r} is not a receiver of channel {channel!r}: name it in files send --to, or use --join"
            ) from None
        finally:
            if join and wait is not None:
                _note_membership(target, as_)


def _checked_layout(layout: str) -> str:
    try:
        check_layout(layout)
    except ValueError as error:
        raise ConfigurationError(f"--{error}") from None
    return layout


def _explain_waiting(inspector: Inspector, channel: str, as_: str) -> None:
    try:
        info = inspector.files.open(channel).info()
    except ChannelError:
        names = ", ".join(inspector.files.names()) or "none"
        note(f"no channel {channel!r} yet: waiting for it (channels here: {names})")
        return
    for one in info.receivers:
        if one.name == as_ and one.holder and not has_ended(one):
            note(f"{one.holder} receives for {as_}: standing by")


def _note_membership(target: Channel, as_: str) -> None:
    with contextlib.suppress(PenstockError):  # report the earlier error, not that the server is unreachable now
        if any(one.name == as_ and one.state != "done" for one in target.info().receivers):
            note(f"{as_} remains a receiver until `penstock files rm {target.name} {as_}`")


@contextlib.contextmanager
def _folder(into: Path | None, channel: str) -> Iterator[Path]:
    """The folder for received files. A new folder that stays empty is removed."""
    if into is None and channel != Path(channel).name:
        raise ConfigurationError(f"no folder can be named {channel!r}: choose one with --into")
    folder = into or Path(channel)
    existed = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be used as a folder: {error.strerror}") from None
    try:
        yield folder
    finally:
        if not existed:
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
                if one.kept_as:
                    note(f"{one.path} is not the log that was saved before: the earlier text is kept as {one.kept_as}")
                elif one.replaced_source:
                    note(f"{one.path} of {one.replaced_source} was replaced: --layout {{source}}/{{name}} keeps both")
                elif one.replaced:
                    note(f"{one.path} replaced an earlier file of this name")
    except OSError as error:
        if isinstance(error, PenstockError | BrokenPipeError):
            raise
        raise FilesError(f"{folder} cannot be written: {error.strerror}") from error
    if as_json:
        show_json(
            [
                {"path": str(one.path), "name": one.name, "source": one.source, "bytes": one.size, "digest": one.digest}
                for one in saved
            ]
        )
    else:
        show(f"{many(len(saved), 'file')} saved in {folder}.")
    return Exit.FAILED if faults else Exit.OK


def _print(stream: ReceiverStream[LineBatch]) -> int:
    """Print lines until the pipe is closed. Printed lines are settled, and the others are received next time."""
    faults = list[FilesError]()
    with stream:
        for batch in _all_of(stream, faults):
            _write(b"\n".join([*batch, b""]))
    return Exit.FAILED if faults else Exit.OK


def _write(data: bytes) -> None:
    """Write all data. With PYTHONUNBUFFERED, a write to a pipe may write only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def _all_of(stream: ReceiverStream[T], faults: list[FilesError]) -> Iterator[T]:
    """All items of a stream. An error in one file is printed and collected, and the others follow."""
    while True:
        try:
            yield from stream
        except (FileDamaged, FileNotSaved, BlocksMissed) as error:
            note(str(error))
            faults.append(error)
        else:
            return
