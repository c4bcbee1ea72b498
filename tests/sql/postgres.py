"""A real PostgreSQL for tests, from Debian, in a temporary folder, on a unix socket, run by an ordinary user.

`make test-sql` installs it and names the folder of its programs in $PENSTOCK_POSTGRES. Without that, the tests run on
SQLite alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.servers import eventually

PROGRAMS = os.environ.get("PENSTOCK_POSTGRES", "")

_numbers = itertools.count(1)


def _children(pid: int) -> list[str]:
    """The processes of a server: each is in a group of its own, and uses the shared memory until it has ended."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


class Postgres:
    """A server of its own. `durable`: it writes to disk before it confirms a commit, as after a normal installation."""

    def __init__(self, *, durable: bool = False) -> None:
        os.chmod(tempfile.gettempdir(), 0o711)  # so that another user reaches the folder below
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = next(one for one in pwd.getpwall() if one.pw_name in {"postgres", "nobody"})
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._durable = durable
        self._data = self.folder / "data"
        self._run("initdb", "-D", self._data, "-U", "penstock", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        self.process: subprocess.Popen[bytes]
        self.start()

    def _run(self, program: str, *args: Any) -> None:
        command = [str(Path(PROGRAMS, program)), *map(str, args)]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, **self._user)

    def start(self) -> None:
        options = [
            "-c",
            "listen_addresses=",
            "-c",
            f"unix_socket_directories={self.folder}",
            "-c",
            "max_connections=200",
        ]
        if not self._durable:
            options += ["-c", "fsync=off"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(Path(PROGRAMS, "postgres")), "-D", str(self._data), *options],
                cwd=self.folder, stdout=log, stderr=log, start_new_session=True, **self._user,
            )  # fmt: skip
        eventually(self._answers)

    def _answers(self) -> bool:
        engine = create_engine(self.url("postgres"), poolclass=NullPool)
        with contextlib.suppress(OperationalError), engine.connect():
            return True
        return False

    def url(self, database: str, driver: str = "psycopg") -> str:
        return f"postgresql+{driver}://penstock@/{database}?host={self.folder}"

    def create(self) -> str:
        """A new database; returns its name."""
        name = f"t{next(_numbers)}"
        engine = create_engine(self.url("postgres"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} STRATEGY file_copy"))
        return name

    def kill(self) -> None:
        """As a crash of the machine's memory would: all of its processes at once, by SIGKILL."""
        children = [int(pid) for pid in _children(self.process.pid)]
        for pid in (self.process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
