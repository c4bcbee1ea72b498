"""What a stream makes of the records of a channel. `exclusive_stream.py` calls these hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from penstock.core.operations import Operation
from penstock.errors import FilesError
from penstock.files.download import Checkpoint, Download
from penstock.files.records import BlockHeader, ChannelRecord, FileBegin
from penstock.files.stream import ReceiverStream

T = TypeVar("T")


class RecordHooks(ReceiverStream[T]):
    """A stream that makes nothing of any record: a subclass overrides what concerns it."""

    _downloads: dict[str, Download]
    """The files that have begun, by upload."""

    def _on_resume(self) -> None:
        """The stream resumes from a checkpoint: drop everything that belongs to an earlier one."""

    def _on_new_owner(self) -> None:
        """Another process may have received before this one: remove the files that it left on disk, except those of
        `self._downloads`."""

    def _retry_dead_files(self) -> Operation[None]:
        """This process begins to receive, or finds that everything was received: try the dead files again that an
        operator has marked for a retry."""
        yield from ()

    def _on_settled(self, number: int) -> None:
        """Everything up to this record is settled in the server."""

    def _on_begin(self, record: ChannelRecord, begin: FileBegin) -> None:
        """A file begins; `self._downloads` has it already."""

    def _on_block(self, record: ChannelRecord, header: BlockHeader, data: bytes | memoryview) -> Iterable[T]:
        """A block that was checked; `self._downloads` counts it already."""
        return ()

    def _on_end(self, record: ChannelRecord, download: Download) -> Iterable[T]:
        """A file is whole."""
        return ()

    def _on_dropped(self, number: int, upload_id: str) -> None:
        """A file will never be whole. Once this record is settled, no process needs the received bytes any more."""

    def _unfinished(self) -> int:
        """How many items wait to be finished together by `_finish_waiting`."""
        return 0

    def _finish_waiting(self) -> Iterator[tuple[T | FilesError, Checkpoint]]:
        """Finish the items that wait, in their order, up to the first that fails: its error comes last."""
        return iter(())
