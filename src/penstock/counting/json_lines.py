"""Access logs with one JSON object in each line: nginx with `escape=json`, Caddy and Traefik.

Caddy and Traefik have names of their own. In nginx the administrator chooses the names, so several are known for each
column, and the first one present is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.counting.request import Column, LineReader, Precision
from penstock.counting.stamps import any_stamp, moment_of_any

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_PORT = re.compile(r"(?:\[([^\]]*)\]|([^:]*)):\d{1,5}\Z")

Values = Mapping[Column, object]


def _nginx(line: Mapping[str, Any]) -> Values | None:
    found: dict[Column, object] = {}
    for column, names in _NGINX_NAMES.items():
        found[column] = next((line[name] for name in names if name in line), None)
    if found["request"] is None:
        path, arguments = (_first(line, _PATHS), _first(line, _ARGUMENTS))
        found["request"] = _request_of(_first(line, _METHODS), path, arguments)
    return found


_NGINX_NAMES: dict[Column, tuple[str, ...]] = {
    "client": ("remote_addr", "remote_ip", "client_ip", "clientip", "client", "ip", "http_x_forwarded_for"),
    "stamp": ("time_local", "time_iso8601", "time", "timestamp", "@timestamp", "msec", "ts", "date", "datetime"),
    "request": ("request",),
    "status": ("status", "status_code", "response", "response_code"),
    "size": ("body_bytes_sent", "bytes_sent", "bytes", "size", "response_size"),
    "referer": ("http_referer", "http_referrer", "referer", "referrer"),
    "agent": ("http_user_agent", "user_agent", "agent", "useragent"),
    "vhost": ("host", "http_host", "server_name", "vhost"),
}
_METHODS = ("request_method", "method", "verb")
_PATHS = ("request_uri", "uri", "url", "path", "document_uri")
_ARGUMENTS = ("query_string", "args")


def _first(line: Mapping[str, Any], names: Sequence[str]) -> str:
    return str(next((line[name] for name in names if line.get(name)), ""))


def _request_of(method: str, path: str, query: str = "") -> str:
    if query and "?" not in path:
        path += f"?{query}"
    return f"{method} {path}".strip()


def _caddy(line: Mapping[str, Any]) -> Values | None:
    request = line.get("request")
    if not isinstance(request, dict):
        return None
    headers = {str(name).lower(): value for name, value in (request.get("headers") or {}).items()}
    return {
        "client": request.get("client_ip") or request.get("remote_ip") or _without_port(request.get("remote_addr")),
        "stamp": line.get("ts"),
        "request": _request_of(str(request.get("method", "")), str(request.get("uri", ""))),
        "status": line.get("status"),
        "size": line.get("size"),
        "referer": _header(headers.get("referer")),
        "agent": _header(headers.get("user-agent")),
        "vhost": request.get("host"),
    }


def _header(values: object) -> object:
    return values[0] if isinstance(values, list) and values else None


def _traefik(line: Mapping[str, Any]) -> Values | None:
    if "DownstreamStatus" not in line and "OriginStatus" not in line:
        return None
    return {
        "client": line.get("ClientHost") or _without_port(line.get("ClientAddr")),
        "stamp": line.get("StartLocal") or line.get("StartUTC") or line.get("time"),
        "request": _request_of(str(line.get("RequestMethod", "")), str(line.get("RequestPath", ""))),
        "status": line.get("DownstreamStatus", line.get("OriginStatus")),
        "size": line.get("DownstreamContentSize", line.get("OriginContentSize")),
        "referer": line.get("request_Referer"),
        "agent": line.get("request_User-Agent"),
        "vhost": line.get("RequestHost"),
    }


def _without_port(address: object) -> object:
    found = _PORT.match(address) if isinstance(address, str) else None
    return (found[1] or found[2]) if found else address


# --- cells ---


def _text(value: object) -> bytes:
    return value.encode(errors="replace") if isinstance(value, str) and value != "-" else b""


def _client(value: object) -> bytes:
    """The first of a list of clients."""
    return value.partition(",")[0].strip().encode(errors="replace") if isinstance(value, str) else b""


def _stamp(value: object) -> bytes:
    return b"" if isinstance(value, bool) or value is None else any_stamp(f"{value}".encode(errors="replace"))


def _number(value: object) -> bytes:
    """The digits of a number, or of a text that contains one; else nothing."""
    if isinstance(value, bool):
        return b""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        value = str(int(value))
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return value.encode()
    return b""


def _status(value: object) -> bytes:
    digits = _number(value)
    return digits if len(digits) == 3 or digits == b"0" else b""


def _size(value: object) -> bytes:
    return b"-" if value in {None, "", "-"} else _number(value)


_CELLS: dict[Column, Callable[[object], bytes]] = {
    "client": _client, "stamp": _stamp, "request": _text, "status": _status, "size": _size, "referer": _text,
    "agent": _text, "vhost": _text,
}  # fmt: skip
_REQUIRED: tuple[Column, ...] = ("stamp", "client", "status", "size")


@dataclass(frozen=True)
class JsonFormat:
    """A format with one JSON object in each line; `values` returns the columns of an object, or None."""

    name: str
    values: Callable[[Mapping[str, Any]], Values | None]

    def readers(self, wanted: frozenset[Column], precision: Precision, *, utc: bool) -> Sequence[LineReader]:
        columns: tuple[Column, ...] = (*_REQUIRED, *sorted(wanted - {*_REQUIRED}))
        makers: list[tuple[Column, Callable[[object], bytes]]] = [(column, _CELLS[column]) for column in columns]
        malformed = (b"",) * len(columns)

        def cells(line: bytes) -> tuple[bytes, ...]:
            if not line.startswith(b"{"):
                return malformed
            try:
                found = self.values(_decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, TypeError, RecursionError):
                return malformed
            if found is None:
                return malformed
            row = tuple([make(found[column]) for column, make in makers])
            return row if all(row[: len(_REQUIRED)]) else malformed

        def rows(text: bytes) -> list[tuple[bytes, ...]]:
            return [cells(line) for line in text.split(b"\n")[:-1]]

        cell: dict[Column, int] = {column: index for index, column in enumerate(columns)}
        return [LineReader(rows, cell, moment_of_any(utc=utc))]


CADDY = JsonFormat("caddy", _caddy)
TRAEFIK = JsonFormat("traefik", _traefik)
NGINX_JSON = JsonFormat("nginx-json", _nginx)
