"""One receiver of a channel, and the streams that it offers: blocks, batches of lines, lines, saved files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.core.arguments import check_number, check_whole
from penstock.core.keys import check_name
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.files.batches import BatchStream, LineBatch, LineStream, batches_of_block
from penstock.files.bindings import ChannelBindings
from penstock.files.dead_files import DeadFiles
from penstock.files.exclusive_stream import ExclusiveStream
from penstock.files.lines import LONGEST
from penstock.files.records import BlockHeader, ChannelRecord
from penstock.files.saving import ReceiveProgress, SavingStream, check_layout
from penstock.files.shared_stream import SharedStream
from penstock.files.stream import ReceiverStream
from penstock.messages.log import trim_rest, wake_rest
from penstock.settings import MiB

T = TypeVar("T")

MAX_LONGEST = 16 * MiB
"""The highest `longest`: the beginning of an unfinished line is kept in the server."""


class Block(bytes):
    """The bytes of one block.

    file        the name of its file
    offset      of its first byte in the file
    first_line  the number, from 1, of its first line; 0 if the file was sent as bytes
    source      the host that has the file
    """

    file: str
    offset: int
    first_line: int
    source: str


def as_block(header: BlockHeader, data: bytes | memoryview) -> tuple[Block]:
    block = Block(data)
    block.file, block.offset, block.first_line = header.name, header.offset, header.lines_before + 1
    block.source = header.source
    return (block,)


class BlockStream(ExclusiveStream[Block]):
    """The blocks as they were sent."""

    def _on_block(self, record: ChannelRecord, header: BlockHeader, data: bytes | memoryview) -> Iterable[Block]:
        return as_block(header, data)


class Receiver:
    """A receiver of a channel, by its name. Making this object sends nothing.

    Several processes may receive under one name: one of them receives, and the others wait to take its place when it
    ends or its lease runs out. With `share=True` they divide the blocks among them.
    """

    def __init__(self, channel: ChannelBindings, driver: Driver, renewer: Renewer, name: str) -> None:
        self.name = check_name("receiver", name)
        self._channel = channel
        self._driver = driver
        self._renewer = renewer

    def __repr__(self) -> str:
        return f"<Receiver {self.name} of {self._channel.label}>"

    def blocks(
        self, *, wait: float | None = None, share: bool = False, lease: float | None = None
    ) -> ReceiverStream[Block]:
        """Iterate over every block as it was sent: `for block in …blocks()` or `async for`.

        wait   seconds to wait for more, then the loop ends; None: it ends when the channel is closed and everything was
               received
        share  several processes share this receiver: each block goes to one of them, in no order. Either all processes
               of a receiver share it, or none
        lease  of shared blocks: seconds until the blocks of a process that died or froze go to another process; None:
               the app's setting. A living process keeps its blocks, however long it works on them

        A block is done when the loop asks for the next one. The blocks that are done are settled in the server about
        once each megabyte, in the round trip that pulls the next ones; after a crash, those that were not settled are
        delivered again. `with …blocks() as blocks:` settles them also when the `with` statement ends.

        Raises FileDamaged for a file whose bytes are not those that were sent, or that its sender has given up, and
        BlocksMissed if this receiver was passed over. Either is raised once: a new loop, also in another process,
        continues with the next block. A damaged file is one of the `dead` files of this receiver.
        """
        if share:
            return self._shared(wait, lease, as_block)
        return BlockStream(self._channel, self._driver, self._renewer, self.name, wait)

    def _shared(
        self,
        wait: float | None,
        lease: float | None,
        make_items: Callable[[BlockHeader, bytes | memoryview], Iterable[T]],
    ) -> SharedStream[T]:
        chosen = self._channel.settings.lease if lease is None else lease
        check_number("receiver", "lease", chosen, 0.05, 7 * 86400, "seconds from 0.05 to a week")
        return SharedStream(self._channel, self._driver, self._renewer, self.name, wait, chosen, make_items)

    def batches(
        self,
        *,
        wait: float | None = None,
        share: bool = False,
        lease: float | None = None,
        longest: int = LONGEST,
        spool: str | Path | None = None,
    ) -> ReceiverStream[LineBatch]:
        """Iterate over the lines of each block. Each batch is a tuple of lines with `file`, `first` (the number of its
        first line) and `source`; see `LineBatch`. The arguments, errors and cost are those of `lines`."""
        rule = f"bytes from 1 to {MAX_LONGEST:,}; a longer line is cut there"
        check_whole("receiver", "longest", longest, 1, MAX_LONGEST, rule)
        if share:
            return self._shared(wait, lease, partial(batches_of_block, longest))
        return BatchStream(self._channel, self._driver, self._renewer, self.name, wait, longest=longest, spool=spool)

    def lines(
        self,
        *,
        wait: float | None = None,
        share: bool = False,
        lease: float | None = None,
        longest: int = LONGEST,
        encoding: str | None = None,
        spool: str | Path | None = None,
    ) -> LineStream:
        """Iterate over every line without its end (LF or CR LF), as bytes; of a packed file, over those of its text.

        wait, share, lease  as in `blocks`; sharing needs files that were sent with `send_lines`
        longest   most bytes of a line, up to 16 MiB; a longer line is cut there and given as a `CutLine`
        encoding  makes lines str; a line that cannot be decoded stays bytes
        spool     folder that collects packed files which were sent as bytes; None: one in the system's temporary folder

        Lines are done block by block, as in `blocks`. A packed file that was sent with `send` is received whole before
        its first line is given, and after a crash must be received on the same host; `send_lines` avoids both. Raises
        what `blocks` raises, and FileDamaged for a packed file that is truncated or broken.
        """
        batches = self.batches(wait=wait, share=share, lease=lease, longest=longest, spool=spool)
        return LineStream(batches, encoding)

    def save(
        self,
        folder: str | Path,
        *,
        wait: float | None = None,
        layout: str = "{name}",
        progress: Callable[[ReceiveProgress], object] | None = None,
    ) -> SavingStream:
        """Save the files: `for saved in …save("in")` gives each file once it is whole, checked and on disk.

        wait      as in `blocks`
        layout    path of a file in the folder, made of {name}, the file's name, and {source}, the host that has it.
                  Use "{source}/{name}" where several hosts send files of the same name: otherwise the later one
                  replaces the earlier one; `replaced_source` of the result and a warning in the log report it
        progress  called after each block

        A file has the permissions and the time of change that it has at its source. Until it is whole it is kept in a
        hidden folder inside `folder`. A file of the same name is replaced atomically. Small files are written to disk
        together, up to a hundred at a time, and a file is given once it and its name are on disk. After a crash, the
        next process resumes an unfinished file in the middle. Errors are as in `blocks`. FileNotSaved is raised once
        for a file that cannot have its name, or is too large for the disk, and a new loop continues with the next file.
        It is one of the `dead` files; unless it was too large, its bytes are kept, and it can be retried.
        """
        check_layout(layout)
        return SavingStream(
            self._channel, self._driver, self._renewer, self.name, wait, Path(folder), layout=layout, progress=progress
        )

    @property
    def dead(self) -> DeadFiles:
        """The files that this receiver could not save, which you can list, retry and remove. No round trip."""
        return DeadFiles(self._channel, self._driver, self.name)

    @verb
    def join(self) -> RoundTrip[bool]:
        """Make this a receiver of every file that begins from now on. Returns False if it is one already. One round
        trip."""
        return self._channel.add_receiver(self.name)

    @verb
    def leave(self) -> Operation[bool]:
        """Stop being a receiver: the channel keeps nothing for it any more. Returns False if it was not a receiver. One
        round trip, and one more for each 64 processes that wait for records of the channel."""
        was_receiver, more_to_trim, wake = yield self._channel.remove_receiver(self.name)
        yield from wake_rest(self._channel, wake)
        yield from trim_rest(self._channel, more_to_trim)
        return bool(was_receiver)
