"""The first process of a container: it reaps orphans, and passes signals on to the program.

    init (PID 1) ──fork──▶ the program
      │  SIGTERM, SIGINT, … ──────▶ │
      │  ◀──────────── exit code ───┘

A process whose parent has ended becomes a child of PID 1. If PID 1 does not wait for it, it remains in the process
table as a zombie until the container ends. A worker cannot wait for children that it does not know: it might take away
the exit code that other code waits for. So the worker runs in a child of a process that does nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

from penstock.worker.parent_pipe import ParentPipe

_PR_SET_PDEATHSIG = 1
_PR_GET_CHILD_SUBREAPER = 37
_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)


def adopts_orphans() -> bool:
    """Whether orphans become children of this process: it is PID 1, or it has asked the kernel for them."""
    return os.getpid() == 1 or _is_subreaper()


def _is_subreaper() -> bool:
    if sys.platform != "linux":
        return False
    found = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def continue_in_child() -> None:
    """If orphans become children of this process, fork. Otherwise do nothing.

    After the fork the child returns, and continues as the program. This process never returns: it reaps orphans and
    forwards signals until the child ends, then exits. Call it before the program starts threads.
    """
    if not adopts_orphans():
        return
    # Signals that arrive between the fork and the first `sigwait` stay pending. A signal that was
    # ignored when this process started stays ignored, also in the child.
    waited_for = {signal.SIGCHLD, *(number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    parent, pipe = os.getpid(), ParentPipe(passes_stops=True)
    program = os.fork()
    if program == 0:
        os.environ.update(pipe.environment)
        pipe.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        return
    _serve(program, pipe, waited_for)


def _serve(program: int, pipe: ParentPipe, waited_for: set[signal.Signals]) -> NoReturn:
    """Reap every child, and end with the exit code of the program."""
    stops = 0
    while True:
        # SIGCHLD is blocked, not handled: signals of several children that end at once are merged, so reap them all.
        ended = _reap()
        if program in ended:
            code = os.waitstatus_to_exitcode(ended[program])
            os._exit(code if code >= 0 else 128 - code)
        number = signal.sigwait(waited_for)
        if number in (signal.SIGTERM, signal.SIGINT):
            stops += 1
            pipe.pass_stop(stops)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, number)


def _reap() -> dict[int, int]:
    """Wait for all children that have ended. Returns the wait status of each."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended
