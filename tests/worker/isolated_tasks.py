"""Tasks for isolated runs: a few that behave, and many that do what a process can do to its worker."""

import asyncio
import contextvars
import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from penstock import Drop, JobContext, Middleware, Penstock, Retry, current, per_process, run, step

app = Penstock("unix:///nowhere", prefix="nowhere")


@app.task(isolate=True)
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(isolate=True, queue="q")
def stage_one(result: int) -> int:
    current().stage.incrby(app.queue("q").key("n"))
    return result


@app.task(isolate=True, queue="q")
def stage_a_call() -> str:
    return current().stage.enqueue(stage_one.call(1)).id


@app.task(isolate=True, queue="q", retry=Retry(1, base=0))
def steps_and_failure(address: str) -> list[int]:
    # The app of this module has no server; that of the test has one.
    there = Penstock(address, prefix="nowhere")
    current()._run.shard._driver = there._driver
    first = step.run(os.getpid)
    if current().attempt == 1:
        raise OSError
    return [first, os.getpid()]


@app.task(isolate=True, queue="q")
def with_powers(address: str, estimate: int, real: int) -> int:
    """Emits, books and closes its key. Its first run dies after half of that."""
    there = Penstock(address, prefix="nowhere")
    current()._run.shard._driver = there._driver
    current().emit(["a", current().deliveries])
    current().used("crm", 200)
    if current().deliveries == 1:
        os.abort()
    current().emit("b")
    current().used("crm", real)
    current().hold("crm", seconds=30)
    return os.getpid()


@app.task(isolate=True, queue="q")
async def with_powers_awaited(address: str, estimate: int, real: int) -> int:
    there = Penstock(address, prefix="nowhere")
    current()._run.shard._driver = there._driver
    current().emit("a")
    await current().used.aio("crm", real)
    await current().hold.aio("crm", seconds=30)
    await there.aclose()
    return os.getpid()


@app.task(isolate=True, queue="q")
async def two_children(address: str) -> list[int]:
    there = Penstock(address, prefix="nowhere")
    current()._run.shard._driver = there._driver
    return [*await asyncio.gather(run(add.call(1)), run(add.call(2)))]


@app.task(isolate=True, queue="q")
def wait_for_another(address: str, prefix: str) -> str:
    with Penstock(address, prefix=prefix) as there:
        try:
            there.queue("other").put(1).result(0.05)
        except TimeoutError:
            return "timed out"
        return "there was a result"


@app.task(isolate=True)
async def name_of_loop() -> str:
    import asyncio

    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


def pid_of_pool() -> Iterator[list[int]]:
    yield [os.getpid()]


async def async_pid_of_pool(pids: list[int] = per_process(pid_of_pool)) -> AsyncIterator[list[int]]:
    yield [*pids, os.getpid()]


@app.task(isolate=True)
def use_pool(note: str, pids: list[int] = per_process(pid_of_pool)) -> list[int]:
    Path(note).write_text("ran")
    return [os.getpid(), *pids]


@app.task(isolate=True)
async def use_async_pool(note: str, pids: list[int] = per_process(async_pid_of_pool)) -> list[int]:
    return [os.getpid(), *pids]


@app.task(isolate=True, timeout=60)
def report(lines: int) -> dict[str, Any]:
    job = current()
    for n in range(lines):
        job.progress(n / lines, f"line {n}")
        job.log(f"line {n}")
    left = (job.deadline or 0.0) - time.monotonic()
    return {"id": job.id, "attempt": job.attempt, "left": left, "pid": os.getpid()}


@app.task(isolate=True)
async def report_and_crash() -> None:
    current().log("about to crash")
    os.abort()


@app.task(isolate=True, timeout=0.3)
def spin_in_c(note: str) -> None:
    """Holds the interpreter's lock for ever: no other thread and no signal handler runs."""
    Path(note).write_text(str(os.getpid()))
    sum(iter(int, 1))


@app.task(isolate=True)
def start_a_process_and_spin_in_c(note: str) -> None:
    """Like `spin_in_c`, with a process that it has started beside it."""
    other = subprocess.Popen(["sleep", "600"])
    Path(note + "~").write_text(f"{os.getpid()} {os.getppid()} {other.pid}")
    Path(note + "~").rename(note)
    sum(iter(int, 1))


@app.task(isolate=True, timeout=0.2, retry=Retry(1, on=TimeoutError, base=60))
async def sleep_long() -> None:
    time.sleep(600)


@app.task(isolate=True, timeout=0.3)
def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@app.task(isolate=True)
def die(how: str, number: int = 0) -> None:
    match how:
        case "os._exit":
            os._exit(number)
        case "signal":
            os.kill(os.getpid(), number)
        case "segfault":
            ctypes.string_at(0)


@app.task(isolate=True)
def close_all_files() -> None:
    os.closerange(3, 256)


class Unpicklable(Exception):
    def __init__(self, lock: Any, _second: int) -> None:
        super().__init__("cannot travel")
        self.lock = lock


@app.task(isolate=True)
def fail(how: str) -> Any:
    match how:
        case "unpicklable":
            raise Unpicklable(threading.Lock(), 1)
        case "sys.exit":
            sys.exit("bye")
        case "drop":
            raise Drop("stale")
        case "large":
            return "x" * 5000
        case "object":
            return object()
    return None


@app.task(isolate=True)
def large(size: int) -> str:
    return "x" * size


@app.task(isolate=True)
def print_much(size: int) -> None:
    print("!" * size)
    sys.stdout.write("the last words")


@app.task(isolate=True)
def leave_processes_behind() -> list[int]:
    threading.Thread(target=time.sleep, args=(600,)).start()
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
    return [os.getpid(), forked, subprocess.Popen(["sleep", "600"]).pid]


@app.task(isolate=True)
def return_in_a_fork_too() -> str:
    if os.fork() == 0:
        return "the copy"
    time.sleep(0.2)
    return "the task"


@app.task(isolate=True)
def open_files() -> list[str]:
    """All open files, except the one that lists them."""
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(int(fd))]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@app.task(isolate=True)
def start_and_end(seconds: float) -> tuple[float, float]:
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


@app.task(isolate=True)
def receive_stop_signals() -> list[int | None]:
    """Sends every stop signal to itself and the fork server, ends two processes that it started by SIGTERM, and checks
    that the fork server leads a session."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getppid(), number)
        os.kill(os.getpid(), number)
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    copy = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    copy.start()
    copy.terminate()
    copy.join(10)
    return [program.wait(10), copy.exitcode, os.getsid(os.getppid()) - os.getppid()]


@app.task(isolate=True)
def kill_the_fork_server(note: str) -> None:
    Path(note).write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    sum(iter(int, 1))


@app.task(isolate=True)
def log_a_line(text: str) -> None:
    logging.getLogger("tasks").info("%s", text)


@app.task
def in_a_thread() -> None: ...


def plain() -> None: ...


renamed = app.task(name="renamed")(plain)


class Shop:
    @staticmethod
    @app.task(isolate=True)
    def sell() -> str:
        return "sold"

    def method(self) -> None: ...


# --- for the tests ---


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not: in a container without an init no process reaps orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- tasks inside middleware ---

_NOTES: contextvars.ContextVar[str] = contextvars.ContextVar("_NOTES", default="")


class Noting(Middleware):
    def execute(self, job: JobContext) -> Iterator[None]:
        if job.task == "never_runs":
            raise PermissionError("not this task")
        token = _NOTES.set(f"{_NOTES.get()}hook {job.id} attempt {job.attempt}")
        yield
        _NOTES.reset(token)


class NotingOnLoop(Middleware):
    async def execute(self, job: JobContext) -> AsyncIterator[None]:
        token = _NOTES.set("loop ")
        yield
        _NOTES.reset(token)


hooked = Penstock("unix:///nowhere", prefix="nowhere", middleware=[Noting()])
hooked_on_loop = Penstock("unix:///nowhere", prefix="nowhere", middleware=[NotingOnLoop(), Noting()])


def _describe() -> tuple[int, str, bool]:
    return os.getpid(), _NOTES.get(), threading.current_thread() is threading.main_thread()


@hooked.task(isolate=True)
def describe() -> tuple[int, str, bool]:
    return _describe()


@hooked.task(isolate=True)
async def describe_async() -> tuple[int, str, bool]:
    return _describe()


@hooked_on_loop.task(isolate=True)
def describe_in_async_hooks() -> tuple[int, str, bool]:
    return _describe()


@hooked_on_loop.task(isolate=True)
async def describe_async_with_both() -> tuple[int, str, bool]:
    return _describe()


@hooked.task(isolate=True)
def never_runs(note: str) -> None:
    Path(note).write_text("ran")
