"""An app with tasks that nap, block, and kill their process, for tests of `penstock worker` with real processes."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from penstock import Penstock, Settings
from tests.command_line import RECORD_START
from tests.servers import Server

TASKS = (
    RECORD_START
    + """
import asyncio, os, signal, time
from penstock import ConfigurationError, Penstock, Settings

if os.environ.get("BROKEN", "") in os.environ:
    raise ConfigurationError("this process cannot work")

app = Penstock(prefix=os.environ["SHOP"], settings=Settings(lease=float(os.environ["LEASE"])))

@app.task(queue="q")
async def nap(seconds: float) -> int:
    record_start()
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task(queue="q")
async def die(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))

@app.task(queue="q")
async def leave(code: int) -> None:
    os._exit(code)

@app.task(queue="q")
async def end_the_loop(how: str) -> None:
    async def sub_task() -> None:
        await asyncio.sleep(0.05)
        if how == "sys.exit":
            raise SystemExit(3)
        if how == "KeyboardInterrupt":
            raise KeyboardInterrupt
        if how == "loop.stop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(60)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    await asyncio.create_task(sub_task())

@app.task(queue="q")
async def swallow() -> None:
    record_start()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@app.task(queue="q")
async def block(seconds: float) -> None:
    record_start()
    time.sleep(seconds)

@app.task(queue="other")
async def innocent(seconds: float) -> int:
    record_start()
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task(queue="q")
def leak(mib: int) -> int:
    kept.append(bytearray(os.urandom(1)) * (mib << 20))
    return os.getpid()

kept = []

@app.task(queue="q", isolate=True)
def print_apart(text: str) -> int:
    print(text, flush=True)
    return os.getpid()

@app.task(queue="q")
def leave_an_orphan() -> int:
    import subprocess
    return int(subprocess.check_output(["sh", "-c", "sleep 0.3 >&- & echo $!"]))

@app.task(queue="q")
def hold_the_lock(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(30_000_000))
"""
)


class Shop:
    """The app on the producer's side."""

    def __init__(self, server: Server, lease: float) -> None:
        self.app = Penstock(server.address, prefix=f"shop-{uuid.uuid4().hex[:8]}", settings=Settings(lease=lease))
        self.queue = self.app.queue("q")
        self.where = {"PENSTOCK_URL": server.address, "SHOP": self.app.settings.prefix, "LEASE": str(lease)}
        declare = self.app.task(queue="q")
        self.nap, self.die, self.hold_the_lock = declare(nap), declare(die), declare(hold_the_lock)
        self.leave, self.block, self.leak = declare(leave), declare(block), declare(leak)
        self.end_the_loop, self.swallow = declare(end_the_loop), declare(swallow)
        self.print_apart, self.leave_an_orphan = declare(print_apart), declare(leave_an_orphan)
        self.innocent = self.app.task(queue="other")(innocent)

    def pids(self, *, busy: bool = False) -> list[int]:
        found = [who for who in self.queue.workers() if who.name and (who.held or not busy)]
        return [int(who.name.rpartition(":")[2]) for who in found]


async def nap(seconds: float) -> int:
    return 0


async def die(name: str) -> None: ...


async def leave(code: int) -> None: ...


async def end_the_loop(how: str) -> None: ...


async def swallow() -> None: ...


async def block(seconds: float) -> None: ...


async def innocent(seconds: float) -> int:
    return 0


def hold_the_lock(seconds: float) -> None: ...


def leak(mib: int) -> int:
    return 0


def print_apart(text: str) -> int:
    return 0


def leave_an_orphan() -> int:
    return 0


@contextlib.contextmanager
def opened_shop(server: Server, folder: Path, lease: float) -> Iterator[Shop]:
    """A shop whose workers, started in `folder`, find the app as `tasks:app`."""
    (folder / "tasks.py").write_text(TASKS)
    shop = Shop(server, lease)
    with shop.app:
        yield shop


def state(pid: int) -> str:
    """A letter; "" for a process that is no more."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return ""


def children_of(pid: int) -> dict[int, str]:
    """Its child processes, each with the letter of its state. Z is a zombie."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            letter, parent = stat.read_text().rpartition(") ")[2].split()[:2]
            if int(parent) == pid:
                found[int(stat.parent.name)] = letter
    return found


def gone(pid: int) -> bool:
    return state(pid) in {"", "Z", "X"}
