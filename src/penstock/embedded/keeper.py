"""The keeper: a small process that is the parent of one home's embedded server.

    python -I -S keeper.py HOME NAME BINARY FSYNC      (HOME: the folder `.penstock`; NAME: first part of socket paths)

    starting ──server answers──> ready ──server died──> starting (with back-off)
       │                           │  no user for a while, and not kept; or `stop`; or SIGTERM
       └──died at once──> failed   └──> ending: accept no users, SIGTERM to the server, wait, exit

A process is a user of the server while it holds a connection to the keeper's socket on which it has sent `use`. The
kernel closes that connection even if the process is killed, so no server is left running. A request is one of these
lines, and its answer is one line of JSON. `client.py` is the other end.

    use FSYNC    count this connection as a user; answered when the server is ready or has failed
    status       answered at once; not counted
    keep         keep running without users, until `stop`; answered at once
    stop         end the server cleanly; the connection is closed when that is done

The keeper runs as a plain file, without `site` and without the package, so that it starts in about 20 ms and stays
small. Its files in the home: `keeper.lock` (locked while a keeper lives; names its socket), `server.pid`, `server.log`
and `data`.
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
"""From the weakest to the strictest. The strictest that a user asked for applies to all."""

LOCK_TAKEN = 3
"""Exit code: another keeper holds this home."""

FIRST_USER_TIMEOUT = 2.0
"""Seconds that a new keeper waits for its first user. The process that started it may have been killed."""

IDLE_TIMEOUT = 0.5
"""Seconds that the server outlives its last user, so that commands run one after another share one server."""

STOP_TIMEOUT = 5.0
"""Seconds that a server may take after SIGTERM to write out its data, before it is killed."""

MAX_QUICK_DEATHS = 5
QUICK_DEATH = 10.0
"""The keeper gives up after more than MAX_QUICK_DEATHS deaths in a row, each within QUICK_DEATH seconds of a start."""

FIRST_BACKOFF = 0.05  # seconds, as the next two
SIGTERM_INTERVAL = 0.2
PING_INTERVAL = 0.01
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
MAX_LOG_BYTES = 1024 * 1024


class Keeper:
    """The keeper of a home. `run` returns when the server has ended."""

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
        self.server_pid = 0
        self.server_log: int | None = None
        self.server_started_at = 0.0
        self.start_at = 0.0
        self.idle_deadline: float | None = None
        self.ready = False
        self.was_ready = False
        self.deaths = 0
        self.failed = False
        self.kept = False
        self.stopping = False
        self.log_tail: deque[str] = deque(maxlen=12)
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        self._install_signal_handlers()
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        end_orphan(self.home, self._lock_id())
        self.idle_deadline = time.monotonic() + FIRST_USER_TIMEOUT
        self._advance()
        while not self.stopping:
            for key, _ in self.selector.select(self._sleep_time()):
                key.data()
            self._advance()
        self._end()

    # --- the state ---

    def _advance(self) -> None:
        now = time.monotonic()
        if not self.failed:
            if not self.server_pid and now >= self.start_at:
                self._start_server()
            if self.server_pid and not self.ready and self._server_answers():
                self.ready = self.was_ready = True
        if self.ready or self.failed:
            for user in list(self.waiting):
                self._answer(user)
        if self.users or self.kept:
            self.idle_deadline = None
            # All users have got the failure: a later attempt starts a new keeper.
            self.stopping |= self.failed
        elif self.idle_deadline is None:
            self.idle_deadline = now + IDLE_TIMEOUT
        else:
            self.stopping |= now >= self.idle_deadline

    def _sleep_time(self) -> float | None:
        """Seconds until something is due; None while the server runs and has users."""
        if self.server_pid and not self.ready:
            return PING_INTERVAL
        due = [self.idle_deadline] if self.idle_deadline is not None else []
        if not self.server_pid and not self.failed:
            due.append(self.start_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    # --- users ---

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            link, _ = self.listener.accept()
            link.settimeout(1.0)
            self.selector.register(link, selectors.EVENT_READ, lambda: self._read_request(link))

    def _read_request(self, link: socket.socket) -> None:
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
            self._add_user(link, request[1].decode(errors="replace"))
        else:
            self._disconnect(link)

    def _add_user(self, user: socket.socket, fsync: str) -> None:
        """Count a user, and answer it when the server has answered a new PING: the server may have just died."""
        self.users.add(user)
        self.waiting.add(user)
        self.ready = False
        if fsync in FSYNC and FSYNC.index(fsync) > FSYNC.index(self.fsync):
            self.fsync = fsync

    def _answer(self, link: socket.socket) -> None:
        self.waiting.discard(link)
        line = {
            "state": "failed" if self.failed else "ready" if self.ready else "starting",
            # The lock file of a copied home names the socket of the original. The client detects that by this number.
            "lock": self._lock_id(),
            "keeper": os.getpid(),
            "pid": self.server_pid,
            "socket": self.server_socket,
            "users": len(self.users),
            "kept": self.kept,
            "log": list(self.log_tail) if self.failed else [],
        }
        try:
            link.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            self._disconnect(link)

    def _lock_id(self) -> int:
        return os.fstat(self.lock).st_ino

    def _disconnect(self, link: socket.socket) -> None:
        self.users.discard(link)
        self.waiting.discard(link)
        with contextlib.suppress(KeyError):
            self.selector.unregister(link)
        link.close()

    # --- the server ---

    def _start_server(self) -> None:
        self.server_started_at = time.monotonic()
        output, write_end = os.pipe()
        parent = os.getpid()
        # Until the exec the child has the keeper's signal handlers, in which a stop signal would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self.server_pid = os.fork()
        except OSError as error:
            os.close(output)
            self.log_tail.append(str(error))
            self._fail()
        else:
            if not self.server_pid:
                self._become_server(write_end, parent)
            self.server_log = output
            os.set_blocking(output, False)
            self.selector.register(output, selectors.EVENT_READ, self._read_server_log)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.close(write_end)

    def _become_server(self, output: int, parent: int) -> None:
        """Become the server, in the child; does not return. The pid is on disk before the server can touch the data."""
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
            # Log to stdout, which the keeper reads: on a full disk a log file would lack the line that explains it.
            "logfile": "",
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _server_answers(self) -> bool:
        """Whether the server has loaded its data; sets its `appendfsync` to what the users asked for.

        A server whose disk is full answers PING with an error. It is ready, and refuses writes with that error.
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

    def _read_server_log(self) -> None:
        """Append the server's output to the log file, and remember its last lines."""
        while self.server_log is not None:
            try:
                output = os.read(self.server_log, 65536)
            except BlockingIOError:
                return
            if not output:
                self._close_server_log()
                return
            self._log(output)
            self.log_tail.extend(line for line in output.decode(errors="replace").splitlines() if line.strip())

    def _close_server_log(self) -> None:
        if self.server_log is not None:
            self.selector.unregister(self.server_log)
            os.close(self.server_log)
            self.server_log = None

    def _log(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(1, text)

    def _reap(self) -> None:
        if not self.server_pid:
            return
        pid, status = os.waitpid(self.server_pid, os.WNOHANG)
        if pid:
            self._server_died(os.waitstatus_to_exitcode(status))

    def _server_died(self, code: int) -> None:
        self._read_server_log()
        self._close_server_log()
        end = f"server {self.server_pid} ended by itself, {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        self._log(f"keeper: {end}\n".encode())
        self.server_pid = 0
        self.ready = False
        now = time.monotonic()
        self.deaths = self.deaths + 1 if now - self.server_started_at < QUICK_DEATH else 1
        if code < 0:
            self.log_tail.append(end)
        if not self.was_ready or self.deaths > MAX_QUICK_DEATHS:
            self._fail()
        else:
            self.start_at = now + FIRST_BACKOFF * 2 ** (self.deaths - 1)

    def _fail(self) -> None:
        """Give up: answer all users with the last lines of the log, and end."""
        self.failed = True
        self.waiting |= self.users
        self._log(b"keeper: gave up\n")

    # --- the end ---

    def _install_signal_handlers(self) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # The keeper inherits the signals that the starting process has blocked, and the server would, too.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

        def on_signal() -> None:
            with contextlib.suppress(BlockingIOError):
                self.stopping |= any(number != signal.SIGCHLD for number in ours.recv(256))
            self._reap()

        self.selector.register(ours, selectors.EVENT_READ, on_signal)
        self._wakeup = theirs

    def _end(self) -> None:
        self.selector.unregister(self.listener)
        self.listener.close()
        remove(self.keeper_socket)
        if self.server_pid:
            end_process(self.server_pid, lambda: os.waitpid(self.server_pid, os.WNOHANG)[0] == 0)
            self._read_server_log()
        remove(self.server_socket)
        remove(os.path.join(self.home, PIDFILE))
        # Unlock before the exit closes the connections that sent `stop`: their clients then expect the home to be free.
        os.close(self.lock)


def keeper_socket(name: str) -> str:
    return name + ".keeper"


def server_socket(name: str) -> str:
    return name + ".server"


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def die_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent dies, also by SIGKILL.

    Only Linux can do that. Elsewhere a server outlives a killed keeper until the next keeper of the home ends it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)


def end_process(pid: int, is_alive: Callable[[], bool]) -> None:
    """Send SIGTERM, and SIGKILL after `STOP_TIMEOUT`. Returns when the process is gone."""
    started = time.monotonic()
    terminated = 0.0
    with contextlib.suppress(ProcessLookupError):
        while is_alive():
            now = time.monotonic()
            if now - started > STOP_TIMEOUT:
                os.kill(pid, signal.SIGKILL)
            elif now - terminated > SIGTERM_INTERVAL:
                # More than once, because a server loses a signal that arrives in the first moments of its start.
                os.kill(pid, signal.SIGTERM)
                terminated = now
            time.sleep(0.005)


def end_orphan(home: str, lock_id: int) -> None:
    """End a server that outlived its keeper, because two servers on one data folder would destroy the data.

    The recorded pid may belong to another program by now, so only a process whose command line names the recorded
    socket is ended. If this home is a copy of another, the record has the other lock file's number and is ignored.
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
    """The descriptor of the locked lock file; None if another keeper holds it. The kernel unlocks it at the exit."""
    import fcntl  # imported here, so that this module can be imported on Windows

    lock = os.open(os.path.join(home, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    # A process that checks whether a keeper lives holds the lock for some microseconds, so try more than once.
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.002)
        else:
            return lock
    return None


def end_predecessor(path: str) -> None:
    """End a keeper that still listens here although its home, and with it its lock, was deleted while it ran."""
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.settimeout(STOP_TIMEOUT + 1)
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
        raise OSError(error.errno, error.strerror, path) from None  # the error of bind does not name the path
    listener.listen(128)
    return listener


def open_log(home: str) -> int:
    path = os.path.join(home, LOG)
    with contextlib.suppress(OSError):
        if os.path.getsize(path) > MAX_LOG_BYTES:
            os.replace(path, path + ".1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def main(home: str, name: str, binary: str, fsync: str) -> int:
    """Start a keeper. Returns an exit code when it listens, or when another keeper holds the home. Raises OSError."""
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
    # The starting process waits for this one. The keeper is orphaned, so that init reaps it.
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
