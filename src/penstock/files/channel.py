"""A channel: files of any size go through a fixed window in the server, to every receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from penstock.core.clock import Clock
from penstock.core.keys import check_name
from penstock.core.operations import Driver, Operation, RoundTrip, RunInThread, verb
from penstock.core.renewal import Renewer
from penstock.files.bindings import ChannelBindings, ChannelInfo
from penstock.files.receiver import Receiver
from penstock.files.sender import Progress, Sender, Sent
from penstock.files.source import sources
from penstock.messages.keys import LogKeys
from penstock.settings import MiB, Settings

Paths: TypeAlias = str | Path | Iterable[str | Path]

LEAST = 2 * MiB


class Channel:
    """A channel of the app, by its name. No round trip before it is used."""

    def __init__(self, name: str, driver: Driver, renewer: Renewer, settings: Settings, clock: Clock) -> None:
        self.name = name
        self.log = ChannelBindings(LogKeys(settings.prefix, "files", name), settings, clock)
        self._driver = driver
        self._renewer = renewer

    def __repr__(self) -> str:
        return f"<Channel {self.name}>"

    @verb
    def send(
        self, paths: Paths, *, receivers: Iterable[str] = (), close: bool = False, limit: int | None = None,
        patience: float | None = None, again: bool = False, host: str | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> Operation[Sent]:  # fmt: skip
        """Send files byte by byte: one, several, or those of a folder in the order of their names. Returns when the
        channel has taken all, while receivers may have up to `limit` before them.

        receivers  who gets them, beside those the channel has; a new one gets what is begun from now on
        close      nothing comes any more: every receiver's loop ends when it has had all
        limit      bytes the channel may hold; None: as it is, 64 MiB in a new one. Where it is full this waits for the
                   slowest receiver, without asking
        patience   seconds after which a receiver that was not heard of is passed over where it holds up the others,
                   and is told of the gap when it comes back; 0: never, None: as it is, and in a new channel never
        again      send what was sent before, too
        host       tells the files of this machine from those of others; None: its name
        progress   called after each megabyte, and when it has to wait

        A file that was sent whole, and has not changed since, is skipped: it is known by host, device, inode, size and
        time of change (the last 10,000 of a channel are). What a process had begun that was killed goes on behind its
        last block. A file is sent as long as it was when it was opened. Of a file that turns out shorter, or other
        than what was begun, the receivers are told that it will not be whole; the others are sent all the same, then
        FilesError tells which were not. Raises FilesError, too, before anything is sent, for paths that are missing,
        unreadable or no files; ChannelClosed; NoReceiver. One round trip a megabyte, at least one a file, and two
        more.
        """
        return self._send(False, paths, receivers, close, limit, patience, again, host, progress)

    @verb
    def send_lines(
        self, paths: Paths, *, receivers: Iterable[str] = (), close: bool = False, limit: int | None = None,
        patience: float | None = None, again: bool = False, host: str | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> Operation[Sent]:  # fmt: skip
        """Send text, plain or gzip, in blocks that end at line ends and can be read alone; so receivers go on at any
        block, and several processes may share the work. A line longer than a block is spread over several.

        Arguments, errors and cost are those of `send`. What a log grew by since it was sent, also under another name
        by now, is sent behind it, not the whole again. Gzip is sent inflated, each block deflated for itself;
        FilesError names one that is truncated or broken, the lines before that are sent, once.
        """
        return self._send(True, paths, receivers, close, limit, patience, again, host, progress)

    def _send(
        self, lines: bool, paths: Paths, receivers: Iterable[str], close: bool, limit: int | None,
        patience: float | None, again: bool, host: str | None, progress: Callable[[Progress], object] | None,
    ) -> Operation[Sent]:  # fmt: skip
        names = [check_name("receiver", name) for name in ([receivers] if isinstance(receivers, str) else receivers)]
        _check(limit, patience)
        sender = Sender(self.log, lines=lines, again=again, host=host, tell=progress)
        given = yield RunInThread(lambda: sources(paths))
        return (yield from sender.run(given, names, limit, patience, close))

    @verb
    def open(
        self, receivers: Iterable[str] = (), *, limit: int | None = None, patience: float | None = None
    ) -> RoundTrip[None]:
        """Make the channel, or add receivers, or change its `limit` or `patience` (see `send`). One round trip."""
        _check(limit, patience)
        return self.log.open([check_name("receiver", name) for name in receivers], limit, patience)

    @verb
    def close(self) -> RoundTrip[bool]:
        """Nothing comes any more; False: it was closed already. What was sent is received all the same. One round
        trip."""
        return self.log.close()

    def receiver(self, name: str) -> Receiver:
        """A receiver of this channel. No round trip."""
        return Receiver(self.log, self._driver, self._renewer, name)

    @verb
    def info(self) -> RoundTrip[ChannelInfo]:
        """What it holds, and how far its receivers are. Raises FilesError where there is none. One round trip,
        O(receivers)."""
        return self.log.info()

    @verb
    def delete(self) -> RoundTrip[bool]:
        """All of it, also what aggregates counted; False: there was none. One round trip."""
        return self.log.delete()


def _check(limit: int | None, patience: float | None) -> None:
    if limit is not None and not LEAST <= limit <= 2**50:
        raise ValueError(
            f"limit={limit}: bytes from 2 MiB ({LEAST}), for some blocks must fit; None: as it is, or 64 MiB"
        )
    if patience is not None and not 0 <= patience <= 10**9:
        raise ValueError(f"patience={patience}: seconds; 0 never passes a receiver over, None leaves it as it is")
