"""`penstock dashboard`: serves the dashboard."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.exits import Exit
from penstock.cli.where import HERE, Flag, Where
from penstock.errors import ConfigurationError
from penstock.terminal.tables import show

PASSWORD = "PENSTOCK_DASHBOARD_PASSWORD"
NEW = "new"


def dashboard(
    *,
    listen: str = "127.0.0.1:8321",
    token: Annotated[str, Parameter(env_var="PENSTOCK_DASHBOARD_TOKEN", show_env_var=False)] = "",
    user: str = "",
    read_only: Flag = False,
    where: Where = HERE,
) -> Exit:
    """Serve the dashboard until Ctrl-C: queues, jobs, workers, locks, messages and files, live in a browser.

    Everybody on this machine may use it, unless there is a token or a user. On another address than a loopback one
    it needs one of them.

    Parameters
    ----------
    listen
        Address and port. Port 0: any free one.
    token
        Asks for this token. "new" makes one. The printed link has it. Also set by PENSTOCK_DASHBOARD_TOKEN.
    user
        Asks for this user, with the password in PENSTOCK_DASHBOARD_PASSWORD.
    read_only
        Shows, and changes nothing.
    """
    host, port = _address(listen)
    password = os.environ.get(PASSWORD, "")
    if user and not password:
        raise ConfigurationError(f"--user {user}: set its password in {PASSWORD}")
    if not (token or user) and not _is_loopback(host):
        raise ConfigurationError(
            f"--listen {listen}: other machines reach this address, so add --token new, or --user with {PASSWORD}"
        )
    if token == NEW:
        token = secrets.token_urlsafe(18)
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
        auth = Password(user=user, password=password, token=token) if token or user else None
        # Forwarded headers are not read: whoever sends them could claim to be local.
        settings = uvicorn.Config(
            pages(inspector, auth=auth, read_only=read_only, local_may_act=True),
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        show(
            f"dashboard of {inspector.location}",
            f"open {_link(host, listener.getsockname()[1], token)}   (Ctrl-C ends it)",
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listener])
    return Exit.OK


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
