"""Converts answers of the inspector to JSON, and masks and cuts what jobs contain and say."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import (
    BadCall,
    ChatGone,
    ConfigurationError,
    JobNotFound,
    NoReceiver,
    PenstockError,
    ScheduleNotFound,
    ServerError,
)

Mask: TypeAlias = Callable[[Any], Any]
"""Gets a body, a result, or a text that a job has written, and returns what may be shown of it."""

MOST_SHOWN = 20_000
"""Characters of a body or traceback that a page gets."""

MOST_SENT = 64 * 1024
"""Bytes of a request's body. A longer one is refused before it is read."""

_log = logging.getLogger("penstock.web")


class Json(Response):
    """An answer as JSON. Its dataclasses become objects, and what JSON does not know becomes text."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content, enc_hook=str)


def fields(answer: Any, **more: Any) -> dict[str, Any]:
    """The fields of a dataclass, and more."""
    return {**msgspec.to_builtins(answer, enc_hook=str), **more}


def body_text(body: Any, mask: Mask | None) -> str:
    """A body as JSON text, masked and cut."""
    body = masked(body, mask)
    text = msgspec.json.format(msgspec.json.encode(body, enc_hook=str), indent=2).decode()
    return cut_text(text)


def arguments_text(body: Any, task: str, mask: Mask | None) -> str:
    """The arguments of a call, or a value that was put, as JSON text. The mask gets both as they are stored."""
    shown = masked(body, mask)
    if task and isinstance(shown, list) and len(shown) == 2:
        shown = shown[1]
    return body_text(shown, None)


def said(text: str, mask: Mask | None) -> str:
    """A text that a job has written, such as a reason or a line of its log, masked and cut."""
    if not text:
        return text
    shown = masked(text, mask)
    return cut_text(shown if isinstance(shown, str) else body_text(shown, None))


def masked(value: Any, mask: Mask | None) -> Any:
    """What the mask leaves of a value. A mask that fails hides everything: it may not have seen what it must hide."""
    if mask is None:
        return value
    try:
        return mask(value)
    except Exception as error:
        _log.warning("mask= failed for a %s, which is hidden", type(value).__name__, exc_info=True)
        return f"(hidden: mask= raised {type(error).__name__})"


def cut_text(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}\n… {len(text) - MOST_SHOWN:,} more characters"


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def reporting_errors(handler: Handler) -> Handler:
    """The handler, which answers an error to the page with one line of text."""

    @functools.wraps(handler)
    async def asked(request: Request) -> Response:
        try:
            return await handler(request)
        except PenstockError as error:
            return Json({"error": str(error)}, status_of(error))
        except (ValueError, KeyError, TypeError) as error:
            return Json({"error": str(error)}, 400)

    return asked


def status_of(error: PenstockError) -> int:
    """502 only where the server is at fault: a proxy may repeat such a request, and an operator is called."""
    if isinstance(error, ServerError):
        return 502
    if isinstance(error, JobNotFound | ScheduleNotFound | ChatGone | NoReceiver) or str(error).startswith("no "):
        return 404
    return 400 if isinstance(error, ConfigurationError | BadCall) else 409


async def read_body(request: Request) -> bytes:
    """The body of a request. Raises HTTPException 413 for one of more than 64 KiB, without reading it to the end."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_SENT:
        raise too_long()
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_SENT:
            raise too_long()
    return bytes(body)


def too_long() -> HTTPException:
    return HTTPException(413, f"the body is longer than {MOST_SENT:,} bytes")
