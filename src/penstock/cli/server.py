"""`penstock server …`: the embedded server of this folder."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.app import Penstock
from penstock.cli.exits import Exit
from penstock.cli.where import REPLY_TIMEOUT, AsJson, Yes, confirm
from penstock.config import Configuration
from penstock.embedded import client as embedded
from penstock.embedded import keeper
from penstock.errors import ConfigurationError
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, many, size
from penstock.settings import Settings
from penstock.terminal.tables import show, show_facts, show_json


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The embedded server of a folder. Bytes and seconds; None while the server does not run."""

    running: bool
    state: str
    """`ready`, `starting`, `failed` or `stopped`."""

    data: str
    """The folder with its data."""

    data_bytes: int
    address: str | None = None
    pid: int | None = None
    keeper: int | None = None
    users: int = 0
    kept: bool = False
    """Whether it keeps running until `penstock server stop`, even if no program uses it."""

    version: str | None = None
    memory_bytes: int | None = None
    uptime: float | None = None


def start() -> None:
    """Start this folder's own server and keep it running until `penstock server stop`.

    Without this command the server runs only while a program uses it.
    """
    _check_allowed()
    home = embedded.find_home()
    with embedded.attach(home) as attachment:
        embedded.keep_running(home, attachment)
        show(
            f"{'Started' if attachment.started else 'It runs already'}, and keeps running until `penstock server stop`."
        )
    _show(_status(home))
    if Configuration().text("url"):
        print("penstock: note: PENSTOCK_URL or pyproject.toml points programs to another server", file=sys.stderr)


def stop() -> None:
    """Stop this folder's own server. Its data is kept, and a program that still uses it starts it again."""
    home = embedded.find_home()
    before = embedded.status(home)
    if not embedded.stop(home):
        return show(f"No server runs in {home}.")
    users = before.users if before else 0
    return show(
        f"Stopped; the data is kept in {home}."
        + (f" {many(users, 'program')} used it and may start it again." if users else "")
    )


def forget(*, yes: Yes = False) -> Exit:
    """Delete this folder's own server with all its data, and the sockets that it left behind.

    Nothing of Penstock is left in this folder then. Exit code 1 if it has files that are not Penstock's, which stay.

    Parameters
    ----------
    yes
        Do not ask for confirmation.
    """
    home = embedded.find_home()
    if not home.is_dir():
        show(f"There is no {home}.")
        return Exit.OK
    found = embedded.status(home)
    users = f", which {many(found.users, 'program')} use now" if found and found.users else ""
    confirm(f"This deletes {home} with {size(_data_bytes(home))} of data{users}.", yes=yes)
    if others := embedded.forget(home):
        names = ", ".join(file.name for file in others[:3])
        show(f"Deleted the data; {home} has files that Penstock did not write: {names}.")
        return Exit.FAILED
    show(f"Deleted {home}.")
    return Exit.OK


def status(*, as_json: AsJson = False) -> Exit:
    """Show this folder's own server. Exit code 3 if it does not run.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    home = embedded.find_home()
    found = _status(home)
    if as_json:
        show_json(found)
    else:
        _show(found)
    return Exit.OK if found.running else Exit.SERVER


def _check_allowed() -> None:
    if os.environ.get("PENSTOCK_EMBEDDED") == "0":
        raise ConfigurationError(
            "PENSTOCK_EMBEDDED=0 forbids the embedded server: unset it, or use one at PENSTOCK_URL"
        )


def _data_bytes(home: Path) -> int:
    return sum(file.stat().st_size for file in (home / keeper.DATA).rglob("*") if file.is_file())


def _status(home: Path) -> ServerStatus:
    data = home / keeper.DATA
    octets = _data_bytes(home)
    found = embedded.status(home)
    if found is None:
        return ServerStatus(False, "stopped", str(data), octets)
    known = ServerStatus(
        found.running,
        found.state,
        str(data),
        octets,
        found.address,
        found.pid or None,
        found.keeper,
        found.users,
        found.kept,
    )
    if not found.running:
        return known
    with Penstock(found.address, settings=Settings(give_up_after=REPLY_TIMEOUT)) as app:
        (facts,) = Inspector(app).servers()
    memory, uptime = int(facts.number("used_memory")), facts.number("uptime_in_seconds")
    return replace(known, version=facts.name, memory_bytes=memory, uptime=uptime)


def _show(found: ServerStatus) -> None:
    facts: dict[str, object] = {"server": found.state}
    if found.running:
        how_long = "until `penstock server stop`" if found.kept else "while it has users"
        facts |= {
            "address": found.address,
            "version": f"{found.version}, up for {age(found.uptime or 0)}",
            "process": f"{found.pid}, child of keeper {found.keeper}",
            "runs": f"{how_long}; {many(found.users, 'user')} now",
            "memory": size(found.memory_bytes or 0),
        }
    show_facts({**facts, "data": f"{found.data}, {size(found.data_bytes)}"})
