"""`penstock dashboard`: serves the dashboard."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.exits import Exit
from penstock.cli.where import HERE, Flag, Where
from penstock.errors import ConfigurationError
from penstock.terminal.tables import show
from penstock.worker.logs import PlainLines

PASSWORD = "PENSTOCK_DASHBOARD_PASSWORD"
ENVIRONMENT = "PENSTOCK_DASHBOARD_TOKEN"
NEW = "new"


def dashboard(
    *,
    listen: str = "127.0.0.1:8321",
    token: Annotated[str, Parameter(show_default=False)] = "",
    token_file: Annotated[str, Parameter(show_default=False)] = "",
    user: Annotated[str, Parameter(show_default=False)] = "",
    read_only: Flag = False,
    behind_proxy: Flag = False,
    where: Where = HERE,
) -> Exit:
    """Serve the dashboard until Ctrl-C: queues, jobs, workers, locks, messages and files, live in a browser.

    Everybody on this machine may use it, unless there is a token or a user. To listen on an address that other machines
    reach, it needs one of them.

    Parameters
    ----------
    listen
        Address and port. Port 0: any free one.
    token
        "new" makes a token, which the printed link contains. A token of your own is read from PENSTOCK_DASHBOARD_TOKEN
        or a file, because every user of the machine can read a command line.
    token_file
        The file with the token.
    user
        Ask visitors for this user name, and for the password in PENSTOCK_DASHBOARD_PASSWORD.
    read_only
        Allow no action: the dashboard only shows.
    behind_proxy
        A proxy of yours is in front and sets X-Forwarded-Proto. If that is https, cookies are marked Secure.
    """
    host, port = _address(listen)
    secret, is_new = _token(token, token_file)
    password = os.environ.get(PASSWORD, "")
    if user and not password:
        raise ConfigurationError(f"--user {user}: set its password in {PASSWORD}")
    if not (secret or user) and not _is_loopback(host):
        raise ConfigurationError(
            f"--listen {listen}: other machines reach this address, so add --token new, or --user with {PASSWORD}"
        )
    try:
        import uvicorn

        from penstock.web.access import Password
        from penstock.web.dashboard import pages
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"the dashboard needs more packages ({error}): install penstock[web]") from error
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"--listen {listen}: {error.strerror or error}; port 0 takes any free one") from error
    with listener, where.open() as inspector:
        auth = None
        if secret or user:
            auth = Password(user=user, password=password, token=secret, trusts_proxy=behind_proxy)
        write_audit_log()
        # uvicorn reads no forwarded headers: whoever sends them could claim to be local.
        settings = uvicorn.Config(
            pages(inspector, auth=auth, read_only=read_only, local_may_act=True),
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        show(
            f"dashboard of {inspector.location}",
            f"open {_link(host, listener.getsockname()[1], secret if is_new else '')}   (Ctrl-C ends it)",
            *(["add ?token=… to it"] if secret and not is_new else []),
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listener])
    return Exit.OK


def _token(token: str, file: str) -> tuple[str, bool]:
    """The token that the dashboard asks for, "" for none; and whether it was made just now."""
    if token and token != NEW:
        raise ConfigurationError(
            f"--token takes only the word new, because every user of the machine can read a command line: put your own "
            f"token in {ENVIRONMENT}, or name a file with --token-file"
        )
    if token and file:
        raise ConfigurationError("--token new makes a token, and --token-file reads one: use one of them")
    if file:
        try:
            text = Path(file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--token-file {file}: {getattr(error, 'strerror', '') or error}") from error
        if not text:
            raise ConfigurationError(f"--token-file {file}: it is empty")
        return text, False
    given = token or os.environ.get(ENVIRONMENT, "")
    return (secrets.token_urlsafe(18), True) if given == NEW else (given, False)


def write_audit_log() -> None:
    """Write who did what to stderr, unless the program has set up logging."""
    audit = logging.getLogger("penstock.audit")
    if not audit.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PlainLines())
        audit.addHandler(handler)
    audit.setLevel(logging.INFO)


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"--listen {listen}: use HOST:PORT, for example 127.0.0.1:8321 or [::1]:8321")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _link(host: str, port: int, token: str) -> str:
    name = f"[{host}]" if ":" in host else "localhost" if host == "0.0.0.0" else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
