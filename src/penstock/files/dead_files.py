"""Dead files: those that a receiver could not save, or whose records are damaged. They are kept until an operator has
them retried or removes them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.operations import Driver, RoundTrip, verb
from penstock.errors import ChannelError
from penstock.files.download import Download
from penstock.messages.bindings import LogBindings

_LONGEST = 1000
"""Most characters of a name or an error that are kept."""


@dataclass(frozen=True, slots=True)
class DeadFile:
    """A file that a receiver could not save.

    name, source  of the file; a name is "" if its first record cannot be read
    error         why it could not be saved
    died          when, in seconds since 1970 by the server's clock
    kept          where the receiver keeps the bytes, as host:path; "" if it could not receive them: have the file sent
                  again
    is_retried    the next process that saves the files of this receiver in that folder tries it again
    """

    id: str
    name: str
    source: str
    error: str
    died: float
    kept: str
    is_retried: bool


class FileFailure(msgspec.Struct, frozen=True):
    """The stored form of a dead file. `download`: its name, digest and times, to save the bytes that are kept."""

    name: str
    source: str
    error: str
    kept: str = ""
    download: Download | None = None


_decode = msgspec.json.Decoder(FileFailure).decode


class DeadFileBindings(LogBindings):
    """The scripts that keep the dead files of a channel. Each method is one round trip."""

    def note_dead_file(self, receiver: str, id: str, failure: FileFailure) -> RoundTrip[None]:
        short = msgspec.structs.replace(failure, name=failure.name[:_LONGEST], error=failure.error[:_LONGEST])
        args = (self.clock.now_ms, receiver, id, int(bool(failure.kept)), msgspec.json.encode(short))

        def read(reply: Sequence[Any]) -> None:
            if reply[0] != b"OK":
                raise ChannelError(
                    f"{self.label} has {reply[1]:,} dead files already, and no room for more: retry or remove some "
                    f"(penstock dead ls files:{self.keys.name}:{receiver})"
                )

        return self._call("note_dead_file", args, read, receiver, also=b"DEAD_FILES")

    def list_dead_files(self, receiver: str) -> RoundTrip[list[tuple[DeadFile, FileFailure]]]:
        """All dead files of this receiver, the oldest first."""

        def read(reply: Sequence[Any]) -> list[tuple[DeadFile, FileFailure]]:
            found = []
            for id, stored in zip(reply[1::2], reply[2::2], strict=True):
                ms, is_retried, _, json = stored.split(b" ", 3)
                known = _decode(json)
                dead = DeadFile(
                    id.decode(errors="replace"),
                    known.name,
                    known.source,
                    known.error,
                    int(ms) / 1000,
                    known.kept,
                    is_retried == b"1",
                )
                found.append((dead, known))
            return sorted(found, key=lambda one: one[0].died)

        return self._call("list_dead_files", (receiver,), read, receiver)

    def retry_dead_files(self, receiver: str, ids: Sequence[str]) -> RoundTrip[int]:
        return self._call("retry_dead_files", (receiver, *ids), lambda reply: int(reply[1]), receiver)

    def remove_dead_files(self, receiver: str, ids: Sequence[str]) -> RoundTrip[int]:
        return self._call("remove_dead_files", (receiver, *ids), lambda reply: int(reply[1]), receiver)


class DeadFiles:
    """The dead files of one receiver. They are kept until they are saved or removed, or the receiver or the channel is
    deleted: at most 1,000 of all receivers of a channel."""

    def __init__(self, channel: DeadFileBindings, driver: Driver, receiver: str) -> None:
        self._channel = channel
        self._driver = driver
        self._receiver = receiver

    @verb
    def list(self) -> RoundTrip[builtins.list[DeadFile]]:
        """All dead files, the oldest first. One round trip."""
        return self._channel.list_dead_files(self._receiver).then(lambda found: [dead for dead, _ in found])

    @verb
    def retry(self, *ids: str) -> RoundTrip[int]:
        """Mark these files, so that the next `save` of this receiver tries them again. It must run on the host and in
        the folder that keep the bytes. Returns how many of the ids are dead files whose bytes are kept. One round
        trip."""
        return self._channel.retry_dead_files(self._receiver, ids)

    @verb
    def remove(self, *ids: str) -> RoundTrip[int]:
        """Forget these files. Bytes that are kept are deleted by the next `save` in their folder. Returns how many of
        the ids were dead files. One round trip."""
        return self._channel.remove_dead_files(self._receiver, ids)
