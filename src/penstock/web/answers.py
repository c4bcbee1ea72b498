"""Converts answers of the inspector to JSON, and masks and cuts bodies."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import PenstockError

Mask: TypeAlias = Callable[[Any], Any]
"""Gets the body of a job or message, and returns what may be shown of it."""

MOST_SHOWN = 20_000
"""Characters of a body or traceback that a page gets."""


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
    if mask is not None:
        body = mask(body)
    text = msgspec.json.format(msgspec.json.encode(body, enc_hook=str), indent=2).decode()
    return cut_text(text)


def cut_text(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}\n… {len(text) - MOST_SHOWN:,} more characters"


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def reporting_errors(handler: Handler) -> Handler:
    """The handler, which answers an error to the page: 404 or 400 with one line of text."""

    @functools.wraps(handler)
    async def asked(request: Request) -> Response:
        try:
            return await handler(request)
        except PenstockError as error:
            status = 404 if str(error).startswith("no ") else 502
            return Json({"error": str(error)}, status)
        except (ValueError, KeyError, TypeError) as error:
            return Json({"error": str(error)}, 400)

    return asked
