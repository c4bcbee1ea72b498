"""The keeper: a tiny process that is the parent of one home's embedded server.

    python -I -S keeper.py HOME NAME BINARY FSYNC      (HOME: the folder `.penstock`; NAME: where the sockets go)

    starting ──server answers──> ready ──server died──> starting (with back-off)
       │                           │  last user gone, grace over, not kept; or `stop`; or SIGTERM
       └──it died at once──> failed└──> ending: no new users, SIGTERM to the server, wait, exit

A connection to the keeper's socket that said `use` is a user, until it is closed: the kernel closes it for a
killed process too, so nothing is left behind whatever happened to the users. `embedded.py` is the other end:

    use FSYNC    count me; the answer is one line of JSON, sent when the server is ready or has failed
    status       the same line at once, without being counted
    keep         run on without users, until `stop`; the answer is the same line at once
    stop         end the server cleanly; the connection is closed when that is done

It runs as a plain file, without `site` and without the package, so that it starts in some 20 ms and stays small.
Files in the home: `keeper.lock` (held while a keeper lives; names its socket), `server.pid`, `server.log`, `data`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable

LOCK = "keeper.lock"
LOG = "server.log"
PIDFILE = "server.pid"
DATA = "data"

FSYNC = ("no", "everysec", "always")
"""From the weakest to the strictest; users of one server get the strictest that any of them asked for."""

LOCK_TAKEN = 3
"""Exit code: another keeper has this home."""

FIRST_USER = 2.0
"""How long a new keeper waits for the process that started it: it may have been killed meanwhile."""

GRACE = 0.5
"""How long the server outlives its last user: commands run one after the other should share one."""

STOP_BOUND = 5.0
"""How long a server may take to write its data out after SIGTERM before it is killed."""

QUICK_DEATHS = 5
QUICK = 10.0
"""A server that died this many times within this many seconds of its start is given up."""

FIRST_BACKOFF = 0.05
STOP_AGAIN = 0.2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PING_EVERY = 0.01
LOG_LIMIT = 1024 * 1024


class Keeper:
    """The one keeper of a home. `run` returns when the server is gone."""

    def __init__(self, home: str, name: str, binary: str, fsync: str, lock: int, listener: socket.socket) -> None:
        self.home = home
        self.binary = binary
        self.fsync = fsync
        self.lock = lock
        self.listener = listener
        self.keeper_socket = keeper_socket(name)
        self.server_socket = server_socket(name)
        self.users: set[socket.socket] = set()
        self.waiting: set[socket.socket] = set()
        self.server = 0
        self.server_log: int | None = None
        self.started = 0.0
        self.start_at = 0.0
        self.lonely_until: float | None = None
        self.ready = False
        self.proven = False
        self.deaths = 0
        self.failed = False
        self.kept = False
        self.stopping = False
        self.tail: deque[str] = deque(maxlen=12)
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        self._hear_signals()
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        end_orphan(self.home, self._lock_id())
        self.lonely_until = time.monotonic() + FIRST_USER
        self._advance()
        while not self.stopping:
            for key, _ in self.selector.select(self._patience()):
                key.data()
            self._advance()
        self._end()

    # What is due.

    def _advance(self) -> None:
        now = time.monotonic()
        if not self.failed:
            if not self.server and now >= self.start_at:
                self._start_server()
            if self.server and not self.ready and self._server_is_ready():
                self.ready = self.proven = True
        if self.ready or self.failed:
            for user in list(self.waiting):
                self._answer(user)
        if self.users or self.kept:
            self.lonely_until = None
            # Told once, a failure has served: whoever tries again gets a fresh keeper and a fresh attempt.
            self.stopping |= self.failed
        elif self.lonely_until is None:
            self.lonely_until = now + GRACE
        else:
            self.stopping |= now >= self.lonely_until

    def _patience(self) -> float | None:
        """How long to sleep; None, for ever, while the server is up and has users."""
        if self.server and not self.ready:
            return PING_EVERY
        due = [self.lonely_until] if self.lonely_until is not None else []
        if not self.server and not self.failed:
            due.append(self.start_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    # Users.

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            link, _ = self.listener.accept()
            link.settimeout(1.0)
            self.selector.register(link, selectors.EVENT_READ, lambda: self._hear(link))

    def _hear(self, link: socket.socket) -> None:
        try:
            request = link.recv(64).split()
        except OSError:
            request = []
        if request in ([b"status"], [b"keep"]):
            self.kept |= request == [b"keep"]
            self._answer(link)
        elif request == [b"stop"]:
            self.stopping = True
        elif len(request) == 2 and request[0] == b"use":
            self._admit(link, request[1].decode(errors="replace"))
        else:
            self._forget(link)

    def _admit(self, user: socket.socket, fsync: str) -> None:
        """A user is answered when the server has answered us again: it may have died in this very moment."""
        self.users.add(user)
        self.waiting.add(user)
        self.ready = False
        if fsync in FSYNC and FSYNC.index(fsync) > FSYNC.index(self.fsync):
            self.fsync = fsync

    def _answer(self, link: socket.socket) -> None:
        self.waiting.discard(link)
        line = {
            "state": "failed" if self.failed else "ready" if self.ready else "starting",
            # A folder copied with its lock file names the original's socket: this tells the user so.
            "lock": self._lock_id(),
            "keeper": os.getpid(),
            "pid": self.server,
            "socket": self.server_socket,
            "users": len(self.users),
            "kept": self.kept,
            "log": list(self.tail) if self.failed else [],
        }
        try:
            link.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            self._forget(link)

    def _lock_id(self) -> int:
        return os.fstat(self.lock).st_ino

    def _forget(self, link: socket.socket) -> None:
        self.users.discard(link)
        self.waiting.discard(link)
        with contextlib.suppress(KeyError):
            self.selector.unregister(link)
        link.close()

    # The server.

    def _start_server(self) -> None:
        self.started = time.monotonic()
        output, write_end = os.pipe()
        parent = os.getpid()
        # A stop signal that came before the exec would be taken by our handler in the child, and lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self.server = os.fork()
        except OSError as error:
            os.close(output)
            self.tail.append(str(error))
            self._fail()
        else:
            if not self.server:
                self._become_server(write_end, parent)
            self.server_log = output
            os.set_blocking(output, False)
            self.selector.register(output, selectors.EVENT_READ, self._hear_server)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.close(write_end)

    def _become_server(self, output: int, parent: int) -> None:
        """In the child: no return. Its pid is on disk before it can touch the data."""
        try:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.dup2(output, 1)
            os.dup2(output, 2)
            die_with(parent)
            with open(os.path.join(self.home, PIDFILE), "w") as file:
                file.write(f"{os.getpid()}\n{self.server_socket}\n{self._lock_id()}\n")
            os.execv(self.binary, [self.binary, *self._configuration()])
        except BaseException as error:
            os.write(2, f"cannot run {self.binary}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(127)

    def _configuration(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": self.server_socket,
            "unixsocketperm": "700",
            "dir": os.path.join(self.home, DATA),
            "appendonly": "yes",
            "appendfsync": self.fsync,
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            # To its output, that is to us: on a full disk a log file would miss the very line that matters.
            "logfile": "",
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _server_is_ready(self) -> bool:
        """It syncs as its users require, and has read its data.

        A server whose disk is full answers PING with an error: it is up, and will say so to whoever writes.
        """
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(0.2)
                link.connect(self.server_socket)
                link.sendall(f"CONFIG SET appendfsync {self.fsync}\r\nPING\r\n".encode())
                answer = link.recv(256)
                while answer and answer.count(b"\n") < 2:
                    answer += link.recv(256)
                return answer.startswith(b"+OK\r\n") and b"-LOADING" not in answer
        except OSError:
            return False

    def _hear_server(self) -> None:
        """Pass the server's output on to the log file, and keep the end of it."""
        while self.server_log is not None:
            try:
                output = os.read(self.server_log, 65536)
            except BlockingIOError:
                return
            if not output:
                self._close_server_log()
                return
            self._log(output)
            self.tail.extend(line for line in output.decode(errors="replace").splitlines() if line.strip())

    def _close_server_log(self) -> None:
        if self.server_log is not None:
            self.selector.unregister(self.server_log)
            os.close(self.server_log)
            self.server_log = None

    def _log(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(1, text)

    def _reap(self) -> None:
        if not self.server:
            return
        pid, status = os.waitpid(self.server, os.WNOHANG)
        if pid:
            self._server_died(os.waitstatus_to_exitcode(status))

    def _server_died(self, code: int) -> None:
        self._hear_server()
        self._close_server_log()
        end = f"server {self.server} ended by itself, {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        self._log(f"keeper: {end}\n".encode())
        self.server = 0
        self.ready = False
        now = time.monotonic()
        self.deaths = self.deaths + 1 if now - self.started < QUICK else 1
        if code < 0:
            self.tail.append(end)
        if not self.proven or self.deaths > QUICK_DEATHS:
            self._fail()
        else:
            self.start_at = now + FIRST_BACKOFF * 2 ** (self.deaths - 1)

    def _fail(self) -> None:
        """Give up: everybody is told the end of the log, and the keeper ends."""
        self.failed = True
        self.waiting |= self.users
        self._log(b"keeper: given up\n")

    # The end.

    def _hear_signals(self) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # A starter that waits for its signals in a thread has them blocked, and we and the server inherit that.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

        def hear() -> None:
            with contextlib.suppress(BlockingIOError):
                self.stopping |= any(number != signal.SIGCHLD for number in ours.recv(256))
            self._reap()

        self.selector.register(ours, selectors.EVENT_READ, hear)
        self._wakeup = theirs

    def _end(self) -> None:
        self.selector.unregister(self.listener)
        self.listener.close()
        remove(self.keeper_socket)
        if self.server:
            end_process(self.server, lambda: os.waitpid(self.server, os.WNOHANG)[0] == 0)
            self._hear_server()
        remove(self.server_socket)
        remove(os.path.join(self.home, PIDFILE))
        # Before the links of those who asked to stop: when theirs is closed, the home is free.
        os.close(self.lock)


def keeper_socket(name: str) -> str:
    return name + ".keeper"


def server_socket(name: str) -> str:
    return name + ".server"


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def die_with(parent: int) -> None:
    """Ask the kernel for SIGTERM, a clean end, when the keeper dies (even by SIGKILL).

    Only Linux can. Elsewhere the server outlives a killed keeper until the next keeper of the home ends it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)


def end_process(pid: int, lives: Callable[[], bool]) -> None:
    """SIGTERM, and SIGKILL after `STOP_BOUND`; returns when it is gone."""
    started = time.monotonic()
    terminated = 0.0
    with contextlib.suppress(ProcessLookupError):
        while lives():
            now = time.monotonic()
            if now - started > STOP_BOUND:
                os.kill(pid, signal.SIGKILL)
            elif now - terminated > STOP_AGAIN:
                # More than once: a server forgets the signal if it comes in the first moments of its start.
                os.kill(pid, signal.SIGTERM)
                terminated = now
            time.sleep(0.005)


def end_orphan(home: str, lock_id: int) -> None:
    """End a server that outlived its keeper: two servers on one data folder would destroy it.

    The recorded pid may be somebody else's by now: only a process whose command names the recorded socket is ended.
    A record that came with a copy of another home is told by its lock file's number, and left alone.
    """
    try:
        with open(os.path.join(home, PIDFILE)) as file:
            pid, path, recorded_id = file.read().splitlines()
    except (OSError, ValueError):
        return
    if recorded_id == str(lock_id) and path in command_of(pid):
        end_process(int(pid), lambda: path in command_of(pid))


def command_of(pid: str) -> str:
    """The command line of a process as `ps` shows it; '' for one that is gone."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                return file.read()
        except OSError:
            return ""
    with os.popen(f"ps -ww -o command= -p {pid}") as output:
        return output.read()


def take_lock(home: str) -> int | None:
    """The descriptor that holds the home, None if another keeper has it. Released by the kernel when we die."""
    import fcntl  # here, so that this module, if not this process, loads on Windows

    lock = os.open(os.path.join(home, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    # Who looks whether a keeper lives holds the lock for some microseconds: hence more than one attempt.
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.002)
        else:
            return lock
    return None


def end_predecessor(path: str) -> None:
    """End a keeper that still listens here although its home was deleted under it, and with it the lock it holds."""
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.settimeout(STOP_BOUND + 1)
        link.connect(path)
        link.sendall(b"stop\n")
        while link.recv(4096):
            pass


def listen(path: str) -> socket.socket:
    remove(path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # bind's own error does not name it
    listener.listen(128)
    return listener


def open_log(home: str) -> int:
    path = os.path.join(home, LOG)
    with contextlib.suppress(OSError):
        if os.path.getsize(path) > LOG_LIMIT:
            os.replace(path, path + ".1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def main(home: str, name: str, binary: str, fsync: str) -> int:
    """Return to the starter when the keeper listens, or when there is a reason why it cannot."""
    os.umask(0o077)
    os.chdir("/")
    lock = take_lock(home)
    if lock is None:
        return LOCK_TAKEN
    os.makedirs(os.path.join(home, DATA), exist_ok=True)
    log = open_log(home)
    end_predecessor(keeper_socket(name))
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{keeper_socket(name)}\n".encode(), 0)
    listener = listen(keeper_socket(name))
    # The starter waits for its child; the keeper itself is nobody's, and no zombie when it ends.
    if os.fork():
        return 0
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    Keeper(home, name, binary, fsync, lock, listener).run()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except OSError as error:
        sys.exit(str(error))
