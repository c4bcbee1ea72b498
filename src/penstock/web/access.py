"""The rights of visitors: what they may see, and what they may do.

    request ─▶ known user? ─▶ reads ─▶ acts: same origin, JSON, and confirmed if something is destroyed
                 │ no `auth`
                 └─▶ from this machine, under a name of this machine ─▶ reads

A page of another site cannot act: a browser sends the site's own Origin, and cannot send JSON there without permission.
It cannot read through a name that it resolves to this machine either, because without `auth` the Host must be a name of
this machine. A request that came through a proxy is refused without `auth`: the proxy is on this machine, and its
users need not be.
"""

from __future__ import annotations

import inspect
import ipaddress
import secrets
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Authenticate: TypeAlias = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Returns the name of the user of a request, or None to refuse the request."""

COOKIE = "penstock-session"

SESSION_SECONDS = 12 * 3600
"""Seconds for which a session lasts that began with the link."""

MOST_SESSIONS = 1000
"""The sessions of one dashboard at a time. The oldest end first."""

PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
"""A proxy adds at least one of them; a browser adds none."""

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
    """The sender of a request. A visitor that may not act can still read.

    session  whether a session of the dashboard names it, which it can end
    """

    name: str
    may_act: bool
    session: bool = False


class Access:
    """ASGI middleware: refuses the requests of visitors that may not see the dashboard, and stores any other visitor as
    `request.state.visitor`."""

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
            refusal = self._why_not_send(request) or self._sign_out(request) or self._why_not_act(visitor)
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
            if header := next((name for name in PROXY_HEADERS if name in request.headers), None):
                return None, PlainTextResponse(
                    f"The request came through a proxy (its header {header}), and this dashboard has no users, so it "
                    "cannot know who sent it: start it with --user or --token, or mount it with auth=…",
                    403,
                )
            if _is_local(request):
                return Visitor("local", self._may_act and self._local_may_act), None
            reason = "This dashboard has no users, so it answers only on the machine that it runs on: pass auth=…"
            return None, PlainTextResponse(reason, 403)
        found = self._authenticate(request)
        name = await found if inspect.isawaitable(found) else found
        own = self._authenticate if isinstance(self._authenticate, Password) else None
        if name is None:
            return None, own.refusal() if own else PlainTextResponse("Who are you?", 401)
        if own and own.is_in_query(request):
            return None, own.begin_session(request)
        return Visitor(name, self._may_act, own is not None and own.has_session(request)), None

    def _sign_out(self, request: Request) -> Response | None:
        """End the session if the request asks for that, and return the answer. Visitors that may not act can, too."""
        if isinstance(self._authenticate, Password) and request.url.path.endswith("/api/sign-out"):
            return self._authenticate.end_session(request)
        return None

    def _why_not_act(self, visitor: Visitor) -> Response | None:
        if not visitor.may_act:
            return PlainTextResponse("This dashboard only shows: it has no users (auth=…), or is read-only", 403)
        return None

    def _why_not_send(self, request: Request) -> Response | None:
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
    """Authenticates with user and password, or with a token.

    The token comes in a link (`?token=…`), which begins a session of twelve hours, or as `Authorization: Bearer`. A
    session is a cookie with a number of its own, so the cookie does not reveal the token, and a lost one can be ended.

    trusts_proxy  whether `X-Forwarded-Proto` comes from a proxy of yours. With https there, the cookie is Secure
    """

    def __init__(self, *, user: str = "", password: str = "", token: str = "", trusts_proxy: bool = False) -> None:
        self._user, self._password, self._token = user, password, token
        self._trusts_proxy = trusts_proxy
        self._sessions: dict[str, float] = {}

    def __call__(self, request: Request) -> str | None:
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        given = value if scheme.lower() == "bearer" else request.query_params.get("token", "")
        if self._token and _equal(given, self._token):
            return "token"
        if self.has_session(request):
            return "token"
        if scheme.lower() == "basic" and self._password:
            try:
                user, _, password = b64decode(value, validate=True).decode().partition(":")
            except ValueError:
                return None
            if _equal(user, self._user) and _equal(password, self._password):
                return user
        return None

    def refusal(self) -> Response:
        """The answer to a visitor that is not known. A browser asks for a user only if there is a password."""
        if self._password:
            return PlainTextResponse("Who are you?", 401, {"WWW-Authenticate": 'Basic realm="penstock"'})
        text = "Open the link with ?token=… again: there is no session here, or it has ended"
        return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})

    def is_in_query(self, request: Request) -> bool:
        return "token" in request.query_params

    def has_session(self, request: Request) -> bool:
        return self._sessions.get(request.cookies.get(COOKIE, ""), 0.0) > time.monotonic()

    def begin_session(self, request: Request) -> Response:
        """Begin a session, and go to the same page without the token."""
        now = time.monotonic()
        self._sessions = {name: end for name, end in self._sessions.items() if end > now}
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(24)
        self._sessions[name] = now + SESSION_SECONDS
        # Relative, because only the browser knows the scheme and the folder that a proxy shows it.
        rest = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
        target = f"./{quote(request.url.path.rpartition('/')[2])}" + (f"?{rest}" if rest else "")
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            COOKIE, name, max_age=SESSION_SECONDS, httponly=True, samesite="lax", secure=self._is_https(request)
        )
        return answer

    def end_session(self, request: Request) -> Response:
        """Sign out."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        answer = PlainTextResponse("", 204)
        answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
        return answer

    def _is_https(self, request: Request) -> bool:
        forwarded = request.headers.get("x-forwarded-proto", "") if self._trusts_proxy else ""
        return (forwarded or request.url.scheme) == "https"


def _equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode(), expected.encode())
