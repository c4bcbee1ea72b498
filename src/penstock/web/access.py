"""The rights of visitors: what they may see, and what they may do.

    request ─▶ known user? ─▶ reads ─▶ acts: same origin, JSON, and confirmed if something is destroyed
                 │ no `auth`
                 └─▶ from this machine, under a name of this machine ─▶ reads

A page of another site cannot act: a browser sends the site's own Origin, and cannot send JSON there without permission.
It cannot read through a name that it resolves to this machine either, because without `auth` the Host must be a name of
this machine. Forwarded headers are never read.
"""

from __future__ import annotations

import inspect
import ipaddress
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Authenticate: TypeAlias = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Returns the name of the user of a request, or None to refuse the request."""

COOKIE = "penstock-token"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Sent with every response: only files of the dashboard's own server run, and no page may contain it."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request. A visitor that may not act can still read."""

    name: str
    may_act: bool


class Access:
    """ASGI middleware: refuses who may not see the dashboard, and names the others in `request.state.visitor`."""

    def __init__(
        self, app: ASGIApp, authenticate: Authenticate | None, *, read_only: bool = False, local_may_act: bool = False
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._may_act = not read_only
        self._local_may_act = local_may_act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope, receive)
        refusal: Response | None
        visitor, refusal = await self._admit(request)
        if visitor is not None and request.method not in {"GET", "HEAD"}:
            refusal = self._why_not_act(request, visitor)
        if refusal is not None:
            for name, value in HEADERS.items():
                refusal.headers[name] = value
            return await refusal(scope, receive, send)
        scope.setdefault("state", {})["visitor"] = visitor

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        return await self._app(scope, receive, send_with_headers)

    async def _admit(self, request: Request) -> tuple[Visitor | None, Response | None]:
        if self._authenticate is None:
            if _is_local(request):
                return Visitor("local", self._may_act and self._local_may_act), None
            reason = "This dashboard has no users, so it answers only on the machine that it runs on: pass auth=…"
            return None, PlainTextResponse(reason, 403)
        found = self._authenticate(request)
        name = await found if inspect.isawaitable(found) else found
        if name is not None:
            if isinstance(self._authenticate, Password) and self._authenticate.is_in_query(request):
                return None, self._authenticate.keep(request)
            return Visitor(name, self._may_act), None
        challenge = {"WWW-Authenticate": 'Basic realm="penstock"'} if isinstance(self._authenticate, Password) else None
        return None, PlainTextResponse("Who are you?", 401, challenge)

    def _why_not_act(self, request: Request, visitor: Visitor) -> Response | None:
        if not visitor.may_act:
            return PlainTextResponse("This dashboard only shows: it has no users (auth=…), or is read-only", 403)
        origin = request.headers.get("origin", "")
        if not origin or urlsplit(origin).netloc != request.headers.get("host"):
            return PlainTextResponse("The request does not come from a page of this dashboard (its Origin)", 403)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse("Send JSON", 415)
        return None


def _is_local(request: Request) -> bool:
    """Whether the peer is this machine, and the request names it so."""
    if request.client is not None and not _is_loopback(request.client.host):
        return False
    return _is_loopback(host_name(request.headers))


def host_name(headers: Headers | Mapping[str, str]) -> str:
    """The name in the header Host, without port."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Password:
    """Authenticates with user and password, or with a token: in a link (`?token=…`), and then by a cookie."""

    def __init__(self, *, user: str = "", password: str = "", token: str = "") -> None:
        self._user, self._password, self._token = user, password, token

    def __call__(self, request: Request) -> str | None:
        given = request.query_params.get("token") or request.cookies.get(COOKIE, "")
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = value
        if self._token and _equal(given, self._token):
            return "token"
        if scheme.lower() == "basic" and self._password:
            try:
                user, _, password = b64decode(value, validate=True).decode().partition(":")
            except ValueError:
                return None
            if _equal(user, self._user) and _equal(password, self._password):
                return user
        return None

    def is_in_query(self, request: Request) -> bool:
        return "token" in request.query_params

    def keep(self, request: Request) -> Response:
        """Store the token of a link in a cookie, and go to the same page without it."""
        answer = RedirectResponse(str(request.url.remove_query_params("token")), 303)
        is_secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict", secure=is_secure)
        return answer


def _equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode(), expected.encode())
