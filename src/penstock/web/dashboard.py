"""The dashboard as an ASGI application."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from penstock.app import Penstock
from penstock.ops.inspect import Inspector
from penstock.web.access import Access, Authenticate
from penstock.web.actions import Actions
from penstock.web.answers import Mask, reporting_errors
from penstock.web.questions import Questions
from penstock.web.sampler import Sampler

HERE = Path(__file__).parent

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


def dashboard(
    app: Penstock, *, auth: Authenticate | None = None, mask: Mask | None = None, read_only: bool = False
) -> ASGIApp:
    """The dashboard of an app, to be mounted in an ASGI application.

    auth       a function, also `async def`, that returns the name of a request's user, or None to refuse the request.
               Without it, only this machine can read, and no action is allowed
    mask       a function that returns what may be shown of a value: the body or result of a job or message, or a text
               (`str`) that a job has written: a reason, a traceback, progress, a tag, a step, a line of its log. If it
               raises, the value is hidden
    read_only  whether no action is allowed

    While a page is open, it sends a round trip for each queue every two seconds, another one for findings every four,
    and another one for the history every ten, however many viewers there are.
    """
    return pages(Inspector(app), auth=auth, mask=mask, read_only=read_only)


def pages(
    inspector: Inspector,
    *,
    auth: Authenticate | None = None,
    mask: Mask | None = None,
    read_only: bool = False,
    local_may_act: bool = False,
) -> ASGIApp:
    """The dashboard for the app of this inspector. `local_may_act`: without `auth`, this machine may also act."""
    sampler = Sampler(inspector)
    questions = Questions(inspector, sampler, mask)
    api = [*questions.routes(), *Actions(inspector, mask).routes()]
    routes = [
        Route("/", _page),
        Route("/healthz", reporting_errors(questions.health)),
        Mount("/api", routes=api),
        Route("/static/{file:path}", _static),
        Route("/text/{file}", _text),
    ]
    return Access(Starlette(routes=routes), auth, read_only=read_only, local_may_act=local_may_act)


async def _page(request: Request) -> Response:
    if not request.url.path.endswith("/"):  # relative addresses in the page need it
        return RedirectResponse(f"./{quote(request.url.path.rpartition('/')[2])}/")
    return _file("static", "index.html")


async def _static(request: Request) -> Response:
    return _file("static", request.path_params["file"])


async def _text(request: Request) -> Response:
    return _file("text", request.path_params["file"])


def _file(folder: str, name: str) -> Response:
    found = _read(folder, name)
    if found is None:
        raise HTTPException(404)
    return Response(
        found, media_type=_TYPES.get(Path(name).suffix, "text/plain"), headers={"Cache-Control": "no-cache"}
    )


@lru_cache(maxsize=64)
def _read(folder: str, name: str) -> bytes | None:
    """One of the dashboard's own files; None for anything else."""
    if "\0" in name:
        return None
    path = (HERE / folder / name).resolve()
    return path.read_bytes() if path.is_file() and path.is_relative_to(HERE / folder) else None
