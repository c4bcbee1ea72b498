"""A channel sends files of any size to each of its receivers, through a fixed amount of memory in the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeAlias

from penstock.core.arguments import check_number, check_whole
from penstock.core.clock import Clock
from penstock.core.keys import check_name
from penstock.core.operations import Driver, Operation, RoundTrip, RunInThread, verb
from penstock.core.renewal import Renewer
from penstock.files.bindings import ChannelBindings, ChannelInfo
from penstock.files.receiver import Receiver
from penstock.files.recognition import SendRules
from penstock.files.sender import Sender, Sent, close_channel
from penstock.files.source import Source, find_sources, source_name
from penstock.files.upload import Progress
from penstock.messages.keys import LogKeys
from penstock.messages.log import wake_rest
from penstock.settings import MiB, Settings

Paths: TypeAlias = str | Path | Iterable[str | Path]

Identity: TypeAlias = Literal["content", "path"]
"""How a channel recognises a file that was sent before."""

MIN_LIMIT = 2 * MiB


class Channel:
    """A channel of the app, by its name. Making this object sends nothing."""

    def __init__(self, name: str, driver: Driver, renewer: Renewer, settings: Settings, clock: Clock) -> None:
        self.name = name
        self.bindings = ChannelBindings(LogKeys(settings.prefix, "files", name), settings, clock)
        self._driver = driver
        self._renewer = renewer

    def __repr__(self) -> str:
        return f"<Channel {self.name}>"

    @verb
    def send(
        self,
        paths: Paths,
        *,
        receivers: Iterable[str] = (),
        close: bool = False,
        limit: int | None = None,
        patience: float | None = None,
        again: bool = False,
        source: str | None = None,
        identity: Identity = "content",
        progress: Callable[[Progress], object] | None = None,
    ) -> Operation[Sent]:
        """Send files byte by byte: one file, several, or those of a folder in the order of their names. Returns when
        the channel has taken all of them; receivers may then still be behind by up to `limit` bytes.

        receivers  who gets the files, besides the receivers that the channel has; a new receiver gets files that begin
                   from now on
        close      close the channel: the loop of each receiver ends once it has received everything
        limit      bytes that the channel may hold; None: the limit it has, or 64 MiB for a new channel. At the limit
                   the call waits for the slowest receiver, without polling
        patience   seconds after which the channel no longer waits for a receiver that is away and holds up the others:
                   it drops records, and the receiver gets BlocksMissed when it is back. 0: wait for ever; None: leave
                   the setting as it is (a new channel waits for ever)
        again      also send files that were sent before
        source     the name of the host that has the files; receivers get it with each file. None: the app's setting, by
                   default this machine's name
        identity   how the channel recognises a file that was sent before. "content": by its content, whatever its name
                   is now; "path": by its path alone, so that a copy or a renamed file is sent again
        progress   called after each megabyte, and whenever the call has to wait for space

        A file that was sent whole is skipped until it changes, and so is a copy of it with another name. The result
        names such files in `copies`. A channel remembers the last 100,000 files of all its senders; `forgotten` in the
        result says how many it had to forget. If a sender was killed, the next one resumes after its last block.

        A file is sent up to the size that it had when it was opened. Receivers get FileDamaged for a file that becomes
        shorter or is changed in place while it is sent, and for one whose interrupted upload cannot be resumed because
        the file has changed or is gone. The other files are still sent; FilesError names the failed ones at the end.

        Raises FilesError, before anything is sent, for a path that is missing, cannot be read, or is not a regular file
        or a folder; ChannelClosed; NoReceiver. One round trip for each megabyte (up to a hundred small files share
        one), and a few to look up which files were sent before.
        """
        rules = SendRules(self._source(source), False, again, _is_by_path(identity))
        return self._send(rules, paths, receivers, close, limit, patience, progress)

    @verb
    def send_lines(
        self,
        paths: Paths | Callable[[], Paths],
        *,
        receivers: Iterable[str] = (),
        close: bool = False,
        limit: int | None = None,
        patience: float | None = None,
        again: bool = False,
        source: str | None = None,
        identity: Identity = "content",
        settle: float = 60.0,
        final: bool | None = None,
        follow: bool | Callable[[], bool] = False,
        progress: Callable[[Progress], object] | None = None,
    ) -> Operation[Sent]:
        """Send text, plain or packed by gzip, bzip2, xz or Zstandard, in blocks that end at line ends and can be read
        independently. So a receiver can resume at any block, and several processes can share the work. A line that is
        longer than a block is spread over several blocks.

        paths   as those of `send`; or a function that returns them, which `follow` calls again at each look
        settle  seconds without a write after which a renamed file counts as finished
        final   the files are finished: nobody writes to them any more. None: only if `close` is set
        follow  keep looking, about twice a second, for lines that were added to the files and for files that were added
                to a folder, and send them. True: until the call is interrupted or cancelled. A function: until it
                returns False; `close` and `final` apply then. A log is kept open through its rotation, until nobody has
                written to it for `settle` seconds, and is read again from its start if it was truncated. A path may
                not exist yet. Files that cannot be read or are damaged are logged

        The other arguments, errors and cost are those of `send`. If a log has grown since it was sent, only the growth
        is sent, even if the log was renamed or packed.

        If a file does not end with a line end, its last line may be incomplete. That line is held back until its line
        end arrives or the file counts as finished: it was packed, it was renamed and then unchanged for `settle`
        seconds, or `final` is set. The result names such files in `held_back`.

        The text of a packed file is sent, and each block is deflated by itself. A packed file that is truncated or
        broken is sent up to the damage, once, and FilesError names it.
        """
        check_number("send_lines", "settle", settle, 0, 10**9, "seconds from 0")
        is_final = close if final is None else final
        rules = SendRules(self._source(source), True, again, _is_by_path(identity), settle, is_final)
        return self._send(rules, paths, receivers, close, limit, patience, progress, follow)

    def _source(self, given: str | None) -> str:
        return source_name(given or self.bindings.settings.source)

    def _send(
        self,
        rules: SendRules,
        paths: Paths | Callable[[], Paths],
        receivers: Iterable[str],
        close: bool,
        limit: int | None,
        patience: float | None,
        progress: Callable[[Progress], object] | None,
        follow: bool | Callable[[], bool] = False,
    ) -> Operation[Sent]:
        names = [check_name("receiver", name) for name in ([receivers] if isinstance(receivers, str) else receivers)]
        _check(limit, patience)
        given = paths if callable(paths) else _always(paths)
        sources = yield RunInThread(lambda: find_sources(given(), skip_missing=bool(follow)))
        sender = Sender(self.bindings, rules, progress)
        if not follow:
            return (yield from sender.run(sources, names, limit, patience, close))
        go_on = follow if callable(follow) else lambda: True

        def find() -> list[Source]:
            return find_sources(given(), skip_faulty=True)

        return (yield from sender.follow(find, names, limit, patience, close, go_on))

    @verb
    def open(
        self, receivers: Iterable[str] = (), *, limit: int | None = None, patience: float | None = None
    ) -> RoundTrip[None]:
        """Make the channel, add receivers, or change its `limit` or `patience` (see `send`). Opens a closed channel
        again; raises ChannelClosed while some of its receivers have not received everything. One round trip."""
        _check(limit, patience)
        return self.bindings.open([check_name("receiver", name) for name in receivers], limit, patience)

    @verb
    def close(self) -> Operation[bool]:
        """Close the channel: it accepts no more files, and receivers still get everything that was sent. Returns False
        if it was closed already. One round trip, and one more for each 64 processes that wait for it."""
        return close_channel(self.bindings)

    def receiver(self, name: str) -> Receiver:
        """A receiver of this channel. No round trip."""
        return Receiver(self.bindings, self._driver, self._renewer, name)

    @verb
    def info(self) -> RoundTrip[ChannelInfo]:
        """The size of the channel, and the progress of its receivers. Raises FilesError if there is no such channel.
        One round trip, O(receivers)."""
        return self.bindings.info()

    @verb
    def delete(self) -> Operation[bool]:
        """Delete the channel and its aggregates' counts. Returns False if there was no channel. One round trip, and one
        more for each 64 processes that wait for it."""
        existed, wake = yield self.bindings.delete_channel()
        yield from wake_rest(self.bindings, wake)
        return bool(existed)


def _always(paths: Paths) -> Callable[[], Paths]:
    given = paths if isinstance(paths, str | Path) else list(paths)
    return lambda: given


def _is_by_path(identity: str) -> bool:
    if identity not in {"content", "path"}:
        raise ValueError(f"identity={identity!r}: 'content', or 'path' to know files by their paths alone")
    return identity == "path"


def _check(limit: int | None, patience: float | None) -> None:
    if limit is not None:
        rule = (
            f"bytes, at least 2 MiB ({MIN_LIMIT}) so that some blocks fit; None leaves it unchanged, or sets 64 MiB "
            "for a new channel"
        )
        check_whole("channel", "limit", limit, MIN_LIMIT, 2**50, rule)
    if patience is not None:
        rule = "seconds; 0 never passes a receiver over, None leaves it unchanged"
        check_number("channel", "patience", patience, 0, 10**9, rule)
